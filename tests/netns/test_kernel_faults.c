/* Every netlink request of the helper's kernel part fails once, in each way that it can: there is never a
 * lease without its rules, nor rules without their lease, and no device or element stays.
 *
 * sendto and recvmsg are this file's: the modules under test call them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/if_tun.h>

#include "helper/kernel.h"
#include "tests/lib/fake_guest.h"

enum fault {
    FAULT_NONE,
    FAULT_NOT_SENT,      /* sendto fails, the kernel knows nothing of it */
    FAULT_ANSWER_LOST,   /* the kernel acted, nothing is heard of it */
    FAULT_ANSWER_NOBUFS, /* the kernel acted; the queue overflowed */
    FAULT_DEAF           /* the kernel acts, and nothing is heard of it from then on */
};

static struct {
    enum fault kind;
    unsigned countdown; /* requests until the fault */
    int deaf_fd;        /* whose answers are taken away */
    bool has_fired, is_reported;
} plan = {.deaf_fd = -1};

static void plan_fault(enum fault fault, unsigned countdown)
{
    plan.kind = fault;
    plan.countdown = countdown;
    plan.deaf_fd = -1;
    plan.has_fired = plan.is_reported = false;
}

ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to,
               socklen_t to_length)
{
    plan.deaf_fd = plan.kind == FAULT_DEAF && plan.has_fired ? fd : -1;
    if (plan.kind != FAULT_NONE && plan.countdown > 0 && --plan.countdown == 0) {
        plan.has_fired = true;
        if (plan.kind == FAULT_NOT_SENT) {
            errno = ENOBUFS;
            return -1;
        }
        plan.deaf_fd = fd;
    }
    return syscall(SYS_sendto, fd, data, length, flags, to, to_length);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t length = syscall(SYS_recvmsg, fd, message, flags);
    if (fd != plan.deaf_fd || length < 0)
        return length;
    if (plan.kind == FAULT_ANSWER_NOBUFS && !plan.is_reported) {
        plan.is_reported = true;
        errno = ENOBUFS;
        return -1;
    }
    while (length >= 0)
        length = syscall(SYS_recvmsg, fd, message, flags);
    return length;
}

/* ---- the engine's part ----------------------------------------------------------------------------- */

#define ALICE 1000U

static const struct bt_kernel_config config = {
    .pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT, .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT, .slots = 64},
    .agent_flows = 512,
    .gateway_flows = 16384};
static struct bt_kernel *kernel;
static uint32_t generation;
static uint8_t kind = BT_KIND_TAP_FD; /* of the lease under test */
/* An agent and a gateway are live; the lease under test is another gateway's agent, or the gateway itself. */
static struct bt_lease standing[2];
static int standing_fds[2] = {-1, -1};

static struct bt_lease_table table_of(const struct bt_lease *leases, size_t count)
{
    return (struct bt_lease_table){.leases = leases, .count = count};
}

static int setup(void **state)
{
    static struct bt_lease found[BT_POOL_SLOTS_MAX];
    size_t count;
    uint64_t deadline_ms;
    (void)state;
    assert_int_equal(bt_kernel_open(&config, &kernel), 0);
    assert_int_equal(bt_kernel_provision(kernel, found, &count, &deadline_ms, &generation), 0);
    for (uint16_t i = 0; i < 2; i++) {
        standing[i] = (struct bt_lease){.slot = i,
                                        .generation = ++generation,
                                        .uid = ALICE,
                                        .role = i == 0 ? BT_ROLE_AGENT : BT_ROLE_GATEWAY};
        assert_int_equal(bt_kernel_lease(kernel, table_of(standing, i), &standing[i], &standing_fds[i]), 0);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    plan_fault(FAULT_NONE, 0);
    for (size_t i = 0; i < 2; i++)
        close(standing_fds[i]);
    bt_kernel_close(kernel);
    return 0;
}

/* A device whose descriptor is closed, a kernel that answers again: all must come right by collect alone. */
static void assert_comes_clean(uint16_t slot)
{
    plan_fault(FAULT_NONE, 0);
    for (int i = 0; i < 50 && !bt_kernel_is_slot_clean(kernel, slot); i++) {
        (void)bt_kernel_collect(kernel);
        if (!bt_kernel_is_slot_clean(kernel, slot))
            usleep(2000);
    }
    assert_true(bt_kernel_is_slot_clean(kernel, slot));
    struct bt_place place;
    assert_int_equal(bt_pool_place(&config.pool, (enum bt_kind)kind, BT_ROLE_AGENT, slot, &place), 0);
    assert_int_equal(if_nametoindex(place.interface_name), 0);
    assert_int_equal(bt_kernel_verify(kernel, table_of(standing, 2)), 0);
}

static struct bt_lease next_lease(void)
{
    return (struct bt_lease){
        .slot = 2, .generation = ++generation, .uid = ALICE, .kind = kind, .role = BT_ROLE_AGENT};
}

static int lease(const struct bt_lease *lease, int *ret_fd)
{
    return bt_kernel_lease(kernel, table_of(standing, 2), lease, ret_fd);
}

/* verb is tried with its first request failing, then its second, and so on until none is left to fail. */
static void for_each_fault(void (*verb)(void), bool is_ever_deaf)
{
    static const enum fault kinds[] = {FAULT_NOT_SENT, FAULT_ANSWER_LOST, FAULT_ANSWER_NOBUFS, FAULT_DEAF};
    unsigned fired = 0;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(kinds) - (is_ever_deaf ? 0 : 1); i++) {
        for (unsigned countdown = 1; countdown < 100; countdown++) {
            plan_fault(kinds[i], countdown);
            verb();
            bool has_fired = plan.has_fired;
            assert_comes_clean(2);
            if (!has_fired)
                break;
            fired++;
        }
    }
    print_message("# %u faults\n", fired);
    assert_true(fired >= 6);
}

