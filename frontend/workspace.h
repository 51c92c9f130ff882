/* The workspace of an agent: copied in, worked on in the guest, brought back as a patch, applied.
 *
 * Called by the agent's keeper (prepare, settle, record_clone, collect) and by `berth diff` and `berth
 * apply`. docs/workspace.md says how it works and why. In short: everything lives in a folder of the agent on
 * the host (state_folder), in a bare repository that berth makes itself; git is run only on that repository,
 * with a configuration that berth wrote. Nothing of the user's repository or of the guest is ever executed,
 * and the user's folder is written to by bt_workspace_apply alone.
 *
 * Order of a launch with a folder:  prepare -> bt_guest_copy_list_in(names) -> settle -> ... -> collect
 * Order of a launch with --repo:    git clone in the guest -> record_clone -> ... -> collect
 * A clone is a workspace of its own, with a state_folder of its own (for example <agent
 * folder>/clone-<name>).
 */
#ifndef BERTH_FRONTEND_WORKSPACE_H
#define BERTH_FRONTEND_WORKSPACE_H

#include "images/images.h"
#include "lib/error.h"
#include "lib/memory.h"
#include "vm/guest_link.h"

#define BT_WORKSPACE_PATCH "patch"                          /* its name in state_folder */
#define BT_WORKSPACE_PATCH_BYTES_MAX (512ULL * 1024 * 1024) /* of changed files, and of the patch */
#define BT_WORKSPACE_FILES_MAX 1000000U
#define BT_WORKSPACE_ID_SIZE 65 /* of a git object, in hexadecimal, and a NUL */

/* ---- on the host, before the launch
 * ------------------------------------------------------------------------ */

struct bt_workspace_options {
    bool is_ignored_included;           /* also what git ignores */
    const struct bt_progress *progress; /* or NULL */
};

struct bt_workspace_base {
    char tree[BT_WORKSPACE_ID_SIZE]; /* what was recorded */
    uint64_t file_count, byte_count;
    bool is_checkout;    /* false: a plain folder */
    bool has_repository; /* false: too large for the agent to get a .git of its own (a note says so) */
    struct bt_buffer
        names;            /* for bt_guest_copy_list_in: NUL-terminated relative names, one after the other */
    struct bt_list notes; /* what the user should know, each a sentence without full stop; may be empty */
};

/* Records host_folder as the base. A git checkout (or a folder inside one): tracked files, and untracked ones
 * that git does not ignore; submodules and nested repositories likewise, each by its own rules. A plain
 * folder: all files. Never .git. state_folder must exist. On failure nothing is left in it; the message names
 * the file that could not be read. The caller frees *ret_base. */
int bt_workspace_prepare(const char *host_folder, const char *state_folder,
                         const struct bt_workspace_options *options, struct bt_workspace_base *ret_base,
                         struct bt_error *error);
void bt_workspace_base_free(struct bt_workspace_base *base);

/* ---- in the guest
 * ------------------------------------------------------------------------------------------ */

/* A guest, as this module needs it; bt_workspace_guest_link makes one from a connection. */
struct bt_workspace_guest {
    void *context;
    const char *folder; /* absolute path in the guest: /workspace, or /workspace/<clone> */
    const char *store;  /* absolute path of a folder that only the guest's root writes; created at need */
    uint32_t uid, gid;  /* the agent's */
    uint32_t reader;    /* uid and gid of who reads what the agent wrote: see bt_guest_reader() */
    /* As bt_guest_run and bt_guest_copy_in. */
    int (*run)(void *context, const struct bt_guest_command *command, int *ret_status,
               struct bt_error *error);
    int (*copy_in)(void *context, const char *host_path, const char *guest_path, uint32_t uid, uint32_t gid,
                   struct bt_error *error);
};
/* link and folder are borrowed. name: of the clone (a single path component), or NULL for /workspace itself.
 */
void bt_workspace_guest_link(struct bt_guest_link *link, const char *folder, const char *name,
                             struct bt_workspace_guest *ret_guest);
void bt_workspace_guest_free(struct bt_workspace_guest *guest);

