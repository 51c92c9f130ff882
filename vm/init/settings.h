/* /berth/guest.conf as berth-init reads it: see vm/guest_config.h for who writes it.
 *
 * The file comes from the host, which is trusted, but it is parsed strictly: a key that is not known, twice
 * there or out of range ends the boot with a reason instead of a guest that is half configured.
 */
#ifndef BERTH_VM_INIT_SETTINGS_H
#define BERTH_VM_INIT_SETTINGS_H

#include "ipc/base/base.h"

#define BT_SETTINGS_LENGTH_MAX 4096U
#define BT_SETTINGS_NO_DISK (-1)

enum bt_settings_role { BT_SETTINGS_AGENT, BT_SETTINGS_GATEWAY, BT_SETTINGS_ORCHESTRATOR };

struct bt_settings {
    enum bt_settings_role role;
    char host_name[64];
    uint64_t time_seconds; /* of the host's clock when the guest was configured; 0 = leave the clock */
    uint32_t address;      /* host byte order; 0 = no network */
    uint32_t gateway;
    uint8_t prefix_length;
    /* Places in the order of attachment, or BT_SETTINGS_NO_DISK. */
    int root_disk, scratch_disk, home_disk, workspace_disk, registry_disk;
};

/* Parses text[0..length). Returns 0 or -EINVAL; *ret_line is then the line (from 1) that is wrong, or 0 when
 * a key that must be there is missing. */
int bt_settings_parse(const char *text, size_t length, struct bt_settings *ret_settings, unsigned *ret_line);

#endif
