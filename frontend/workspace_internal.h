/* What the files of the workspace module share. Nobody else includes this. */
#ifndef BERTH_FRONTEND_WORKSPACE_INTERNAL_H
#define BERTH_FRONTEND_WORKSPACE_INTERNAL_H

#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "frontend/workspace.h"
#include "lib/file.h"
#include "lib/spawn.h"

/* In state_folder. */
#define BT_WORKSPACE_REPOSITORY "base.git" /* what was sent, what came back; bare, made by berth */
#define BT_WORKSPACE_SKELETON                                                                                \
    "skeleton.git" /* an empty one: for listing here, for ignore rules in the guest */
#define BT_WORKSPACE_GUEST_REPOSITORY "guest.git" /* the agent's .git until it has been sent */
#define BT_WORKSPACE_STAMPS "stamps" /* what each file in the guest looked like before the agent ran */
#define BT_WORKSPACE_CLONE_LIST "clone-files" /* of a clone: git ls-tree of its commit */

/* In base.git. */
#define BT_WORKSPACE_REF_BASE "refs/berth/base"
#define BT_WORKSPACE_REF_AGENT "refs/berth/agent"

#define BT_WORKSPACE_NAMES_BYTES_MAX (256UL * 1024 * 1024)
#define BT_WORKSPACE_PATH_MAX 4096
#define BT_WORKSPACE_TEXT_SIZE 200

enum {
    BT_MODE_FILE = 0100644,
    BT_MODE_EXECUTABLE = 0100755,
    BT_MODE_LINK = 0120000,
    BT_MODE_GITLINK = 0160000
};

/* ---- workspace_git.c: git on berth's own repositories ---- */

/* The environment of every git: no configuration but the repository's, no prompt, no transport, no
 * replacement objects. work_tree may be NULL. */
void bt_workspace_git_environment(const char *repository, const char *work_tree, struct bt_list *environment);

/* Makes a bare repository by writing its files: no template, no hook, attributes that keep every byte as it
 * is. has_work_tree: as a .git (for the guest). object_format: "sha1" or "sha256". */
int bt_workspace_repository_make(const char *path, bool has_work_tree, const char *object_format,
                                 struct bt_error *error);

/* A git to run on <state_folder>/base.git. */
struct bt_workspace_git {
    const char *state_folder;
    const char *const *arguments; /* after "git", NULL-terminated */
    const void *input;
    size_t input_length;
    size_t output_limit; /* 0 = 64 MiB */
    void (*on_output)(void *context, const char *data, size_t length);
    void *context;
};
/* *ret_status: git's exit status, when ret_status is not NULL; else a status other than 0 is an error. The
 * caller frees *ret_output. */
int bt_workspace_git_run(const struct bt_workspace_git *git, struct bt_buffer *ret_output, int *ret_status,
                         struct bt_error *error);

/* The id of a revision ("refs/berth/base^{tree}"). -ENOENT when it is not there. */
int bt_workspace_git_resolve(const char *state_folder, const char *revision,
                             char ret_id[BT_WORKSPACE_ID_SIZE], struct bt_error *error);
bool bt_workspace_id_is_valid(const char *text, size_t length);

/* Changes between two revisions, no renames, by path (strcmp). */
int bt_workspace_git_changes(const char *state_folder, const char *old_revision, const char *new_revision,
                             struct bt_workspace_changes *ret_changes, struct bt_error *error);

/* The change of a path, or NULL. */
const struct bt_workspace_change *bt_workspace_changes_find(const struct bt_workspace_changes *changes,
                                                            const char *path);

/* ---- workspace_import.c: one stream of commits into a repository (git fast-import(1)) ---- */

struct bt_workspace_import {
    FILE *stream;
    pid_t pid;
    int errors_fd;             /* what git writes on stderr */
    struct sigaction previous; /* of SIGPIPE, which is ignored meanwhile */
};
/* compression: zlib's level. The folder of the repository is <state_folder>/base.git. */
int bt_workspace_import_start(const char *state_folder, int compression,
                              struct bt_workspace_import *ret_import, struct bt_error *error);
