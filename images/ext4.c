/* Creates ext4 file systems as sparse files, empty or as copies. See ext4.h.
 *
 * Called by the tar writer, and for the scratch, home and workspace disks of agents. Group descriptor
 * checksums let inode tables and bitmaps stay unwritten: the file is new, so what is not written reads as
 * zeros, and the groups are marked as zeroed so that a guest's kernel does not do it again.
 */
#include "images/ext4.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE_MIN (1ULL << 20)
#define SIZE_MAX_BYTES (1ULL << 44)
#define BYTES_PER_INODE 16384U
#define JOURNAL_BLOCKS_MAX 8192 /* 32 MiB; a guest fills all of it in time */
#define INODE_SIZE 256
#define EXTRA_INODE_SIZE 32
/* Time stamps of file systems that follow from their arguments alone: 2000-01-01. */
#define FIXED_TIME 946684800

int bt_ext4_fail(const struct bt_ext4_volume *volume, errcode_t code, struct bt_error *error,
                 const char *action)
{
    if (code == EXT2_ET_BLOCK_ALLOC_FAIL || code == EXT2_ET_INODE_ALLOC_FAIL ||
        code == EXT2_ET_DIR_NO_SPACE || code == EXT2_ET_TOOSMALL)
        return bt_fail(error, BT_EXIT_ERROR, ENOSPC, "give the image a larger 'size'",
                       "cannot %s: the file system in %s is too small", action, volume->path);
    /* A regular file takes less than it was given only when there is no room for the rest. */
    if (code == ENOSPC || code == EDQUOT || code == EXT2_ET_SHORT_WRITE)
        return bt_fail(error, BT_EXIT_ERROR, code == EDQUOT ? EDQUOT : ENOSPC,
                       "free some space and try again", "cannot %s: the disk that holds %s is full", action,
                       volume->path);
    if (code == EXT2_ET_NO_MEMORY)
        code = ENOMEM;
    initialize_ext2_error_table();
    return bt_fail(error, BT_EXIT_ERROR, code > 0 && code < 256 ? (int)code : EIO, NULL,
                   "cannot %s in %s: %s", action, volume->path, error_message(code));
}

void bt_ext4_volume_discard(struct bt_ext4_volume *volume)
{
    if (volume == NULL)
        return;
    if (volume->fs != NULL)
        ext2fs_free(volume->fs);
    (void)unlink(volume->partial);
    free(volume);
}

static void set_features(struct ext2_super_block *super)
{
    ext2fs_set_feature_xattr(super);
    ext2fs_set_feature_dir_index(super);
    ext2fs_set_feature_filetype(super);
    ext2fs_set_feature_extents(super);
    ext2fs_set_feature_flex_bg(super);
    ext2fs_set_feature_sparse_super(super);
    ext2fs_set_feature_large_file(super);
    ext2fs_set_feature_huge_file(super);
    ext2fs_set_feature_gdt_csum(super);
    ext2fs_set_feature_dir_nlink(super);
    ext2fs_set_feature_extra_isize(super);
}

/* The sparse file, of its full size; what an earlier attempt left is overwritten. */
static int make_file(struct bt_ext4_volume *volume, uint64_t size_bytes, struct bt_error *error)
{
    struct stat status;
    if (lstat(volume->path, &status) == 0)
        return bt_fail(error, BT_EXIT_ERROR, EEXIST, NULL, "cannot make the disk %s: it exists",
                       volume->path);
    bt_auto_fd file_fd = open(volume->partial, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make the disk %s: %s", volume->path,
                       strerror(errno));
    if (ftruncate(file_fd, (off_t)size_bytes) < 0) {
        int code = errno;
        (void)unlink(volume->partial);
        return bt_fail(error, BT_EXIT_ERROR, code, NULL, "cannot make the disk %s of %llu bytes: %s",
                       volume->path, (unsigned long long)size_bytes, strerror(code));
    }
    return 0;
}

