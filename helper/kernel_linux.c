/* The verbs of helper/kernel.h on Linux: in which order device, rules and flows change, and what is undone.
 *
 * Called by the engine only. The slots array is this module's memory of what it has put into the kernel; the
 * engine says which leases are live. Elements leave before the link goes down, and come before it goes up:
 * there is no moment at which a device is up without its rules being right. Must not allocate, must not wait.
 */
#include "helper/kernel_linux.h"

#include <errno.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>
#include <unistd.h>

/* Generations are recorded in blocks, so that most leases need not write the record. */
#define GENERATION_BLOCK 256U
/* When there is no record (a new table): the clock, so that generations of a table that was lost in this
 * boot, which conntrack entries may still carry, are not handed out again. 62 leases a second for 397 days.
 */
#define MILLISECONDS_PER_GENERATION 16U

static struct bt_kernel instance;

int bt_kernel_open(const struct bt_kernel_config *config, struct bt_kernel **ret_kernel)
{
    if (config->pool.slots == 0 || config->pool.slots > BT_POOL_SLOTS_MAX ||
        config->resolver_count > BT_ARRAY_LENGTH(config->resolvers) || config->agent_flows == 0 ||
        config->gateway_flows == 0)
        return -EINVAL;
    struct bt_kernel *kernel = &instance;
    if (kernel->is_provisioned)
        bt_kernel_close(kernel);
    memset(kernel, 0, sizeof(*kernel));
    kernel->config = *config;
    kernel->has_ipv6 = true;
    kernel->sequence = 1;
    kernel->netfilter_fd = kernel->route_fd = kernel->netfilter_events_fd = kernel->route_events_fd = -1;
    int error = bt_netlink_open(NETLINK_NETFILTER, 0, &kernel->netfilter_fd, &kernel->netfilter_port);
    if (error == 0)
        error = bt_netlink_open(NETLINK_ROUTE, 0, &kernel->route_fd, NULL);
    if (error == 0)
        error = bt_events_open(kernel);
    if (error < 0) {
        bt_kernel_close(kernel);
        return error;
    }
    *ret_kernel = kernel;
    return 0;
}

void bt_kernel_close(struct bt_kernel *kernel)
{
    bt_fd_close(&kernel->netfilter_fd);
    bt_fd_close(&kernel->route_fd);
    bt_fd_close(&kernel->netfilter_events_fd);
    bt_fd_close(&kernel->route_events_fd);
    kernel->is_provisioned = false;
}

/* ---- provision -------------------------------------------------------------------------------------- */

static int make_table(struct bt_kernel *kernel, bool is_replaced, struct bt_lease_table live)
{
    struct bt_batch batch;
    bt_transaction_start(kernel, &batch);
    if (is_replaced)
        bt_table_encode_removal(&batch);
    bt_table_encode(kernel, &batch);
    return bt_elements_rewrite(kernel, &batch, live, true);
}

struct bt_lease_table bt_slots_live(const struct bt_kernel *kernel)
{
    static struct bt_lease leases[BT_POOL_SLOTS_MAX];
    struct bt_lease_table table = {.leases = leases};
    for (size_t i = 0; i < kernel->config.pool.slots; i++) {
        if (kernel->slots[i].state == BT_SLOT_LIVE)
            leases[table.count++] = kernel->slots[i].lease;
    }
    return table;
}

static int rewrite_elements(struct bt_kernel *kernel, struct bt_lease_table live)
{
    struct bt_batch batch;
    bt_transaction_start(kernel, &batch);
    return bt_elements_rewrite(kernel, &batch, live, false);
}

struct reading {
    struct bt_kernel *kernel;
    enum bt_slot_state state;
    struct bt_lease *leases;
    size_t count;
    uint64_t deadline_ms;
    bool has_unusable; /* a record that makes no sense, or a slot that the pool no longer has */
};

static void read_lease(void *context, const struct bt_element *element)
{
    struct reading *reading = context;
    struct bt_lease lease;
    uint64_t deadline_ms;
    int ifindex;
    if (bt_record_read(element, &lease, &ifindex, &deadline_ms) < 0 ||
        lease.slot >= reading->kernel->config.pool.slots ||
        reading->kernel->slots[lease.slot].state != BT_SLOT_CLEAN) {
        reading->has_unusable = true;
        return;
    }
    reading->kernel->slots[lease.slot] =
        (struct bt_slot){.state = reading->state, .ifindex = ifindex, .lease = lease};
    reading->leases[reading->count++] = lease;
    if (deadline_ms > reading->deadline_ms)
        reading->deadline_ms = deadline_ms;
}

