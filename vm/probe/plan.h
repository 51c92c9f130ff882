/* The plan of berth-probe: text lines on standard input, one check a line, fields separated by one blank.
 *
 *   connect NAME DEADLINE_MS ADDRESS PORT            connect by TCP
 *   tcp NAME DEADLINE_MS ADDRESS PORT NONCE          the same, and when it succeeds send the nonce
 *   udp NAME DEADLINE_MS ADDRESS PORT NONCE          send the nonce, wait for an answer
 *   dns NAME DEADLINE_MS ADDRESS QUERY               ask for an A record, port 53
 *   spoof NAME DEADLINE_MS SOURCE ADDRESS PORT NONCE send the nonce from an address that is not ours (raw
 * socket)
 *
 * NAME: a-z, 0-9, '-', at most 47 bytes. ADDRESS: IPv4, or IPv6 for connect, tcp and udp. NONCE: letters and
 * digits, at most 63. The whole plan at most 16 KiB.
 */
#ifndef BERTH_VM_PROBE_PLAN_H
#define BERTH_VM_PROBE_PLAN_H

#include <netinet/in.h>

#include "ipc/base/base.h"

#define BT_PROBE_PLAN_MAX 16384U
#define BT_PROBE_CHECKS_MAX 64
#define BT_PROBE_NAME_SIZE 48
#define BT_PROBE_TEXT_SIZE 128
#define BT_PROBE_DEADLINE_MAX_MS 30000U

enum bt_probe_kind { BT_PROBE_TCP, BT_PROBE_UDP, BT_PROBE_DNS, BT_PROBE_SPOOF };

struct bt_probe_entry {
    enum bt_probe_kind kind;
    char name[BT_PROBE_NAME_SIZE];
    int deadline_ms;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } to;
    uint32_t source;               /* spoof: host byte order */
    char text[BT_PROBE_TEXT_SIZE]; /* the nonce (may be empty), or the name to ask for */
};

struct bt_probe_plan {
    struct bt_probe_entry entries[BT_PROBE_CHECKS_MAX];
    size_t count;
};

/* Parses text[0..length). Returns 0, or -EINVAL with *ret_line the number (from 1) of the first wrong line.
 */
int bt_probe_plan_parse(const char *text, size_t length, struct bt_probe_plan *ret_plan, unsigned *ret_line);

#endif
