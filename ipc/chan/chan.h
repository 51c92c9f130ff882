/* Sends and receives whole frames over an AF_UNIX SOCK_SEQPACKET socket, with at most one descriptor in a
 * reply.
 *
 * Used by the engine and the client. No memory of its own. None of these blocks longer than the socket does:
 * the engine's are O_NONBLOCK. unix(7), recv(2) MSG_TRUNC and MSG_CTRUNC.
 */
#ifndef BERTH_IPC_CHAN_CHAN_H
#define BERTH_IPC_CHAN_CHAN_H

#include "ipc/wire/frame.h"

/* Sends one frame; passed_fd >= 0 goes with it and stays the caller's. -EAGAIN: the peer does not read;
 * -ENOTCONN: it has closed. */
int bt_chan_send(int fd, const uint8_t frame[BT_FRAME_SIZE], int passed_fd) BT_MUST_CHECK;

/* Receives one request. Descriptors that came along never enter this process: the kernel drops them.
 * -ENOTCONN: the peer has closed; -EBADMSG: another length than 512, or descriptors; -EAGAIN: nothing there.
 */
int bt_chan_receive_request(int fd, uint8_t ret_frame[BT_FRAME_SIZE]) BT_MUST_CHECK;

/* Receives one reply. *ret_passed_fd is owned by the caller, close-on-exec, or -1. More than one descriptor
 * is -EBADMSG, and all are closed. Else as above. */
int bt_chan_receive_reply(int fd, uint8_t ret_frame[BT_FRAME_SIZE], int *ret_passed_fd) BT_MUST_CHECK;

#endif
