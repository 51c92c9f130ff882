/* Host names: their one canonical form, and the patterns of routes.
 *
 * Called by the policy parser, the gateway and `berth why`. Pure: must not resolve, allocate or print.
 */
#include "policy/rules/host.h"

#include <errno.h>
#include <string.h>

static bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

static bool is_hex_digit(char byte)
{
    return is_digit(byte) || (byte >= 'a' && byte <= 'f');
}

/* inet_aton(3) takes one to four parts, each decimal, octal or hexadecimal. Whatever resolver the name may
 * reach, a name whose last label is such a number could be read as an address (WHATWG URL, "ends in a
 * number"). */
static bool is_number_label(const char *label)
{
    size_t length = strlen(label);
    if (strspn(label, "0123456789") == length)
        return true;
    if (label[0] != '0' || label[1] != 'x')
        return false;
    for (size_t i = 2; i < length; i++)
        if (!is_hex_digit(label[i]))
            return false;
    return true;
}

static int check_labels(const char *host)
{
    const char *label = host;
    for (;;) {
        size_t length = strcspn(label, ".");
        if (length == 0 || length > 63 || label[0] == '-' || label[length - 1] == '-')
            return -EINVAL;
        if (label[length] == '\0')
            return is_number_label(label) ? -EINVAL : 0;
        label += length + 1;
    }
}

int bt_host_canonical(const char *host, size_t length, char ret_host[BT_HOST_NAME_SIZE])
{
    char canonical[BT_HOST_NAME_SIZE];
    if (length > 0 && host[length - 1] == '.')
        length--;
    if (length == 0 || length >= sizeof(canonical))
        return -EINVAL;
    for (size_t i = 0; i < length; i++) {
        char byte = host[i];
        if (byte >= 'A' && byte <= 'Z')
            byte = (char)(byte - 'A' + 'a');
        if (!is_digit(byte) && !(byte >= 'a' && byte <= 'z') && byte != '-' && byte != '.')
            return -EINVAL;
        canonical[i] = byte;
    }
    canonical[length] = '\0';
    if (check_labels(canonical) < 0)
        return -EINVAL;
    memcpy(ret_host, canonical, length + 1);
    return 0;
}

bool bt_host_is_literal(const char *host, size_t length)
{
    /* An IPv6 literal, bracketed or not, with or without a zone; no host name holds a colon. */
    if (length > 0 && (host[0] == '[' || memchr(host, ':', length) != NULL))
        return true;
    if (length > 0 && host[length - 1] == '.')
        length--;
    char last[16];
    size_t start = length;
    while (start > 0 && host[start - 1] != '.')
        start--;
    if (length == start || length - start >= sizeof(last))
        return false;
    for (size_t i = start; i < length; i++)
        last[i - start] = (char)(host[i] >= 'A' && host[i] <= 'Z' ? host[i] - 'A' + 'a' : host[i]);
    last[length - start] = '\0';
    return is_number_label(last);
}

int bt_host_pattern_split(const char *pattern, struct bt_host_pattern *ret_pattern)
{
    struct bt_host_pattern split = {0};
    const char *colon = strchr(pattern, ':');
    size_t length = colon != NULL ? (size_t)(colon - pattern) : strlen(pattern);
    if (colon != NULL) {
        uint64_t port;
        if (bt_number_parse(colon + 1, strlen(colon + 1), 1, UINT16_MAX, &port) < 0)
            return -ERANGE;
        split.port = (uint16_t)port;
    }
    if (length >= 2 && pattern[0] == '*' && pattern[1] == '.') {
        split.is_wildcard = true;
        pattern += 2;
        length -= 2;
    }
    int result = bt_host_canonical(pattern, length, split.host);
    if (result < 0)
        return result;
    *ret_pattern = split;
    return 0;
}

int bt_host_pattern_check(const char *pattern, struct bt_error *error)
{
    struct bt_host_pattern split;
    int result = bt_host_pattern_split(pattern, &split);
    if (result == -ERANGE)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "write a port of 1 to 65535, as in example.com:8443",
                       "host \"%.260s\": what follows the colon is not a port", pattern);
    if (result < 0 && bt_host_is_literal(pattern, strcspn(pattern, ":")))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "name the host instead",
                       "host \"%.260s\" is an address; routes allow names only", pattern);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL,
                       "write a name such as example.com or *.example.com, letters, digits and hyphens; an "
                       "international name in its xn-- form",
                       "host \"%.260s\" is not a host name", pattern);
    return 0;
}

bool bt_host_pattern_matches(const struct bt_host_pattern *pattern, const char *host)
{
    if (!pattern->is_wildcard)
        return strcmp(pattern->host, host) == 0;
    size_t suffix = strlen(pattern->host);
    size_t length = strlen(host);
    /* At least one label and its dot in front: the apex does not match, nor does "notexample.com". */
    return length >= suffix + 2 && host[length - suffix - 1] == '.' &&
           strcmp(host + length - suffix, pattern->host) == 0;
}
