/* One interface for every way to run a guest. The keeper uses it; commands only ask for names and checks.
 *
 * A capability that a backend lacks is refused by name in prepare, never ignored.
 */
#ifndef BERTH_BACKENDS_BACKEND_H
#define BERTH_BACKENDS_BACKEND_H

#include <sys/types.h>

#include "images/images.h"
#include "ipc/client/helper_client.h"
#include "lib/error.h"
#include "vm/guest_config.h"
#include "vm/guest_link.h"

/* What one guest is to be. Everything is borrowed until launch returns. */
struct bt_guest_plan {
    enum bt_guest_role role;
    const char *host_name;
    const char *folder;          /* private folder (0700) of this guest on the host: disks, sockets */
    const struct bt_image *root; /* agents: the read-only root image */
    const struct bt_image *kernel;
    uint64_t memory_bytes;
    uint64_t disk_bytes; /* size of each writable disk: scratch, home, workspace; sparse */
    unsigned cpus;
    const struct bt_helper_lease *lease;
    int tap_fd; /* borrowed; launch hands a copy to the VMM */
    const struct bt_guest_file *files;
    size_t file_count;
    int console_fd; /* the guest's console is written here */
};

struct bt_guest; /* a running guest; its process is a child of the caller */

struct bt_backend {
    const char *name;
    /* What is missing on this machine, without changing anything. */
    int (*check)(struct bt_error *error);
    /* Makes the guest's disks (slow parts that need no lease). Nothing else is touched. */
    int (*prepare)(const struct bt_guest_plan *plan, struct bt_error *error);
    /* Starts the guest. It ends with its caller. */
    int (*launch)(const struct bt_guest_plan *plan, struct bt_guest **ret_guest, struct bt_error *error);
    /* Readable once the guest has ended. */
    int (*end_fd)(const struct bt_guest *guest);
    pid_t (*process)(const struct bt_guest *guest);
    /* How the guest is confined on the host, in words. */
    const char *(*jail)(const struct bt_guest *guest);
    /* Ends it (asks, waits grace_ms, kills), reaps, frees. Returns NULL; accepts NULL. */
    struct bt_guest *(*stop)(struct bt_guest *guest, int grace_ms);
    /* Removes the guest's disks from its folder. */
    int (*cleanup)(const char *folder, struct bt_error *error);
};

/* The backend of a name, or the best one of this machine when name is NULL; *ret_why says why that one. */
int bt_backend_select(const char *name, const struct bt_backend **ret_backend, const char **ret_why,
                      struct bt_error *error);

extern const struct bt_backend bt_backend_qemu;

#endif
