/* The helper's protocol on the wire: 512-byte frames, packed by hand. PROTOCOL.md has the byte offsets.
 *
 * Used by the engine, the client, tests and fuzzers. Pure: no memory of its own, no I/O. Every field is
 * little-endian, every byte that a frame does not use is zero. A decoder accepts exactly what the encoder of
 * the same frame makes.
 */
#ifndef BERTH_IPC_WIRE_FRAME_H
#define BERTH_IPC_WIRE_FRAME_H

#include "ipc/wire/pool.h"

#define BT_FRAME_SIZE 512U
/* Versions this build speaks. One release of overlap: a change adds a version and keeps the one before it. */
#define BT_PROTOCOL_VERSION_MIN 1U
#define BT_PROTOCOL_VERSION_MAX 1U

enum bt_verb {
    BT_VERB_NONE = 0,
    BT_VERB_HELLO = 1,
    BT_VERB_STATUS = 2,
    BT_VERB_LEASE = 3,
    BT_VERB_SEAL = 4,
    BT_VERB_COUNTERS = 5,
    BT_VERB_RELEASE = 6,
    BT_VERB_RECONCILE = 7,
    BT_VERB_MAX
};

/* A reply's outcome. Numbers of the protocol, not errno: errno differs between systems. */
enum bt_status {
    BT_STATUS_OK = 0,
    BT_STATUS_VERSION = 1,        /* no common version; the body tells the engine's (-EPROTO) */
    BT_STATUS_STATE = 2,          /* this verb is not permitted in this connection's state (-EBADFD) */
    BT_STATUS_STALE = 3,          /* sequence or epoch is not the one expected; the engine closes (-ESTALE) */
    BT_STATUS_RATE = 4,           /* too many requests of this uid; nothing was done (-EAGAIN) */
    BT_STATUS_QUOTA = 5,          /* this uid holds as many slots as it may (-EDQUOT) */
    BT_STATUS_FULL = 6,           /* no free slot in the pool (-ENOSPC) */
    BT_STATUS_EXISTS = 7,         /* this uid and environment has a live one of this role (-EEXIST) */
    BT_STATUS_NOT_FOUND = 8,      /* no such reserved slot of this uid (-ENOENT) */
    BT_STATUS_UNSUPPORTED = 9,    /* this kind is not built in (-EOPNOTSUPP) */
    BT_STATUS_NOT_PERMITTED = 10, /* uid 0 only (-EPERM) */
    BT_STATUS_UNHEALTHY = 11,     /* the rules in the kernel are not what they should be (-EUCLEAN) */
    BT_STATUS_KERNEL = 12,        /* the kernel refused; nothing was granted (-EIO) */
    BT_STATUS_MAX
};

struct bt_request {
    enum bt_verb verb;
    uint16_t version;  /* the one HELLO agreed on; 0 in HELLO itself */
    uint32_t sequence; /* 1 in HELLO, then one more each request */
    uint64_t epoch;    /* the engine's, from HELLO; 0 in HELLO itself */
    union {
        struct {
            uint16_t version_min, version_max;
        } hello;
        struct {
            enum bt_kind kind;
            enum bt_role role;
            uint8_t environment; /* 0..15 */
            bool has_slot;       /* slot is a wish; always set with is_adopt */
            bool is_adopt;       /* take back (slot, generation); kind, role and environment are 0 then */
            uint16_t slot;       /* 0..1023; 0 without has_slot */
            uint32_t generation; /* not 0 with is_adopt, else 0 */
        } lease;
    } body; /* the other verbs have none */
};

struct bt_reply_status {
    uint16_t live, reserved, dead, free;
    bool is_healthy;
    uint8_t own[BT_POOL_SLOTS_MAX / 8];
};

struct bt_reply_lease {
    uint16_t slot;
    enum bt_kind kind;
    enum bt_role role;
    uint32_t generation;
    uint8_t environment;
    uint8_t prefix_length;
    bool has_fd; /* exactly one descriptor comes with this frame */
    bool is_sealed;
    uint32_t host_address, guest_address;
    uint8_t host_mac[6], guest_mac[6];
    char interface_name[BT_INTERFACE_NAME_SIZE]; /* NUL-padded */
};

/* What the guest sent: let through, and not (a forged source, a destination that is not permitted, too many
 * flows). Packets towards the guest are not counted. */
struct bt_lease_counters {
    uint64_t accepted_packets, accepted_bytes, dropped_packets, dropped_bytes;
};

struct bt_reply {
    enum bt_verb verb;
    enum bt_status status;
    uint16_t version;
    uint32_t sequence; /* of the request that this answers */
    uint64_t epoch;
    union { /* filled when status is OK; hello also with VERSION */
        struct {
            uint16_t version_min, version_max; /* what the engine speaks */
            uint16_t slots, quota;
            uint32_t tap_base, bridge_base;
        } hello;
        struct bt_reply_status status;
        struct bt_reply_lease lease;
        struct bt_lease_counters counters;
    } body;
};

/* Pack into ret_frame, all 512 bytes. -EINVAL when a field is outside its domain (ret_frame is untouched
 * then). */
int bt_frame_encode_request(const struct bt_request *request, uint8_t ret_frame[BT_FRAME_SIZE]) BT_MUST_CHECK;
int bt_frame_encode_reply(const struct bt_reply *reply, uint8_t ret_frame[BT_FRAME_SIZE]) BT_MUST_CHECK;

/* Unpack. -EBADMSG for anything that the encoder would not have made. */
int bt_frame_decode_request(const uint8_t frame[BT_FRAME_SIZE], struct bt_request *ret_request) BT_MUST_CHECK;
int bt_frame_decode_reply(const uint8_t frame[BT_FRAME_SIZE], struct bt_reply *ret_reply) BT_MUST_CHECK;

/* The negative errno that a client reports for a status; 0 for OK, -EPROTO for one outside the table. */
int bt_status_errno(enum bt_status status);
/* A fixed upper-case word ("LEASE") for logs and tests; "?" outside the table. */
const char *bt_verb_name(enum bt_verb verb);

#endif
