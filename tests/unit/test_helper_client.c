/* The client against engines that are absent, busy, of another version, or lie. A script of answers plays the
 * engine, in a child process behind a real socket.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/chan/chan.h"
#include "ipc/client/helper_client.h"

enum act {
    ACT_END,            /* of the script: close */
    ACT_HELLO,          /* answer as an engine does */
    ACT_HANG_UP_ONCE,   /* close without an answer, serve the next connection */
    ACT_OTHER_VERSION,  /* HELLO: no common version */
    ACT_LEASE,          /* with its descriptor */
    ACT_LEASE_TWO_FDS,  /* and one too many */
    ACT_LEASE_NO_FD,    /* promised but not there */
    ACT_STATUS_WITH_FD, /* not promised but there */
    ACT_RATE,           /* too often */
    ACT_QUOTA,          /* an ordinary refusal */
    ACT_WRONG_SEQUENCE, /* the answer to something else */
    ACT_WRONG_EPOCH,    /* of another engine */
    ACT_WRONG_VERB,     /* */
    ACT_RUBBISH,        /* 512 bytes that are no frame */
    ACT_SHORT,          /* 511 bytes */
    ACT_OK,             /* without a body */
};

static char folder[] = "/tmp/berth-client-XXXXXX";
static char path[64];
static pid_t engine_pid = -1;

static void send_raw(int fd, const uint8_t *bytes, size_t length, unsigned fds)
{
    uint8_t copy[BT_FRAME_SIZE];
    union {
        struct cmsghdr header;
        uint8_t bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    int passed[2] = {2, 2};
    memcpy(copy, bytes, length);
    memset(&control, 0, sizeof(control));
    struct iovec part = {.iov_base = copy, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fds > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds * sizeof(int));
        memcpy(CMSG_DATA(header), passed, fds * sizeof(int));
    }
    if (sendmsg(fd, &message, MSG_NOSIGNAL) != (ssize_t)length)
        _exit(1);
}

static void fill_lease(struct bt_reply *reply)
{
    reply->body.lease.slot = 4;
    reply->body.lease.generation = 9;
    reply->body.lease.prefix_length = 31;
    reply->body.lease.has_fd = true;
    memcpy(reply->body.lease.interface_name, "berth4", 6);
}

static void answer(int fd, enum act act, const struct bt_request *request)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_reply reply = {.verb = request->verb, .version = 1, .sequence = request->sequence, .epoch = 77};
    unsigned fds = 0;
    size_t length = BT_FRAME_SIZE;
    if (act == ACT_HELLO || act == ACT_OTHER_VERSION) {
        reply.status = act == ACT_HELLO ? BT_STATUS_OK : BT_STATUS_VERSION;
        reply.body.hello.version_min = reply.body.hello.version_max = act == ACT_HELLO ? 1 : 2;
        reply.body.hello.slots = 16;
        reply.body.hello.quota = 3;
    } else if (act == ACT_LEASE || act == ACT_LEASE_TWO_FDS || act == ACT_LEASE_NO_FD) {
        fill_lease(&reply);
        fds = act == ACT_LEASE ? 1 : act == ACT_LEASE_TWO_FDS ? 2 : 0;
    }
    fds += act == ACT_STATUS_WITH_FD;
    reply.status = act == ACT_RATE ? BT_STATUS_RATE : act == ACT_QUOTA ? BT_STATUS_QUOTA : reply.status;
    reply.sequence += act == ACT_WRONG_SEQUENCE;
    reply.epoch += act == ACT_WRONG_EPOCH;
    reply.verb = act == ACT_WRONG_VERB ? BT_VERB_SEAL : reply.verb;
    if (bt_frame_encode_reply(&reply, frame) < 0)
        _exit(1);
    if (act == ACT_RUBBISH)
        memset(frame, 0xff, sizeof(frame));
    length -= act == ACT_SHORT;
    send_raw(fd, frame, length, fds);
}

