/* DNS messages (RFC 1035; EDNS: RFC 6891): one question in, one answer out. Called by dns_server.c. Pure. */
#ifndef BERTH_POLICY_GATEWAY_DNS_H
#define BERTH_POLICY_GATEWAY_DNS_H

#include "policy/rules/rules.h"

#define BT_DNS_QUESTION_MAX 512
#define BT_DNS_ANSWER_MAX 512
#define BT_DNS_TYPE_A 1
#define BT_DNS_CLASS_IN 1

enum bt_dns_code {
    BT_DNS_OK = 0,
    BT_DNS_FORMAT = 1,
    BT_DNS_SERVER = 2,
    BT_DNS_NOT_IMPLEMENTED = 4,
    BT_DNS_REFUSED = 5
};

struct bt_dns_question {
    uint16_t id;
    bool wants_recursion;
    bool has_edns;
    bool has_host;                /* the name is a host name; host is its canonical form */
    char host[BT_HOST_NAME_SIZE]; /* else: the name with odd bytes as '?', cut, for records */
    uint16_t type, class;
    size_t end; /* of the question section in the packet */
};

/* Returns 0, -EBADMSG (not a query: must not be answered), or the negative enum bt_dns_code - 100 to answer
 * with:
 * -(100 + BT_DNS_FORMAT) or -(100 + BT_DNS_NOT_IMPLEMENTED); then only id, wants_recursion and end = 12 are
 * set. */
int bt_dns_question_parse(const uint8_t *packet, size_t length,
                          struct bt_dns_question *ret_question) BT_MUST_CHECK;

/* Writes the answer to a question of this packet: the code and, when address is not 0, one A record with it
 * (host byte order). Returns its length, at most BT_DNS_ANSWER_MAX. */
size_t bt_dns_answer_write(const uint8_t *packet, const struct bt_dns_question *question,
                           enum bt_dns_code code, uint32_t address, uint32_t ttl_seconds,
                           uint8_t ret_answer[BT_DNS_ANSWER_MAX]);

#endif
