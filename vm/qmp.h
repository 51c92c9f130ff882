/* The few words of QMP (qemu's control protocol, docs/interop/qmp-spec) that berth speaks. */
#ifndef BERTH_VM_QMP_H
#define BERTH_VM_QMP_H

#include "lib/error.h"

/* Waits for qemu's greeting on control_fd and leaves negotiation mode. -ECANCELED: the process behind pid_fd
 * ended first; -ETIMEDOUT; -EPROTO. What qemu says is bounded and not trusted. */
int bt_qmp_open(int control_fd, int pid_fd, int timeout_ms) BT_MUST_CHECK;

#endif
