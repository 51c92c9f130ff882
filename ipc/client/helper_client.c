/* The helper's verbs for unprivileged programs: one blocking call a verb, each with a deadline.
 *
 * Called by keepers, commands and tests. It must not keep state outside struct bt_helper, retry a verb that
 * may have had an effect, or believe a reply that does not answer the request just sent.
 */
#include "ipc/client/helper_client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "ipc/chan/chan.h"

#define CALL_DEADLINE_MS 5000U
#define CONNECT_DEADLINE_MS 10000U
#define RETRY_PAUSE_MS 20U

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void pause_ms(unsigned milliseconds)
{
    struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)milliseconds * 1000000};
    nanosleep(&pause, NULL);
}

static int wait_for(int fd, short events, uint64_t deadline_ms)
{
    for (;;) {
        struct pollfd item = {.fd = fd, .events = events};
        uint64_t now = now_ms();
        if (now >= deadline_ms)
            return -ETIMEDOUT;
        int ready = poll(&item, 1, (int)(deadline_ms - now));
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return -errno;
    }
}

/* One request and its reply. A connection that fails here is useless afterwards, so it is closed. */
static int exchange(struct bt_helper *helper, struct bt_request *request, struct bt_reply *ret_reply,
                    int *ret_passed_fd, uint64_t deadline_ms)
{
    uint8_t frame[BT_FRAME_SIZE];
    bt_auto_fd passed_fd = -1;
    struct bt_reply reply;

    if (helper->fd < 0)
        return -ENOTCONN;
    request->sequence = helper->sequence + 1;
    request->epoch = helper->epoch;
    request->version = (uint16_t)(request->verb == BT_VERB_HELLO ? 0 : BT_PROTOCOL_VERSION_MAX);
    int error = bt_frame_encode_request(request, frame);
    if (error < 0)
        return error;
    error = bt_chan_send(helper->fd, frame, -1);
    if (error == -ENOTCONN && request->verb == BT_VERB_HELLO)
        error = 0; /* not admitted: the reason may have been sent before the connection was closed */
    while (error == 0) {
        error = wait_for(helper->fd, POLLIN, deadline_ms);
        if (error < 0)
            break;
        error = bt_chan_receive_reply(helper->fd, frame, &passed_fd);
        if (error != -EAGAIN)
            break;
        error = 0;
    }
    if (error == 0 && bt_frame_decode_reply(frame, &reply) < 0)
        error = -EPROTO;
    if (error == 0 && (reply.verb != request->verb || reply.sequence != request->sequence ||
                       (request->verb != BT_VERB_HELLO && reply.epoch != helper->epoch)))
        error = -EPROTO;
    if (error < 0) {
        bt_fd_close(&helper->fd);
        return error;
    }
    helper->sequence = request->sequence;
    *ret_reply = reply;
    *ret_passed_fd = bt_fd_take(&passed_fd);
    return 0;
}

/* For verbs that carry no descriptor back. A rate refusal did nothing, so it is safe to ask again. */
static int call(struct bt_helper *helper, struct bt_request *request, struct bt_reply *ret_reply,
                int *ret_passed_fd)
{
    uint64_t deadline_ms = now_ms() + CALL_DEADLINE_MS;
    for (;;) {
        bt_auto_fd passed_fd = -1;
        struct bt_reply reply;
        int error = exchange(helper, request, &reply, &passed_fd, deadline_ms);
        if (error < 0)
            return error;
        if (reply.status == BT_STATUS_RATE && now_ms() + RETRY_PAUSE_MS < deadline_ms) {
            pause_ms(RETRY_PAUSE_MS);
            continue;
        }
        if (reply.status != BT_STATUS_OK)
            return bt_status_errno(reply.status);
        bool wants_fd = ret_passed_fd && reply.verb == BT_VERB_LEASE && reply.body.lease.has_fd;
        if ((passed_fd >= 0) != wants_fd) {
            bt_fd_close(&helper->fd);
            return -EPROTO;
        }
        *ret_reply = reply;
        if (ret_passed_fd)
            *ret_passed_fd = bt_fd_take(&passed_fd);
        return 0;
    }
}

