/* Who may connect and how often a uid may ask. Pure: the clock is a parameter; constant size.
 *
 * Used by the engine alone. A uid may have one connection a lease plus BT_SPARE_PER_UID; all uids together
 * BT_SPARE_TOTAL spare ones. Requests cost tokens of the uid's bucket.
 */
#ifndef BERTH_HELPER_ADMISSION_H
#define BERTH_HELPER_ADMISSION_H

#include "ipc/wire/pool.h"

#define BT_SPARE_PER_UID 4U
#define BT_SPARE_TOTAL 16U
#define BT_CONNECTIONS_MAX (BT_POOL_SLOTS_MAX + BT_SPARE_TOTAL)
/* More than connections, so that a uid's empty bucket outlives its last connection. */
#define BT_ADMISSION_UIDS (BT_CONNECTIONS_MAX + 240U)
/* Tokens that a uid has for each slot reserved for it, once: connect, HELLO and ADOPT after a restart. */
#define BT_ADMISSION_TOKENS_A_SLOT 4U
/* Lines in the audit log for refusals of one uid in a minute; what is refused beyond is counted. */
#define BT_REFUSAL_LINES 30U

struct bt_admission_limits {
    uint32_t rate;    /* tokens a second, 1..1000000 */
    uint32_t burst;   /* 1..1000000 */
    uint32_t uid_max; /* highest uid that is served: subordinate uids of user namespaces lie above */
};

struct bt_admission_uid {
    uint64_t refilled_ms;
    uint64_t milli_tokens;
    uint32_t uid;
    uint16_t spare; /* connections without a lease */
    uint16_t leased;
    bool is_used;
    uint16_t lines;             /* refusals that were written one by one in this minute */
    uint32_t answered, refused; /* since the last summary of the audit log */
};

struct bt_admission {
    struct bt_admission_limits limits;
    struct bt_admission_uid uids[BT_ADMISSION_UIDS];
    uint16_t spare;             /* of all uids */
    uint32_t strangers_refused; /* of uids without an entry: not served, or more than there is room for */
};

void bt_admission_init(struct bt_admission *admission, const struct bt_admission_limits *limits);

/* A uid that may be served at all: not -1, not the overflow uid, not above uid_max. */
bool bt_admission_is_uid_served(const struct bt_admission *admission, uint32_t uid);

/* A new connection: counts it as spare and takes one token. reserved, reserved_total: slots that wait for
 * adoption, which widen the limits. -EAGAIN: no token; -EUSERS: this uid's limit; -EBUSY: everybody's limit,
 * though this uid has fewer connections than *ret_heaviest_uid, of which one spare connection has to go
 * first. */
int bt_admission_enter(struct bt_admission *admission, uint32_t uid, unsigned reserved,
                       unsigned reserved_total, uint64_t now_ms, uint32_t *ret_heaviest_uid) BT_MUST_CHECK;
/* A connection that entered is gone (it gave back its lease before), or got a lease, or gave it back. */
void bt_admission_leave(struct bt_admission *admission, uint32_t uid);
void bt_admission_set_leased(struct bt_admission *admission, uint32_t uid, bool is_leased);

/* Takes one token of a uid that has a connection. False: it asks too often. */
bool bt_admission_take_token(struct bt_admission *admission, uint32_t uid, uint64_t now_ms) BT_MUST_CHECK;

/* For the summaries of the audit log: something was answered, or refused unheard. */
void bt_admission_count(struct bt_admission *admission, uint32_t uid, bool is_refused);
/* May one more refusal of this uid have a line of its own? BT_REFUSAL_LINES until the next summary. */
bool bt_admission_take_line(struct bt_admission *admission, uint32_t uid) BT_MUST_CHECK;
void bt_admission_renew_lines(struct bt_admission *admission);
/* Takes out the counts of one uid (UINT32_MAX: of those without an entry). False: none are left. */
bool bt_admission_take_counts(struct bt_admission *admission, uint32_t *ret_uid, uint32_t *ret_answered,
                              uint32_t *ret_refused) BT_MUST_CHECK;

#endif
