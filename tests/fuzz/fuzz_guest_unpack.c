/* Unpacking an archive that a hostile guest wrote, into a folder of its own: nothing may appear beside that
 * folder. */
#include <archive.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/file.h"
#include "vm/guest_link_copy.h"

#define LIMIT (64U * 1024U)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char outer[] = "/tmp/berth-fuzz-unpack.XXXXXX";

static void remove_outer(void)
{
    (void)bt_tree_remove(outer, NULL);
}

/* Only "w" may be there. */
static void check_outer(void)
{
    DIR *folder = opendir(outer);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            strcmp(entry->d_name, "w") != 0)
            abort();
    }
    if (folder)
        (void)closedir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_made;
    if (!is_made) {
        is_made = mkdtemp(outer) != NULL && atexit(remove_outer) == 0;
        if (!is_made)
            abort();
    }
    int outer_fd = open(outer, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct bt_guest_unpack unpack = {.parent_fd = outer_fd, .base = "w", .left = LIMIT};
    struct archive *archive = archive_read_new();
    (void)archive_read_support_format_tar(archive);
    if (archive_read_open_memory(archive, data, size) == ARCHIVE_OK)
        (void)bt_guest_unpack(&unpack, archive);
    (void)archive_read_free(archive);
    (void)close(outer_fd);
    check_outer();
    bt_auto_free char *inner = bt_string_format("%s/w", outer);
    if (unpack.left > LIMIT || bt_tree_remove(inner, NULL) < 0)
        abort();
    return 0;
}
