/* An in-memory kernel, see kernel_fake.h. It checks what the contract in helper/kernel.h asks of the engine,
 * and aborts the test where the engine breaks it.
 */
#include "tests/lib/fake/kernel_fake.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct bt_kernel {
    struct bt_kernel_config config;
    bool is_open;
    bool is_reserved[BT_POOL_SLOTS_MAX]; /* its own memory, from which a repair rebuilds */
};

struct bt_fake bt_fake = {.event_fds = {-1, -1}};
static struct bt_kernel the_kernel;

void bt_fake_reset(void)
{
    bt_fd_close(&bt_fake.event_fds[0]);
    bt_fd_close(&bt_fake.event_fds[1]);
    memset(&bt_fake, 0, sizeof(bt_fake));
    if (pipe2(bt_fake.event_fds, O_CLOEXEC | O_NONBLOCK) < 0)
        assert(false && "pipe2");
}

void bt_fake_fail(unsigned n, unsigned count, int error)
{
    bt_fake.fail_at = bt_fake.calls + n;
    bt_fake.fail_count = count;
    bt_fake.fail_error = error;
}

void bt_fake_flush_table(void)
{
    bt_fake.is_table_lost = true;
    for (unsigned slot = 0; slot < BT_POOL_SLOTS_MAX; slot++)
        bt_fake.slots[slot].rules = BT_FAKE_NONE;
    if (write(bt_fake.event_fds[1], "!", 1) != 1)
        assert(false && "write");
}

unsigned bt_fake_count(enum bt_fake_rules rules)
{
    unsigned count = 0;
    for (unsigned slot = 0; slot < BT_POOL_SLOTS_MAX; slot++)
        if (bt_fake.slots[slot].rules == rules)
            count++;
    return count;
}

static int fails(void)
{
    bt_fake.calls++;
    if (bt_fake.fail_at != 0 && bt_fake.calls >= bt_fake.fail_at &&
        bt_fake.calls - bt_fake.fail_at < bt_fake.fail_count)
        return bt_fake.fail_error;
    return 0;
}

static bool is_same(const struct bt_lease *one, const struct bt_lease *other)
{
    return one->slot == other->slot && one->generation == other->generation && one->uid == other->uid &&
           one->kind == other->kind && one->role == other->role && one->environment == other->environment;
}

/* The others' table must hold exactly the live leases: one that lacks a lease would unlink an agent. */
static void check_table(struct bt_lease_table table, int without_slot)
{
    unsigned expected = 0;
    for (unsigned slot = 0; slot < BT_POOL_SLOTS_MAX; slot++) {
        enum bt_fake_rules rules = bt_fake.slots[slot].rules;
        if ((rules == BT_FAKE_LIVE || rules == BT_FAKE_SEALED) && (int)slot != without_slot)
            expected++;
    }
    unsigned others = 0;
    for (size_t i = 0; i < table.count; i++) {
        const struct bt_lease *lease = &table.leases[i];
        if ((int)lease->slot == without_slot)
            continue;
        others++;
        assert(bt_fake.is_table_lost || is_same(lease, &bt_fake.slots[lease->slot].lease));
    }
    assert(bt_fake.is_table_lost || others == expected);
}

int bt_kernel_open(const struct bt_kernel_config *config, struct bt_kernel **ret_kernel)
{
    int error = fails();
    if (error < 0)
        return error;
    if (bt_fake.event_fds[0] < 0)
        bt_fake_reset();
    the_kernel = (struct bt_kernel){.config = *config, .is_open = true};
    *ret_kernel = &the_kernel;
    return 0;
}