static void read_borrowed(void *context, const struct bt_element *element)
{
    struct bt_kernel *kernel = context;
    uint32_t ifindex;
    if (element->key_length != sizeof(ifindex) || kernel->borrowed_count == BT_UPLINKS_MAX)
        return;
    memcpy(&ifindex, element->key, sizeof(ifindex));
    kernel->borrowed[kernel->borrowed_count++] = (int)ifindex;
}

static int read_state(struct bt_kernel *kernel)
{
    struct bt_element element;
    bt_state_element(0, &element);
    int error = bt_element_get(kernel, &element);
    return error < 0 ? error : bt_state_read(&element, &kernel->high_water);
}

static int read_leases(struct bt_kernel *kernel, struct bt_lease *leases, size_t *ret_count,
                       uint64_t *ret_deadline_ms)
{
    struct reading reading = {.kernel = kernel, .state = BT_SLOT_LIVE, .leases = leases};
    int error = bt_set_dump(kernel, BT_SET_LEASES, read_lease, &reading);
    reading.state = BT_SLOT_RESERVED;
    if (error == 0)
        error = bt_set_dump(kernel, BT_SET_RESERVED, read_lease, &reading);
    if (error == 0)
        error = bt_set_dump(kernel, BT_SET_BORROWED, read_borrowed, kernel);
    if (error < 0)
        return error;
    kernel->reserved_deadline_ms = reading.deadline_ms;
    /* Not known, so not authorised; its device will be a stranger. Not into sets of another make: these are
     * made anew in a moment, and what is refused here would read as a damaged table. */
    if (reading.has_unusable && !kernel->is_outdated)
        error = rewrite_elements(kernel, bt_slots_live(kernel));
    if (error < 0)
        return error;
    *ret_count = reading.count;
    *ret_deadline_ms = reading.deadline_ms;
    return 0;
}

/* The table is there: what does it say? Foreign or of another version: -EEXIST. Ours, but somebody took sets
 * out of it: no lease can be known any more, so their devices will be strangers, and the table is made anew.
 */
static int read_table(struct bt_kernel *kernel, struct bt_lease *leases, size_t *ret_count,
                      uint64_t *ret_deadline_ms)
{
    int error = read_state(kernel);
    if (error == -ENOENT || error == -EBADMSG)
        return -EEXIST;
    if (error == 0)
        error = read_leases(kernel, leases, ret_count, ret_deadline_ms);
    if (error != -ENOENT)
        return error;
    memset(kernel->slots, 0, sizeof(kernel->slots));
    kernel->borrowed_count = 0;
    *ret_count = 0;
    *ret_deadline_ms = 0;
    return make_table(kernel, true, (struct bt_lease_table){0});
}

static int provision_new(struct bt_kernel *kernel)
{
    uint64_t start = bt_boottime_ms() / MILLISECONDS_PER_GENERATION;
    kernel->high_water = start < UINT32_MAX / 2 ? (uint32_t)start + 1 : UINT32_MAX / 2;
    return make_table(kernel, false, (struct bt_lease_table){0});
}

int bt_kernel_provision(struct bt_kernel *kernel, struct bt_lease ret_leases[BT_POOL_SLOTS_MAX],
                        size_t *ret_count, uint64_t *ret_deadline_ms, uint32_t *ret_generation)
{
    size_t count = 0;
    uint64_t deadline_ms = 0;
    int error = bt_table_compare(kernel);
    /* Rules of another configuration: they stay in force with their leases until reserve_all. */
    kernel->is_outdated = error == -EUCLEAN;
    if (error == -ENOENT)
        error = provision_new(kernel);
    else if (error == 0 || error == -EUCLEAN)
        error = read_table(kernel, ret_leases, &count, &deadline_ms);
    if (error == 0 && kernel->is_outdated && count == 0)
        error = make_table(kernel, true, (struct bt_lease_table){0});
    if (error < 0)
        return error;
    kernel->is_outdated = kernel->is_outdated && count > 0;

    /* Devices that a helper left behind when it ended between two steps. */
    error = bt_link_disown_strangers(kernel);
    if (error >= 0)
        error = bt_link_delete_dead(kernel);
    if (error == 0)
        error = bt_uplinks_refresh(kernel);
    if (error < 0)
        return error;
    kernel->is_provisioned = true;
    *ret_count = count;
    *ret_deadline_ms = deadline_ms;
    *ret_generation = kernel->high_water;
    return 0;
}

/* ---- transactions, and what an ambiguous answer meant ----------------------------------------------- */

