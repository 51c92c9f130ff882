/* A table of another version of the helper: one that is not understood is refused as such and left in force,
 * an older one is read and replaced with its leases, and one that is not ours at all is told apart from both.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <stdio.h>
#include <string.h>

#include "helper/kernel_linux.h"
#include "tests/lib/fake_guest.h"

static const struct bt_kernel_config config = {
    .pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT, .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT, .slots = 64},
    .agent_flows = 512,
    .gateway_flows = 16384};

static struct bt_lease found[BT_POOL_SLOTS_MAX];

static int provision(struct bt_kernel **ret_kernel, size_t *ret_count)
{
    uint64_t deadline_ms;
    uint32_t generation;
    assert_int_equal(bt_kernel_open(&config, ret_kernel), 0);
    return bt_kernel_provision(*ret_kernel, found, ret_count, &deadline_ms, &generation);
}

/* Exchanges the record of the table's state for one with these bytes at its start. */
static void rewrite_state(struct bt_kernel *kernel, const char *magic, uint8_t version)
{
    struct bt_batch batch;
    struct bt_element element;
    bt_state_element(1000, &element);
    bt_transaction_start(kernel, &batch);
    bt_element_write(&batch, NFT_MSG_DELSETELEM, &element);
    memcpy(element.userdata + 2, magic, 5);
    element.userdata[7] = version;
    bt_element_write(&batch, NFT_MSG_NEWSETELEM, &element);
    assert_int_equal(bt_transaction_commit(kernel, &batch), 0);
}

static void t_upgrade_other_versions(void **state)
{
    static const struct {
        const char *magic;
        uint8_t version;
        int error;
    } cases[] = {{"berth", 2, -EPROTONOSUPPORT},
                 {"berth", 0, -EPROTONOSUPPORT},
                 {"berth", 255, -EPROTONOSUPPORT},
                 {"birth", 1, -EEXIST},
                 {"berth", 1, 0}};
    struct bt_kernel *kernel;
    struct bt_lease lease = {.slot = 3, .uid = 1000, .role = BT_ROLE_AGENT};
    size_t count = 0;
    int tap_fd = -1;
    (void)state;
    assert_int_equal(provision(&kernel, &count), 0);
    lease.generation = kernel->high_water + 1;
    assert_int_equal(bt_kernel_lease(kernel, (struct bt_lease_table){0}, &lease, &tap_fd), 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        rewrite_state(kernel, cases[i].magic, cases[i].version);
        bt_kernel_close(kernel);
        count = 0;
        assert_int_equal(provision(&kernel, &count), cases[i].error);
        assert_int_equal(count, cases[i].error == 0 ? 1 : 0);
        struct bt_element record;
        int ifindex = cases[i].error == 0 ? kernel->slots[3].ifindex : 0;
        if (ifindex > 0) {
            bt_element_interface(BT_SET_LEASES, ifindex, &record);
            assert_int_equal(bt_element_get(kernel, &record), 0); /* in force all the time */
        }
    }
    assert_int_equal(found[0].generation, lease.generation);
    bt_fd_close(&tap_fd);
    bt_kernel_close(kernel);
}

/* A record that this version cannot use: of an interface that is nobody's, in a form of its own. */
static void add_unusable_record(struct bt_kernel *kernel)
{
    struct bt_batch batch;
    struct bt_element element;
    bt_element_interface(BT_SET_LEASES, 99999, &element);
    element.userdata_length = 2;
    bt_transaction_start(kernel, &batch);
    bt_element_write(&batch, NFT_MSG_NEWSETELEM, &element);
    assert_int_equal(bt_transaction_commit(kernel, &batch), 0);
}

/* The table of an older version has not all of today's sets, and a record that none can read. Its leases are
 * known all the same: it is not damaged. */
