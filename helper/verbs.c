/* The verbs: a table {verb, permitted states, handler}, and the handlers.
 *
 * Called by the engine with a request that is well-formed and in sequence. Authority is the connection's uid
 * and the slot it holds, never a field of the request; (slot, generation) of an ADOPT is a claim that is
 * checked against the uid's own reservations. A handler must leave either both a lease and its rules, or
 * neither.
 */
#include "helper/verbs.h"

#include <errno.h>
#include <string.h>

#include "helper/say.h"

#define IN_NEW (1U << BT_CONNECTION_NEW)
#define IN_READY (1U << BT_CONNECTION_READY)
#define IN_LEASED (1U << BT_CONNECTION_LEASED)

typedef enum bt_status (*verb_handler)(struct bt_exchange *exchange);

static enum bt_status answer_hello(struct bt_exchange *exchange)
{
    const struct bt_engine_options *options = &exchange->engine->options;
    struct bt_reply *reply = &exchange->reply;
    uint16_t highest = exchange->request.body.hello.version_max;
    if (highest > BT_PROTOCOL_VERSION_MAX)
        highest = BT_PROTOCOL_VERSION_MAX;
    reply->body.hello.version_min = BT_PROTOCOL_VERSION_MIN;
    reply->body.hello.version_max = BT_PROTOCOL_VERSION_MAX;
    if (highest < BT_PROTOCOL_VERSION_MIN || highest < exchange->request.body.hello.version_min)
        return BT_STATUS_VERSION;
    exchange->connection->version = highest;
    exchange->connection->state = BT_CONNECTION_READY;
    reply->version = highest;
    reply->body.hello.slots = options->pool.slots;
    reply->body.hello.quota = options->quota;
    reply->body.hello.tap_base = options->pool.tap_base;
    reply->body.hello.bridge_base = options->pool.bridge_base;
    return BT_STATUS_OK;
}

static enum bt_status answer_status(struct bt_exchange *exchange)
{
    struct bt_engine *engine = exchange->engine;
    const struct bt_ledger *ledger = &engine->ledger;
    struct bt_reply_status *status = &exchange->reply.body.status;
    size_t dead = bt_kernel_dead_count(engine->kernel);
    status->live = (uint16_t)bt_ledger_count(ledger, BT_ANYBODY, BT_HOLD_LIVE);
    status->reserved = (uint16_t)bt_ledger_count(ledger, BT_ANYBODY, BT_HOLD_RESERVED);
    size_t held = (size_t)status->live + status->reserved;
    size_t rest = held < ledger->slots ? ledger->slots - held : 0;
    status->dead = (uint16_t)(dead < rest ? dead : rest);
    status->free = (uint16_t)(rest - status->dead);
    status->is_healthy = engine->is_healthy;
    for (uint16_t slot = 0; slot < ledger->slots; slot++)
        if (ledger->states[slot] != BT_HOLD_FREE && ledger->leases[slot].uid == exchange->connection->uid)
            status->own[slot / 8] |= (uint8_t)(1U << (slot % 8));
    return BT_STATUS_OK;
}

static bool is_slot_leasable(struct bt_engine *engine, uint16_t slot)
{
    return bt_ledger_find(&engine->ledger, slot, BT_HOLD_FREE) &&
           bt_kernel_is_slot_clean(engine->kernel, slot);
}

/* From the cursor on, so that a slot just given back rests as long as the pool allows. */
static bool find_leasable(struct bt_engine *engine, uint16_t *ret_slot)
{
    struct bt_ledger *ledger = &engine->ledger;
    for (uint16_t i = 0; i < ledger->slots; i++) {
        uint16_t slot = (uint16_t)((ledger->cursor + i) % ledger->slots);
        if (is_slot_leasable(engine, slot)) {
            ledger->cursor = (uint16_t)((slot + 1) % ledger->slots);
            *ret_slot = slot;
            return true;
        }
    }
    return false;
}

/* The hinted slot if it can be had, else any. Waiting for devices to be deleted is worth it only when it
 * decides. */
static bool choose_slot(struct bt_engine *engine, const struct bt_request *request, bool may_use_hint,
                        uint16_t *ret_slot)
{
    if (request->body.lease.has_slot && may_use_hint) {
        uint16_t hint = request->body.lease.slot;
        if (bt_ledger_find(&engine->ledger, hint, BT_HOLD_FREE) &&
            !bt_kernel_is_slot_clean(engine->kernel, hint))
            bt_kernel_collect(engine->kernel);
        if (is_slot_leasable(engine, hint)) {
            *ret_slot = hint;
            return true;
        }
    }
    if (find_leasable(engine, ret_slot))
        return true;
    if (bt_kernel_dead_count(engine->kernel) == 0)
        return false;
    bt_kernel_collect(engine->kernel);
    return find_leasable(engine, ret_slot);
}

