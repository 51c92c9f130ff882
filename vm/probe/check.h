/* One check of berth-probe while it runs: a socket, a deadline, an outcome. */
#ifndef BERTH_VM_PROBE_CHECK_H
#define BERTH_VM_PROBE_CHECK_H

#include "vm/probe/plan.h"

/* What was seen; the judgement is the host's. */
enum bt_probe_outcome {
    BT_PROBE_OUTCOME_NONE,        /* still running */
    BT_PROBE_OUTCOME_CONNECTED,   /* TCP connection made */
    BT_PROBE_OUTCOME_DATA,        /* a datagram came back */
    BT_PROBE_OUTCOME_RESET,       /* RST, or ICMP port unreachable: somebody is there */
    BT_PROBE_OUTCOME_PROHIBITED,  /* ICMP administratively prohibited (RFC 1812, codes 9, 10, 13; RFC 4443,
                                     code 1) */
    BT_PROBE_OUTCOME_UNREACHABLE, /* another ICMP error */
    BT_PROBE_OUTCOME_SILENT,      /* nothing until the deadline */
    BT_PROBE_OUTCOME_UNSENDABLE,  /* the guest's own kernel refused to send */
    BT_PROBE_OUTCOME_SENT,        /* sent, and nothing can come back (spoofed source) */
    BT_PROBE_OUTCOME_REFUSED,     /* DNS answer without addresses */
    BT_PROBE_OUTCOME_ANSWERED,    /* DNS answer with addresses */
    BT_PROBE_OUTCOME_MAX
};
const char *bt_probe_outcome_name(enum bt_probe_outcome outcome);

struct bt_probe_check {
    const struct bt_probe_entry *entry;
    int fd; /* -1 when done */
    int64_t started_ms;
    int64_t took_ms;
    unsigned packets; /* that have left towards the target: the host counts what it drops */
    uint16_t dns_id;
    enum bt_probe_outcome outcome;
    char from[INET6_ADDRSTRLEN]; /* who sent the ICMP error; else empty */
    char detail[96];             /* plain ASCII without quotes */
};

/* Starts a check; it may be done at once. */
void bt_probe_check_start(struct bt_probe_check *check, const struct bt_probe_entry *entry, int64_t now_ms);
/* What to wait for on its socket. */
short bt_probe_check_events(const struct bt_probe_check *check);
/* Its socket is ready. */
void bt_probe_check_ready(struct bt_probe_check *check, int64_t now_ms);
/* Its deadline has passed. */
void bt_probe_check_expire(struct bt_probe_check *check, int64_t now_ms);

/* Packets, built and read in packet.c. Both return a length, or -EINVAL. */
#define BT_PROBE_PACKET_MAX 512
/* A DNS question for the A records of a name (RFC 1035, section 4). */
int bt_probe_dns_question(const char *name, uint16_t id, uint8_t ret_packet[BT_PROBE_PACKET_MAX]);
/* Response code and number of answers of a DNS answer with this id. Returns 0 or -EINVAL. */
int bt_probe_dns_answer(const uint8_t *packet, size_t length, uint16_t id, unsigned *ret_code,
                        unsigned *ret_answers);
/* An IPv4 packet with a UDP datagram of text (RFC 791, RFC 768). Addresses and ports in host byte order. */
int bt_probe_udp_packet(uint32_t source, uint32_t to, uint16_t port, const char *text,
                        uint8_t ret_packet[BT_PROBE_PACKET_MAX]);

#endif
