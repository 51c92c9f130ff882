/* The uncompressed kernel inside a bzImage: qemu's microvm boots it by its PVH entry without unpacking in the
 * guest. */
#ifndef BERTH_IMAGES_VMLINUX_H
#define BERTH_IMAGES_VMLINUX_H

#include "lib/error.h"
#include "lib/memory.h"

/* Takes the ELF kernel out of an x86 bzImage (kernel: Documentation/x86/boot.rst, payload_offset and
 * payload_length). -ENOTSUP when the image has no payload of that kind or its kernel has no PVH entry note:
 * boot the bzImage then. The caller frees the buffer. */
int bt_vmlinux_extract(const void *image, size_t length, struct bt_buffer *ret_kernel,
                       struct bt_error *error);

#endif