static void describe_lease(const struct bt_engine *engine, const struct bt_lease *lease, bool has_fd,
                           struct bt_reply_lease *ret_lease)
{
    struct bt_place place;
    *ret_lease = (struct bt_reply_lease){
        .slot = lease->slot,
        .kind = (enum bt_kind)lease->kind,
        .role = (enum bt_role)lease->role,
        .environment = lease->environment,
        .has_fd = has_fd,
        .is_sealed = lease->is_sealed,
    };
    /* The slot is inside the pool, so this cannot fail; were it otherwise, the reply would not encode. */
    if (bt_pool_place(&engine->options.pool, ret_lease->kind, ret_lease->role, lease->slot, &place) < 0)
        return;
    ret_lease->generation = lease->generation;
    ret_lease->prefix_length = place.prefix_length;
    ret_lease->host_address = place.host_address;
    ret_lease->guest_address = place.guest_address;
    memcpy(ret_lease->host_mac, place.host_mac, sizeof(ret_lease->host_mac));
    memcpy(ret_lease->guest_mac, place.guest_mac, sizeof(ret_lease->guest_mac));
    memcpy(ret_lease->interface_name, place.interface_name, sizeof(ret_lease->interface_name));
}

/* -EBUSY and -EEXIST mean that this slot's place is taken in the kernel by something that is not ours:
 * another slot may do. Any other error would be the same there. */
static enum bt_status make_lease(struct bt_engine *engine, const struct bt_request *request,
                                 struct bt_lease *lease, int *ret_tap_fd)
{
    int error = 0;
    for (unsigned attempt = 0; attempt < engine->ledger.slots; attempt++) {
        if (!choose_slot(engine, request, attempt == 0, &lease->slot))
            return attempt == 0 ? BT_STATUS_FULL : BT_STATUS_KERNEL;
        if (bt_ledger_next_generation(&engine->ledger, &lease->generation) < 0) {
            bt_say("all generations of this boot are used up; no new leases until the next boot");
            return BT_STATUS_FULL;
        }
        error = bt_kernel_lease(engine->kernel, bt_ledger_live(&engine->ledger), lease, ret_tap_fd);
        if (error == 0)
            return BT_STATUS_OK;
        if (error != -EBUSY && error != -EEXIST)
            break;
    }
    bt_engine_schedule_collect(engine); /* of what could not be undone at once */
    bt_say_error("the kernel refused a lease", error, NULL);
    return BT_STATUS_KERNEL;
}

static enum bt_status check_role(const struct bt_engine *engine, const struct bt_lease *lease)
{
    bool is_single = lease->role == BT_ROLE_GATEWAY || lease->role == BT_ROLE_ORCHESTRATOR;
    return is_single && bt_ledger_has_role(&engine->ledger, lease) ? BT_STATUS_EXISTS : BT_STATUS_OK;
}

static enum bt_status lease_new(struct bt_exchange *exchange)
{
    struct bt_engine *engine = exchange->engine;
    const struct bt_request *request = &exchange->request;
    struct bt_lease lease = {
        .uid = exchange->connection->uid,
        .kind = (uint8_t)request->body.lease.kind,
        .role = (uint8_t)request->body.lease.role,
        .environment = request->body.lease.environment,
    };
    int tap_fd = -1;
    if (request->body.lease.kind == BT_KIND_PF)
        return BT_STATUS_UNSUPPORTED;
    enum bt_status status = check_role(engine, &lease);
    if (status != BT_STATUS_OK)
        return status;
    if (bt_ledger_count(&engine->ledger, lease.uid, BT_HOLD_LIVE) +
            bt_ledger_count(&engine->ledger, lease.uid, BT_HOLD_RESERVED) >=
        engine->options.quota)
        return BT_STATUS_QUOTA;
    status = make_lease(engine, request, &lease, &tap_fd);
    if (status != BT_STATUS_OK)
        return status;
    bt_ledger_put(&engine->ledger, &lease, BT_HOLD_LIVE);
    bt_engine_bind_lease(engine, exchange->connection, lease.slot);
    describe_lease(engine, &lease, tap_fd >= 0, &exchange->reply.body.lease);
    exchange->passed_fd = tap_fd;
    return BT_STATUS_OK;
}

