/* DNS questions: any datagram. What is answered fits the answer's buffer and carries the question's id. */
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/dns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bt_dns_question question;
    uint8_t answer[BT_DNS_ANSWER_MAX];
    char again[BT_HOST_NAME_SIZE];
    int result = bt_dns_question_parse(data, size, &question);
    if (result == 0 && question.has_host &&
        (bt_host_canonical(question.host, strlen(question.host), again) < 0 ||
         strcmp(again, question.host) != 0))
        abort();
    if (size < 12 || (data[2] & 0x80) != 0)
        return 0;
    enum bt_dns_code code = result < 0 ? (enum bt_dns_code)(-result - 100) : BT_DNS_OK;
    size_t length = bt_dns_answer_write(data, &question, code, 0x0af30006, 5, answer);
    if (length < 12 || length > sizeof(answer) || answer[0] != data[0] || answer[1] != data[1])
        abort();
    return 0;
}