static void t_upgrade_older_table(void **state)
{
    static const char *const no_rules[] = {"nft", "flush", "table", "inet", "berth", NULL};
    static const char *const no_set[] = {"nft", "delete", "set", "inet", "berth", "control_bridges", NULL};
    struct bt_kernel *kernel;
    struct bt_lease lease = {.slot = 5, .uid = 1000, .role = BT_ROLE_AGENT};
    size_t count = 0;
    int tap_fd = -1;
    (void)state;
    assert_int_equal(provision(&kernel, &count), 0);
    size_t before = count;
    lease.generation = kernel->high_water + 1;
    assert_int_equal(bt_kernel_lease(kernel, (struct bt_lease_table){0}, &lease, &tap_fd), 0);
    add_unusable_record(kernel);
    assert_int_equal(bt_test_run(-1, no_rules), 0);
    assert_int_equal(bt_test_run(-1, no_set), 0);
    bt_kernel_close(kernel);

    assert_int_equal(provision(&kernel, &count), 0);
    assert_int_equal(count, before + 1);
    assert_int_equal(kernel->slots[5].state, BT_SLOT_LIVE);
    struct bt_lease_table leases = {.leases = found, .count = count};
    assert_int_equal(bt_kernel_reserve_all(kernel, leases, UINT64_MAX), 0);
    assert_int_equal(bt_kernel_verify(kernel, (struct bt_lease_table){0}), 0);
    assert_int_equal(bt_kernel_adopt(kernel, (struct bt_lease_table){0}, &lease), 0);
    bt_fd_close(&tap_fd);
    bt_kernel_close(kernel);
}

struct change {
    const char *chain;
    uint16_t nest, attribute; /* nest 0: of the chain itself */
    uint32_t value;
};

/* In what is about to be sent, as if the table had been made by a helper with another idea of that chain. */
static void change_chain(struct bt_batch *batch, const struct change *change)
{
    int left = (int)bt_batch_used(batch);
    struct nlmsghdr *message = (struct nlmsghdr *)(void *)batch->buffer;
    for (; mnl_nlmsg_ok(message, left); message = mnl_nlmsg_next(message, &left)) {
        if (message->nlmsg_type != (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN))
            continue;
        struct bt_attributes walk = bt_attributes_of(message, sizeof(struct nfgenmsg));
        if (strcmp(mnl_attr_get_str(bt_attribute_find(walk, NFTA_CHAIN_NAME)), change->chain) != 0)
            continue;
        if (change->nest != 0)
            walk = bt_attributes_in(bt_attribute_find(walk, change->nest));
        uint32_t network_order = htonl(change->value);
        memcpy(mnl_attr_get_payload(bt_attribute_find(walk, change->attribute)), &network_order,
               sizeof(network_order));
        return;
    }
    fail_msg("no chain %s", change->chain);
}

/* Another hook, priority or policy of a chain whose rules are all there. (A hook where we have none cannot be
 * seen alone: the kernel jumps to no chain that has one.) */
static void t_upgrade_sees_other_hooks(void **state)
{
    static const struct change changes[] = {
        {"forward", NFTA_CHAIN_HOOK, NFTA_HOOK_PRIORITY, 5},
        {"output", NFTA_CHAIN_HOOK, NFTA_HOOK_PRIORITY, 0},
        {"prerouting", NFTA_CHAIN_HOOK, NFTA_HOOK_HOOKNUM, NF_INET_LOCAL_IN},
        {"input", NFTA_CHAIN_HOOK, NFTA_HOOK_HOOKNUM, NF_INET_FORWARD},
        {"forward", 0, NFTA_CHAIN_POLICY, NF_DROP},
    };
    struct bt_kernel *kernel;
    size_t count = 0;
    (void)state;
    assert_int_equal(provision(&kernel, &count), 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(changes); i++) {
        struct bt_batch batch;
        assert_int_equal(bt_table_compare(kernel), 0);
        bt_transaction_start(kernel, &batch);
        bt_table_encode_removal(&batch);
        bt_table_encode(kernel, &batch);
        change_chain(&batch, &changes[i]);
        assert_int_equal(bt_transaction_commit(kernel, &batch), 0);
        assert_int_equal(bt_table_compare(kernel), -EUCLEAN);
        assert_int_equal(bt_kernel_repair(kernel, (struct bt_lease_table){0}), 0);
    }
    bt_kernel_close(kernel);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_upgrade_other_versions),
        cmocka_unit_test(t_upgrade_older_table),
        cmocka_unit_test(t_upgrade_sees_other_hooks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
