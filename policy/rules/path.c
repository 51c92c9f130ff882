/* Paths of requests and of routes: their normal form, and how one is held against the other. See rules.h.
 *
 * Servers and frameworks disagree about dot segments, encoded slashes, empty segments, parameters behind a
 * semicolon and bytes that are decoded twice. Where a policy distinguishes paths, whatever they disagree
 * about is refused rather than guessed. Pure: must not allocate or print.
 */
#include <errno.h>
#include <string.h>

#include "policy/rules/rules.h"

/* RFC 3986, 2.3: what need not be encoded. The tilde is left out: older clients encode it, and no server
 * takes it for a delimiter. */
static bool is_unreserved(unsigned byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') ||
           byte == '-' || byte == '.' || byte == '_';
}

/* RFC 3986, 3.3: what may stand in a path as it is, but for the semicolon. */
static bool is_plain(char byte)
{
    return byte != '\0' && (is_unreserved((unsigned char)byte) || strchr("~!$&'()*+,=:@/", byte) != NULL);
}

/* Encoded bytes that mean something else once decoded, or decoded twice. */
static bool is_encoding_ambiguous(unsigned byte)
{
    return byte < 0x20 || byte == 0x7f || is_unreserved(byte) || strchr("/\\%;?#", (int)byte) != NULL;
}

/* The bytes of one UTF-8 sequence, all percent-encoded, at data ("%C3%BC"): how many bytes of text they are,
 * or 0. No overlong forms, no surrogates (RFC 3629, section 4): such have been read as slashes and dots. */
static size_t encoded_character(const char *data, size_t length)
{
    unsigned bytes[4];
    size_t count = 0;
    for (size_t at = 0; count < BT_ARRAY_LENGTH(bytes) && at + 2 < length && data[at] == '%'; at += 3) {
        int high = bt_hex_value(data[at + 1]), low = bt_hex_value(data[at + 2]);
        if (high < 0 || low < 0)
            break;
        bytes[count++] = (unsigned)(high * 16 + low);
    }
    if (count == 0)
        return 0;
    if (bytes[0] < 0x80)
        return is_encoding_ambiguous(bytes[0]) ? 0 : 3;
    size_t size = bytes[0] >= 0xf0 ? 4 : bytes[0] >= 0xe0 ? 3 : 2;
    if (bytes[0] < 0xc2 || bytes[0] > 0xf4 || count < size)
        return 0;
    for (size_t i = 1; i < size; i++)
        if ((bytes[i] & 0xc0U) != 0x80)
            return 0;
    if ((bytes[0] == 0xe0 && bytes[1] < 0xa0) || (bytes[0] == 0xed && bytes[1] > 0x9f) ||
        (bytes[0] == 0xf0 && bytes[1] < 0x90) || (bytes[0] == 0xf4 && bytes[1] > 0x8f))
        return 0;
    return size * 3;
}

/* No empty segment but the last, none that is "." or "..". */
static bool has_plain_segments(const char *path)
{
    for (const char *segment = path + 1;; segment++) {
        size_t length = strcspn(segment, "/");
        bool is_last = segment[length] == '\0';
        if (length == 0 && !is_last)
            return false;
        if ((length == 1 && segment[0] == '.') || (length == 2 && segment[0] == '.' && segment[1] == '.'))
            return false;
        if (is_last)
            return true;
        segment += length;
    }
}

int bt_policy_path_normalise(struct bt_http_slice path, char *ret_path, size_t size)
{
    const char *query = path.length > 0 ? memchr(path.data, '?', path.length) : NULL;
    size_t length = query != NULL ? (size_t)(query - path.data) : path.length;
    if (length == 0 || path.data[0] != '/')
        return -EINVAL;
    if (length >= size)
        return -ENAMETOOLONG;
    for (size_t i = 0; i < length;) {
        size_t taken = 1;
        if (path.data[i] == '%')
            taken = encoded_character(path.data + i, length - i);
        else if (!is_plain(path.data[i]))
            taken = 0;
        if (taken == 0)
            return -EINVAL;
        for (size_t end = i + taken; i < end; i++) {
            char byte = path.data[i];
            ret_path[i] = (char)(taken > 1 && byte >= 'a' && byte <= 'f' ? byte - 'a' + 'A' : byte);
        }
    }
    ret_path[length] = '\0';
    return has_plain_segments(ret_path) ? 0 : -EINVAL;
}

/* Without the asterisk of "/…/" + "*"; *ret_is_prefix says whether there was one. */
static size_t stem_length(const char *pattern, bool *ret_is_prefix)
{
    size_t length = strlen(pattern);
    *ret_is_prefix = length >= 2 && pattern[length - 1] == '*' && pattern[length - 2] == '/';
    return *ret_is_prefix ? length - 1 : length;
}

bool bt_policy_path_pattern_is_valid(const char *pattern)
{
    char normal[BT_POLICY_PATH_SIZE];
    bool is_prefix;
    size_t length = stem_length(pattern, &is_prefix);
    /* An asterisk elsewhere would look like a pattern, and be a plain byte. */
    if (memchr(pattern, '*', length) != NULL || strchr(pattern, '?') != NULL ||
        bt_policy_path_normalise((struct bt_http_slice){pattern, length}, normal, sizeof(normal)) < 0)
        return false;
    return memcmp(normal, pattern, length) == 0;
}

bool bt_policy_path_matches(const char *pattern, const char *path)
{
    bool is_prefix;
    size_t length = stem_length(pattern, &is_prefix);
    if (!is_prefix)
        return strcmp(pattern, path) == 0;
    return strncmp(pattern, path, length) == 0;
}
