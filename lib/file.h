/* Files and folders: bounded reads, atomic writes, removal that follows no link. */
#ifndef BERTH_LIB_FILE_H
#define BERTH_LIB_FILE_H

#include <sys/types.h>

#include "lib/error.h"
#include "lib/memory.h"

/* Reads a regular file of at most maximum bytes (else -EFBIG) into an empty buffer, which the caller frees.
 */
int bt_file_read(const char *path, size_t maximum, struct bt_buffer *ret_data, struct bt_error *error);

/* Writes a file by a temporary one beside it, fsync and rename: readers see the old or the new, never half.
 */
int bt_file_write(const char *path, const void *data, size_t length, mode_t mode, struct bt_error *error);

/* Creates a folder and its parents with this mode (existing ones are left as they are). */
int bt_folder_make(const char *path, mode_t mode, struct bt_error *error);
/* The same with mode 0700, and -EPERM unless the folder belongs to this user (or root) and nobody else may
 * write in it: whoever may could put their own keys, sockets, images or links where ours are looked for. */
int bt_folder_make_own(const char *path, struct bt_error *error);

/* Removes a file or a whole tree; never follows a symbolic link; a missing path is success. */
int bt_tree_remove(const char *path, struct bt_error *error);

/* Writes all bytes to a descriptor, through short writes and EINTR. Returns 0 or -errno. */
int bt_write_all(int fd, const void *data, size_t length) BT_MUST_CHECK;

/* Lower-case hex SHA-256. */
#define BT_DIGEST_TEXT_SIZE 65
void bt_digest_bytes(const void *data, size_t length, char ret_text[BT_DIGEST_TEXT_SIZE]);
int bt_digest_file(const char *path, char ret_text[BT_DIGEST_TEXT_SIZE], struct bt_error *error);

/* Fills bytes from the kernel's generator (getrandom(2)); ends the process if that fails. */
void bt_random_bytes(void *ret_bytes, size_t length);
/* 2 * bytes lower-case hex digits and a NUL. */
void bt_random_hex(char *ret_text, size_t bytes);

/* Folders of the user, absolute, without trailing slash (XDG base directory specification and
 * BERTH_CONFIG_HOME, BERTH_STATE_HOME). Not created. Fails when a needed variable is relative. Without
 * HOME, the home folder of the user database (getpwuid(3)) counts. */
struct bt_paths {
    char config[512];  /* $XDG_CONFIG_HOME/berth */
    char state[512];   /* $XDG_STATE_HOME/berth */
    char images[512];  /* $XDG_DATA_HOME/berth/images */
    char cache[512];   /* $XDG_CACHE_HOME/berth */
    char runtime[512]; /* $XDG_RUNTIME_DIR/berth, or <state>/run when unset */
};
int bt_paths_load(struct bt_paths *ret_paths, struct bt_error *error);

#endif
