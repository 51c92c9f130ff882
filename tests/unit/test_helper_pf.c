/* The parts of the helper for macOS that are pure, or POSIX: pf anchors, orders to the process that runs
 * pfctl, frames over a stream. a35 of the attack table: what a rule's text is made of.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "helper/macos/anchor.h"
#include "helper/macos/order.h"
#include "ipc/chan/stream.h"

static struct bt_anchor_text text;
static struct bt_lease many[BT_POOL_SLOTS_MAX];
static struct bt_order order, again;
static uint8_t bytes[BT_ORDER_SIZE_MAX];

static struct bt_kernel_config make_config(void)
{
    return (struct bt_kernel_config){.pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT,
                                              .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT,
                                              .slots = BT_POOL_SLOTS_MAX}};
}

static struct bt_lease make_lease(uint16_t slot, enum bt_role role)
{
    return (struct bt_lease){
        .slot = slot, .generation = 7, .uid = 501, .kind = BT_KIND_PF, .role = (uint8_t)role};
}

static void expect_text(const char *wanted)
{
    assert_int_equal(text.length, strlen(wanted));
    assert_memory_equal(text.bytes, wanted, text.length);
}

static void t_anchor_agent(void **state)
{
    (void)state;
    const struct bt_kernel_config config = make_config();
    struct bt_lease lease = make_lease(1, BT_ROLE_AGENT);
    assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), 0);
    expect_text(
        "block drop in quick inet from 10.242.0.8/29 to any label \"berth:1:7:501:0:0:0:0\"\n"
        "pass out quick inet proto tcp from any to 10.242.0.8/29 user 0 label \"berth:1:7:501:0:0:0:1\"\n"
        "pass out quick inet proto tcp from any to 10.242.0.8/29 user 501 label \"berth:1:7:501:0:0:0:2\"\n"
        "block drop out quick inet from any to 10.242.0.8/29 label \"berth:1:7:501:0:0:0:3\"\n");
    lease.is_sealed = true;
    lease.environment = 15;
    assert_int_equal(bt_anchor_encode(&config, 15, &lease, 1, &text), 0);
    expect_text("block drop quick inet from 10.242.0.8/29 to any label \"berth:1:7:501:0:15:1:0\"\n"
                "block drop quick inet from any to 10.242.0.8/29 label \"berth:1:7:501:0:15:1:1\"\n");
    assert_int_equal(bt_anchor_encode(&config, 3, NULL, 0, &text), 0);
    assert_int_equal(text.length, 0);
}

static void t_anchor_gateway(void **state)
{
    (void)state;
    struct bt_kernel_config config = make_config();
    struct bt_lease lease = make_lease(1023, BT_ROLE_GATEWAY);
    lease.uid = 0;
    lease.generation = UINT32_MAX;
    config.deny_private_uplink = true;
    config.resolvers[0] = 0x0a000035;
    config.resolver_count = 1;
    assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), 0);
#define FROM "in quick inet from 10.242.31.248/29 to "
#define LABEL " label \"berth:1023:4294967295:0:1:0:0:"
    expect_text("block drop " FROM "10.242.31.249" LABEL "0\"\n"
                "block drop " FROM "self" LABEL "1\"\n"
                "block drop " FROM "10.242.0.0/19" LABEL "2\"\n"
                "block drop " FROM "10.243.0.0/21" LABEL "3\"\n"
                "block drop " FROM "169.254.0.0/16" LABEL "4\"\n"
                "pass " FROM "10.0.0.53" LABEL "5\"\n"
                "block drop " FROM "10.0.0.0/8" LABEL "6\"\n"
                "block drop " FROM "172.16.0.0/12" LABEL "7\"\n"
                "block drop " FROM "192.168.0.0/16" LABEL "8\"\n"
                "pass " FROM "any" LABEL "9\"\n"
                "pass out quick inet proto tcp from any to 10.242.31.248/29 user 0" LABEL "10\"\n"
                "block drop out quick inet from any to 10.242.31.248/29" LABEL "11\"\n");
}

static void t_anchor_name_for_every_environment(void **state)
{
    (void)state;
    char name[BT_ANCHOR_NAME_SIZE];
    for (unsigned environment = 0; environment < 256; environment++) {
        int error = bt_anchor_name((uint8_t)environment, name);
        assert_int_equal(error, environment < BT_ENVIRONMENTS ? 0 : -ERANGE);
        if (error == 0)
            assert_memory_equal(name, "com.apple/berth", 15);
    }
    assert_int_equal(bt_anchor_name(0, name), 0);
    assert_string_equal(name, "com.apple/berth");
    assert_int_equal(bt_anchor_name(15, name), 0);
    assert_string_equal(name, "com.apple/berth.15");
}

static void t_anchor_refuses(void **state)
{
    (void)state;
    struct bt_kernel_config config = make_config();
    const struct bt_lease good = make_lease(5, BT_ROLE_AGENT);
    struct bt_lease bad[2] = {good, good};
    assert_int_equal(bt_anchor_encode(&config, 0, bad, 2, &text), -EINVAL); /* the same slot twice */
    bad[1].slot = 4;
    assert_int_equal(bt_anchor_encode(&config, 0, bad, 2, &text), -EINVAL);
    assert_int_equal(bt_anchor_encode(&config, 1, &good, 1, &text), -EINVAL); /* another environment's */
    assert_int_equal(bt_anchor_encode(&config, 16, NULL, 0, &text), -ERANGE);
    struct bt_lease lease = good;
    lease.kind = BT_KIND_TAP_FD;
    assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), -EINVAL);
    lease = good;
    lease.role = BT_ROLE_MAX;
    assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), -EINVAL);
    lease = good;
    lease.uid = UINT32_MAX; /* nobody's */
    assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), -EINVAL);
    lease = good;
    for (unsigned slot = config.pool.slots; slot <= UINT16_MAX; slot += 97) {
        lease.slot = (uint16_t)slot;
        assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), -ERANGE);
    }
    config.pool.bridge_base = 0xfffffff8; /* the second network would wrap */
    lease.slot = 0;
    assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), 0);
    lease.slot = 1;
    assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), -ERANGE);
}