/* No answer came that tells whether the kernel acted. */
static bool is_ambiguous(int error)
{
    return error == -EAGAIN || error == -ENOBUFS;
}

/* Commits what makes the elements those of the slots, as they are remembered now. Where no answer tells what
 * became of it, all elements are written anew, which says the same in either case. -EAGAIN: not even that
 * told.
 */
static int commit_slots(struct bt_kernel *kernel, struct bt_batch *batch)
{
    int error = bt_transaction_commit(kernel, batch);
    if (!is_ambiguous(error))
        return error;
    return rewrite_elements(kernel, bt_slots_live(kernel)) < 0 ? -EAGAIN : 0;
}

/* ---- lease ------------------------------------------------------------------------------------------ */

static int add_rules(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease)
{
    struct bt_batch batch;
    uint32_t old_high_water = kernel->high_water;
    bt_transaction_start(kernel, &batch);
    if (lease->generation > old_high_water) {
        if (__builtin_add_overflow(lease->generation, GENERATION_BLOCK, &kernel->high_water))
            kernel->high_water = UINT32_MAX;
        bt_state_write(kernel, &batch);
    }
    bt_lease_write(kernel, &batch, table, lease, BT_PART_AUTHORITY | BT_PART_ACCOUNT | BT_PART_RECORD, true,
                   true);
    int error = commit_slots(kernel, &batch);
    if (error < 0)
        kernel->high_water = old_high_water;
    return error;
}

int bt_kernel_lease(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease,
                    int *ret_tap_fd)
{
    bt_auto_fd tap_fd = -1;
    int ifindex = 0;
    if (lease->slot >= kernel->config.pool.slots || lease->generation == 0)
        return -EINVAL;
    struct bt_slot *slot = &kernel->slots[lease->slot];
    if (slot->state != BT_SLOT_CLEAN)
        return -EBUSY;
    int error = bt_link_create(kernel, lease, &tap_fd, &ifindex);
    if (error < 0)
        return error;
    *slot = (struct bt_slot){.state = BT_SLOT_LIVE, .ifindex = ifindex, .lease = *lease};
    error = add_rules(kernel, table, lease);
    if (error < 0) { /* stuck: collect writes all elements anew, without these */
        slot->state = is_ambiguous(error) ? BT_SLOT_STUCK : BT_SLOT_CLEAN;
        bt_link_discard(kernel, lease, ifindex);
        return error;
    }
    error = bt_link_set(kernel, lease->slot, BT_LINK_UP);
    if (error < 0) {
        (void)bt_kernel_release(kernel, table, lease); /* the slot is dead now, and collected later */
        return error;
    }
    if (lease->kind == BT_KIND_TAP_FD)
        *ret_tap_fd = bt_fd_take(&tap_fd);
    return 0;
}

/* ---- release ---------------------------------------------------------------------------------------- */

static int remove_rules(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_slot *slot)
{
    struct bt_batch batch;
    bool is_live = slot->state != BT_SLOT_RESERVED;
    bt_transaction_start(kernel, &batch);
    bt_lease_write(kernel, &batch, table, &slot->lease,
                   BT_PART_ACCOUNT | (is_live ? BT_PART_AUTHORITY | BT_PART_RECORD : BT_PART_RESERVED),
                   is_live, false);
    return bt_transaction_commit(kernel, &batch);
}

/* When elements were not as remembered, the transaction was refused as a whole; or nobody knows: all of them
 * are written anew, without this slot's. */
static int release_elements(struct bt_kernel *kernel, struct bt_lease_table table, struct bt_slot *slot)
{
    int error = slot->state == BT_SLOT_STUCK ? -ENOENT : remove_rules(kernel, table, slot);
    slot->state = BT_SLOT_STUCK;
    if (error < 0)
        error = rewrite_elements(kernel, table);
    if (error == -ENOENT) /* a set is missing, or the table */
        error = make_table(kernel, true, table);
    return error;
}

static int release_slot(struct bt_kernel *kernel, struct bt_lease_table table, struct bt_slot *slot)
{
    int error = release_elements(kernel, table, slot);
    /* Down after the elements: it also waits for packets that are on their way, so that no flow is entered
     * behind the deletion of flows. */
    int link_error = bt_link_set(kernel, slot->lease.slot, BT_LINK_DEAD);
    if (error == 0)
        error = link_error;
    slot->state = error < 0 ? BT_SLOT_STUCK : BT_SLOT_DEAD;
    /* None of its flows passes without its elements; collect deletes them, before the slot is leased again.
     */
    slot->has_flows = true;
    return error;
}

