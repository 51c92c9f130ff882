/* Whole frames over SOCK_SEQPACKET, with at most one SCM_RIGHTS descriptor in a reply.
 *
 * Called by the engine and the client. It must not allocate, and must not leave a descriptor of the peer's
 * open that it does not hand to its caller.
 */
#include "ipc/chan/chan.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Room for more descriptors than are accepted: alignment lets a second one slip into a buffer made for one,
 * so what arrives is counted rather than assumed. */
#define CONTROL_FDS 4U

union control {
    struct cmsghdr header; /* for alignment */
    uint8_t bytes[CMSG_SPACE(CONTROL_FDS * sizeof(int))];
};

int bt_chan_send(int fd, const uint8_t frame[BT_FRAME_SIZE], int passed_fd)
{
    uint8_t copy[BT_FRAME_SIZE];
    union control control;
    struct iovec bytes = {.iov_base = copy, .iov_len = sizeof(copy)};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    ssize_t sent;

    memcpy(copy, frame, sizeof(copy));
    if (passed_fd >= 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &passed_fd, sizeof(int));
    }
    do {
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return errno == EPIPE || errno == ECONNRESET ? -ENOTCONN : -errno;
    return sent == BT_FRAME_SIZE ? 0 : -EIO;
}

static ssize_t receive(int fd, struct msghdr *message)
{
    ssize_t length;
    do {
        length = recvmsg(fd, message, MSG_CMSG_CLOEXEC);
    } while (length < 0 && errno == EINTR);
    return length < 0 ? -errno : length;
}

int bt_chan_receive_request(int fd, uint8_t ret_frame[BT_FRAME_SIZE])
{
    uint8_t frame[BT_FRAME_SIZE];
    struct iovec bytes = {.iov_base = frame, .iov_len = sizeof(frame)};
    /* Without a control buffer the kernel discards descriptors and says so by MSG_CTRUNC. */
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    ssize_t length = receive(fd, &message);
    if (length < 0)
        return length == -ECONNRESET ? -ENOTCONN : (int)length;
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        return -EBADMSG;
    if (length == 0)
        return -ENOTCONN;
    if (length != BT_FRAME_SIZE)
        return -EBADMSG;
    memcpy(ret_frame, frame, sizeof(frame));
    return 0;
}

/* Closes all descriptors of the message but the first, which goes to *ret_first. Returns how many there were.
 */
static size_t take_fds(struct msghdr *message, int *ret_first)
{
    size_t count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < fds; i++) {
            int received_fd;
            memcpy(&received_fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
            if (count++ == 0)
                *ret_first = received_fd;
            else
                bt_fd_close(&received_fd);
        }
    }
    return count;
}

int bt_chan_receive_reply(int fd, uint8_t ret_frame[BT_FRAME_SIZE], int *ret_passed_fd)
{
    uint8_t frame[BT_FRAME_SIZE];
    union control control;
    bt_auto_fd passed_fd = -1;
    struct iovec bytes = {.iov_base = frame, .iov_len = sizeof(frame)};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control.bytes};
    memset(&control, 0, sizeof(control));
    message.msg_controllen = sizeof(control.bytes);
    ssize_t length = receive(fd, &message);
    if (length == -ECONNRESET) /* reported once, ahead of a frame that may still be queued */
        length = receive(fd, &message);
    if (length < 0)
        return length == -ECONNRESET ? -ENOTCONN : (int)length;
    size_t fds = take_fds(&message, &passed_fd);
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || fds > 1)
        return -EBADMSG;
    if (length == 0)
        return -ENOTCONN;
    if (length != BT_FRAME_SIZE)
        return -EBADMSG;
    memcpy(ret_frame, frame, sizeof(frame));
    *ret_passed_fd = bt_fd_take(&passed_fd);
    return 0;
}