/* The largest possible anchor: it fits, and has no byte that means something else to pf. */
static void t_anchor_every_slot(void **state)
{
    (void)state;
    struct bt_kernel_config config = make_config();
    config.deny_private_uplink = true;
    config.resolver_count = BT_ARRAY_LENGTH(config.resolvers);
    memset(config.resolvers, 0xfe, sizeof(config.resolvers));
    config.pool.bridge_base = 0xdedee000;
    for (uint16_t slot = 0; slot < BT_POOL_SLOTS_MAX; slot++) {
        many[slot] = make_lease(slot, BT_ROLE_GATEWAY);
        many[slot].uid = UINT32_MAX - 1;
        many[slot].generation = UINT32_MAX;
        many[slot].environment = 15;
    }
    assert_int_equal(bt_anchor_encode(&config, 15, many, BT_POOL_SLOTS_MAX, &text), 0);
    for (size_t i = 0; i < text.length; i++)
        assert_non_null(memchr("abcdefghijklmnopqrstuvwxyz0123456789 ./:\"\n", text.bytes[i], 42));
    assert_true(bt_anchor_is_in_force(&text, text.bytes, text.length));
    assert_false(bt_anchor_is_in_force(&text, text.bytes, text.length - 2));
}

static void t_anchor_read_back(void **state)
{
    (void)state;
    const struct bt_kernel_config config = make_config();
    const struct bt_lease lease = make_lease(1, BT_ROLE_ORCHESTRATOR);
    assert_int_equal(bt_anchor_encode(&config, 0, &lease, 1, &text), 0);
    /* As pfctl words it: flags and states added, the order of words its own. */
    static const char printed[] =
        "block drop in quick inet from 10.242.0.8/29 to any label \"berth:1:7:501:2:0:0:0\"\n"
        "pass out quick inet proto tcp from any to 10.242.0.8/29 user = 0 flags S/SA keep state label "
        "\"berth:1:7:501:2:0:0:1\"\n"
        "pass out quick inet proto tcp from any to 10.242.0.8/29 user = 501 flags S/SA keep state label "
        "\"berth:1:7:501:2:0:0:2\"\n"
        "block drop out quick inet from any to 10.242.0.8/29 label \"berth:1:7:501:2:0:0:3\"\n";
    char changed[sizeof(printed) + 32];
    assert_true(bt_anchor_is_in_force(&text, printed, sizeof(printed) - 1));
    assert_false(bt_anchor_is_in_force(&text, printed, sizeof(printed) - 3));
    assert_false(bt_anchor_is_in_force(&text, printed, 0));
    memcpy(changed, printed, sizeof(printed)); /* with its NUL: a line without an end */
    assert_false(bt_anchor_is_in_force(&text, changed, sizeof(printed)));
    memcpy(changed, printed, sizeof(printed) - 1);
    memcpy(changed + sizeof(printed) - 1, "pass quick all\n", 15); /* a rule that is not ours */
    assert_false(bt_anchor_is_in_force(&text, changed, sizeof(printed) + 14));
    changed[70] = '8'; /* a digit of the first label */
    assert_false(bt_anchor_is_in_force(&text, changed, sizeof(printed) - 1));
    text.length = 0;
    assert_true(bt_anchor_is_in_force(&text, "", 0));
    assert_false(bt_anchor_is_in_force(&text, "pass quick all\n", 15));
}