/* from: a revision or NULL (no parent). is_empty: begins with no files instead of those of from. */
void bt_workspace_import_commit(struct bt_workspace_import *import, const char *reference, const char *from,
                                bool is_empty, const char *message);
void bt_workspace_import_remove(struct bt_workspace_import *import, const char *path);
void bt_workspace_import_object(struct bt_workspace_import *import, unsigned mode, const char *id,
                                const char *path);
/* Announces a file whose size bytes follow with bt_workspace_import_data. */
void bt_workspace_import_file(struct bt_workspace_import *import, unsigned mode, const char *path,
                              uint64_t size);
void bt_workspace_import_data(struct bt_workspace_import *import, const void *data, size_t length);
/* The whole of a file that is open; -EAGAIN when it became shorter than size meanwhile. */
int bt_workspace_import_open_file(struct bt_workspace_import *import, unsigned mode, const char *path, int fd,
                                  uint64_t size);
/* Ends the stream: everything is in the repository, or (result < 0, or git failed) nothing. Returns result,
 * or git's failure. */
int bt_workspace_import_finish(struct bt_workspace_import *import, int result, struct bt_error *error);

/* ---- workspace_path.c: names ---- */

/* NULL when a file of this name may be written into a user's folder; else why not. */
const char *bt_workspace_path_refusal(const char *path);
/* NULL, or why a person should look at this file before using it: something runs it, or obeys it. */
const char *bt_workspace_path_warning(const char *path, unsigned old_mode, unsigned new_mode);
/* Whether the 2 or 3 bytes are one character in UTF-8 that controls a terminal or the order of text: U+0080
 * to U+009F, U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069 (Unicode TR #36). */
bool bt_workspace_is_control(const unsigned char *bytes, size_t length);
/* A path for a message: control characters shown as ?, cut. Returns ret_text. */
const char *bt_workspace_printable(const char *path, char ret_text[BT_WORKSPACE_TEXT_SIZE]);
/* The first few of a list, for a message: "a, b, c and 7 more". */
void bt_workspace_list_text(const struct bt_list *list, char *ret_text, size_t size);

/* ---- workspace_list.c: which files ---- */

struct bt_workspace_listing {
    struct bt_buffer names; /* NUL-terminated, relative, sorted by nothing in particular, distinct */
    struct bt_list notes;
    size_t count;
    bool is_checkout;
};
int bt_workspace_list(const char *host_folder, const char *state_folder, bool is_ignored_included,
                      struct bt_workspace_listing *ret_listing, struct bt_error *error);
void bt_workspace_listing_free(struct bt_workspace_listing *listing);

/* ---- workspace_target.c: a folder of the user, by descriptors ---- */

/* Opens what lies at path below folder_fd, without leaving it and without following any symbolic link
 * (openat2(2)). Returns a descriptor or -errno. */
int bt_workspace_open_below(int folder_fd, const char *path, int flags);

struct bt_workspace_found {
    bool is_there;
    unsigned mode; /* git's; 0 = absent, or a folder */
    struct stat status;
};
/* What lies at path, seen without following symbolic links. -ELOOP: one is on the way. -ENOTDIR: a file is.
 */
int bt_workspace_look(int folder_fd, const char *path, struct bt_workspace_found *ret_found);
/* Opens the folder that holds path, creating it and its parents when may_create. *ret_name points into path.
 */
int bt_workspace_open_parent(int folder_fd, const char *path, bool may_create, const char **ret_name);

/* The content of one file of target_folder into an import, as it is now (regular file or symbolic link). */
int bt_workspace_import_found(struct bt_workspace_import *import, int folder_fd, const char *path,
                              const struct bt_workspace_found *found, struct bt_error *error);

/* ---- workspace_write.c ---- */

struct bt_workspace_write {
    struct bt_workspace_change *change; /* borrowed */
    struct bt_workspace_found found;    /* what was there when it was merged */
};
/* Makes the changes in target_folder, all or none. */
int bt_workspace_write_all(const char *state_folder, const char *target_folder,
                           struct bt_workspace_write *writes, size_t count, struct bt_error *error);

/* ---- workspace_guest.c: what is asked of the guest ---- */

