/* The channel against a peer that does everything it should not. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/chan/chan.h"

#define FD_FLOOD_MAX 253 /* SCM_MAX_FD */

struct ends {
    int ours, theirs;
};

static unsigned count_fds(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static int set_up(void **state)
{
    static struct ends ends;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    ends = (struct ends){.ours = pair[0], .theirs = pair[1]};
    *state = &ends;
    return 0;
}

static int tear_down(void **state)
{
    struct ends *ends = *state;
    bt_fd_close(&ends->ours);
    bt_fd_close(&ends->theirs);
    return 0;
}

static void send_fds(int socket_fd, const uint8_t *bytes, size_t length, unsigned count)
{
    static uint8_t control[CMSG_SPACE(FD_FLOOD_MAX * sizeof(int))];
    int fds[FD_FLOOD_MAX];
    uint8_t copy[BT_FRAME_SIZE];
    memcpy(copy, bytes, length);
    struct iovec part = {.iov_base = copy, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    bt_auto_fd null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(null_fd >= 0);
    for (unsigned i = 0; i < count; i++)
        fds[i] = null_fd;
    memset(control, 0, sizeof(control));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    assert_int_equal(sendmsg(socket_fd, &message, MSG_NOSIGNAL), length);
}

static void t_chan_takes_exactly_512_bytes(void **state)
{
    const struct ends *ends = *state;
    uint8_t bytes[601], frame[BT_FRAME_SIZE];
    memset(bytes, 0x5a, sizeof(bytes));
    for (size_t length = 1; length <= 600; length++) {
        int passed_fd = -2;
        assert_int_equal(send(ends->theirs, bytes, length, 0), length);
        assert_int_equal(bt_chan_receive_request(ends->ours, frame), length == BT_FRAME_SIZE ? 0 : -EBADMSG);
        assert_int_equal(send(ends->theirs, bytes, length, 0), length);
        assert_int_equal(bt_chan_receive_reply(ends->ours, frame, &passed_fd),
                         length == BT_FRAME_SIZE ? 0 : -EBADMSG);
        assert_int_equal(passed_fd, length == BT_FRAME_SIZE ? -1 : -2);
    }
    assert_int_equal(bt_chan_receive_request(ends->ours, frame), -EAGAIN);
    assert_int_equal(send(ends->theirs, bytes, 0, 0),
                     0); /* an empty packet looks like the end, and is treated so */
    assert_int_equal(bt_chan_receive_request(ends->ours, frame), -ENOTCONN);
}

static void t_chan_request_with_fds_is_refused(void **state)
{
    const struct ends *ends = *state;
    static const unsigned counts[] = {1, 2, FD_FLOOD_MAX};
    uint8_t bytes[BT_FRAME_SIZE] = {1}, frame[BT_FRAME_SIZE];
    unsigned before = count_fds();
    for (unsigned round = 0; round < 2000; round++) {
        send_fds(ends->theirs, bytes, sizeof(bytes), counts[round % 3]);
        assert_int_equal(bt_chan_receive_request(ends->ours, frame), -EBADMSG);
    }
    assert_int_equal(count_fds(), before);
}

static void t_chan_reply_carries_one_fd_at_most(void **state)
{
    const struct ends *ends = *state;
    uint8_t bytes[BT_FRAME_SIZE] = {1}, frame[BT_FRAME_SIZE];
    unsigned before = count_fds();
    int passed_fd = -2;
    for (unsigned count = 2; count <= 8; count++) {
        send_fds(ends->theirs, bytes, sizeof(bytes), count);
        assert_int_equal(bt_chan_receive_reply(ends->ours, frame, &passed_fd), -EBADMSG);
        assert_int_equal(passed_fd, -2);
    }
    send_fds(ends->theirs, bytes, 100, 1); /* too short: its descriptor is closed too */
    assert_int_equal(bt_chan_receive_reply(ends->ours, frame, &passed_fd), -EBADMSG);
    assert_int_equal(count_fds(), before);

    bt_auto_fd null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(bt_chan_send(ends->theirs, bytes, null_fd), 0);
    assert_int_equal(bt_chan_receive_reply(ends->ours, frame, &passed_fd), 0);
    assert_true(passed_fd >= 0 && passed_fd != null_fd);
    assert_int_equal(fcntl(passed_fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    bt_fd_close(&passed_fd);
    bt_fd_close(&null_fd);
    assert_int_equal(count_fds(), before);
}

static void t_chan_tells_the_end_and_a_full_buffer(void **state)
{
    struct ends *ends = *state;
    uint8_t frame[BT_FRAME_SIZE] = {0};
    unsigned sent = 0;
    int error = 0;
    while (sent < 100000 && error == 0) {
        error = bt_chan_send(ends->ours, frame, -1);
        sent += error == 0;
    }
    assert_int_equal(error, -EAGAIN);
    assert_true(sent > 1);
    bt_fd_close(&ends->theirs);
    assert_int_equal(bt_chan_send(ends->ours, frame, -1), -ENOTCONN);
    assert_int_equal(bt_chan_receive_request(ends->ours, frame), -ENOTCONN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(t_chan_takes_exactly_512_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_chan_request_with_fds_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_chan_reply_carries_one_fd_at_most, set_up, tear_down),
        cmocka_unit_test_setup_teardown(t_chan_tells_the_end_and_a_full_buffer, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