/* After the files are in the guest, before the agent runs: gives it a .git with one commit, and remembers
 * what each file looked like. */
int bt_workspace_settle(const struct bt_workspace_guest *guest, const char *state_folder,
                        struct bt_error *error);

/* After a clone in the guest, before the agent runs: the commit checked out becomes the base. */
int bt_workspace_record_clone(const struct bt_workspace_guest *guest, const char *state_folder,
                              char ret_commit[BT_WORKSPACE_ID_SIZE], struct bt_error *error);

struct bt_workspace_summary {
    size_t changed_count; /* files added, modified, deleted; 0 = there is no patch */
    uint64_t patch_bytes;
    struct bt_list notes; /* what is not in the patch, and why */
};

/* Brings the changes since settle or record_clone home: <state_folder>/patch is replaced as a whole, or not
 * at all; it is removed when there are no changes. May be called while the agent runs, and any number of
 * times. More than BT_WORKSPACE_PATCH_BYTES_MAX of changed files: -EFBIG, naming the largest. The caller
 * frees *ret_summary. */
int bt_workspace_collect(const struct bt_workspace_guest *guest, const char *state_folder,
                         struct bt_workspace_summary *ret_summary, struct bt_error *error);
void bt_workspace_summary_free(struct bt_workspace_summary *summary);

/* ---- the patch
 * ---------------------------------------------------------------------------------------------- */

bool bt_workspace_has_patch(const char *state_folder);

struct bt_workspace_diff_options {
    bool is_stat;     /* file names and counts of lines only */
    bool is_terminal; /* control characters are shown, not sent: the patch comes from an agent */
    bool has_color;   /* only with is_terminal */
};
/* Writes the patch to a descriptor. -ENOENT with BT_EXIT_ERROR when there is none. Not for a terminal: byte
 * for byte what `git apply` wants. */
int bt_workspace_diff(const char *state_folder, const struct bt_workspace_diff_options *options,
                      int output_fd, struct bt_error *error);

/* One changed file. */
struct bt_workspace_change {
    char status;                 /* 'A' added, 'M' modified, 'D' deleted, 'T' became another kind of file */
    unsigned old_mode, new_mode; /* git's: 0100644, 0100755, 0120000; 0 = absent */
    char old_id[BT_WORKSPACE_ID_SIZE], new_id[BT_WORKSPACE_ID_SIZE];
    char *path;
};
struct bt_workspace_changes {
    struct bt_workspace_change *items;
    size_t count;
};
/* The changes of the patch, by path. The caller frees them. */
int bt_workspace_changes(const char *state_folder, struct bt_workspace_changes *ret_changes,
                         struct bt_error *error);
void bt_workspace_changes_free(struct bt_workspace_changes *changes);

struct bt_workspace_apply_options {
    bool is_dry_run;           /* says what would happen */
    bool is_skipping_refused;  /* applies the rest instead of refusing all */
    bool has_conflict_markers; /* writes conflicts into the files, as git merge does, instead of changing
                                  nothing */
};
/* Filled as far as bt_workspace_apply came, also when it fails: lists of paths, for people and for --json. */
struct bt_workspace_applied {
    struct bt_list written, removed; /* of target_folder */
    struct bt_list refused;          /* "path: reason" */
    struct bt_list warnings;         /* "path: why to look at it first" */
    struct bt_list conflicts;        /* paths that both sides changed */
};
/* Merges the patch (base and agent) with target_folder as it is now (three-way), then writes. All is checked
 * before anything is written; a failure while writing puts back what was. Refused as a whole (see
 * is_skipping_refused): paths that leave the folder, go through a symbolic link or into .git in any spelling,
 * symbolic links, submodules. Conflicts: nothing is changed and -EEXIST, or markers when asked (then 0, and
 * result->conflicts is not empty: the command's exit status is 1). Applying twice is applying once. What was
 * overwritten stays in state_folder (refs/berth/before/). */
int bt_workspace_apply(const char *state_folder, const char *target_folder,
                       const struct bt_workspace_apply_options *options, struct bt_workspace_applied *result,
                       struct bt_error *error);
void bt_workspace_applied_free(struct bt_workspace_applied *result);

#endif