int bt_kernel_provision(struct bt_kernel *kernel, struct bt_lease ret_leases[BT_POOL_SLOTS_MAX],
                        size_t *ret_count, uint64_t *ret_deadline_ms, uint32_t *ret_generation)
{
    assert(kernel->is_open);
    int error = fails();
    if (error < 0)
        return error;
    size_t count = 0;
    for (unsigned slot = 0; slot < BT_POOL_SLOTS_MAX; slot++) {
        struct bt_fake_slot *state = &bt_fake.slots[slot];
        if (state->rules == BT_FAKE_NONE)
            continue;
        kernel->is_reserved[slot] = state->rules == BT_FAKE_RESERVED;
        ret_leases[count] = state->lease;
        if (state->rules == BT_FAKE_SEALED)
            ret_leases[count].is_sealed = true;
        count++;
    }
    *ret_count = count;
    *ret_deadline_ms = bt_fake_count(BT_FAKE_RESERVED) > 0 ? bt_fake.deadline_ms : 0;
    *ret_generation = bt_fake.generation;
    return 0;
}

int bt_kernel_reserve_all(struct bt_kernel *kernel, struct bt_lease_table live, uint64_t deadline_ms)
{
    assert(kernel->is_open);
    int error = fails();
    if (error < 0)
        return error;
    for (size_t i = 0; i < live.count; i++) {
        struct bt_fake_slot *state = &bt_fake.slots[live.leases[i].slot];
        state->rules = BT_FAKE_RESERVED;
        state->lease = live.leases[i];
        kernel->is_reserved[live.leases[i].slot] = true;
    }
    bt_fake.deadline_ms = deadline_ms;
    return 0;
}

int bt_kernel_lease(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease,
                    int *ret_tap_fd)
{
    assert(kernel->is_open && lease->slot < kernel->config.pool.slots);
    struct bt_fake_slot *state = &bt_fake.slots[lease->slot];
    check_table(table, lease->slot);
    assert(lease->generation > bt_fake.generation); /* never used before */
    bt_fake.generation = lease->generation;
    int error = fails();
    if (error < 0)
        return error;
    if (state->is_squatted || state->has_device)
        return -EBUSY;
    assert(state->rules == BT_FAKE_NONE);
    *state = (struct bt_fake_slot){.has_device = true, .rules = BT_FAKE_LIVE, .lease = *lease};
    if (lease->kind != BT_KIND_TAP_FD)
        return 0;
    *ret_tap_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert(*ret_tap_fd >= 0);
    bt_fake.tap_fds++;
    return 0;
}

int bt_kernel_adopt(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease)
{
    assert(kernel->is_open && lease->slot < kernel->config.pool.slots);
    struct bt_fake_slot *state = &bt_fake.slots[lease->slot];
    check_table(table, lease->slot);
    assert(kernel->is_reserved[lease->slot] && is_same(&state->lease, lease));
    int error = fails();
    if (error < 0)
        return error;
    assert(state->rules == BT_FAKE_RESERVED);
    if (!state->has_device)
        return -ENODEV;
    if (state->is_changed)
        return -EPERM;
    state->rules = lease->is_sealed ? BT_FAKE_SEALED : BT_FAKE_LIVE;
    kernel->is_reserved[lease->slot] = false;
    return 0;
}

int bt_kernel_seal(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease)
{
    assert(kernel->is_open);
    struct bt_fake_slot *state = &bt_fake.slots[lease->slot];
    check_table(table, lease->slot);
    assert(is_same(&state->lease, lease));
    int error = fails();
    if (error < 0)
        return error;
    state->rules = BT_FAKE_SEALED;
    return 0;
}

int bt_kernel_release(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease)
{
    assert(kernel->is_open);
    struct bt_fake_slot *state = &bt_fake.slots[lease->slot];
    check_table(table, lease->slot);
    assert(bt_fake.is_table_lost || is_same(&state->lease, lease));
    bt_fake.releases++;
    int error = fails();
    kernel->is_reserved[lease->slot] = false;
    state->rules = BT_FAKE_NONE; /* it never fails half way */
    state->is_down = true;
    return error;
}

