/* Policy documents, and the decision on a host taken from the same bytes (behind a NUL). No address is ever
 * allowed. */
#include <stdlib.h>
#include <string.h>

#include "policy/rules/rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *separator = size > 0 ? memchr(data, '\0', size) : NULL;
    size_t document_size = separator != NULL ? (size_t)(separator - data) : size;
    struct bt_policy *policy;
    struct bt_error error;
    struct bt_verdict verdict;
    char host[512] = "a.example";
    uint32_t address;
    if (separator != NULL && size - document_size - 1 < sizeof(host)) {
        memcpy(host, separator + 1, size - document_size - 1);
        host[size - document_size - 1] = '\0';
    }
    json_t *document = json_loadb((const char *)data, document_size, JSON_ALLOW_NUL, NULL);
    if (document == NULL)
        return 0;
    if (bt_policy_parse(document, &policy, &error) == 0) {
        bt_policy_decide_connection(policy, host, 443, &verdict);
        if (verdict.is_allowed && (bt_ipv4_parse(host, &address) == 0 || verdict.rule[0] == '\0'))
            abort();
        bt_policy_decide_name(policy, host, &verdict);
        bt_policy_free(policy);
    }
    json_decref(document);
    return 0;
}
