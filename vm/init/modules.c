/* Loads the kernel modules of the initrd. Called once, before the disks and the interface are used. A module
 * that the kernel refuses is fatal: the machine would lack a disk or its network.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vm/init/init.h"

#define MODULES_FOLDER BT_INIT_CONFIG_FOLDER "/modules"

static int is_module(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 3 && strcmp(entry->d_name + length - 3, ".ko") == 0;
}

static void load_module(const char *name)
{
    char path[512];
    int length = snprintf(path, sizeof(path), MODULES_FOLDER "/%s", name);
    if (length < 0 || (size_t)length >= sizeof(path))
        bt_init_fatal("the name of a kernel module is too long");
    bt_auto_fd module_fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (module_fd < 0)
        bt_init_fatal("cannot open kernel module %s: %s", name, strerror(errno));
    if (syscall(SYS_finit_module, module_fd, "", 0) < 0 && errno != EEXIST)
        bt_init_fatal("the kernel refused module %s: %s", name, strerror(errno));
    /* The initrd is memory: give it back. */
    (void)unlink(path);
}

void bt_init_load_modules(void)
{
    struct dirent **entries = NULL;
    int count = scandir(MODULES_FOLDER, &entries, is_module, alphasort);
    for (int i = 0; i < count; i++) {
        load_module(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    (void)rmdir(MODULES_FOLDER);
    /* Nothing else has a reason to put code into this kernel. */
    (void)bt_init_set_kernel("/proc/sys/kernel/modules_disabled", "1");
}