static errcode_t initialize(struct bt_ext4_volume *volume, uint64_t size_bytes)
{
    struct ext2_super_block super = {0};
    ext2fs_blocks_count_set(&super, size_bytes / BT_EXT4_BLOCK);
    super.s_log_block_size = 2; /* 1024 << 2 */
    super.s_log_cluster_size = 2;
    super.s_rev_level = EXT2_DYNAMIC_REV;
    super.s_inode_size = INODE_SIZE;
    super.s_log_groups_per_flex = 4;
    uint64_t inodes = size_bytes / BYTES_PER_INODE;
    super.s_inodes_count = (__u32)(inodes < 64 ? 64 : inodes);
    set_features(&super);
    return ext2fs_initialize(volume->partial, EXT2_FLAG_EXCLUSIVE, &super, unix_io_manager, &volume->fs);
}

/* What is new and unwritten reads as zeros. */
static void mark_zeroed(ext2_filsys fs)
{
    for (dgrp_t group = 0; group < fs->group_desc_count; group++) {
        ext2fs_bg_flags_set(fs, group, EXT2_BG_INODE_ZEROED);
        ext2fs_group_desc_csum_set(fs, group);
    }
    ext2fs_mark_super_dirty(fs);
}

static void name_volume(ext2_filsys fs, const char *label, bool is_writable)
{
    struct ext2_super_block *super = fs->super;
    if (is_writable) {
        bt_random_bytes(super->s_uuid, sizeof super->s_uuid);
        bt_random_bytes(super->s_hash_seed, sizeof super->s_hash_seed);
    } else {
        char digest[BT_DIGEST_TEXT_SIZE];
        bt_digest_bytes(label, strlen(label), digest);
        memcpy(super->s_uuid, digest, sizeof super->s_uuid);
        memcpy(super->s_hash_seed, digest + sizeof super->s_uuid, sizeof super->s_hash_seed);
        fs->now = FIXED_TIME;
    }
    super->s_uuid[6] = (__u8)((super->s_uuid[6] & 0x0f) | 0x40); /* RFC 9562, version 4 and its variant */
    super->s_uuid[8] = (__u8)((super->s_uuid[8] & 0x3f) | 0x80);
    (void)snprintf((char *)super->s_volume_name, sizeof super->s_volume_name, "%s", label);
    super->s_def_hash_version = EXT2_HASH_HALF_MD4;
    super->s_min_extra_isize = super->s_want_extra_isize = EXTRA_INODE_SIZE;
    super->s_default_mount_opts = EXT2_DEFM_XATTR_USER | EXT2_DEFM_ACL;
    super->s_max_mnt_count = -1;
    super->s_checkinterval = 0;
    super->s_mkfs_time = (__u32)(fs->now != 0 ? fs->now : time(NULL));
    super->s_lastcheck = super->s_mkfs_time;
    ext2fs_r_blocks_count_set(super, 0);
}

static errcode_t make_folders(ext2_filsys fs)
{
    ext2_ino_t lost = 0;
    errcode_t code = ext2fs_mkdir(fs, EXT2_ROOT_INO, EXT2_ROOT_INO, NULL);
    if (code == 0)
        code = ext2fs_mkdir(fs, EXT2_ROOT_INO, 0, "lost+found");
    if (code == 0)
        code = ext2fs_lookup(fs, EXT2_ROOT_INO, "lost+found", 10, NULL, &lost);
    struct ext2_inode inode;
    if (code == 0)
        code = ext2fs_read_inode(fs, lost, &inode);
    inode.i_mode = LINUX_S_IFDIR | 0700;
    return code != 0 ? code : ext2fs_write_inode(fs, lost, &inode);
}

static errcode_t reserve_inodes(ext2_filsys fs)
{
    for (ext2_ino_t number = EXT2_ROOT_INO + 1; number < EXT2_FIRST_INODE(fs->super); number++)
        ext2fs_inode_alloc_stats2(fs, number, +1, 0);
    ext2fs_inode_alloc_stats2(fs, EXT2_BAD_INO, +1, 0);
    return ext2fs_update_bb_inode(fs, NULL);
}

