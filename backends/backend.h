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

/* Whose guest it is: enough for whoever comes next to find what a killed keeper left. All borrowed. */
struct bt_guest_identity {
    const char *state; /* the user's state folder */
    const char *environment;
    enum bt_guest_role role;
    const char *name; /* of an agent, unique in its environment */
};

/* What one guest is to be. Everything is borrowed until launch returns. */
struct bt_guest_plan {
    enum bt_guest_role role;
    struct bt_guest_identity identity;
    const struct bt_paths *paths;
    const char *host_name;
    const char *folder;          /* private folder (0700) of this guest on the host: disks, sockets */
    const struct bt_image *root; /* agents: the read-only root image; others: the infra image */
    uint64_t memory_bytes;
    uint64_t disk_bytes; /* size of each writable disk: scratch, home, workspace; sparse */
    unsigned cpus;
    bool is_gvisor;  /* asked for, and vetted */
    bool is_resumed; /* the disks or volumes of its earlier run are there, and stay as they are */
    /* What an agent finds at home instead of nothing: what freeze wrote; NULL: nothing. */
    const char *home_folder;
    const struct bt_helper_lease *lease;
    int tap_fd; /* borrowed; launch hands a copy to the VMM */
    const struct bt_guest_file *files;
    size_t file_count;
    int console_fd;                /* the guest's console is written here; borrowed */
    uint32_t orchestrator_address; /* gateways of a backend whose pair starts in turn */
};

/* What an agent's plan wants held. is_..._asked: by a bottle, so that not to hold it is an error. */
struct bt_guest_limits {
    uint64_t memory_bytes, disk_bytes;
    unsigned cpus;
    bool is_memory_asked, is_disk_asked, is_cpus_asked;
    bool is_gvisor_asked; /* a kernel of its own in front of the host's */
};

/* What opens a guest to the owner's commands. */
struct bt_guest_access {
    struct bt_guest_identity identity;
    uint32_t address; /* of the guest, host byte order */
    const char *private_key, *host_public_key;
};

struct bt_guest; /* a running guest; its process is a child of the caller */

/* Whose home is to be copied, and where to. All borrowed. */
struct bt_freeze {
    struct bt_guest_identity identity;
    const struct bt_paths *paths;
    const char *agent_folder; /* see bt_guest_plan.folder */
    const char *recipe;       /* of its root image, which was provided */
    bool is_live;             /* it runs */
    uint64_t bytes_max;       /* of the copy; more is -EFBIG */
    /* The agent's secrets, which must not be in the copy, up to NULL; -EPERM if one is. A copy that is no
     * stream of files, only made of an agent whose secrets have ended with it, is not searched. */
    const char *const *secrets;
    const char *folder; /* an empty private one, for whatever is written */
    const struct bt_progress *progress;
};

/* A Dockerfile and what it may use, as a tar that was looked at. All borrowed. */
struct bt_build {
    const struct bt_paths *paths;
    const char *base_recipe; /* what it builds on; provided by then */
    int context_fd;          /* the tar, from its beginning */
    const char *image;       /* name and */
    const char *digest;      /* digest that the result has in the cache */
    const struct bt_progress *progress;
};

struct bt_backend {
    const char *name;
    const char *warning; /* what it does not hold as well as the others; NULL = nothing to say */
    enum bt_kind lease_kind;
    /* The gateway starts when its orchestrator answers, and not without it: it is attached to its network. */
    bool is_pair_in_turn;
    /* What is missing on this machine, without changing anything. */
    int (*check)(struct bt_error *error);
    /* Which of these limits this machine cannot hold: an error for one that was asked for, a note for a
     * default. NULL: all are held. */
    int (*vet)(const struct bt_guest_limits *limits, struct bt_list *notes, struct bt_error *error);
    /* Everything that a guest of this recipe starts from: built when it is missing. */
    int (*provide)(const struct bt_paths *paths, const char *recipe, const struct bt_progress *progress,
                   struct bt_error *error);
    /* Makes the guest's disks (slow parts that need no lease). Nothing else is touched. Of a plan that
     * is_resumed it only makes sure that they are there: BT_EXIT_NO_TARGET, -ENOENT when one is not. */
    int (*prepare)(const struct bt_guest_plan *plan, struct bt_error *error);
    /* Starts the guest. It ends with its caller. -ENOTCONN: its gateway is not there any more. */
    int (*launch)(const struct bt_guest_plan *plan, struct bt_guest **ret_guest, struct bt_error *error);
    /* Where the guest of a lease sees its gateway, and a gateway its orchestrator. */
    uint32_t (*gateway_address)(const struct bt_helper_lease *lease);
    /* A link to a guest that runs or boots, as bt_guest_connect() makes one. */
    int (*connect)(const struct bt_guest_access *access, int deadline_ms, int wait_fd,
                   struct bt_guest_link **ret_link, struct bt_error *error);
    /* The environment has a new gateway: connects the guest to it. NULL: nothing to do. */
    int (*rejoin)(const struct bt_guest *guest, struct bt_error *error);
    /* Readable once the guest has ended. */
    int (*end_fd)(const struct bt_guest *guest);
    /* Why it has, in words, where it is known better than by its console; NULL, or a function that returns
     * NULL: it is not. */
    const char *(*end_reason)(const struct bt_guest *guest);
    pid_t (*process)(const struct bt_guest *guest);
    /* How the guest is confined on the host, in words. */
    const char *(*jail)(const struct bt_guest *guest);
    /* Ends it (asks, waits grace_ms, kills), reaps, frees. Returns NULL; accepts NULL. */
    struct bt_guest *(*stop)(struct bt_guest *guest, int grace_ms);
    /* Builds an image into the cache. NULL: it cannot. */
    int (*build)(const struct bt_build *build, struct bt_error *error);
    /* Lists (in words, one for each) or, with ret_found NULL, removes what killed builds left. NULL with
     * build.
     */
    int (*sweep_builds)(const struct bt_paths *paths, const struct bt_progress *progress,
                        struct bt_list *ret_found, struct bt_error *error);
    /* Copies an agent's home for others to begin with. NULL: it cannot. */
    int (*freeze)(const struct bt_freeze *freeze, struct bt_error *error);
    /* Removes what a guest left outside of its folder, whether it was stopped or lost; has_data: also what it
     * wrote.
     */
    int (*cleanup)(const struct bt_guest_identity *identity, bool has_data, struct bt_error *error);
    /* All guests of an environment of which something is left outside of folders (has_data: be it only what
     * they wrote), as the runtime itself knows them; NULL: there is no such place. on_guest may call cleanup.
     */
    int (*enumerate)(const char *state, const char *environment, bool has_data,
                     void (*on_guest)(void *context, const struct bt_guest_identity *identity), void *context,
                     struct bt_error *error);
};

/* The backend of a name; when name is NULL the best one of this machine that works: *ret_why says why that
 * one. One with a warning must then be confirmed by a person. */
int bt_backend_select(const char *name, const struct bt_backend **ret_backend, const char **ret_why,
                      struct bt_error *error);

/* All of them, in the order of preference. */
extern const struct bt_backend *const bt_backends[];
extern const size_t bt_backend_count;
extern const struct bt_backend bt_backend_qemu;
extern const struct bt_backend bt_backend_docker;

#endif