int bt_kernel_release(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease)
{
    if (lease->slot >= kernel->config.pool.slots)
        return -EINVAL;
    struct bt_slot *slot = &kernel->slots[lease->slot];
    if (slot->state != BT_SLOT_LIVE && slot->state != BT_SLOT_RESERVED)
        return 0;
    return release_slot(kernel, table, slot);
}

/* ---- collect ---------------------------------------------------------------------------------------- */

/* Each deletion of flows walks the host's whole conntrack table, and who waits for the engine waits for all
 * of a round. */
#define FLOWS_A_ROUND 64

int bt_kernel_collect(struct bt_kernel *kernel)
{
    int cleaned = 0;
    unsigned walks = 0;
    if (bt_kernel_dead_count(kernel) == 0)
        return 0;
    for (size_t i = 0; i < kernel->config.pool.slots; i++) {
        if (kernel->slots[i].state == BT_SLOT_STUCK)
            (void)!release_slot(kernel, bt_slots_live(kernel), &kernel->slots[i]);
    }
    int error = bt_link_delete_dead(kernel);
    for (size_t i = 0; i < kernel->config.pool.slots; i++) {
        struct bt_slot *slot = &kernel->slots[i];
        if (slot->state != BT_SLOT_DEAD)
            continue;
        if (slot->has_flows && walks++ < FLOWS_A_ROUND)
            slot->has_flows = bt_flows_delete(kernel, &slot->lease) < 0;
        if (slot->has_flows || error < 0)
            continue;
        *slot = (struct bt_slot){.state = BT_SLOT_CLEAN};
        cleaned++;
    }
    return cleaned > 0 ? cleaned : error;
}

bool bt_kernel_is_slot_clean(const struct bt_kernel *kernel, uint16_t slot)
{
    return slot < kernel->config.pool.slots && kernel->slots[slot].state == BT_SLOT_CLEAN;
}

size_t bt_kernel_dead_count(const struct bt_kernel *kernel)
{
    size_t count = 0;
    for (size_t i = 0; i < kernel->config.pool.slots; i++)
        count += kernel->slots[i].state == BT_SLOT_DEAD || kernel->slots[i].state == BT_SLOT_STUCK;
    return count;
}

/* ---- restart ---------------------------------------------------------------------------------------- */

static int reserve(struct bt_kernel *kernel, struct bt_lease_table live)
{
    struct bt_batch batch;
    bt_transaction_start(kernel, &batch);
    for (unsigned set = 0; set < BT_SET_COUNTED; set++) {
        if (bt_set_layouts[set].kind == BT_SET_OF_AUTHORITY || bt_set_layouts[set].kind == BT_SET_OF_LINKS)
            bt_set_flush(&batch, (enum bt_set)set);
    }
    for (size_t i = 0; i < live.count; i++)
        bt_lease_write(kernel, &batch, live, &live.leases[i], BT_PART_RESERVED, false, true);
    return bt_transaction_commit(kernel, &batch);
}

static void set_states(struct bt_kernel *kernel, struct bt_lease_table table, enum bt_slot_state state)
{
    for (size_t i = 0; i < table.count; i++) {
        struct bt_slot *slot = &kernel->slots[table.leases[i].slot];
        slot->lease = table.leases[i];
        slot->state = state;
    }
}

int bt_kernel_reserve_all(struct bt_kernel *kernel, struct bt_lease_table live, uint64_t deadline_ms)
{
    uint64_t old_deadline_ms = kernel->reserved_deadline_ms;
    kernel->reserved_deadline_ms = deadline_ms;
    int error = kernel->is_outdated ? 0 : reserve(kernel, live);
    if (is_ambiguous(error))
        error = reserve(kernel, live); /* it says the same whatever became of the first */
    if (error == 0)
        set_states(kernel, live, BT_SLOT_RESERVED);
    if (error == 0 && kernel->is_outdated) {
        error = make_table(kernel, true, (struct bt_lease_table){0});
        if (error < 0)
            set_states(kernel, live, BT_SLOT_LIVE);
    }
    if (error < 0) {
        kernel->reserved_deadline_ms = old_deadline_ms;
        return error;
    }
    kernel->is_outdated = false;
    /* Refused: where bridges ask the table, it lets nothing through now. */
    (void)!bt_link_set_all(kernel, BT_LINK_DOWN, true);
    /* Somebody may have written net.ipv4.ip_forward while nobody was told. Refused: the table decides. */
    (void)!bt_link_set_all(kernel, BT_LINK_SETTINGS, false);
    return 0;
}