/* Runs what has to work before the verb under test does. */
static void without_faults(enum fault *ret_kind)
{
    *ret_kind = plan.kind;
    plan.kind = FAULT_NONE;
}

static void lease_once(void)
{
    struct bt_lease all[3] = {standing[0], standing[1], next_lease()};
    int fd = -1;
    int error = lease(&all[2], &fd);
    bool has_fired = plan.has_fired;
    plan.kind = FAULT_NONE;
    if (error == 0) {
        assert_int_equal(bt_kernel_verify(kernel, table_of(all, 3)), 0);
        assert_int_equal(bt_kernel_release(kernel, table_of(standing, 2), &all[2]), 0);
        close(fd);
    } else {
        assert_true(has_fired);
        assert_int_equal(fd, -1);
    }
    plan.has_fired = has_fired;
}

static void t_lease(void **state)
{
    (void)state;
    for_each_fault(lease_once, true);
}

static void release_once(void)
{
    enum fault fault;
    struct bt_lease one = next_lease();
    int fd = -1;
    without_faults(&fault);
    assert_int_equal(lease(&one, &fd), 0);
    plan.kind = fault;
    (void)bt_kernel_release(kernel, table_of(standing, 2), &one); /* what it could not do, collect does */
    plan.kind = FAULT_NONE;
    close(fd);
}

static void t_release(void **state)
{
    (void)state;
    for_each_fault(release_once, true);
}

/* The same for a bridge: nothing closes it but the helper. */
static void t_bridges(void **state)
{
    (void)state;
    kind = BT_KIND_BRIDGE;
    for_each_fault(lease_once, true);
    for_each_fault(release_once, true);
    kind = BT_KIND_TAP_FD;
}

/* The descriptor is still open: the device must go all the same. */
static void release_held_once(void)
{
    static int held_fd = -1;
    enum fault fault;
    struct bt_lease one = next_lease();
    without_faults(&fault);
    if (held_fd >= 0)
        close(held_fd);
    assert_int_equal(lease(&one, &held_fd), 0);
    plan.kind = fault;
    (void)bt_kernel_release(kernel, table_of(standing, 2), &one);
    (void)bt_kernel_collect(kernel);
    plan.kind = FAULT_NONE;
}

static void t_release_and_collect(void **state)
{
    (void)state;
    for_each_fault(release_held_once, true);
}

static void seal_once(void)
{
    enum fault fault;
    struct bt_lease all[3] = {standing[0], standing[1], next_lease()};
    int fd = -1;
    without_faults(&fault);
    assert_int_equal(lease(&all[2], &fd), 0);
    plan.kind = fault;
    int error = bt_kernel_seal(kernel, table_of(standing, 2), &all[2]);
    plan.kind = FAULT_NONE;
    if (error < 0) /* asked again, it says so */
        assert_int_equal(bt_kernel_seal(kernel, table_of(standing, 2), &all[2]), 0);
    all[2].is_sealed = true;
    assert_int_equal(bt_kernel_verify(kernel, table_of(all, 3)), 0);
    assert_int_equal(bt_kernel_release(kernel, table_of(standing, 2), &all[2]), 0);
    close(fd);
}

static void t_seal(void **state)
{
    (void)state;
    for_each_fault(seal_once, true);
}

