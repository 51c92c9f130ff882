/* Kernel modules: their names and what they depend on, read from the module itself. A package as it comes has
 * no modules.dep (depmod makes it on installation). */
#ifndef BERTH_IMAGES_MODULE_H
#define BERTH_IMAGES_MODULE_H

#include "lib/error.h"
#include "lib/memory.h"

#define BT_MODULE_NAME_SIZE 64

/* The module name of a path such as lib/modules/V/kernel/drivers/virtio/virtio-rng.ko.xz: "virtio_rng" (a
 * dash and an underscore are the same to the kernel). false when the path is no module. */
bool bt_module_name(const char *path, char ret_name[BT_MODULE_NAME_SIZE]);

/* Adds the names after "depends=" of the module's .modinfo section to ret_names. -EBADMSG when it is no ELF
 * module. */
int bt_module_depends(const void *module, size_t length, struct bt_list *ret_names, struct bt_error *error);

#endif
