/* The command line of qemu for one machine. */
#ifndef BERTH_VM_QEMU_ARGUMENTS_H
#define BERTH_VM_QEMU_ARGUMENTS_H

#include "vm/machine.h"

/* Descriptors of the qemu process; everything else is closed in it. */
enum bt_qemu_fd {
    BT_QEMU_FD_INPUT = 0,  /* the guest's console, input */
    BT_QEMU_FD_OUTPUT = 1, /* the guest's console, output */
    BT_QEMU_FD_ERRORS = 2, /* qemu's own complaints */
    BT_QEMU_FD_CONTROL,    /* QMP */
    BT_QEMU_FD_INITRD,
    BT_QEMU_FD_TAP, /* last, since a machine may have none */
    BT_QEMU_FD_COUNT
};

#if defined(__x86_64__)
#define BT_QEMU_PROGRAM "qemu-system-x86_64"
#elif defined(__aarch64__)
#define BT_QEMU_PROGRAM "qemu-system-aarch64"
#else
#error "berth has no qemu machine for this processor"
#endif

/* Fills an empty list, usable as argv. tsc_khz: frequency of the host's time stamp counter, 0 = not known
 * (TCG only). */
void bt_qemu_arguments(const struct bt_machine_config *config, const char *program, bool uses_kvm,
                       uint64_t tsc_khz, struct bt_list *ret_arguments);

#endif