static void restart_once(void)
{
    enum fault fault;
    struct bt_lease all[3] = {standing[0], standing[1], next_lease()};
    int fd = -1;
    without_faults(&fault);
    assert_int_equal(lease(&all[2], &fd), 0);
    plan.kind = fault;
    int error = bt_kernel_reserve_all(kernel, table_of(all, 3), 77);
    if (error < 0) {
        plan.kind = FAULT_NONE;
        assert_int_equal(bt_kernel_verify(kernel, table_of(all, 3)), 0); /* nothing happened */
        assert_int_equal(bt_kernel_reserve_all(kernel, table_of(all, 3), 77), 0);
        plan.kind = fault;
    }
    for (size_t i = 0; i < 3; i++) {
        error = bt_kernel_adopt(kernel, table_of(all, i), &all[i]);
        if (error < 0) {
            plan.kind = FAULT_NONE;
            error = bt_kernel_adopt(kernel, table_of(all, i), &all[i]);
            /* Adopted after all, but its link could not be set up: the engine would release it. */
            assert_true(error == 0 || error == -ESTALE);
            plan.kind = fault;
        }
    }
    plan.kind = FAULT_NONE;
    assert_int_equal(bt_kernel_verify(kernel, table_of(all, 3)), 0);
    assert_int_equal(bt_kernel_release(kernel, table_of(standing, 2), &all[2]), 0);
    close(fd);
}

static void t_reserve_and_adopt(void **state)
{
    (void)state;
    for_each_fault(restart_once, false); /* a deaf engine ends, and is started again */
}

static void repair_once(void)
{
    enum fault fault;
    static const char *const damage[] = {"nft", "delete", "table", "inet", "berth", NULL};
    without_faults(&fault);
    assert_int_equal(bt_test_run(-1, damage), 0);
    plan.kind = fault;
    int error = bt_kernel_repair(kernel, table_of(standing, 2));
    plan.kind = FAULT_NONE;
    if (error < 0)
        assert_int_equal(bt_kernel_repair(kernel, table_of(standing, 2)), 0);
    static const char *const up[] = {"sh", "-c", "ip -o link show up | grep -c ': berth[01]:' | grep -qx 2",
                                     NULL};
    assert_int_equal(bt_test_run(-1, up), 0);
}

static void t_repair(void **state)
{
    (void)state;
    for_each_fault(repair_once, true);
}

/* Somebody's device has the name of a slot: not touched, not leased. */
static void t_name_is_taken(void **state)
{
    static const char *const make[] = {"ip",   "link", "add",  "berth5", "type",
                                       "veth", "peer", "name", "peer5",  NULL};
    static const char *const there[] = {"ip", "link", "show", "berth5", NULL};
    static const char *const remove[] = {"ip", "link", "del", "berth5", NULL};
    struct bt_lease one = {.slot = 5, .generation = ++generation, .uid = ALICE};
    int fd = -1;
    (void)state;
    assert_int_equal(bt_test_run(-1, make), 0);
    assert_true(lease(&one, &fd) < 0);
    assert_int_equal(bt_test_run(-1, there), 0);
    assert_true(bt_kernel_is_slot_clean(kernel, 5));
    assert_int_equal(bt_kernel_verify(kernel, table_of(standing, 2)), 0);
    assert_int_equal(bt_test_run(-1, remove), 0);
}

static void t_wrong_arguments(void **state)
{
    static const struct bt_lease wrong[] = {
        {.slot = 64, .generation = 1}, {.slot = UINT16_MAX, .generation = 1},
        {.slot = 3, .generation = 0},  {.slot = 3, .generation = 1, .kind = BT_KIND_PF},
        {.slot = 0, .generation = 1}, /* leased */
    };
    struct bt_lease_counters counters;
    int fd = -1;
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(wrong); i++)
        assert_true(lease(&wrong[i], &fd) < 0);
    assert_int_equal(fd, -1);
    assert_int_equal(bt_kernel_adopt(kernel, table_of(standing, 2), &wrong[0]), -ESTALE);
    assert_int_equal(bt_kernel_seal(kernel, table_of(standing, 2), &wrong[0]), -ESTALE);
    assert_int_equal(bt_kernel_counters(kernel, &wrong[0], &counters), -ESTALE);
    assert_int_equal(bt_kernel_counters(kernel, &wrong[4], &counters), -ESTALE);
    assert_false(bt_kernel_is_slot_clean(kernel, 64));
    assert_int_equal(bt_kernel_verify(kernel, table_of(standing, 2)), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_wrong_arguments),
        cmocka_unit_test(t_name_is_taken),
        cmocka_unit_test(t_lease),
        cmocka_unit_test(t_release),
        cmocka_unit_test(t_release_and_collect),
        cmocka_unit_test(t_seal),
        cmocka_unit_test(t_reserve_and_adopt),
        cmocka_unit_test(t_repair),
        cmocka_unit_test(t_bridges),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