static void t_order_there_and_back(void **state)
{
    (void)state;
    const struct bt_pool pool = make_config().pool;
    size_t told = 0;
    order = (struct bt_order){.environment = 9, .cut_slot = 77, .count = 3};
    for (uint16_t i = 0; i < order.count; i++) {
        order.leases[i] = make_lease((uint16_t)(i * 400), (enum bt_role)i);
        order.leases[i].environment = 9;
    }
    size_t length = bt_order_encode(&order, bytes);
    assert_int_equal(length, BT_ORDER_HEADER_SIZE + 3 * BT_ORDER_LEASE_SIZE);
    assert_int_equal(bt_order_length(bytes, &told), 0);
    assert_int_equal(told, length);
    assert_int_equal(bt_order_decode(&pool, bytes, length, &again), 0);
    assert_memory_equal(&again, &order, sizeof(order));
    assert_int_equal(bt_order_decode(&pool, bytes, length - 1, &again), -EBADMSG);
    assert_int_equal(bt_order_decode(&pool, bytes, length + 1, &again), -EBADMSG);
}

/* Each bit of an order turned: refused, or another order of numbers that encodes to exactly these bytes. */
static void t_order_each_bit(void **state)
{
    (void)state;
    const struct bt_kernel_config config = make_config();
    uint8_t back[BT_ORDER_SIZE_MAX];
    order = (struct bt_order){.cut_slot = BT_ORDER_CUT_NOTHING, .count = 2};
    order.leases[0] = make_lease(3, BT_ROLE_AGENT);
    order.leases[1] = make_lease(900, BT_ROLE_GATEWAY);
    size_t length = bt_order_encode(&order, bytes), refused = 0;
    for (size_t bit = 0; bit < 8 * length; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
        if (bt_order_decode(&config.pool, bytes, length, &again) == 0) {
            assert_int_equal(bt_order_encode(&again, back), length);
            assert_memory_equal(back, bytes, length);
            assert_int_equal(bt_anchor_encode(&config, again.environment, again.leases, again.count, &text),
                             0);
        } else {
            refused++;
        }
        bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
    }
    assert_true(refused > 8 * length / 3);
}