static int open_socket(const char *socket_path, uint64_t deadline_ms, int *ret_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(socket_path);
    if (length >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, socket_path, length);
    bt_auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    while (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        /* EAGAIN: the engine's backlog is full at this moment, unix(7). */
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        if (now_ms() >= deadline_ms)
            return -ETIMEDOUT;
        pause_ms(RETRY_PAUSE_MS);
    }
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

static int say_hello(struct bt_helper *helper, uint64_t deadline_ms)
{
    struct bt_request request = {
        .verb = BT_VERB_HELLO,
        .body.hello = {.version_min = BT_PROTOCOL_VERSION_MIN, .version_max = BT_PROTOCOL_VERSION_MAX},
    };
    struct bt_reply reply;
    bt_auto_fd passed_fd = -1;
    int error = exchange(helper, &request, &reply, &passed_fd, deadline_ms);
    if (error < 0)
        return error;
    if (reply.status != BT_STATUS_OK)
        return bt_status_errno(reply.status);
    if (passed_fd >= 0 || reply.version != BT_PROTOCOL_VERSION_MAX)
        return -EPROTO;
    helper->epoch = reply.epoch;
    helper->pool = (struct bt_pool){.tap_base = reply.body.hello.tap_base,
                                    .bridge_base = reply.body.hello.bridge_base,
                                    .slots = reply.body.hello.slots};
    helper->quota = reply.body.hello.quota;
    return 0;
}

int bt_helper_connect(const char *socket_path, struct bt_helper *ret_helper)
{
    uint64_t deadline_ms = now_ms() + CONNECT_DEADLINE_MS;
    bool was_refused = false;
    for (;;) {
        struct bt_helper helper = {.fd = -1};
        int error = open_socket(socket_path, deadline_ms, &helper.fd);
        if (error < 0)
            return error;
        error = say_hello(&helper, deadline_ms);
        if (error == 0) {
            *ret_helper = helper;
            return 0;
        }
        bt_helper_close(&helper);
        /* Closed before the answer: this uid has too many connections just now, or the engine is going down.
         */
        if (error == -ETIMEDOUT && was_refused)
            return -EBUSY;
        if (error != -ENOTCONN && error != -EAGAIN)
            return error;
        was_refused = true;
        if (now_ms() + RETRY_PAUSE_MS >= deadline_ms)
            return -EBUSY;
        pause_ms(RETRY_PAUSE_MS);
    }
}

void bt_helper_close(struct bt_helper *helper)
{
    bt_fd_close(&helper->fd);
}

int bt_helper_status(struct bt_helper *helper, struct bt_helper_status *ret_status)
{
    struct bt_request request = {.verb = BT_VERB_STATUS};
    struct bt_reply reply;
    int error = call(helper, &request, &reply, NULL);
    if (error < 0)
        return error;
    const struct bt_reply_status *status = &reply.body.status;
    ret_status->live = status->live;
    ret_status->reserved = status->reserved;
    ret_status->dead = status->dead;
    ret_status->free = status->free;
    ret_status->is_healthy = status->is_healthy;
    memcpy(ret_status->own, status->own, sizeof(ret_status->own));
    return 0;
}

static int lease_from_reply(const struct bt_helper *helper, const struct bt_reply *reply,
                            struct bt_helper_lease *ret_lease)
{
    const struct bt_reply_lease *from = &reply->body.lease;
    struct bt_place place = {.gateway_address = 0};
    if (from->kind == BT_KIND_BRIDGE &&
        bt_pool_place(&helper->pool, from->kind, from->role, from->slot, &place) < 0)
        return -EPROTO;
    struct bt_helper_lease lease = {
        .slot = from->slot,
        .generation = from->generation,
        .kind = from->kind,
        .role = from->role,
        .environment = from->environment,
        .is_sealed = from->is_sealed,
        .host_address = from->host_address,
        .guest_address = from->guest_address,
        .prefix_length = from->prefix_length,
        .gateway_address = place.gateway_address,
    };
    memcpy(lease.interface_name, from->interface_name, sizeof(lease.interface_name));
    memcpy(lease.host_mac, from->host_mac, sizeof(lease.host_mac));
    memcpy(lease.guest_mac, from->guest_mac, sizeof(lease.guest_mac));
    memcpy(lease.gateway_mac, place.gateway_mac, sizeof(lease.gateway_mac));
    *ret_lease = lease;
    return 0;
}

int bt_helper_lease(struct bt_helper *helper, enum bt_kind kind, enum bt_role role, unsigned environment,
                    int slot_hint, struct bt_helper_lease *ret_lease, int *ret_tap_fd)
{
    struct bt_request request = {.verb = BT_VERB_LEASE};
    struct bt_reply reply;
    if (environment >= BT_ENVIRONMENTS || slot_hint < -1 || slot_hint >= (int)BT_POOL_SLOTS_MAX)
        return -EINVAL;
    request.body.lease.kind = kind;
    request.body.lease.role = role;
    request.body.lease.environment = (uint8_t)environment;
    request.body.lease.has_slot = slot_hint >= 0;
    request.body.lease.slot = slot_hint >= 0 ? (uint16_t)slot_hint : 0;
    int tap_fd = -1;
    int error = call(helper, &request, &reply, &tap_fd);
    if (error < 0)
        return error;
    *ret_tap_fd = tap_fd;
    return lease_from_reply(helper, &reply, ret_lease);
}

int bt_helper_adopt(struct bt_helper *helper, uint16_t slot, uint32_t generation,
                    struct bt_helper_lease *ret_lease)
{
    struct bt_request request = {.verb = BT_VERB_LEASE};
    struct bt_reply reply;
    request.body.lease.has_slot = true;
    request.body.lease.is_adopt = true;
    request.body.lease.slot = slot;
    request.body.lease.generation = generation;
    int error = call(helper, &request, &reply, NULL);
    if (error < 0)
        return error;
    return lease_from_reply(helper, &reply, ret_lease);
}

static int call_without_body(struct bt_helper *helper, enum bt_verb verb)
{
    struct bt_request request = {.verb = verb};
    struct bt_reply reply;
    return call(helper, &request, &reply, NULL);
}

int bt_helper_seal(struct bt_helper *helper)
{
    return call_without_body(helper, BT_VERB_SEAL);
}

int bt_helper_counters(struct bt_helper *helper, struct bt_helper_counters *ret_counters)
{
    struct bt_request request = {.verb = BT_VERB_COUNTERS};
    struct bt_reply reply;
    int error = call(helper, &request, &reply, NULL);
    if (error < 0)
        return error;
    ret_counters->accepted_packets = reply.body.counters.accepted_packets;
    ret_counters->accepted_bytes = reply.body.counters.accepted_bytes;
    ret_counters->dropped_packets = reply.body.counters.dropped_packets;
    ret_counters->dropped_bytes = reply.body.counters.dropped_bytes;
    return 0;
}

int bt_helper_release(struct bt_helper *helper)
{
    return call_without_body(helper, BT_VERB_RELEASE);
}

int bt_helper_reconcile(struct bt_helper *helper)
{
    return call_without_body(helper, BT_VERB_RECONCILE);
}
