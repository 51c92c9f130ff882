/* SHA-256 by the standard's vectors, the lines of the audit log, and the engine with a log that can or cannot
 * be written: one line a changing verb, and no grant without its line.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "helper/audit.h"
#include "helper/engine.h"
#include "ipc/chan/chan.h"
#include "tests/lib/fake/kernel_fake.c"

#define ALICE 1000U
#define LINES 8U

static struct bt_engine engine;
static struct bt_kernel *kernel;
static struct bt_audit audit;
static uint64_t clock_ms;

static void check_digest(const char *text, size_t length, const char *wanted)
{
    uint8_t digest[BT_SHA256_SIZE];
    char hex[2 * BT_SHA256_SIZE + 1];
    bt_sha256(text, length, digest);
    for (size_t i = 0; i < BT_SHA256_SIZE; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(hex, wanted);
}

/* FIPS 180-4 and the NIST example vectors; the lengths around the padding's edges by another program. */
static void t_sha256_vectors(void **state)
{
    (void)state;
    static char a[1000000];
    memset(a, 'a', sizeof(a));
    check_digest("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_digest("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_digest(a, 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    check_digest(a, 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
    check_digest(a, sizeof(a), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static uint64_t now_for_test(void)
{
    return clock_ms;
}

static void open_ring(bool is_full)
{
    audit = (struct bt_audit){.segment_lines = LINES, .next = 1};
    for (unsigned i = 0; i < BT_AUDIT_SEGMENTS; i++) {
        audit.segment_fds[i] =
            is_full ? open("/dev/full", O_RDWR | O_CLOEXEC) : memfd_create("audit", MFD_CLOEXEC);
        assert_true(audit.segment_fds[i] >= 0);
    }
}

static int set_up(void **state)
{
    (void)state;
    struct bt_engine_options options = {
        .pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT,
                 .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT,
                 .slots = 16},
        .quota = 4,
        .admission = {.rate = 100, .burst = 1000, .uid_max = 65533},
        .now_ms = now_for_test,
        .audit = &audit,
    };
    struct bt_kernel_config config = {.pool = options.pool};
    bt_fake_reset();
    clock_ms = 1000000;
    open_ring(false);
    assert_int_equal(bt_kernel_open(&config, &kernel), 0);
    assert_int_equal(bt_engine_start(&engine, &options, kernel), 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_PLACES_MAX; i++)
        bt_fd_close(&engine.connections[i].fd);
    bt_fd_close(&engine.epoll_fd);
    bt_audit_close(&audit);
    return 0;
}

struct user {
    int fd;
    uint32_t sequence;
    uint64_t epoch;
    struct bt_reply reply;
};

static void step(void)
{
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(bt_engine_step(&engine, 0), 0);
}

static enum bt_status say(struct user *user, struct bt_request *request)
{
    uint8_t frame[BT_FRAME_SIZE];
    int tap_fd = -1;
    request->sequence = ++user->sequence;
    if (request->verb != BT_VERB_HELLO) {
        request->version = 1;
        request->epoch = user->epoch;
    }
    assert_int_equal(bt_frame_encode_request(request, frame), 0);
    assert_int_equal(bt_chan_send(user->fd, frame, -1), 0);
    step();
    assert_int_equal(bt_chan_receive_reply(user->fd, frame, &tap_fd), 0);
    assert_int_equal(bt_frame_decode_reply(frame, &user->reply), 0);
    bool is_lease = user->reply.status == BT_STATUS_OK && request->verb == BT_VERB_LEASE;
    assert_int_equal(tap_fd >= 0, is_lease && user->reply.body.lease.has_fd);
    bt_fd_close(&tap_fd);
    return user->reply.status;
}

static enum bt_status ask(struct user *user, enum bt_verb verb)
{
    struct bt_request request = {.verb = verb};
    return say(user, &request);
}

static void join(struct user *user, bool is_status_only)
{
    int pair[2];
    struct bt_request request = {.verb = BT_VERB_HELLO, .body.hello = {.version_min = 1, .version_max = 1}};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    *user = (struct user){.fd = pair[0]};
    assert_int_equal(bt_engine_admit(&engine, pair[1], ALICE, is_status_only), 0);
    assert_int_equal(say(user, &request), BT_STATUS_OK);
    user->epoch = user->reply.epoch;
}

/* The text of line number, without its padding. */
static const char *line_text(uint64_t number)
{
    static char text[BT_AUDIT_LINE_SIZE + 1];
    uint64_t place = (number - 1) % ((uint64_t)LINES * BT_AUDIT_SEGMENTS);
    ssize_t got = pread(audit.segment_fds[place / LINES], text, BT_AUDIT_LINE_SIZE,
                        (off_t)(place % LINES * BT_AUDIT_LINE_SIZE));
    assert_int_equal(got, BT_AUDIT_LINE_SIZE);
    return text;
}

static void check_line(uint64_t number, const char *part)
{
    if (!strstr(line_text(number), part))
        fail_msg("line %lu has no %s: %s", (unsigned long)number, part, line_text(number));
}

static void t_audit_one_line_a_verb(void **state)
{
    (void)state;
    struct user user;
    assert_int_equal(audit.next, 2);
    check_line(1, "\"event\":\"START\"");
    join(&user, false);
    assert_int_equal(ask(&user, BT_VERB_STATUS), BT_STATUS_OK);
    assert_int_equal(audit.next, 2); /* questions are only counted */
    assert_int_equal(ask(&user, BT_VERB_SEAL), BT_STATUS_STATE);
    check_line(2, "\"event\":\"SEAL\",\"status\":\"STATE\",\"uid\":1000");
    assert_int_equal(ask(&user, BT_VERB_LEASE), BT_STATUS_OK);
    check_line(3, "\"event\":\"LEASE\",\"status\":\"OK\",\"uid\":1000,\"slot\":0,\"generation\":");
    assert_int_equal(ask(&user, BT_VERB_SEAL), BT_STATUS_OK);
    check_line(4, "\"event\":\"SEAL\",\"status\":\"OK\",\"uid\":1000,\"slot\":0");
    assert_int_equal(ask(&user, BT_VERB_RELEASE), BT_STATUS_OK);
    check_line(5, "\"event\":\"RELEASE\",\"status\":\"OK\",\"uid\":1000,\"slot\":0");
    assert_int_equal(ask(&user, BT_VERB_RECONCILE), BT_STATUS_NOT_PERMITTED);
    check_line(6, "\"event\":\"RECONCILE\",\"status\":\"NOT_PERMITTED\",\"uid\":1000");
    assert_int_equal(ask(&user, BT_VERB_LEASE), BT_STATUS_OK);
    bt_fd_close(&user.fd);
    step();
    check_line(8, "\"event\":\"EOF\",\"status\":\"OK\",\"uid\":1000,\"slot\":1");
    assert_int_equal(audit.next, 9);
    clock_ms += 61000;
    step();
    check_line(9, "\"event\":\"SUMMARY\",\"status\":\"OK\",\"uid\":1000,\"count\":2");
    assert_int_equal(audit.next, 10);
    uint8_t before[BT_SHA256_SIZE] = {0};
    for (uint64_t number = 1; number < audit.next; number++) {
        uint64_t found;
        const uint8_t *line = (const uint8_t *)line_text(number);
        assert_int_equal(bt_audit_line_number(line, &found), 0);
        assert_int_equal(found, number);
        assert_true(bt_audit_line_follows(line, before));
        bt_sha256(line, BT_AUDIT_LINE_SIZE, before);
    }
}

/* A user whose requests are refused without end fills neither the ring nor the journal. */
static void t_audit_refusals_are_bounded(void **state)
{
    (void)state;
    struct user user;
    join(&user, false);
    for (unsigned i = 0; i < 500; i++)
        assert_int_equal(ask(&user, BT_VERB_SEAL), BT_STATUS_STATE);
    assert_int_equal(audit.next, 2 + BT_REFUSAL_LINES);
    clock_ms += 61000;
    step();
    check_line(2 + BT_REFUSAL_LINES,
               "\"event\":\"SUMMARY\",\"status\":\"OK\",\"uid\":1000,\"count\":1,\"refused\":470,");
    bt_fd_close(&user.fd);
    step();
    join(&user, false);
    assert_int_equal(ask(&user, BT_VERB_SEAL), BT_STATUS_STATE);
    check_line(3 + BT_REFUSAL_LINES, "\"event\":\"SEAL\",\"status\":\"STATE\"");
    bt_fd_close(&user.fd);
}

static void t_audit_malformed(void **state)
{
    (void)state;
    struct user user;
    join(&user, false);
    assert_int_equal(send(user.fd, "\"},{", 4, 0), 4);
    step();
    check_line(2, "\"event\":\"FRAME\",\"status\":\"MALFORMED\",\"uid\":1000,");
    assert_int_equal(audit.next, 3);
    bt_fd_close(&user.fd);
}

/* Segments on a full disk, exchanged under the engine: what takes away acts, what grants does not. */
static void t_audit_full_disk(void **state)
{
    (void)state;
    struct user user, other;
    join(&user, false);
    join(&other, false);
    assert_int_equal(ask(&user, BT_VERB_LEASE), BT_STATUS_OK);
    struct bt_audit good = audit;
    open_ring(true);
    audit.next = good.next;
    memcpy(audit.before, good.before, sizeof(good.before));
    assert_int_equal(ask(&other, BT_VERB_LEASE), BT_STATUS_KERNEL);
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 1);
    assert_int_equal(ask(&other, BT_VERB_STATUS), BT_STATUS_OK);
    assert_int_equal(ask(&user, BT_VERB_SEAL), BT_STATUS_OK);
    assert_int_equal(bt_fake_count(BT_FAKE_SEALED), 1);
    assert_int_equal(ask(&user, BT_VERB_RELEASE), BT_STATUS_OK);
    assert_int_equal(bt_fake_count(BT_FAKE_SEALED), 0);
    assert_int_equal(audit.lost, 3);
    assert_int_equal(audit.next, good.next);
    good.lost = audit.lost;
    bt_audit_close(&audit);
    audit = good;
    assert_int_equal(ask(&other, BT_VERB_LEASE), BT_STATUS_OK);
    check_line(3, "\"event\":\"LEASE\",\"status\":\"OK\"");
    check_line(3, "\"lost\":3,");
    bt_fd_close(&user.fd);
    bt_fd_close(&other.fd);
}

/* A restart on a disk that takes no more: agents at work go on. */
static void t_audit_adoption_needs_no_line(void **state)
{
    (void)state;
    struct user user;
    struct bt_engine_options options = engine.options;
    join(&user, false);
    assert_int_equal(ask(&user, BT_VERB_LEASE), BT_STATUS_OK);
    struct bt_request request = {.verb = BT_VERB_LEASE,
                                 .body.lease = {.has_slot = true,
                                                .is_adopt = true,
                                                .slot = user.reply.body.lease.slot,
                                                .generation = user.reply.body.lease.generation}};
    for (size_t i = 0; i < BT_PLACES_MAX; i++)
        bt_fd_close(&engine.connections[i].fd);
    bt_fd_close(&engine.epoll_fd);
    bt_fd_close(&user.fd);
    bt_audit_close(&audit);
    open_ring(true);
    clock_ms += 5;
    assert_int_equal(bt_engine_start(&engine, &options, kernel), 0);
    join(&user, false);
    assert_int_equal(say(&user, &request), BT_STATUS_OK);
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 1);
    assert_int_equal(audit.lost, 2); /* START, ADOPT */
    bt_fd_close(&user.fd);
}

static void t_audit_longest_line(void **state)
{
    (void)state;
    struct bt_lease lease = {.slot = UINT16_MAX,
                             .generation = UINT32_MAX,
                             .kind = BT_KIND_TAP_NAMED,
                             .role = BT_ROLE_ORCHESTRATOR,
                             .environment = 15};
    struct bt_audit_event event = {"RECONCILE", "NOT_PERMITTED", UINT32_MAX - 1,
                                   &lease,      UINT32_MAX,      UINT32_MAX};
    audit.next = UINT64_MAX - 1;
    audit.lost = UINT32_MAX;
    assert_int_equal(bt_audit_append(&audit, &event), 0);
}

/* Nothing that the status socket's users do takes a place, a token or a line from the others. */
static void t_status_socket(void **state)
{
    (void)state;
    struct user watchers[4], user;
    for (size_t i = 0; i < 4; i++)
        join(&watchers[i], true);
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(bt_engine_admit(&engine, pair[1], ALICE, true), -EUSERS);
    bt_fd_close(&pair[0]);
    bt_fd_close(&pair[1]);
    assert_int_equal(ask(&watchers[0], BT_VERB_STATUS), BT_STATUS_OK);
    assert_int_equal(ask(&watchers[0], BT_VERB_LEASE), BT_STATUS_NOT_PERMITTED);
    assert_int_equal(ask(&watchers[0], BT_VERB_RECONCILE), BT_STATUS_NOT_PERMITTED);
    assert_int_equal(ask(&watchers[0], BT_VERB_SEAL), BT_STATUS_NOT_PERMITTED);
    assert_int_equal(ask(&watchers[0], BT_VERB_COUNTERS), BT_STATUS_STATE);
    enum bt_status status = BT_STATUS_OK;
    for (unsigned i = 0; i < 2000 && status == BT_STATUS_OK; i++)
        status = ask(&watchers[1], BT_VERB_STATUS);
    assert_int_equal(status, BT_STATUS_RATE);
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 0);
    join(&user, false);
    assert_int_equal(ask(&user, BT_VERB_LEASE), BT_STATUS_OK);
    bt_fd_close(&user.fd);
    for (size_t i = 0; i < 4; i++)
        bt_fd_close(&watchers[i].fd);
    step();
    for (size_t i = 0; i < BT_PLACES_MAX; i++)
        assert_int_equal(engine.connections[i].state, BT_CONNECTION_CLOSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_sha256_vectors),
        cmocka_unit_test_setup_teardown(t_audit_one_line_a_verb, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_audit_refusals_are_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_audit_malformed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_audit_full_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_audit_adoption_needs_no_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_audit_longest_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_status_socket, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
