/* Frames over SOCK_STREAM, see stream.h.
 *
 * It must not allocate, read more than one frame, or keep a descriptor that a peer sent.
 */
#include "ipc/chan/stream.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* SIGPIPE is ignored, or SO_NOSIGPIPE set, where it is missing */
#endif

int bt_stream_receive(struct bt_stream *stream, int fd, uint8_t ret_frame[BT_FRAME_SIZE])
{
    while (stream->length < BT_FRAME_SIZE) {
        struct iovec bytes = {.iov_base = stream->bytes + stream->length,
                              .iov_len = BT_FRAME_SIZE - stream->length};
        /* Without a control buffer the kernel discards descriptors and says so by MSG_CTRUNC. */
        struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
        ssize_t length = recvmsg(fd, &message, 0);
        if (length < 0 && errno == EINTR)
            continue;
        if (length < 0)
            return errno == ECONNRESET ? -ENOTCONN : -errno;
        if ((message.msg_flags & MSG_CTRUNC) != 0)
            return -EBADMSG;
        if (length == 0)
            return stream->length == 0 ? -ENOTCONN : -EBADMSG;
        stream->length += (size_t)length;
    }
    memcpy(ret_frame, stream->bytes, BT_FRAME_SIZE);
    stream->length = 0;
    return 0;
}

int bt_stream_send(int fd, const uint8_t frame[BT_FRAME_SIZE])
{
    size_t done = 0;
    while (done < BT_FRAME_SIZE) {
        ssize_t sent = send(fd, frame + done, BT_FRAME_SIZE - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EPIPE || errno == ECONNRESET ? -ENOTCONN : -errno;
        done += (size_t)sent;
    }
    return 0;
}
