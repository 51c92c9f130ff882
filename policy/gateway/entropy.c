/* See entropy.h. The measure is Shannon's ("A Mathematical Theory of Communication", 1948), in bits for each
 * character. */
#include <math.h>
#include <string.h>

#include "policy/gateway/entropy.h"

#define RUN_MIN 24
#define DIGITS_MIN 2
#define LETTERS_MIN 3 /* of either case */

static const bool run_bytes[256] = {
    ['0' ... '9'] = true, ['A' ... 'Z'] = true, ['a' ... 'z'] = true, ['+'] = true,
    ['/'] = true,         ['='] = true,         ['-'] = true,         ['_'] = true,
};

/* What random text of base64 reaches nearly always, and names, paths and prose hardly ever. */
static double bits_wanted(size_t length)
{
    if (length < 32)
        return 4.0;
    return length < 48 ? 4.3 : 4.7;
}

static double bits_of(const char *text, size_t length)
{
    unsigned counts[256] = {0};
    double sum = 0;
    for (size_t i = 0; i < length; i++)
        counts[(unsigned char)text[i]]++;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(counts); i++)
        if (counts[i] != 0)
            sum += counts[i] * log2(counts[i]);
    return log2((double)length) - sum / (double)length;
}

/* Digests that say so: sha512-..., as lock files have them. */
static bool is_digest(const char *text)
{
    return strncmp(text, "sha1-", 5) == 0 || strncmp(text, "sha256-", 7) == 0 ||
           strncmp(text, "sha384-", 7) == 0 || strncmp(text, "sha512-", 7) == 0;
}

static bool is_random(const char *text, size_t length)
{
    size_t upper = 0, lower = 0, digits = 0;
    if (length < RUN_MIN || is_digest(text))
        return false;
    for (size_t i = 0; i < length; i++) {
        upper += text[i] >= 'A' && text[i] <= 'Z';
        lower += text[i] >= 'a' && text[i] <= 'z';
        digits += text[i] >= '0' && text[i] <= '9';
    }
    return upper >= LETTERS_MIN && lower >= LETTERS_MIN && digits >= DIGITS_MIN &&
           bits_of(text, length) >= bits_wanted(length);
}

bool bt_entropy_scan(struct bt_entropy *entropy, const void *data, size_t length)
{
    const unsigned char *bytes = data;
    bool is_found = false;
    for (size_t i = 0; i < length; i++) {
        bool is_inside = run_bytes[bytes[i]];
        if (is_inside && entropy->is_judged)
            continue;
        if (is_inside)
            entropy->sample[entropy->length++] = (char)bytes[i];
        if (!is_inside || entropy->length == BT_ENTROPY_SAMPLE) {
            is_found = is_found || (!entropy->is_judged && is_random(entropy->sample, entropy->length));
            entropy->is_judged = is_inside;
            entropy->length = 0;
        }
    }
    return is_found;
}