static errcode_t add_journal(ext2_filsys fs)
{
    int blocks = ext2fs_default_journal_size(ext2fs_blocks_count(fs->super));
    if (blocks <= 0)
        return 0; /* too small for one */
    if (blocks > JOURNAL_BLOCKS_MAX)
        blocks = JOURNAL_BLOCKS_MAX;
    return ext2fs_add_journal_inode2(fs, (blk_t)blocks, ~0ULL, EXT2_MKJOURNAL_LAZYINIT);
}

static errcode_t format(struct bt_ext4_volume *volume, uint64_t size_bytes, const char *label,
                        bool is_writable)
{
    errcode_t code = initialize(volume, size_bytes);
    if (code != 0)
        return code;
    ext2_filsys fs = volume->fs;
    name_volume(fs, label, is_writable);
    code = ext2fs_allocate_tables(fs);
    if (code != 0)
        return code;
    mark_zeroed(fs);
    code = make_folders(fs);
    if (code == 0)
        code = reserve_inodes(fs);
    if (code == 0 && is_writable)
        code = add_journal(fs);
    return code;
}

static int new_volume(const char *path, struct bt_ext4_volume **ret_volume, struct bt_error *error)
{
    struct bt_ext4_volume *volume = bt_new(1, sizeof *volume);
    int length = snprintf(volume->path, sizeof volume->path, "%s", path);
    if (length < 0 || (size_t)length >= sizeof volume->path) {
        free(volume);
        return bt_fail(error, BT_EXIT_ERROR, ENAMETOOLONG, NULL, "cannot make a disk: its path is too long");
    }
    (void)snprintf(volume->partial, sizeof volume->partial, "%.760s.partial", path);
    *ret_volume = volume;
    return 0;
}

int bt_ext4_volume_create(const char *path, uint64_t size_bytes, const char *label, bool is_writable,
                          struct bt_ext4_volume **ret_volume, struct bt_error *error)
{
    struct bt_ext4_volume *volume = NULL;
    if (size_bytes < SIZE_MIN || size_bytes > SIZE_MAX_BYTES)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "sizes go from 1M to 16384G",
                       "cannot make a disk of %llu bytes", (unsigned long long)size_bytes);
    int result = new_volume(path, &volume, error);
    if (result < 0)
        return result;
    result = make_file(volume, size_bytes, error);
    if (result < 0) {
        free(volume);
        return result;
    }
    errcode_t code = format(volume, size_bytes, label, is_writable);
    if (code != 0) {
        result = bt_ext4_fail(volume, code, error, "make a file system");
        bt_ext4_volume_discard(volume);
        return result;
    }
    *ret_volume = volume;
    return 0;
}

/* Holes of the source stay holes. */
static errcode_t copy_data(int source_fd, int target_fd)
{
    off_t at = 0;
    while ((at = lseek(source_fd, at, SEEK_DATA)) >= 0) {
        off_t end = lseek(source_fd, at, SEEK_HOLE);
        if (end < 0 || lseek(target_fd, at, SEEK_SET) < 0)
            return errno;
        while (at < end) {
            ssize_t done = sendfile(target_fd, source_fd, &at, (size_t)(end - at));
            if (done <= 0 && errno != EINTR)
                return done == 0 ? EIO : errno;
        }
    }
    return errno == ENXIO ? 0 : errno; /* ENXIO: no more data */
}

