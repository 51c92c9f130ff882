/* Secrets in all their spellings. See secrets.h. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/detectors.h"
#include "policy/gateway/secrets.h"

#define NODES_MAX (1024U * 1024)
#define LONG 1024 /* longer ones, which are keys in files, are looked for in fewer spellings */
#define SPELLING_MAX (3 * BT_SECRET_MAX + 1)

struct bt_secrets {
    unsigned references;
    unsigned kinds; /* bits */
    struct bt_literals *literals;
};

/* One secret while its spellings are added. */
struct speller {
    struct bt_literals *literals;
    const struct bt_secret *secret;
    uint8_t text[SPELLING_MAX];
    int result;
};

static void add(struct speller *speller, const void *text, size_t length)
{
    if (speller->result == 0)
        speller->result = bt_literals_add(speller->literals, text, length, true,
                                          (uint16_t)speller->secret->kind, NODES_MAX);
}

/* The part of base64 (RFC 4648) that is the same whatever stands before and behind, when `before` bytes stand
 * before (modulo 3): characters that hold bits of foreign bytes are left out. */
static void add_base64(struct speller *speller, size_t before, const char digits[64])
{
    const struct bt_secret *secret = speller->secret;
    size_t bits = 8 * secret->length, count = 0;
    /* The first whole character begins at the first multiple of 6 bits at or behind the secret's start. */
    for (size_t bit = (6 - 8 * before % 6) % 6; bit + 6 <= bits; bit += 6) {
        size_t byte = bit / 8;
        unsigned window = (unsigned)(uint8_t)secret->value[byte] << 8;
        if (byte + 1 < secret->length)
            window |= (uint8_t)secret->value[byte + 1];
        speller->text[count++] = (uint8_t)digits[window >> (10 - bit % 8) & 63];
    }
    add(speller, speller->text, count);
}

static void add_all_base64(struct speller *speller)
{
    static const char standard[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char url[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (size_t before = 0; before < 3; before++) {
        add_base64(speller, before, standard);
        if (speller->secret->length <= LONG)
            add_base64(speller, before, url);
    }
}

static const char *const hex_digits[2] = {"0123456789abcdef", "0123456789ABCDEF"};

static void add_hex(struct speller *speller, const char *digits)
{
    for (size_t i = 0; i < speller->secret->length; i++) {
        uint8_t byte = (uint8_t)speller->secret->value[i];
        speller->text[2 * i] = (uint8_t)digits[byte >> 4];
        speller->text[2 * i + 1] = (uint8_t)digits[byte & 15];
    }
    add(speller, speller->text, 2 * speller->secret->length);
}

/* keeps: what is left as it is besides letters and digits; NULL: nothing at all is. */
static void add_percent(struct speller *speller, const char *keeps, const char *digits)
{
    size_t count = 0;
    for (size_t i = 0; i < speller->secret->length; i++) {
        uint8_t byte = (uint8_t)speller->secret->value[i];
        if (keeps != NULL && byte != '\0' && (isalnum(byte) || strchr(keeps, byte) != NULL)) {
            speller->text[count++] = byte;
            continue;
        }
        speller->text[count++] = '%';
        speller->text[count++] = (uint8_t)digits[byte >> 4];
        speller->text[count++] = (uint8_t)digits[byte & 15];
    }
    add(speller, speller->text, count);
}

static void add_all_percent(struct speller *speller)
{
    /* RFC 3986 unreserved; the same with slashes, as in paths; encodeURIComponent; encodeURI; HTML forms */
    static const char *const keeps[] = {"-_.~", "-_.~/", "-_.!~*'()", "-_.!~*'();,/?:@&=+$#", "-_.*"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(hex_digits); i++) {
        for (size_t j = 0; j < BT_ARRAY_LENGTH(keeps); j++)
            add_percent(speller, keeps[j], hex_digits[i]);
        /* Nobody encodes everything but to hide it; short ones only, since it triples the automaton. */
        if (speller->secret->kind == BT_SECRET_CREDENTIAL && speller->secret->length <= 256)
            add_percent(speller, NULL, hex_digits[i]);
    }
}

static void add_json(struct speller *speller, bool escapes_slash)
{
    static const char escaped[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    size_t count = 0;
    for (size_t i = 0; i < speller->secret->length; i++) {
        char byte = speller->secret->value[i];
        const char *special = byte != '\0' ? strchr(escaped, byte) : NULL;
        if (special != NULL || (byte == '/' && escapes_slash))
            speller->text[count++] = '\\';
        speller->text[count++] = (uint8_t)(special != NULL ? letters[special - escaped] : byte);
    }
    add(speller, speller->text, count);
}

static int add_secret(struct bt_literals *literals, const struct bt_secret *secret)
{
    struct speller *speller = bt_new(1, sizeof(*speller));
    speller->literals = literals;
    speller->secret = secret;
    add(speller, secret->value, secret->length);
    add_all_base64(speller);
    if (secret->length <= LONG) {
        add_hex(speller, hex_digits[0]);
        add_hex(speller, hex_digits[1]);
        add_all_percent(speller);
    }
    add_json(speller, false);
    add_json(speller, true);
    int result = speller->result;
    explicit_bzero(speller, sizeof(*speller));
    free(speller);
    return result;
}

static int too_much(struct bt_error *error)
{
    return bt_fail(error, BT_EXIT_ERROR, E2BIG, "use fewer or shorter credentials for one agent",
                   "more secrets than can be looked for: at most %d, of %d bytes each and %d together",
                   BT_SECRETS_MAX, BT_SECRET_MAX, BT_SECRETS_BYTES_MAX);
}

int bt_secrets_new(const struct bt_secret *secrets, size_t count, struct bt_secrets **ret_secrets,
                   struct bt_error *error)
{
    struct bt_literals *literals = bt_literals_new();
    size_t together = 0;
    unsigned kinds = 0;
    int result = count > BT_SECRETS_MAX ? -E2BIG : 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        together += secrets[i].length;
        if (secrets[i].length > BT_SECRET_MAX || together > BT_SECRETS_BYTES_MAX)
            result = -E2BIG;
        else if (secrets[i].length >= BT_SECRET_MIN)
            result = add_secret(literals, &secrets[i]);
        if (result == 0 && secrets[i].length >= BT_SECRET_MIN)
            kinds |= 1U << secrets[i].kind;
    }
    if (result < 0 || kinds == 0) {
        (void)bt_literals_free(literals);
        if (result == 0)
            *ret_secrets = NULL;
        return result < 0 ? too_much(error) : 0;
    }
    if (bt_detectors_outbound() != NULL)
        bt_detectors_add_anchors(bt_detectors_outbound(), literals);
    bt_literals_ready(literals);
    struct bt_secrets *made = bt_new(1, sizeof(*made));
    made->references = 1;
    made->kinds = kinds;
    made->literals = literals;
    *ret_secrets = made;
    return 0;
}

struct bt_secrets *bt_secrets_keep(struct bt_secrets *secrets)
{
    if (secrets != NULL)
        secrets->references++;
    return secrets;
}

struct bt_secrets *bt_secrets_free(struct bt_secrets *secrets)
{
    if (secrets == NULL || --secrets->references != 0)
        return NULL;
    secrets->literals = bt_literals_free(secrets->literals);
    free(secrets);
    return NULL;
}

const struct bt_literals *bt_secrets_literals(const struct bt_secrets *secrets)
{
    return secrets->literals;
}

bool bt_secrets_have(const struct bt_secrets *secrets, enum bt_secret_kind kind)
{
    return secrets != NULL && (secrets->kinds >> kind & 1) != 0;
}