/* Runs a command in the guest. input may be NULL. A status other than 0 is an error when ret_status is NULL.
 * The caller frees *ret_output. */
struct bt_workspace_ask {
    const char *const *arguments; /* [0] by absolute path or found in the guest's PATH */
    bool is_root;                 /* else the agent's user */
    bool is_reader;               /* rather the guest's reader */
    const char *repository;       /* GIT_DIR, or NULL */
    const void *input;
    size_t input_length;
    size_t limit;                 /* bytes of output */
    struct bt_buffer *ret_errors; /* the beginning of what it wrote to standard error; or NULL */
};
int bt_workspace_ask(const struct bt_workspace_guest *guest, const struct bt_workspace_ask *ask,
                     struct bt_buffer *ret_output, int *ret_status, struct bt_error *error);
extern const char *const bt_workspace_guest_environment[];
/* An on_output of a guest's command: standard output into a file, at most room bytes, standard error nowhere.
 * A result below 0 (-EFBIG: more came) ends the command and is kept, since it says why. */
struct bt_workspace_sink {
    int fd;
    uint64_t room;
    int result;
};
int bt_workspace_sink_write(void *context, bool is_stderr, const char *data, size_t length);

/* One file in the guest, as find(1) saw it. */
struct bt_workspace_stamp {
    /* 'f', 'l', 'g' (a .git: the path is of the folder that holds it), 'u' (a folder that cannot be read; ""
     * is the workspace itself), else another kind */
    char type;
    const char *stamp; /* mode, inode, size, times: equal means unchanged */
    uint64_t size;
    const char *path;
};
struct bt_workspace_stamps {
    struct bt_buffer text;            /* what the pointers point into */
    struct bt_workspace_stamp *items; /* by path (strcmp) */
    size_t count;
};
/* Lists the guest's folder; parses such a list (takes over text, also on failure). */
int bt_workspace_stamps_ask(const struct bt_workspace_guest *guest, struct bt_buffer *ret_text,
                            struct bt_error *error);
int bt_workspace_stamps_parse(struct bt_buffer *text, struct bt_workspace_stamps *ret_stamps,
                              struct bt_error *error);
void bt_workspace_stamps_free(struct bt_workspace_stamps *stamps);

/* ---- workspace_clone.c: the base of a clone ---- */

struct bt_workspace_clone_file {
    unsigned mode;
    const char *id, *path;
    bool is_wanted;
};
struct bt_workspace_clone {
    bool is_clone;
    struct bt_buffer text;                 /* what the pointers point into */
    struct bt_workspace_clone_file *files; /* by path */
    size_t count;
    int content_fd;
};
/* The list of a clone's files; is_clone false when the workspace was copied in. */
int bt_workspace_clone_load(const char *state_folder, struct bt_workspace_clone *ret_clone,
                            struct bt_error *error);
void bt_workspace_clone_free(struct bt_workspace_clone *clone);
struct bt_workspace_clone_file *bt_workspace_clone_find(const struct bt_workspace_clone *clone,
                                                        const char *path);
/* Marks a file whose base is needed; fetches all marked ones; writes them into the import; compares what
 * arrived. */
void bt_workspace_clone_want(struct bt_workspace_clone *clone, const char *path);
int bt_workspace_clone_fetch(struct bt_workspace_clone *clone, const struct bt_workspace_guest *guest,
                             const char *state_folder, struct bt_error *error);
int bt_workspace_clone_import(struct bt_workspace_clone *clone, struct bt_workspace_import *import,
                              struct bt_error *error);
int bt_workspace_clone_check(const struct bt_workspace_clone *clone, const char *state_folder,
                             struct bt_error *error);

/* ---- workspace_patch.c ---- */

/* Writes <state_folder>/patch from base and agent, or removes it when they are the same. Fills count and
 * size. */
int bt_workspace_patch_write(const char *state_folder, struct bt_workspace_summary *summary,
                             struct bt_error *error);

/* ---- workspace.c ---- */

/* One process at a time works on a state folder. Returns a descriptor (close it to let go) or a negative
 * errno. */
int bt_workspace_lock(const char *state_folder, struct bt_error *error);

#endif