static enum bt_status lease_adopt(struct bt_exchange *exchange)
{
    struct bt_engine *engine = exchange->engine;
    const struct bt_request *request = &exchange->request;
    const struct bt_lease *reserved =
        bt_ledger_find(&engine->ledger, request->body.lease.slot, BT_HOLD_RESERVED);
    /* One answer for a slot that is absent, foreign or of another generation: nobody learns about others'
     * slots. */
    if (!reserved || reserved->uid != exchange->connection->uid ||
        reserved->generation != request->body.lease.generation)
        return BT_STATUS_NOT_FOUND;
    struct bt_lease lease = *reserved;
    enum bt_status status = check_role(engine, &lease);
    if (status != BT_STATUS_OK)
        return status;
    int error = bt_kernel_adopt(engine->kernel, bt_ledger_live(&engine->ledger), &lease);
    if (error == -ENODEV || error == -EPERM) {
        bt_say_number("slot ", lease.slot, " is not what was leased; it is not given back to its owner");
        bt_ledger_remove(&engine->ledger, lease.slot);
        bt_engine_release_slot(engine, &lease);
        return BT_STATUS_NOT_FOUND;
    }
    if (error < 0) {
        bt_say_error("the kernel refused an adoption", error, NULL);
        return BT_STATUS_KERNEL;
    }
    bt_ledger_put(&engine->ledger, &lease, BT_HOLD_LIVE);
    bt_engine_bind_lease(engine, exchange->connection, lease.slot);
    describe_lease(engine, &lease, false, &exchange->reply.body.lease);
    return BT_STATUS_OK;
}

static enum bt_status answer_lease(struct bt_exchange *exchange)
{
    if (!exchange->engine->is_healthy)
        return BT_STATUS_UNHEALTHY;
    return exchange->request.body.lease.is_adopt ? lease_adopt(exchange) : lease_new(exchange);
}

/* Cannot be undone, and must not be lost: what the kernel refuses now, the repair enforces. */
static enum bt_status answer_seal(struct bt_exchange *exchange)
{
    struct bt_engine *engine = exchange->engine;
    struct bt_lease *lease = bt_ledger_find(&engine->ledger, exchange->connection->slot, BT_HOLD_LIVE);
    if (!lease)
        return BT_STATUS_STATE;
    if (lease->is_sealed)
        return engine->is_healthy ? BT_STATUS_OK : BT_STATUS_UNHEALTHY;
    struct bt_lease sealed = *lease;
    sealed.is_sealed = true;
    int error = bt_kernel_seal(engine->kernel, bt_ledger_live(&engine->ledger), &sealed);
    lease->is_sealed = true;
    if (error == 0)
        return BT_STATUS_OK;
    bt_say_error("the kernel refused to seal a slot", error, "all interfaces go down until it is done");
    bt_engine_repair(engine);
    return engine->is_healthy ? BT_STATUS_OK : BT_STATUS_KERNEL;
}

static enum bt_status answer_counters(struct bt_exchange *exchange)
{
    struct bt_engine *engine = exchange->engine;
    const struct bt_lease *lease = bt_ledger_find(&engine->ledger, exchange->connection->slot, BT_HOLD_LIVE);
    if (!lease)
        return BT_STATUS_STATE;
    int error = bt_kernel_counters(engine->kernel, lease, &exchange->reply.body.counters);
    if (error < 0)
        bt_say_error("the kernel did not give counters", error, NULL);
    return error < 0 ? BT_STATUS_KERNEL : BT_STATUS_OK;
}

static enum bt_status answer_release(struct bt_exchange *exchange)
{
    (void)bt_engine_end_lease(exchange->engine, exchange->connection);
    return BT_STATUS_OK;
}

static enum bt_status answer_reconcile(struct bt_exchange *exchange)
{
    if (exchange->connection->uid != 0)
        return BT_STATUS_NOT_PERMITTED;
    bt_engine_reconcile(exchange->engine);
    return exchange->engine->is_healthy ? BT_STATUS_OK : BT_STATUS_UNHEALTHY;
}

static const struct verb_entry {
    unsigned permitted_states;
    bool is_charged;
    bool is_for_all; /* on the status socket, too */
    verb_handler handler;
} verb_table[BT_VERB_MAX] = {
    [BT_VERB_HELLO] = {IN_NEW, false, true, answer_hello}, /* paid for by connecting */
    [BT_VERB_STATUS] = {IN_READY | IN_LEASED, true, true, answer_status},
    [BT_VERB_LEASE] = {IN_READY, true, false, answer_lease},
    [BT_VERB_SEAL] = {IN_LEASED, false, false, answer_seal},
    [BT_VERB_COUNTERS] = {IN_LEASED, true, true, answer_counters},
    [BT_VERB_RELEASE] = {IN_LEASED, true, false, answer_release},
    [BT_VERB_RECONCILE] = {IN_READY | IN_LEASED, true, false, answer_reconcile},
};

bool bt_verbs_is_charged(enum bt_verb verb)
{
    return verb_table[verb].is_charged;
}

bool bt_verbs_answer(struct bt_exchange *exchange)
{
    const struct bt_connection *connection = exchange->connection;
    const struct verb_entry *entry = &verb_table[exchange->request.verb];
    bool was_new = connection->state == BT_CONNECTION_NEW;
    if (connection->is_status_only && !entry->is_for_all)
        exchange->reply.status = BT_STATUS_NOT_PERMITTED;
    else if ((entry->permitted_states & (1U << connection->state)) == 0)
        exchange->reply.status = BT_STATUS_STATE;
    else
        exchange->reply.status = entry->handler(exchange);
    return was_new && exchange->reply.status != BT_STATUS_OK;
}
