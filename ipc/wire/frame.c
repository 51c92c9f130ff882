/* Packs and unpacks the helper's frames.
 *
 * Called by the engine (on bytes that any user may have sent), by the client and by tests. It must not
 * allocate, do I/O, or trust a byte. Strictness costs nothing here: a decoded frame is packed again and has
 * to give the very bytes that came, so the layout and all domains are written down once, in the encoders.
 */
#include "ipc/wire/frame.h"

#include <errno.h>
#include <string.h>

#define MAGIC 0x31544842U /* "BHT1" */

enum frame_type { TYPE_REQUEST = 0, TYPE_REPLY = 1 };

/* Offsets of the header that all frames share, and of the bodies; PROTOCOL.md is their text. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_TYPE = 6,
    AT_VERB = 7,
    AT_SEQUENCE = 8,
    AT_STATUS = 12,
    AT_EPOCH = 16,
    AT_BODY = 24,

    AT_HELLO_VERSION_MIN = AT_BODY,
    AT_HELLO_VERSION_MAX = AT_BODY + 2,
    AT_HELLO_SLOTS = AT_BODY + 4,
    AT_HELLO_QUOTA = AT_BODY + 6,
    AT_HELLO_TAP_BASE = AT_BODY + 8,
    AT_HELLO_BRIDGE_BASE = AT_BODY + 12,

    AT_LEASE_KIND = AT_BODY,
    AT_LEASE_ROLE = AT_BODY + 1,
    AT_LEASE_ENVIRONMENT = AT_BODY + 2,
    AT_LEASE_FLAGS = AT_BODY + 3,
    AT_LEASE_SLOT = AT_BODY + 4,
    AT_LEASE_PREFIX_LENGTH = AT_BODY + 6,
    AT_LEASE_GENERATION = AT_BODY + 8,
    AT_LEASE_HOST_ADDRESS = AT_BODY + 12,
    AT_LEASE_GUEST_ADDRESS = AT_BODY + 16,
    AT_LEASE_HOST_MAC = AT_BODY + 20,
    AT_LEASE_GUEST_MAC = AT_BODY + 26,
    AT_LEASE_NAME = AT_BODY + 32,

    AT_STATUS_LIVE = AT_BODY,
    AT_STATUS_RESERVED = AT_BODY + 2,
    AT_STATUS_DEAD = AT_BODY + 4,
    AT_STATUS_FREE = AT_BODY + 6,
    AT_STATUS_HEALTH = AT_BODY + 8,
    AT_STATUS_OWN = AT_BODY + 16,

    AT_COUNTERS = AT_BODY
};

#define REQUEST_HAS_SLOT 0x01U
#define REQUEST_IS_ADOPT 0x02U
#define REPLY_HAS_FD 0x01U
#define REPLY_IS_SEALED 0x02U

_Static_assert(AT_STATUS_OWN + BT_POOL_SLOTS_MAX / 8 <= BT_FRAME_SIZE,
               "the bitmap of own slots fits a frame");

static bool is_verb(enum bt_verb verb)
{
    return verb > BT_VERB_NONE && verb < BT_VERB_MAX;
}

static void store_header(uint8_t *frame, enum frame_type type, enum bt_verb verb, uint16_t version,
                         uint32_t sequence, uint64_t epoch)
{
    memset(frame, 0, BT_FRAME_SIZE);
    bt_store_u32(frame + AT_MAGIC, MAGIC);
    bt_store_u16(frame + AT_VERSION, version);
    frame[AT_TYPE] = (uint8_t)type;
    frame[AT_VERB] = (uint8_t)verb;
    bt_store_u32(frame + AT_SEQUENCE, sequence);
    bt_store_u64(frame + AT_EPOCH, epoch);
}

static bool is_lease_request_valid(const struct bt_request *request)
{
    bool has_slot = request->body.lease.has_slot;
    bool is_adopt = request->body.lease.is_adopt;
    if (request->body.lease.kind >= BT_KIND_MAX || request->body.lease.role >= BT_ROLE_MAX)
        return false;
    if (request->body.lease.environment >= BT_ENVIRONMENTS || request->body.lease.slot >= BT_POOL_SLOTS_MAX)
        return false;
    if (!has_slot && (is_adopt || request->body.lease.slot != 0))
        return false;
    if (is_adopt != (request->body.lease.generation != 0))
        return false;
    return !is_adopt || (request->body.lease.kind == BT_KIND_TAP_FD &&
                         request->body.lease.role == BT_ROLE_AGENT && request->body.lease.environment == 0);
}

static bool is_request_valid(const struct bt_request *request)
{
    bool is_hello = request->verb == BT_VERB_HELLO;
    if (!is_verb(request->verb) || request->sequence == 0)
        return false;
    if (is_hello != (request->version == 0) || is_hello != (request->epoch == 0))
        return false;
    if (is_hello && request->body.hello.version_min > request->body.hello.version_max)
        return false;
    return request->verb != BT_VERB_LEASE || is_lease_request_valid(request);
}

static void store_lease_request(uint8_t *frame, const struct bt_request *request)
{
    frame[AT_LEASE_KIND] = (uint8_t)request->body.lease.kind;
    frame[AT_LEASE_ROLE] = (uint8_t)request->body.lease.role;
    frame[AT_LEASE_ENVIRONMENT] = request->body.lease.environment;
    frame[AT_LEASE_FLAGS] = (uint8_t)((request->body.lease.has_slot ? REQUEST_HAS_SLOT : 0) |
                                      (request->body.lease.is_adopt ? REQUEST_IS_ADOPT : 0));
    bt_store_u16(frame + AT_LEASE_SLOT, request->body.lease.slot);
    bt_store_u32(frame + AT_LEASE_GENERATION, request->body.lease.generation);
}

int bt_frame_encode_request(const struct bt_request *request, uint8_t ret_frame[BT_FRAME_SIZE])
{
    if (!is_request_valid(request))
        return -EINVAL;
    store_header(ret_frame, TYPE_REQUEST, request->verb, request->version, request->sequence, request->epoch);
    if (request->verb == BT_VERB_HELLO) {
        bt_store_u16(ret_frame + AT_HELLO_VERSION_MIN, request->body.hello.version_min);
        bt_store_u16(ret_frame + AT_HELLO_VERSION_MAX, request->body.hello.version_max);
    } else if (request->verb == BT_VERB_LEASE) {
        store_lease_request(ret_frame, request);
    }
    return 0;
}

int bt_frame_decode_request(const uint8_t frame[BT_FRAME_SIZE], struct bt_request *ret_request)
{
    uint8_t again[BT_FRAME_SIZE];
    struct bt_request request = {
        .verb = (enum bt_verb)frame[AT_VERB],
        .version = bt_load_u16(frame + AT_VERSION),
        .sequence = bt_load_u32(frame + AT_SEQUENCE),
        .epoch = bt_load_u64(frame + AT_EPOCH),
    };
    if (request.verb == BT_VERB_HELLO) {
        request.body.hello.version_min = bt_load_u16(frame + AT_HELLO_VERSION_MIN);
        request.body.hello.version_max = bt_load_u16(frame + AT_HELLO_VERSION_MAX);
    } else if (request.verb == BT_VERB_LEASE) {
        request.body.lease.kind = (enum bt_kind)frame[AT_LEASE_KIND];
        request.body.lease.role = (enum bt_role)frame[AT_LEASE_ROLE];
        request.body.lease.environment = frame[AT_LEASE_ENVIRONMENT];
        request.body.lease.has_slot = (frame[AT_LEASE_FLAGS] & REQUEST_HAS_SLOT) != 0;
        request.body.lease.is_adopt = (frame[AT_LEASE_FLAGS] & REQUEST_IS_ADOPT) != 0;
        request.body.lease.slot = bt_load_u16(frame + AT_LEASE_SLOT);
        request.body.lease.generation = bt_load_u32(frame + AT_LEASE_GENERATION);
    }
    if (bt_frame_encode_request(&request, again) < 0 || memcmp(frame, again, BT_FRAME_SIZE) != 0)
        return -EBADMSG;
    *ret_request = request;
    return 0;
}

static bool is_name_padded(const char name[BT_INTERFACE_NAME_SIZE])
{
    size_t length = strnlen(name, BT_INTERFACE_NAME_SIZE);
    if (length == 0 || length == BT_INTERFACE_NAME_SIZE)
        return false;
    for (size_t i = length; i < BT_INTERFACE_NAME_SIZE; i++)
        if (name[i] != '\0')
            return false;
    return true;
}

static bool is_lease_reply_valid(const struct bt_reply_lease *lease)
{
    return lease->kind < BT_KIND_MAX && lease->role < BT_ROLE_MAX && lease->environment < BT_ENVIRONMENTS &&
           lease->slot < BT_POOL_SLOTS_MAX && lease->generation != 0 && lease->prefix_length <= 32 &&
           is_name_padded(lease->interface_name);
}

static bool is_reply_valid(const struct bt_reply *reply)
{
    if (!is_verb(reply->verb) || reply->status >= BT_STATUS_MAX || reply->epoch == 0)
        return false;
    if (reply->status != BT_STATUS_OK)
        return true;
    if (reply->verb == BT_VERB_HELLO)
        return reply->body.hello.slots >= 1 && reply->body.hello.slots <= BT_POOL_SLOTS_MAX;
    return reply->verb != BT_VERB_LEASE || is_lease_reply_valid(&reply->body.lease);
}

static void store_hello_reply(uint8_t *frame, const struct bt_reply *reply)
{
    bt_store_u16(frame + AT_HELLO_VERSION_MIN, reply->body.hello.version_min);
    bt_store_u16(frame + AT_HELLO_VERSION_MAX, reply->body.hello.version_max);
    if (reply->status != BT_STATUS_OK)
        return;
    bt_store_u16(frame + AT_HELLO_SLOTS, reply->body.hello.slots);
    bt_store_u16(frame + AT_HELLO_QUOTA, reply->body.hello.quota);
    bt_store_u32(frame + AT_HELLO_TAP_BASE, reply->body.hello.tap_base);
    bt_store_u32(frame + AT_HELLO_BRIDGE_BASE, reply->body.hello.bridge_base);
}

static void store_status_reply(uint8_t *frame, const struct bt_reply_status *status)
{
    bt_store_u16(frame + AT_STATUS_LIVE, status->live);
    bt_store_u16(frame + AT_STATUS_RESERVED, status->reserved);
    bt_store_u16(frame + AT_STATUS_DEAD, status->dead);
    bt_store_u16(frame + AT_STATUS_FREE, status->free);
    frame[AT_STATUS_HEALTH] = status->is_healthy ? 1 : 0;
    memcpy(frame + AT_STATUS_OWN, status->own, sizeof(status->own));
}

static void store_lease_reply(uint8_t *frame, const struct bt_reply_lease *lease)
{
    frame[AT_LEASE_KIND] = (uint8_t)lease->kind;
    frame[AT_LEASE_ROLE] = (uint8_t)lease->role;
    frame[AT_LEASE_ENVIRONMENT] = lease->environment;
    frame[AT_LEASE_FLAGS] =
        (uint8_t)((lease->has_fd ? REPLY_HAS_FD : 0) | (lease->is_sealed ? REPLY_IS_SEALED : 0));
    bt_store_u16(frame + AT_LEASE_SLOT, lease->slot);
    frame[AT_LEASE_PREFIX_LENGTH] = lease->prefix_length;
    bt_store_u32(frame + AT_LEASE_GENERATION, lease->generation);
    bt_store_u32(frame + AT_LEASE_HOST_ADDRESS, lease->host_address);
    bt_store_u32(frame + AT_LEASE_GUEST_ADDRESS, lease->guest_address);
    memcpy(frame + AT_LEASE_HOST_MAC, lease->host_mac, sizeof(lease->host_mac));
    memcpy(frame + AT_LEASE_GUEST_MAC, lease->guest_mac, sizeof(lease->guest_mac));
    memcpy(frame + AT_LEASE_NAME, lease->interface_name, sizeof(lease->interface_name));
}

int bt_frame_encode_reply(const struct bt_reply *reply, uint8_t ret_frame[BT_FRAME_SIZE])
{
    if (!is_reply_valid(reply))
        return -EINVAL;
    store_header(ret_frame, TYPE_REPLY, reply->verb, reply->version, reply->sequence, reply->epoch);
    bt_store_u32(ret_frame + AT_STATUS, (uint32_t)reply->status);
    if (reply->verb == BT_VERB_HELLO &&
        (reply->status == BT_STATUS_OK || reply->status == BT_STATUS_VERSION)) {
        store_hello_reply(ret_frame, reply);
    } else if (reply->status != BT_STATUS_OK) {
        return 0;
    } else if (reply->verb == BT_VERB_STATUS) {
        store_status_reply(ret_frame, &reply->body.status);
    } else if (reply->verb == BT_VERB_LEASE) {
        store_lease_reply(ret_frame, &reply->body.lease);
    } else if (reply->verb == BT_VERB_COUNTERS) {
        bt_store_u64(ret_frame + AT_COUNTERS, reply->body.counters.accepted_packets);
        bt_store_u64(ret_frame + AT_COUNTERS + 8, reply->body.counters.accepted_bytes);
        bt_store_u64(ret_frame + AT_COUNTERS + 16, reply->body.counters.dropped_packets);
        bt_store_u64(ret_frame + AT_COUNTERS + 24, reply->body.counters.dropped_bytes);
    }
    return 0;
}

static void load_hello_reply(const uint8_t *frame, struct bt_reply *reply)
{
    reply->body.hello.version_min = bt_load_u16(frame + AT_HELLO_VERSION_MIN);
    reply->body.hello.version_max = bt_load_u16(frame + AT_HELLO_VERSION_MAX);
    reply->body.hello.slots = bt_load_u16(frame + AT_HELLO_SLOTS);
    reply->body.hello.quota = bt_load_u16(frame + AT_HELLO_QUOTA);
    reply->body.hello.tap_base = bt_load_u32(frame + AT_HELLO_TAP_BASE);
    reply->body.hello.bridge_base = bt_load_u32(frame + AT_HELLO_BRIDGE_BASE);
}

static void load_status_reply(const uint8_t *frame, struct bt_reply_status *status)
{
    status->live = bt_load_u16(frame + AT_STATUS_LIVE);
    status->reserved = bt_load_u16(frame + AT_STATUS_RESERVED);
    status->dead = bt_load_u16(frame + AT_STATUS_DEAD);
    status->free = bt_load_u16(frame + AT_STATUS_FREE);
    status->is_healthy = frame[AT_STATUS_HEALTH] == 1;
    memcpy(status->own, frame + AT_STATUS_OWN, sizeof(status->own));
}

static void load_lease_reply(const uint8_t *frame, struct bt_reply_lease *lease)
{
    lease->kind = (enum bt_kind)frame[AT_LEASE_KIND];
    lease->role = (enum bt_role)frame[AT_LEASE_ROLE];
    lease->environment = frame[AT_LEASE_ENVIRONMENT];
    lease->has_fd = (frame[AT_LEASE_FLAGS] & REPLY_HAS_FD) != 0;
    lease->is_sealed = (frame[AT_LEASE_FLAGS] & REPLY_IS_SEALED) != 0;
    lease->slot = bt_load_u16(frame + AT_LEASE_SLOT);
    lease->prefix_length = frame[AT_LEASE_PREFIX_LENGTH];
    lease->generation = bt_load_u32(frame + AT_LEASE_GENERATION);
    lease->host_address = bt_load_u32(frame + AT_LEASE_HOST_ADDRESS);
    lease->guest_address = bt_load_u32(frame + AT_LEASE_GUEST_ADDRESS);
    memcpy(lease->host_mac, frame + AT_LEASE_HOST_MAC, sizeof(lease->host_mac));
    memcpy(lease->guest_mac, frame + AT_LEASE_GUEST_MAC, sizeof(lease->guest_mac));
    memcpy(lease->interface_name, frame + AT_LEASE_NAME, sizeof(lease->interface_name));
}

int bt_frame_decode_reply(const uint8_t frame[BT_FRAME_SIZE], struct bt_reply *ret_reply)
{
    uint8_t again[BT_FRAME_SIZE];
    struct bt_reply reply = {
        .verb = (enum bt_verb)frame[AT_VERB],
        .status = (enum bt_status)bt_load_u32(frame + AT_STATUS),
        .version = bt_load_u16(frame + AT_VERSION),
        .sequence = bt_load_u32(frame + AT_SEQUENCE),
        .epoch = bt_load_u64(frame + AT_EPOCH),
    };
    if (reply.verb == BT_VERB_HELLO) {
        load_hello_reply(frame, &reply);
    } else if (reply.verb == BT_VERB_STATUS) {
        load_status_reply(frame, &reply.body.status);
    } else if (reply.verb == BT_VERB_LEASE) {
        load_lease_reply(frame, &reply.body.lease);
    } else if (reply.verb == BT_VERB_COUNTERS) {
        reply.body.counters.accepted_packets = bt_load_u64(frame + AT_COUNTERS);
        reply.body.counters.accepted_bytes = bt_load_u64(frame + AT_COUNTERS + 8);
        reply.body.counters.dropped_packets = bt_load_u64(frame + AT_COUNTERS + 16);
        reply.body.counters.dropped_bytes = bt_load_u64(frame + AT_COUNTERS + 24);
    }
    if (bt_frame_encode_reply(&reply, again) < 0 || memcmp(frame, again, BT_FRAME_SIZE) != 0)
        return -EBADMSG;
    *ret_reply = reply;
    return 0;
}

int bt_status_errno(enum bt_status status)
{
    static const int errors[BT_STATUS_MAX] = {
        [BT_STATUS_OK] = 0,
        [BT_STATUS_VERSION] = -EPROTO,
        [BT_STATUS_STATE] = -EBADFD,
        [BT_STATUS_STALE] = -ESTALE,
        [BT_STATUS_RATE] = -EAGAIN,
        [BT_STATUS_QUOTA] = -EDQUOT,
        [BT_STATUS_FULL] = -ENOSPC,
        [BT_STATUS_EXISTS] = -EEXIST,
        [BT_STATUS_NOT_FOUND] = -ENOENT,
        [BT_STATUS_UNSUPPORTED] = -EOPNOTSUPP,
        [BT_STATUS_NOT_PERMITTED] = -EPERM,
        [BT_STATUS_UNHEALTHY] = -EUCLEAN,
        [BT_STATUS_KERNEL] = -EIO,
    };
    return (unsigned)status < BT_STATUS_MAX ? errors[status] : -EPROTO;
}

const char *bt_verb_name(enum bt_verb verb)
{
    static const char *const names[BT_VERB_MAX] = {
        [BT_VERB_HELLO] = "HELLO",         [BT_VERB_STATUS] = "STATUS",     [BT_VERB_LEASE] = "LEASE",
        [BT_VERB_SEAL] = "SEAL",           [BT_VERB_COUNTERS] = "COUNTERS", [BT_VERB_RELEASE] = "RELEASE",
        [BT_VERB_RECONCILE] = "RECONCILE",
    };
    return is_verb(verb) ? names[verb] : "?";
}