int bt_kernel_collect(struct bt_kernel *kernel)
{
    int cleaned = 0;
    bt_fake.collects++;
    for (unsigned slot = 0; slot < kernel->config.pool.slots && !bt_fake.is_stuck; slot++) {
        struct bt_fake_slot *state = &bt_fake.slots[slot];
        if (state->has_device && state->rules == BT_FAKE_NONE) {
            *state = (struct bt_fake_slot){.is_squatted = state->is_squatted};
            cleaned++;
        }
    }
    return cleaned;
}

bool bt_kernel_is_slot_clean(const struct bt_kernel *kernel, uint16_t slot)
{
    return slot < kernel->config.pool.slots && !bt_fake.slots[slot].has_device;
}

size_t bt_kernel_dead_count(const struct bt_kernel *kernel)
{
    size_t count = 0;
    for (unsigned slot = 0; slot < kernel->config.pool.slots; slot++)
        if (bt_fake.slots[slot].has_device && bt_fake.slots[slot].rules == BT_FAKE_NONE &&
            !bt_fake.is_table_lost)
            count++;
    return count;
}

int bt_kernel_counters(struct bt_kernel *kernel, const struct bt_lease *lease, struct bt_lease_counters *ret)
{
    assert(kernel->is_open);
    int error = fails();
    if (error < 0)
        return error;
    *ret = (struct bt_lease_counters){lease->slot + 1U, 20, 30, 40};
    return 0;
}

static bool is_table_right(struct bt_lease_table live)
{
    unsigned right = 0;
    for (size_t i = 0; i < live.count; i++) {
        const struct bt_fake_slot *state = &bt_fake.slots[live.leases[i].slot];
        enum bt_fake_rules wanted = live.leases[i].is_sealed ? BT_FAKE_SEALED : BT_FAKE_LIVE;
        if (state->rules == wanted && is_same(&state->lease, &live.leases[i]))
            right++;
    }
    return right == live.count && right == bt_fake_count(BT_FAKE_LIVE) + bt_fake_count(BT_FAKE_SEALED);
}

int bt_kernel_verify(struct bt_kernel *kernel, struct bt_lease_table live)
{
    assert(kernel->is_open);
    int error = fails();
    if (error < 0)
        return error;
    return !bt_fake.is_table_lost && is_table_right(live) ? 0 : -EUCLEAN;
}

int bt_kernel_repair(struct bt_kernel *kernel, struct bt_lease_table live)
{
    assert(kernel->is_open);
    bt_fake.repairs++;
    for (unsigned slot = 0; slot < BT_POOL_SLOTS_MAX; slot++)
        bt_fake.slots[slot].is_down = true;
    int error = fails();
    if (error < 0)
        return error;
    for (size_t i = 0; i < live.count; i++) {
        struct bt_fake_slot *state = &bt_fake.slots[live.leases[i].slot];
        state->rules = live.leases[i].is_sealed ? BT_FAKE_SEALED : BT_FAKE_LIVE;
        state->lease = live.leases[i];
        state->is_down = false;
    }
    for (unsigned slot = 0; slot < BT_POOL_SLOTS_MAX; slot++)
        if (kernel->is_reserved[slot])
            bt_fake.slots[slot].rules = BT_FAKE_RESERVED;
    bt_fake.is_table_lost = false;
    return 0;
}

void bt_kernel_event_fds(const struct bt_kernel *kernel, int ret_fds[BT_KERNEL_EVENT_FDS])
{
    assert(kernel->is_open);
    ret_fds[0] = bt_fake.event_fds[0];
    ret_fds[1] = -1;
}

int bt_kernel_handle_events(struct bt_kernel *kernel, bool *ret_is_drift)
{
    char byte;
    assert(kernel->is_open);
    while (read(bt_fake.event_fds[0], &byte, 1) == 1)
        ;
    int error = fails();
    if (error < 0)
        return error;
    *ret_is_drift = bt_fake.is_table_lost;
    return 0;
}
