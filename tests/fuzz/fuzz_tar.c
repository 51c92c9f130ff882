/* Any bytes as a tar stream into an ext4 image: an error that leaves nothing, or an image that libext2fs
 * opens again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ext2fs/ext2fs.h>

#include "images/images.h"

#define IMAGE_BYTES (8UL * 1024 * 1024)

#define BLOCK 512U

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t maximum);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t maximum, unsigned seed);

/* libarchive refuses headers with a wrong checksum before it looks at anything else, so it is put right. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t maximum, unsigned seed)
{
    (void)seed;
    size = LLVMFuzzerMutate(data, size, maximum);
    for (size_t at = 0; at + BLOCK <= size; at += BLOCK) {
        if (memcmp(data + at + 257, "ustar", 5) != 0)
            continue;
        unsigned sum = 8 * ' ';
        for (size_t i = 0; i < BLOCK; i++)
            sum += i < 148 || i >= 156 ? data[at + i] : 0U;
        (void)snprintf((char *)data + at + 148, 8, "%06o", sum);
        data[at + 155] = ' ';
    }
    return size;
}

static char folder[] = "/tmp/berth-fuzz-tar-XXXXXX";

static void remove_folder(void)
{
    (void)rmdir(folder);
}

static void check_image(const char *path)
{
    ext2_filsys fs;
    if (ext2fs_open(path, 0, 0, 0, unix_io_manager, &fs) != 0 ||
        ext2fs_check_directory(fs, EXT2_ROOT_INO) != 0 || ext2fs_read_bitmaps(fs) != 0)
        abort();
    ext2fs_free(fs);
    if (unlink(path) < 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_ready;
    char path[64];
    struct bt_error error;
    if (!is_ready) {
        if (mkdtemp(folder) == NULL || atexit(remove_folder) != 0)
            abort();
        is_ready = true;
    }
    bt_auto_fd tar_fd = memfd_create("tar", MFD_CLOEXEC);
    if (tar_fd < 0 || bt_write_all(tar_fd, data, size) < 0 || lseek(tar_fd, 0, SEEK_SET) < 0)
        abort();
    (void)snprintf(path, sizeof path, "%s/image", folder);
    if (bt_ext4_from_tar(tar_fd, path, IMAGE_BYTES, "fuzz", NULL, &error) == 0)
        check_image(path);
    else if (rmdir(folder) < 0 || mkdir(folder, 0700) < 0) /* fails when something was left in it */
        abort();
    return 0;
}