/* Its UUID stays, which the group descriptors' checksums depend on. */
static errcode_t open_copy(struct bt_ext4_volume *volume, const char *label)
{
    errcode_t code = ext2fs_open(volume->partial, EXT2_FLAG_RW | EXT2_FLAG_64BITS | EXT2_FLAG_EXCLUSIVE, 0, 0,
                                 unix_io_manager, &volume->fs);
    if (code == 0)
        code = ext2fs_read_bitmaps(volume->fs);
    if (code != 0)
        return code;
    struct ext2_super_block *super = volume->fs->super;
    memset(super->s_volume_name, 0, sizeof super->s_volume_name);
    (void)snprintf((char *)super->s_volume_name, sizeof super->s_volume_name, "%s", label);
    volume->fs->now = FIXED_TIME;
    ext2fs_mark_super_dirty(volume->fs);
    return 0;
}

static int fill_copy(struct bt_ext4_volume *volume, int source_fd, const char *label, struct bt_error *error)
{
    struct stat status;
    errcode_t code = fstat(source_fd, &status) < 0 ? errno : 0;
    int result = code == 0 ? make_file(volume, (uint64_t)status.st_size, error) : 0;
    if (result < 0)
        return result;
    bt_auto_fd target_fd = open(volume->partial, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (code == 0)
        code = target_fd < 0 ? errno : copy_data(source_fd, target_fd);
    if (code == 0)
        code = open_copy(volume, label);
    return code == 0 ? 0 : bt_ext4_fail(volume, code, error, "copy a file system");
}

int bt_ext4_volume_copy(const char *source, const char *path, const char *label,
                        struct bt_ext4_volume **ret_volume, struct bt_error *error)
{
    struct bt_ext4_volume *volume = NULL;
    bt_auto_fd source_fd = open(source, O_RDONLY | O_CLOEXEC);
    if (source_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read the image %s: %s", source,
                       strerror(errno));
    int result = new_volume(path, &volume, error);
    if (result < 0)
        return result;
    result = fill_copy(volume, source_fd, label, error);
    if (result < 0) {
        bt_ext4_volume_discard(volume);
        return result;
    }
    *ret_volume = volume;
    return 0;
}

int bt_ext4_volume_commit(struct bt_ext4_volume *volume, bool is_synced, struct bt_error *error)
{
    int result = 0;
    errcode_t code = ext2fs_close2(volume->fs, is_synced ? 0 : EXT2_FLAG_FLUSH_NO_SYNC);
    if (code == 0) {
        volume->fs = NULL;
        if (rename(volume->partial, volume->path) < 0)
            code = errno;
    }
    if (code != 0)
        result = bt_ext4_fail(volume, code, error, "write the file system");
    bt_ext4_volume_discard(volume);
    return result;
}

int bt_ext4_make_empty(const char *path, uint64_t size_bytes, const char *label, struct bt_error *error)
{
    struct bt_ext4_volume *volume = NULL;
    int result = bt_ext4_volume_create(path, size_bytes, label, true, &volume, error);
    if (result < 0)
        return result;
    assert(volume != NULL);
    return bt_ext4_volume_commit(volume, false, error);
}

int bt_ext4_copy(const char *source, const char *path, uint64_t bytes_max, struct bt_error *error)
{
    bt_auto_free struct bt_ext4_volume *volume = NULL;
    struct stat status;
    bt_auto_fd source_fd = open(source, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (source_fd < 0 || fstat(source_fd, &status) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read the disk %s: %s", source,
                       strerror(errno));
    if ((uint64_t)status.st_blocks * 512 > bytes_max)
        return bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "the disk %s takes more than %llu MiB", source,
                       (unsigned long long)(bytes_max >> 20));
    int result = new_volume(path, &volume, error);
    if (result == 0)
        result = make_file(volume, (uint64_t)status.st_size, error);
    if (result < 0)
        return result;
    bt_auto_fd target_fd = open(volume->partial, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    errcode_t code = target_fd < 0 ? errno : copy_data(source_fd, target_fd);
    if (code == 0 && rename(volume->partial, volume->path) < 0)
        code = errno;
    if (code == 0)
        return 0;
    (void)unlink(volume->partial);
    return bt_fail(error, BT_EXIT_ERROR, (int)code, NULL, "cannot copy the disk %s to %s: %s", source, path,
                   strerror((int)code));
}
