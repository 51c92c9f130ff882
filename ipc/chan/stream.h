/* Frames over SOCK_STREAM, for systems whose AF_UNIX has no SOCK_SEQPACKET (macOS): exactly 512 bytes each,
 * no descriptor either way.
 *
 * Used by engine and client there, and by tests. No memory of its own. Like chan.h, none of this blocks
 * longer than the socket does.
 */
#ifndef BERTH_IPC_CHAN_STREAM_H
#define BERTH_IPC_CHAN_STREAM_H

#include "ipc/wire/frame.h"

/* What has come of a frame that is not whole yet. {0} at the start of a connection. */
struct bt_stream {
    uint8_t bytes[BT_FRAME_SIZE];
    size_t length; /* less than BT_FRAME_SIZE between calls */
};

/* -EAGAIN: the frame is not whole yet; call again when more has come (a caller's deadline bounds how long).
 * -ENOTCONN: the peer has closed, between two frames. -EBADMSG: in the middle of one, or it sent a
 * descriptor, none of which stays. Never reads past the frame's end. */
int bt_stream_receive(struct bt_stream *stream, int fd, uint8_t ret_frame[BT_FRAME_SIZE]) BT_MUST_CHECK;

/* All of the frame, or the connection is of no use any more: -EAGAIN: the peer does not read; -ENOTCONN: it
 * has closed. The caller closes in either case. */
int bt_stream_send(int fd, const uint8_t frame[BT_FRAME_SIZE]) BT_MUST_CHECK;

#endif
