/* The initrd of one machine: the kernel's base initrd and what this guest is told, in memory only. */
#ifndef BERTH_VM_INITRD_H
#define BERTH_VM_INITRD_H

#include "lib/error.h"

/* Returns in *ret_initrd_fd a sealed memfd (memfd_create(2)), owned by the caller; read it by /proc/self/fd.
 */
int bt_initrd_make(const char *base_path, const void *extra, size_t extra_length, int *ret_initrd_fd,
                   struct bt_error *error);

#endif
