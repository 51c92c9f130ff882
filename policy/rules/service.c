/* Configuration and secrets of the two programs of policy/. See service.h.
 *
 * Must not run after the event loop began, but for the comparisons.
 */
#include "policy/rules/service.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/resource.h>

int bt_service_config_load(const char *path, json_t **ret_document, struct bt_error *error)
{
    BT_CLEANUP(bt_buffer_wipe) struct bt_buffer text = {0};
    int result = bt_file_read(path, 256 * 1024, &text, error);
    if (result < 0)
        return result;
    json_error_t parse_error;
    json_t *document = json_loadb(text.data, text.length, JSON_REJECT_DUPLICATES, &parse_error);
    if (!json_is_object(document)) {
        json_decref(document);
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "%s: not a JSON object (line %d)", path,
                       parse_error.line);
    }
    *ret_document = document;
    return 0;
}

int bt_service_config_text(const json_t *document, const char *key, bool may_be_absent, const char **ret_text,
                           struct bt_error *error)
{
    const json_t *value = json_object_get(document, key);
    if (may_be_absent && (value == NULL || json_is_null(value))) {
        *ret_text = NULL;
        return 0;
    }
    if (!json_is_string(value) || json_string_length(value) == 0 ||
        strlen(json_string_value(value)) != json_string_length(value))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "configuration: \"%s\" is missing or not a string",
                       key);
    *ret_text = json_string_value(value);
    return 0;
}

int bt_service_endpoint_parse(const char *text, uint16_t fallback_port, uint32_t *ret_address,
                              uint16_t *ret_port, struct bt_error *error)
{
    char host[BT_IPV4_TEXT_SIZE];
    uint64_t port = fallback_port;
    uint32_t address;
    size_t length = strcspn(text, ":");
    int result = length < sizeof(host) ? 0 : -EINVAL;
    if (result == 0) {
        memcpy(host, text, length);
        host[length] = '\0';
        result = bt_ipv4_parse(host, &address);
    }
    if (result == 0 && text[length] == ':')
        result = bt_number_parse(text + length + 1, strlen(text + length + 1), 1, UINT16_MAX, &port);
    if (result < 0 || port == 0)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "write it as 203.0.113.53:53",
                       "configuration: \"%.64s\" is not an IPv4 address and port", text);
    *ret_address = address;
    *ret_port = (uint16_t)port;
    return 0;
}

size_t bt_service_raise_descriptors(size_t maximum)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 256;
    rlim_t wanted = limit.rlim_max < maximum ? limit.rlim_max : (rlim_t)maximum;
    struct rlimit raised = {wanted, limit.rlim_max};
    if (wanted > limit.rlim_cur && setrlimit(RLIMIT_NOFILE, &raised) == 0)
        return (size_t)wanted;
    return (size_t)limit.rlim_cur;
}

bool bt_service_digest_equal(const char *left, const char *right)
{
    size_t length = BT_DIGEST_TEXT_SIZE - 1;
    if (strlen(left) != length || strlen(right) != length)
        return false;
    return CRYPTO_memcmp(left, right, length) == 0;
}

void bt_service_secret_digest(const char *secret, size_t length, char ret_digest[BT_DIGEST_TEXT_SIZE])
{
    bt_digest_bytes(secret, length, ret_digest);
}
