/* Temporary folders that survive no build. See scratch.h. */
#include "images/scratch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/file.h"

#define PREFIX "berth-build-"
#define RECORD "scratch"

int bt_scratch_make(const char *build_folder, char ret_path[512], struct bt_error *error)
{
    const char *temporary = getenv("TMPDIR");
    char path[512], record[800];
    if (temporary == NULL || temporary[0] != '/')
        temporary = "/tmp";
    if (snprintf(path, sizeof path, "%s/" PREFIX "XXXXXX", temporary) >= (int)sizeof path)
        return bt_fail(error, BT_EXIT_ERROR, ENAMETOOLONG, NULL,
                       "the name of the temporary folder is too long");
    if (mkdtemp(path) == NULL)
        return bt_fail(error, BT_EXIT_ERROR, errno, "set TMPDIR to a folder that you can write",
                       "cannot make a folder in %s: %s", temporary, strerror(errno));
    (void)snprintf(record, sizeof record, "%s/" RECORD, build_folder);
    if (chmod(path, 0755) < 0 || symlink(path, record) < 0) {
        int code = errno;
        (void)rmdir(path);
        return bt_fail(error, BT_EXIT_ERROR, code, NULL, "cannot prepare %s: %s", path, strerror(code));
    }
    memcpy(ret_path, path, sizeof path);
    return 0;
}

void bt_scratch_remove(const char *build_folder)
{
    char record[800], target[512];
    struct stat status;
    struct bt_error ignored;
    (void)snprintf(record, sizeof record, "%s/" RECORD, build_folder);
    ssize_t length = readlink(record, target, sizeof target - 1);
    if (length <= 0)
        return;
    target[length] = '\0';
    const char *slash = strrchr(target, '/');
    if (slash != NULL && strncmp(slash + 1, PREFIX, sizeof PREFIX - 1) == 0 && lstat(target, &status) == 0 &&
        S_ISDIR(status.st_mode) && status.st_uid == geteuid())
        (void)bt_tree_remove(target, &ignored);
    (void)unlink(record);
}