/* The slot of a lease that is in this state; NULL: it is not, or not that lease. */
static struct bt_slot *find_slot(struct bt_kernel *kernel, const struct bt_lease *lease,
                                 enum bt_slot_state state)
{
    if (lease->slot >= kernel->config.pool.slots)
        return NULL;
    struct bt_slot *slot = &kernel->slots[lease->slot];
    return slot->state == state && slot->lease.generation == lease->generation ? slot : NULL;
}

int bt_kernel_adopt(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease)
{
    struct bt_batch batch;
    struct bt_slot *slot = find_slot(kernel, lease, BT_SLOT_RESERVED);
    if (!slot)
        return -ESTALE;
    int error = bt_link_check(kernel, lease, slot->ifindex);
    if (error < 0)
        return error;
    bt_transaction_start(kernel, &batch);
    bt_lease_write(kernel, &batch, table, lease, BT_PART_RESERVED, false, false);
    bt_lease_write(kernel, &batch, table, lease, BT_PART_AUTHORITY | BT_PART_RECORD, true, true);
    slot->lease = *lease;
    slot->state = BT_SLOT_LIVE;
    error = commit_slots(kernel, &batch);
    if (error < 0) {
        slot->state = BT_SLOT_RESERVED;
        return error;
    }
    /* Down, if the last helper ended in the middle of a repair, or by what a lessee may do to its device. */
    return bt_link_set(kernel, lease->slot, BT_LINK_UP);
}

int bt_kernel_seal(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease)
{
    struct bt_batch batch;
    struct bt_slot *slot = find_slot(kernel, lease, BT_SLOT_LIVE);
    if (!slot)
        return -ESTALE;
    if (slot->lease.is_sealed)
        return 0;
    struct bt_lease sealed = slot->lease;
    sealed.is_sealed = true;
    bt_transaction_start(kernel, &batch);
    bt_lease_write(kernel, &batch, table, &slot->lease, BT_PART_AUTHORITY | BT_PART_RECORD, true, false);
    bt_lease_write(kernel, &batch, table, &sealed, BT_PART_RECORD, false, true);
    slot->lease = sealed;
    int error = bt_transaction_commit(kernel, &batch);
    if (error < 0) /* elements were not as remembered, or nobody knows */
        error = rewrite_elements(kernel, bt_slots_live(kernel));
    if (error < 0) {
        slot->lease.is_sealed = false;
        return error;
    }
    if (lease->kind == BT_KIND_BRIDGE)
        error = bt_link_set(kernel, lease->slot, BT_LINK_DOWN);
    int flows_error = bt_flows_delete(kernel, &sealed);
    return error < 0 ? error : flows_error;
}

/* ---- counters, drift -------------------------------------------------------------------------------- */

int bt_kernel_counters(struct bt_kernel *kernel, const struct bt_lease *lease, struct bt_lease_counters *ret)
{
    struct bt_element accepted, refused;
    const struct bt_slot *slot = find_slot(kernel, lease, BT_SLOT_LIVE);
    if (!slot)
        return -ESTALE;
    bt_element_interface(BT_SET_ACCEPTED, slot->ifindex, &accepted);
    bt_element_interface(BT_SET_REFUSED, slot->ifindex, &refused);
    int error = bt_element_get(kernel, &accepted);
    if (error == 0)
        error = bt_element_get(kernel, &refused);
    if (error < 0)
        return error;
    *ret = (struct bt_lease_counters){.accepted_packets = accepted.counter.packets,
                                      .accepted_bytes = accepted.counter.bytes,
                                      .dropped_packets = refused.counter.packets,
                                      .dropped_bytes = refused.counter.bytes};
    return 0;
}

int bt_kernel_verify(struct bt_kernel *kernel, struct bt_lease_table live)
{
    int error = bt_table_compare(kernel);
    if (error == 0)
        error = bt_elements_compare(kernel, live);
    return error == -ENOENT ? -EUCLEAN : error;
}

int bt_kernel_repair(struct bt_kernel *kernel, struct bt_lease_table live)
{
    /* The rules are put right also when a link refuses to go down: that makes them more urgent. */
    int down_error = bt_link_set_all(kernel, BT_LINK_DOWN, false);
    int stranger_error = bt_link_disown_strangers(kernel);
    if (stranger_error > 0)
        stranger_error = bt_link_delete_dead(kernel);
    if (down_error == 0)
        down_error = stranger_error;
    int error = make_table(kernel, true, live);
    if (error == 0)
        error = bt_uplinks_refresh(kernel);
    if (error == 0)
        error = bt_kernel_verify(kernel, live);
    if (error == 0)
        error = bt_link_set_all(kernel, BT_LINK_UP, false);
    return error < 0 ? error : down_error;
}
