/* The helper's configuration, accounts, limits and bookkeeping: what is decided before and beside the engine.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "helper/accounts.h"
#include "helper/admission.h"
#include "helper/config.h"
#include "helper/ledger.h"

static int parse(const char *text, struct bt_config *config, struct bt_config_place *place)
{
    bt_config_init(config);
    return bt_config_parse(text, strlen(text), config, place);
}

static void t_config_every_name(void **state)
{
    (void)state;
    struct bt_config config;
    struct bt_config_place place = {.line = 0};
    static const char text[] =
        "# berth\n\nslots: 512\nslots_per_uid:100 # many\n  tap_base : 10.96.0.0\r\n"
        "bridge_base: 10.97.0.0\nuplink_private: deny\n"
        "resolvers: 192.0.2.1  192.0.2.2\t192.0.2.3\nagent_flows: 1\ngateway_flows: 1000000\n"
        "requests_per_second: 7\nrequests_burst: 9\nuid_max: 70000\nuser_uid: 900\n"
        "user_gid: 901\nsocket_group: 902\naudit_folder: /var/log/other\naudit_lines: 100";
    assert_int_equal(parse(text, &config, &place), 0);
    assert_int_equal(config.kernel.pool.slots, 512);
    assert_int_equal(config.quota, 100);
    assert_int_equal(config.kernel.pool.tap_base, 0x0a600000);
    assert_int_equal(config.kernel.pool.bridge_base, 0x0a610000);
    assert_true(config.kernel.deny_private_uplink);
    assert_int_equal(config.kernel.resolver_count, 3);
    assert_int_equal(config.kernel.resolvers[2], 0xc0000203);
    assert_int_equal(config.kernel.agent_flows, 1);
    assert_int_equal(config.kernel.gateway_flows, 1000000);
    assert_int_equal(config.admission.rate, 7);
    assert_int_equal(config.admission.burst, 9);
    assert_int_equal(config.admission.uid_max, 70000);
    assert_int_equal(config.user_uid, 900);
    assert_int_equal(config.user_gid, 901);
    assert_int_equal(config.socket_gid, 902);
    assert_string_equal(config.audit_folder, "/var/log/other");
    assert_int_equal(config.audit_lines, 100);
    assert_int_equal(parse("audit_folder: none", &config, &place), 0);
    assert_string_equal(config.audit_folder, "");
}

static void t_config_refuses_with_the_line(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "slots: 0",
        "audit_folder: log",
        "audit_folder: /",
        "audit_folder:",
        "audit_lines: 7",
        "audit_lines: 1048577",
        "slots: 1025",
        "slots: 010",
        "slots: -1",
        "slots: 4294967297",
        "slots:",
        "slots 4",
        "slot: 4",
        "Slots: 4",
        "tap_base: 10.1",
        "tap_base: 10.1.0.0x",
        "uplink_private: yes",
        "user_uid: 0",
        "user_uid: _berth",
        "user_gid: 4294967295",
        "resolvers: 1.1.1.1 1.1.1",
        ": 5",
        "slots: 4 5",
        "resolvers: 1.1.1.1,2.2.2.2",
        "resolvers: 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1",
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(wrong); i++) {
        char text[256];
        struct bt_config_place place = {.line = 0};
        struct bt_config config, untouched;
        bt_config_init(&config);
        bt_config_init(&untouched);
        int length = snprintf(text, sizeof(text), "slots: 8\n#\n%s\n", wrong[i]);
        assert_int_equal(bt_config_parse(text, (size_t)length, &config, &place), -EINVAL);
        assert_int_equal(place.line, 3);
        assert_memory_equal(&config, &untouched, sizeof(config));
    }
}

static void t_config_base_must_be_aligned(void **state)
{
    (void)state;
    struct bt_config config;
    struct bt_config_place place = {.line = 9};
    assert_int_equal(parse("slots: 256\ntap_base: 10.243.1.0", &config, &place), -EINVAL);
    assert_int_equal(place.line, 0);
    assert_int_equal(parse("slots: 8\n  slotz: 9", &config, &place), -EINVAL);
    assert_int_equal(place.line, 2);
    assert_int_equal(place.column, 3);
    assert_int_equal(parse("slots:  x # y", &config, &place), -EINVAL);
    assert_int_equal(place.line, 1);
    assert_int_equal(place.column, 9);
    static const char with_nul[] = "slots: 4\0\n";
    bt_config_init(&config);
    assert_int_equal(bt_config_parse(with_nul, sizeof(with_nul) - 1, &config, &place), -EINVAL);
    assert_int_equal(parse("slots: 128\ntap_base: 10.243.1.0", &config, &place), 0);
    assert_int_equal(parse("slots: 3\ntap_base: 10.243.1.4", &config, &place), -EINVAL);
    assert_int_equal(parse("slots: 1\ntap_base: 0.0.0.0", &config, &place), -EINVAL);
    assert_int_equal(parse("slots: 1024\ntap_base: 255.255.248.0", &config, &place), -EINVAL);
}

static bool do_blocks_overlap(const char *text)
{
    struct bt_config config;
    struct bt_config_place place;
    assert_int_equal(parse(text, &config, &place), 0);
    struct bt_block taps = bt_config_tap_block(&config.kernel.pool);
    struct bt_block bridges = bt_config_bridge_block(&config.kernel.pool);
    assert_int_equal(bt_config_blocks_overlap(taps, bridges), bt_config_blocks_overlap(bridges, taps));
    return bt_config_blocks_overlap(taps, bridges);
}

static void t_config_blocks(void **state)
{
    static const struct {
        unsigned slots, size;
    } sizes[] = {{1, 2}, {2, 4}, {3, 8}, {256, 512}, {257, 1024}, {1024, 2048}};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(sizes); i++) {
        struct bt_pool pool = {.tap_base = 0x0a000000, .slots = (uint16_t)sizes[i].slots};
        assert_int_equal(bt_config_tap_block(&pool).base, 0x0a000000);
        assert_int_equal(bt_config_tap_block(&pool).size, sizes[i].size);
    }
    assert_false(do_blocks_overlap(""));
    assert_true(do_blocks_overlap("slots: 8\ntap_base: 10.242.0.0"));
    assert_true(do_blocks_overlap("slots: 8\ntap_base: 10.242.31.240"));
    assert_false(do_blocks_overlap("slots: 8\ntap_base: 10.242.32.0"));
    assert_false(do_blocks_overlap("slots: 8\ntap_base: 10.241.255.240"));
    assert_true(do_blocks_overlap("slots: 1024\ntap_base: 10.242.24.0"));
    assert_false(do_blocks_overlap("bridge_base: 255.255.224.0"));
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    bt_auto_fd fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
}

static void t_config_file_must_be_roots_alone(void **state)
{
    (void)state;
    char folder[] = "/tmp/berth-config-XXXXXX", path[64], link_path[64];
    struct bt_config config;
    if (getuid() != 0)
        skip();
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/helper.conf", folder);
    snprintf(link_path, sizeof(link_path), "%s/link.conf", folder);
    bt_config_init(&config);
    assert_int_equal(bt_config_read(path, &config), -ENOENT);
    write_file(path, "slots: 9\n", 0644);
    assert_int_equal(symlink(path, link_path), 0);
    assert_int_equal(bt_config_read(path, &config), 0);
    assert_int_equal(config.kernel.pool.slots, 9);
    assert_int_equal(bt_config_read(link_path, &config), -ELOOP);
    assert_int_equal(bt_config_read(folder, &config), -EPERM);
    write_file(path, "slots: 9\n", 0664);
    assert_int_equal(bt_config_read(path, &config), -EPERM);
    write_file(path, "slots: 9\n", 0646);
    assert_int_equal(bt_config_read(path, &config), -EPERM);
    write_file(path, "slots: 9\n", 0644);
    assert_int_equal(chown(path, 1000, 0), 0);
    assert_int_equal(bt_config_read(path, &config), -EPERM);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(bt_config_read(path, &config), -EPERM); /* and it does not wait for a writer */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(link_path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void t_accounts_find_by_whole_name(void **state)
{
    (void)state;
    static const char text[] =
        "root:x:0:0:root:/root:/bin/sh\n_berthx:x:1:1::/:\nx_berth:x:2:2::/:\n\n_berth\n:::\n"
        "_bertb:x:4294967295:3::/:\n_berth:x:998:997:berth:/:/usr/sbin/nologin\n_berth:x:5:5::/:\n";
    uint32_t uid = 7, gid = 8;
    assert_int_equal(bt_accounts_find(text, sizeof(text) - 1, "none", &uid, &gid), -ENOENT);
    assert_int_equal(bt_accounts_find(text, sizeof(text) - 1, "_bertb", &uid, &gid), -EINVAL);
    assert_int_equal(uid, 7);
    static const char good[] = "a:x:1:2\n_berth:x:998:997:berth:/:/usr/sbin/nologin\n";
    assert_int_equal(bt_accounts_find(good, sizeof(good) - 1, "_berth", &uid, &gid), 0);
    assert_int_equal(uid, 998);
    assert_int_equal(gid, 997);
    static const char group[] = "berth:x:995:";
    assert_int_equal(bt_accounts_find(group, sizeof(group) - 1, "berth", &gid, NULL), 0);
    assert_int_equal(gid, 995);
    assert_int_equal(bt_accounts_read("/etc/passwd", "root", &uid, &gid), 0);
    assert_int_equal(uid, 0);
    assert_int_equal(bt_accounts_read("/does/not/exist", "root", &uid, &gid), -ENOENT);
}

/* A table full of uids whose buckets are not full: nobody new, and nobody old is forgotten. */
static void t_admission_table_is_bounded(void **state)
{
    (void)state;
    static struct bt_admission admission;
    const struct bt_admission_limits limits = {.rate = 1, .burst = 10, .uid_max = 65533};
    uint32_t heaviest, uid = 1;
    bt_admission_init(&admission, &limits);
    for (; uid <= BT_ADMISSION_UIDS; uid++) {
        assert_int_equal(bt_admission_enter(&admission, uid, 0, 0, 1000, &heaviest), 0);
        bt_admission_leave(&admission, uid);
    }
    assert_int_equal(bt_admission_enter(&admission, uid, 0, 0, 1000, &heaviest), -EUSERS);
    assert_int_equal(bt_admission_enter(&admission, 5, 0, 0, 1000, &heaviest), 0);
    assert_int_equal(bt_admission_enter(&admission, uid, 0, 0, 2000, &heaviest),
                     0); /* a full bucket may go */
    bt_admission_leave(&admission, 5);
    bt_admission_leave(&admission, uid);
    assert_int_equal(admission.spare, 0);
}

static void t_admission_clock_may_jump(void **state)
{
    (void)state;
    static struct bt_admission admission;
    const struct bt_admission_limits limits = {.rate = 1000000, .burst = 1000000, .uid_max = 65533};
    uint32_t heaviest;
    bt_admission_init(&admission, &limits);
    assert_int_equal(bt_admission_enter(&admission, 1, 0, 0, 1000, &heaviest), 0);
    assert_true(bt_admission_take_token(&admission, 1, 0));
    assert_true(bt_admission_take_token(&admission, 1, UINT64_MAX));
    assert_int_equal(admission.uids[0].milli_tokens, (1000000ULL - 1) * 1000);
}

static void t_ledger_counts(void **state)
{
    (void)state;
    static struct bt_ledger ledger;
    bt_ledger_init(&ledger, 1024, 5);
    struct bt_lease lease = {
        .slot = 1023, .generation = 9, .uid = 1, .role = BT_ROLE_GATEWAY, .environment = 3};
    bt_ledger_put(&ledger, &lease, BT_HOLD_RESERVED);
    struct bt_lease like = lease;
    assert_false(bt_ledger_has_role(&ledger, &like));
    bt_ledger_put(&ledger, &lease, BT_HOLD_LIVE);
    assert_int_equal(bt_ledger_count(&ledger, BT_ANYBODY, BT_HOLD_LIVE), 1);
    assert_int_equal(bt_ledger_count(&ledger, BT_ANYBODY, BT_HOLD_RESERVED), 0);
    assert_true(bt_ledger_has_role(&ledger, &like));
    like.kind = BT_KIND_TAP_NAMED;
    assert_true(bt_ledger_has_role(&ledger, &like));
    like.kind = BT_KIND_BRIDGE;
    assert_false(bt_ledger_has_role(&ledger, &like));
    like = lease;
    like.environment = 2;
    assert_false(bt_ledger_has_role(&ledger, &like));
    like = lease;
    like.uid = 2;
    assert_false(bt_ledger_has_role(&ledger, &like));
    assert_int_equal(ledger.last_generation, 9);
    for (unsigned slot = 1024; slot <= UINT16_MAX; slot++)
        for (unsigned hold = BT_HOLD_FREE; hold <= BT_HOLD_RESERVED; hold++)
            assert_null(bt_ledger_find(&ledger, (uint16_t)slot, (enum bt_hold_state)hold));
    assert_int_equal(bt_ledger_live(&ledger).count, 1);
    bt_ledger_remove(&ledger, 1023);
    assert_int_equal(bt_ledger_count(&ledger, BT_ANYBODY, BT_HOLD_LIVE), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_config_every_name),
        cmocka_unit_test(t_config_refuses_with_the_line),
        cmocka_unit_test(t_config_base_must_be_aligned),
        cmocka_unit_test(t_config_blocks),
        cmocka_unit_test(t_config_file_must_be_roots_alone),
        cmocka_unit_test(t_accounts_find_by_whole_name),
        cmocka_unit_test(t_admission_table_is_bounded),
        cmocka_unit_test(t_admission_clock_may_jump),
        cmocka_unit_test(t_ledger_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