static void play(int listen_fd, const enum act *script)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_request request;
    int fd = accept(listen_fd, NULL, NULL);
    for (; *script != ACT_END; script++) {
        if (*script == ACT_HANG_UP_ONCE) {
            close(fd);
            fd = accept(listen_fd, NULL, NULL);
            continue;
        }
        if (bt_chan_receive_request(fd, frame) < 0 || bt_frame_decode_request(frame, &request) < 0)
            _exit(1);
        answer(fd, *script, &request);
    }
    close(fd);
    (void)accept(listen_fd, NULL, NULL); /* until it is killed: whoever comes waits */
    pause();
    _exit(0);
}

static void engine(const enum act *script)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path));
    bt_auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    (void)unlink(path);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 4), 0);
    engine_pid = fork();
    assert_true(engine_pid >= 0);
    if (engine_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        play(fd, script);
    }
}

static int tear_down(void **state)
{
    (void)state;
    if (engine_pid > 0) {
        kill(engine_pid, SIGKILL);
        waitpid(engine_pid, NULL, 0);
    }
    engine_pid = -1;
    (void)unlink(path);
    return 0;
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof(path), "%s/socket", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

#define ENGINE(...) engine((const enum act[]){__VA_ARGS__, ACT_END})

static void t_client_absent_engine(void **state)
{
    (void)state;
    struct bt_helper helper = {.fd = -7};
    assert_int_equal(bt_helper_connect(path, &helper), -ENOENT);
    ENGINE(ACT_HELLO);
    kill(engine_pid, SIGKILL);
    waitpid(engine_pid, NULL, 0);
    engine_pid = -1;
    assert_int_equal(bt_helper_connect(path, &helper), -ECONNREFUSED);
    assert_int_equal(helper.fd, -7); /* untouched */
    char endless[200];
    memset(endless, 'x', sizeof(endless) - 1);
    endless[sizeof(endless) - 1] = '\0';
    assert_int_equal(bt_helper_connect(endless, &helper), -ENAMETOOLONG);
}

static void t_client_hello(void **state)
{
    (void)state;
    struct bt_helper helper;
    ENGINE(ACT_HELLO);
    assert_int_equal(bt_helper_connect(path, &helper), 0);
    assert_int_equal(helper.pool.slots, 16);
    assert_int_equal(helper.quota, 3);
    assert_true(helper.epoch == 77);
    assert_int_equal(fcntl(helper.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    bt_helper_close(&helper);
    assert_int_equal(helper.fd, -1);
    bt_helper_close(&helper);
    assert_int_equal(bt_helper_seal(&helper), -ENOTCONN);
}

static void t_client_other_version(void **state)
{
    (void)state;
    struct bt_helper helper;
    ENGINE(ACT_OTHER_VERSION);
    assert_int_equal(bt_helper_connect(path, &helper), -EPROTO);
}

static void t_client_tries_again_when_hung_up_on(void **state)
{
    (void)state;
    struct bt_helper helper;
    ENGINE(ACT_HANG_UP_ONCE, ACT_HANG_UP_ONCE, ACT_HELLO);
    assert_int_equal(bt_helper_connect(path, &helper), 0);
    bt_helper_close(&helper);
}

static void t_client_lease(void **state)
{
    (void)state;
    struct bt_helper helper;
    struct bt_helper_lease lease;
    int tap_fd = -1;
    ENGINE(ACT_HELLO, ACT_QUOTA, ACT_RATE, ACT_RATE, ACT_LEASE, ACT_OK);
    assert_int_equal(bt_helper_connect(path, &helper), 0);
    assert_int_equal(bt_helper_lease(&helper, BT_KIND_TAP_FD, BT_ROLE_AGENT, 16, -1, &lease, &tap_fd),
                     -EINVAL);
    assert_int_equal(bt_helper_lease(&helper, BT_KIND_TAP_FD, BT_ROLE_AGENT, 0, 1024, &lease, &tap_fd),
                     -EINVAL);
    assert_int_equal(bt_helper_lease(&helper, BT_KIND_TAP_FD, BT_ROLE_AGENT, 0, -1, &lease, &tap_fd),
                     -EDQUOT);
    assert_int_equal(tap_fd, -1);
    assert_int_equal(bt_helper_lease(&helper, BT_KIND_TAP_FD, BT_ROLE_AGENT, 0, -1, &lease, &tap_fd), 0);
    assert_true(tap_fd >= 0);
    assert_int_equal(fcntl(tap_fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(lease.slot, 4);
    assert_string_equal(lease.interface_name, "berth4");
    bt_fd_close(&tap_fd);
    assert_int_equal(bt_helper_release(&helper), 0);
    bt_helper_close(&helper);
}

static void t_client_believes_no_lies(void **state)
{
    (void)state;
    static const struct {
        enum act act;
        int error;
    } lies[] = {
        {ACT_LEASE_TWO_FDS, -EBADMSG}, {ACT_LEASE_NO_FD, -EPROTO}, {ACT_WRONG_SEQUENCE, -EPROTO},
        {ACT_WRONG_EPOCH, -EPROTO},    {ACT_WRONG_VERB, -EPROTO},  {ACT_RUBBISH, -EPROTO},
        {ACT_SHORT, -EBADMSG},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(lies); i++) {
        struct bt_helper helper;
        struct bt_helper_lease lease;
        int tap_fd = -3;
        enum act script[] = {ACT_HELLO, lies[i].act, ACT_END};
        /* Refusals carry no body, so lies about order can be told by any answer. */
        engine(script);
        assert_int_equal(bt_helper_connect(path, &helper), 0);
        bool wants_lease = lies[i].act == ACT_LEASE_TWO_FDS || lies[i].act == ACT_LEASE_NO_FD;
        int error = wants_lease
                        ? bt_helper_lease(&helper, BT_KIND_TAP_FD, BT_ROLE_AGENT, 0, -1, &lease, &tap_fd)
                        : bt_helper_release(&helper);
        assert_int_equal(error, lies[i].error);
        assert_int_equal(tap_fd, -3);
        assert_int_equal(helper.fd, -1); /* such a connection is useless */
        tear_down(NULL);
    }
    struct bt_helper helper;
    struct bt_helper_status status;
    ENGINE(ACT_HELLO, ACT_STATUS_WITH_FD);
    assert_int_equal(bt_helper_connect(path, &helper), 0);
    assert_int_equal(bt_helper_status(&helper, &status), -EPROTO);
}

static void t_client_engine_dies_in_a_call(void **state)
{
    (void)state;
    struct bt_helper helper;
    struct bt_helper_counters counters;
    ENGINE(ACT_HELLO);
    assert_int_equal(bt_helper_connect(path, &helper), 0);
    int error = bt_helper_counters(&helper, &counters); /* its script is over: it has closed */
    assert_int_equal(error, -ENOTCONN);
    assert_int_equal(helper.fd, -1);
}

static void t_client_has_a_deadline(void **state)
{
    (void)state;
    struct timespec before, after;
    struct bt_helper helper;
    ENGINE(ACT_HELLO, ACT_OK, ACT_OK);
    assert_int_equal(bt_helper_connect(path, &helper), 0);
    kill(engine_pid, SIGSTOP);
    clock_gettime(CLOCK_MONOTONIC, &before);
    assert_int_equal(bt_helper_seal(&helper), -ETIMEDOUT);
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_in_range(after.tv_sec - before.tv_sec, 4, 7);
}

#define CLIENT_TEST(name) cmocka_unit_test_teardown(name, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLIENT_TEST(t_client_absent_engine),
        CLIENT_TEST(t_client_hello),
        CLIENT_TEST(t_client_other_version),
        CLIENT_TEST(t_client_tries_again_when_hung_up_on),
        CLIENT_TEST(t_client_lease),
        CLIENT_TEST(t_client_believes_no_lies),
        CLIENT_TEST(t_client_engine_dies_in_a_call),
        CLIENT_TEST(t_client_has_a_deadline),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