static void t_stream_in_pieces(void **state)
{
    (void)state;
    int ends[2];
    uint8_t sent[2 * BT_FRAME_SIZE], frame[BT_FRAME_SIZE];
    for (size_t i = 0; i < sizeof(sent); i++)
        sent[i] = (uint8_t)(i * 7 + i / 256);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    struct bt_stream stream = {.length = 0};
    for (size_t piece = 1; piece <= BT_FRAME_SIZE; piece += 37) {
        unsigned whole = 0;
        for (size_t at = 0; at < sizeof(sent); at += piece) {
            size_t length = sizeof(sent) - at < piece ? sizeof(sent) - at : piece;
            assert_int_equal(write(ends[0], sent + at, length), length);
            int error = bt_stream_receive(&stream, ends[1], frame);
            assert_true(error == 0 || error == -EAGAIN);
            assert_int_equal(error == 0, (at + length) / BT_FRAME_SIZE > whole);
            if (error == 0)
                assert_memory_equal(frame, sent + BT_FRAME_SIZE * (size_t)whole++, BT_FRAME_SIZE);
        }
        assert_int_equal(whole, 2);
    }
    /* Two at once: one at a time comes out. */
    assert_int_equal(write(ends[0], sent, sizeof(sent)), sizeof(sent));
    assert_int_equal(bt_stream_receive(&stream, ends[1], frame), 0);
    assert_int_equal(bt_stream_receive(&stream, ends[1], frame), 0);
    assert_memory_equal(frame, sent + BT_FRAME_SIZE, BT_FRAME_SIZE);
    assert_int_equal(bt_stream_receive(&stream, ends[1], frame), -EAGAIN);
    close(ends[0]);
    assert_int_equal(bt_stream_receive(&stream, ends[1], frame), -ENOTCONN);
    close(ends[1]);
}

static void t_stream_ends_in_the_middle(void **state)
{
    (void)state;
    int ends[2];
    uint8_t frame[BT_FRAME_SIZE] = {0};
    struct bt_stream stream = {.length = 0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    assert_int_equal(write(ends[0], frame, 100), 100);
    assert_int_equal(bt_stream_receive(&stream, ends[1], frame), -EAGAIN);
    close(ends[0]);
    assert_int_equal(bt_stream_receive(&stream, ends[1], frame), -EBADMSG);
    assert_int_equal(bt_stream_send(ends[1], frame), -ENOTCONN);
    close(ends[1]);
}

static void t_stream_takes_no_descriptor(void **state)
{
    (void)state;
    int ends[2];
    uint8_t frame[BT_FRAME_SIZE] = {0};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {.iov_base = frame, .iov_len = sizeof(frame)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct bt_stream stream = {.length = 0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    control.header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(&control.header), &ends[0], sizeof(int));
    assert_int_equal(sendmsg(ends[0], &message, 0), sizeof(frame));
    int lowest = dup(0);
    close(lowest);
    assert_int_equal(bt_stream_receive(&stream, ends[1], frame), -EBADMSG);
    int after = dup(0);
    assert_int_equal(after, lowest); /* none has come in */
    close(after);
    close(ends[0]);
    close(ends[1]);
}

static void t_stream_peer_that_does_not_read(void **state)
{
    (void)state;
    int ends[2], error = 0;
    uint8_t frame[BT_FRAME_SIZE] = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    for (unsigned i = 0; i < 100000 && error == 0; i++)
        error = bt_stream_send(ends[0], frame);
    assert_int_equal(error, -EAGAIN);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_anchor_agent),
        cmocka_unit_test(t_anchor_gateway),
        cmocka_unit_test(t_anchor_name_for_every_environment),
        cmocka_unit_test(t_anchor_refuses),
        cmocka_unit_test(t_anchor_every_slot),
        cmocka_unit_test(t_anchor_read_back),
        cmocka_unit_test(t_order_there_and_back),
        cmocka_unit_test(t_order_each_bit),
        cmocka_unit_test(t_stream_in_pieces),
        cmocka_unit_test(t_stream_ends_in_the_middle),
        cmocka_unit_test(t_stream_takes_no_descriptor),
        cmocka_unit_test(t_stream_peer_that_does_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
