/* What a guest is told before it boots, and how: a cpio archive appended to the initrd (kernel:
 * Documentation/driver-api/early-userspace/buffer-format.rst), unpacked by the kernel into the root file
 * system that berth-init starts from. Nothing is mounted on the host, nothing secret is on a command line.
 *
 * /berth/guest.conf is text, one "key value" a line; the other files are placed under /berth/ as named.
 */
#ifndef BERTH_VM_GUEST_CONFIG_H
#define BERTH_VM_GUEST_CONFIG_H

#include "lib/error.h"
#include "lib/memory.h"

/* Paths inside a running guest. berth-init moves /berth of the initrd to a tmpfs at /run/berth of the final
 * root. */
#define BT_GUEST_FOLDER "/run/berth"
#define BT_GUEST_RUN "/run/berth/bin/berth-init" /* called as "berth-init run": see vm/run_protocol.h */
#define BT_GUEST_PROBE "/run/berth/bin/berth-probe"

enum bt_guest_role { BT_GUEST_AGENT, BT_GUEST_GATEWAY, BT_GUEST_ORCHESTRATOR };

/* "agent", "gateway", "orchestrator". */
const char *bt_guest_role_name(enum bt_guest_role role);
/* The role of such a name; any other is an agent's. */
enum bt_guest_role bt_guest_role_of(const char *name);

struct bt_guest_file {
    const char *name; /* relative to /berth, e.g. "config/gateway.json", "bin/berth-gateway" */
    const void *data;
    size_t length;
    unsigned mode; /* 0400, 0755, ... ; owner root */
};

struct bt_guest_config {
    enum bt_guest_role role;
    const char *host_name;
    uint32_t address;      /* the guest's own, host byte order */
    uint32_t host_address; /* the slot's host end: default route and resolver */
    uint8_t prefix_length; /* 31 */
    uint64_t
        time_seconds; /* host's clock; berth-init sets the guest's when it is off by more than a second */
    /* Agents only. Disks in the order in which they are attached (virtio-blk, so /dev/vda is first): */
    bool has_root_image; /* read-only root, overlaid over the scratch disk */
    bool has_scratch_disk;
    bool has_home_disk;      /* mounted at /home/agent, owned by agent */
    bool has_workspace_disk; /* mounted at /workspace, owned by agent */
    /* Orchestrator only: its registry's disk, mounted at /var/lib/berth. */
    bool has_registry_disk;
    const struct bt_guest_file
        *files; /* authorized_keys, dropbear host key, trust bundle, programs, configs */
    size_t file_count;
};

/* Appends the cpio ("newc") of this configuration to a buffer. */
int bt_guest_config_write(const struct bt_guest_config *config, struct bt_buffer *archive,
                          struct bt_error *error);

/* Lower level: one file or folder into a newc archive, and its trailer. Parents must have been added before.
 */
int bt_cpio_add(struct bt_buffer *archive, const char *path, unsigned mode, const void *data, size_t length);
int bt_cpio_finish(struct bt_buffer *archive);

#endif
