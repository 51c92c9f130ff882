/* Writes the entries of a tar stream into an ext4 file system. See ext4_tar.h.
 *
 * Called for root images; the archive may come from anywhere, so its names, sizes and links are checked here.
 * Nothing is unpacked on the host. Files are allocated in one piece and written by runs of blocks; blocks of
 * zeros stay holes of the image file (the file is new: what is not written reads as zeros).
 */
#include "images/ext4_tar.h"

#include <errno.h>
#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "images/ext4.h"
#include "images/progress.h"

#define NAME_LENGTH_MAX 4096
#define LINKS_MAX 65000 /* EXT4_LINK_MAX */
#define CHUNK_BLOCKS 256U
#define CHUNK_BYTES ((size_t)CHUNK_BLOCKS * BT_EXT4_BLOCK)
#define REPORT_BYTES (4ULL << 20)
#define STEP "writing the image"

struct writer {
    struct bt_ext4_volume *volume;
    ext2_filsys fs;
    struct archive *archive;
    const struct bt_ext4_rules *rules;
    const struct bt_progress *progress;
    struct bt_error *error;
    uint64_t written, reported;
    char parent_path[NAME_LENGTH_MAX]; /* the folder used last: entries come folder by folder */
    ext2_ino_t parent;
    bool *is_added; /* per rules->additions */
    uint8_t *chunk; /* CHUNK_BYTES */
};

/* Owner, times and kind of a new inode. */
struct attributes {
    uint16_t mode; /* with the file type */
    uint32_t uid, gid;
    int64_t seconds;
    uint32_t nanoseconds;
};

static int refuse(struct writer *writer, const char *path, const char *why)
{
    return bt_fail(writer->error, BT_EXIT_ERROR, EBADMSG, NULL, "cannot use the archive: '%.200s' %s", path,
                   why);
}

static int fail_code(struct writer *writer, const char *path, errcode_t code)
{
    int result = bt_ext4_fail(writer->volume, code, writer->error, "write the image");
    return result == -ENOSPC ? result : bt_error_prefix(writer->error, "%.200s", path);
}

/* ---- names ---- */

/* Writes the name as "a/b/c" (the root is ""), or refuses it. */
static int clean_name(struct writer *writer, const char *name, char ret_path[NAME_LENGTH_MAX])
{
    size_t length = 0;
    if (name[0] == '/')
        return refuse(writer, name, "is an absolute name");
    while (*name != '\0') {
        size_t part = strcspn(name, "/");
        if (part == 2 && memcmp(name, "..", 2) == 0)
            return refuse(writer, name, "contains '..'");
        if (part > EXT2_NAME_LEN || length + part + 2 > NAME_LENGTH_MAX)
            return refuse(writer, name, "is too long a name");
        if (part > 0 && !(part == 1 && name[0] == '.')) {
            if (length > 0)
                ret_path[length++] = '/';
            memcpy(ret_path + length, name, part);
            length += part;
        }
        name += part + (name[part] == '/' ? 1 : 0);
    }
    ret_path[length] = '\0';
    return 0;
}

static bool is_excluded(const struct bt_ext4_rules *rules, const char *path)
{
    for (size_t i = 0; i < rules->exclude_count; i++) {
        if (fnmatch(rules->exclude[i], path, FNM_PATHNAME | FNM_LEADING_DIR) == 0)
            return true;
    }
    return false;
}

/* *ret_inode = 0 when there is nothing of that name. */
static errcode_t look_up(struct writer *writer, ext2_ino_t folder, const char *name, size_t length,
                         ext2_ino_t *ret_inode)
{
    errcode_t code = ext2fs_lookup(writer->fs, folder, name, (int)length, NULL, ret_inode);
    if (code == EXT2_ET_FILE_NOT_FOUND) {
        *ret_inode = 0;
        return 0;
    }
    return code;
}

static errcode_t link_name(struct writer *writer, ext2_ino_t folder, const char *name, ext2_ino_t inode,
                           int type)
{
    errcode_t code = ext2fs_link(writer->fs, folder, name, inode, type);
    if (code != EXT2_ET_DIR_NO_SPACE)
        return code;
    code = ext2fs_expand_dir(writer->fs, folder);
    return code != 0 ? code : ext2fs_link(writer->fs, folder, name, inode, type);
}

/* ---- inodes ---- */

/* ext4's time stamps: 32 bits, and two more of the epoch below the nanoseconds. */
static uint32_t extra_time(const struct attributes *attributes)
{
    uint64_t epoch = ((uint64_t)attributes->seconds - (uint64_t)(int64_t)(int32_t)attributes->seconds) >> 32;
    return (uint32_t)(epoch & 3) | attributes->nanoseconds << 2;
}

static void fill_inode(struct ext2_inode_large *inode, const struct attributes *attributes)
{
    inode->i_mode = attributes->mode;
    inode->i_uid = (__u16)attributes->uid;
    inode->osd2.linux2.l_i_uid_high = (__u16)(attributes->uid >> 16);
    inode->i_gid = (__u16)attributes->gid;
    inode->osd2.linux2.l_i_gid_high = (__u16)(attributes->gid >> 16);
    inode->i_extra_isize = sizeof *inode - EXT2_GOOD_OLD_INODE_SIZE;
    inode->i_mtime = inode->i_ctime = inode->i_atime = inode->i_crtime = (__u32)attributes->seconds;
    inode->i_mtime_extra = inode->i_ctime_extra = inode->i_atime_extra = inode->i_crtime_extra =
        extra_time(attributes);
}

static errcode_t write_inode(struct writer *writer, ext2_ino_t number, struct ext2_inode_large *inode)
{
    return ext2fs_write_inode_full(writer->fs, number, (struct ext2_inode *)inode, sizeof *inode);
}

/* Takes a free inode near its folder and writes it, with one link that the caller then makes. */
static errcode_t new_inode(struct writer *writer, ext2_ino_t folder, struct ext2_inode_large *inode,
                           ext2_ino_t *ret_number)
{
    errcode_t code = ext2fs_new_inode(writer->fs, folder, inode->i_mode, NULL, ret_number);
    if (code != 0)
        return code;
    ext2fs_inode_alloc_stats2(writer->fs, *ret_number, +1, 0);
    inode->i_links_count = 1;
    return write_inode(writer, *ret_number, inode);
}

static errcode_t set_attributes(struct writer *writer, ext2_ino_t number, const struct attributes *attributes)
{
    struct ext2_inode_large inode;
    errcode_t code = ext2fs_read_inode_full(writer->fs, number, (struct ext2_inode *)&inode, sizeof inode);
    if (code != 0)
        return code;
    fill_inode(&inode, attributes);
    return write_inode(writer, number, &inode);
}

static errcode_t make_folder(struct writer *writer, ext2_ino_t folder, const char *name,
                             ext2_ino_t *ret_number)
{
    static const struct attributes defaults = {.mode = S_IFDIR | 0755};
    errcode_t code = ext2fs_mkdir(writer->fs, folder, 0, name);
    if (code == EXT2_ET_DIR_NO_SPACE) {
        code = ext2fs_expand_dir(writer->fs, folder);
        if (code == 0)
            code = ext2fs_mkdir(writer->fs, folder, 0, name);
    }
    if (code == 0)
        code = look_up(writer, folder, name, strlen(name), ret_number);
    return code != 0 ? code : set_attributes(writer, *ret_number, &defaults);
}

/* Checks that what is there is a folder and no symbolic link to one. */
static int check_folder(struct writer *writer, const char *path, ext2_ino_t number)
{
    struct ext2_inode inode;
    errcode_t code = ext2fs_read_inode(writer->fs, number, &inode);
    if (code != 0)
        return fail_code(writer, path, code);
    if (LINUX_S_ISLNK(inode.i_mode))
        return refuse(writer, path, "leads through a symbolic link");
    return LINUX_S_ISDIR(inode.i_mode) ? 0 : refuse(writer, path, "lies below what is no folder");
}

/* The folder that a path lies in, made with its parents when missing. *ret_base points into path. */
static int find_parent(struct writer *writer, const char *path, ext2_ino_t *ret_parent, const char **ret_base)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    *ret_base = slash == NULL ? path : slash + 1;
    if (writer->parent != 0 && strlen(writer->parent_path) == length &&
        memcmp(writer->parent_path, path, length) == 0) {
        *ret_parent = writer->parent;
        return 0;
    }
    ext2_ino_t folder = EXT2_ROOT_INO;
    for (size_t at = 0; at < length;) {
        char part[EXT2_NAME_LEN + 1];
        size_t part_length = strcspn(path + at, "/");
        ext2_ino_t next;
        memcpy(part, path + at, part_length);
        part[part_length] = '\0';
        errcode_t code = look_up(writer, folder, part, part_length, &next);
        bool is_new = code == 0 && next == 0;
        if (is_new)
            code = make_folder(writer, folder, part, &next);
        if (code != 0)
            return fail_code(writer, path, code);
        int result = is_new ? 0 : check_folder(writer, path, next);
        if (result < 0)
            return result;
        folder = next;
        at += part_length + 1;
    }
    memcpy(writer->parent_path, path, length);
    writer->parent_path[length] = '\0';
    *ret_parent = writer->parent = folder;
    return 0;
}

/* ---- contents ---- */

static bool is_zero(const uint8_t *block)
{
    static const uint8_t zeros[BT_EXT4_BLOCK];
    return memcmp(block, zeros, BT_EXT4_BLOCK) == 0;
}

/* Writes whole blocks at a place of the file where it is allocated, by physical runs. */
static errcode_t write_blocks(struct writer *writer, ext2_ino_t number, struct ext2_inode *inode,
                              blk64_t logical, const uint8_t *bytes, unsigned count)
{
    blk64_t run_start = 0;
    unsigned run = 0;
    for (unsigned i = 0; i <= count; i++) {
        blk64_t physical = 0;
        bool is_written = i < count && !is_zero(bytes + (size_t)i * BT_EXT4_BLOCK);
        if (is_written) {
            errcode_t code = ext2fs_bmap2(writer->fs, number, inode, NULL, 0, logical + i, NULL, &physical);
            if (code != 0)
                return code;
            if (physical == 0)
                return EXT2_ET_BLOCK_ALLOC_FAIL;
        }
        if (run > 0 && (!is_written || physical != run_start + run)) {
            errcode_t code = io_channel_write_blk64(writer->fs->io, run_start, (int)run,
                                                    bytes + (size_t)(i - run) * BT_EXT4_BLOCK);
            if (code != 0)
                return code;
            run = 0;
        }
        if (is_written && run == 0)
            run_start = physical;
        run += is_written ? 1 : 0;
    }
    return 0;
}

/* Fills the chunk from the archive's entry and then from text. Returns how much, or a negative errno. */
static la_ssize_t fill_chunk(struct writer *writer, const char *path, uint64_t *left, const char **text)
{
    size_t filled = 0;
    while (filled<CHUNK_BYTES && * left> 0) {
        size_t wanted = CHUNK_BYTES - filled < *left ? CHUNK_BYTES - filled : (size_t)*left;
        la_ssize_t got = archive_read_data(writer->archive, writer->chunk + filled, wanted);
        if (got < 0)
            return bt_fail(writer->error, BT_EXIT_ERROR, bt_archive_errno(writer->archive), NULL,
                           "cannot read '%.200s' from the archive: %s", path,
                           archive_error_string(writer->archive));
        if (got == 0)
            return refuse(writer, path, "is shorter than the archive says");
        filled += (size_t)got;
        *left -= (uint64_t)got;
    }
    size_t part = strnlen(*text, CHUNK_BYTES - filled);
    memcpy(writer->chunk + filled, *text, part);
    *text += part;
    return (la_ssize_t)(filled + part);
}

static int write_contents(struct writer *writer, const char *path, ext2_ino_t number,
                          struct ext2_inode *inode, uint64_t size, const char *text)
{
    uint64_t left = size;
    blk64_t logical = 0;
    for (;;) {
        la_ssize_t filled = fill_chunk(writer, path, &left, &text);
        if (filled <= 0)
            return (int)filled;
        unsigned count = (unsigned)(((size_t)filled + BT_EXT4_BLOCK - 1) / BT_EXT4_BLOCK);
        memset(writer->chunk + filled, 0, (size_t)count * BT_EXT4_BLOCK - (size_t)filled);
        errcode_t code = write_blocks(writer, number, inode, logical, writer->chunk, count);
        if (code != 0)
            return fail_code(writer, path, code);
        logical += count;
        writer->written += (uint64_t)filled;
        if (writer->written - writer->reported >= REPORT_BYTES) {
            bt_progress_report(writer->progress, STEP, writer->written, 0);
            writer->reported = writer->written;
        }
    }
}

/* Text to be put behind this file, or "". */
static const char *find_addition(struct writer *writer, const char *path)
{
    for (size_t i = 0; i < writer->rules->addition_count; i++) {
        if (strcmp(writer->rules->additions[i].path, path) == 0) {
            writer->is_added[i] = true;
            return writer->rules->additions[i].text;
        }
    }
    return "";
}

static int write_file(struct writer *writer, const char *path, ext2_ino_t folder, const char *base,
                      const struct attributes *attributes, uint64_t archive_size, ext2_ino_t *ret_number)
{
    struct ext2_inode_large inode = {.i_flags = EXT4_EXTENTS_FL};
    struct ext2_inode *small = (struct ext2_inode *)&inode;
    const char *text = find_addition(writer, path);
    uint64_t size = archive_size + strlen(text);
    blk64_t blocks = size / BT_EXT4_BLOCK + (size % BT_EXT4_BLOCK != 0 ? 1 : 0);
    if (blocks > ext2fs_free_blocks_count(writer->fs->super))
        return fail_code(writer, path, EXT2_ET_BLOCK_ALLOC_FAIL);
    fill_inode(&inode, attributes);
    ext2_extent_handle_t extents;
    errcode_t code = ext2fs_extent_open2(writer->fs, 0, small, &extents); /* writes an empty extent tree */
    if (code == 0)
        ext2fs_extent_free(extents);
    if (code == 0)
        code = new_inode(writer, folder, &inode, ret_number);
    if (code == 0 && blocks > 0)
        code = ext2fs_fallocate(writer->fs, EXT2_FALLOCATE_FORCE_INIT, *ret_number, small, ~0ULL, 0, blocks);
    if (code == 0)
        code = ext2fs_inode_size_set(writer->fs, small, (ext2_off64_t)size);
    if (code == 0)
        code = write_inode(writer, *ret_number, &inode);
    if (code != 0)
        return fail_code(writer, path, code);
    int result = write_contents(writer, path, *ret_number, small, archive_size, text);
    if (result < 0)
        return result;
    code = link_name(writer, folder, base, *ret_number, EXT2_FT_REG_FILE);
    return code == 0 ? 0 : fail_code(writer, path, code);
}

static int write_node(struct writer *writer, const char *path, ext2_ino_t folder, const char *base,
                      const struct attributes *attributes, dev_t device, ext2_ino_t *ret_number)
{
    struct ext2_inode_large inode = {0};
    int type = S_ISCHR(attributes->mode)    ? EXT2_FT_CHRDEV
               : S_ISBLK(attributes->mode)  ? EXT2_FT_BLKDEV
               : S_ISFIFO(attributes->mode) ? EXT2_FT_FIFO
                                            : EXT2_FT_SOCK;
    unsigned high = major(device), low = minor(device);
    fill_inode(&inode, attributes);
    if (type == EXT2_FT_CHRDEV || type == EXT2_FT_BLKDEV) {
        if (high < 256 && low < 256)
            inode.i_block[0] = high << 8 | low;
        else
            inode.i_block[1] = (low & 0xff) | high << 8 | (low & ~0xffU) << 12;
    }
    errcode_t code = new_inode(writer, folder, &inode, ret_number);
    if (code == 0)
        code = link_name(writer, folder, base, *ret_number, type);
    return code == 0 ? 0 : fail_code(writer, path, code);
}

static int write_symlink(struct writer *writer, const char *path, ext2_ino_t folder, const char *base,
                         const struct attributes *attributes, const char *target, ext2_ino_t *ret_number)
{
    if (target == NULL || target[0] == '\0' || strlen(target) >= BT_EXT4_BLOCK)
        return refuse(writer, path, "is a symbolic link without a usable target");
    errcode_t code = ext2fs_symlink(writer->fs, folder, 0, base, target);
    if (code == EXT2_ET_DIR_NO_SPACE) {
        code = ext2fs_expand_dir(writer->fs, folder);
        if (code == 0)
            code = ext2fs_symlink(writer->fs, folder, 0, base, target);
    }
    if (code == 0)
        code = look_up(writer, folder, base, strlen(base), ret_number);
    if (code == 0)
        code = set_attributes(writer, *ret_number, attributes);
    return code == 0 ? 0 : fail_code(writer, path, code);
}

static int file_type(uint16_t mode)
{
    return S_ISREG(mode)    ? EXT2_FT_REG_FILE
           : S_ISLNK(mode)  ? EXT2_FT_SYMLINK
           : S_ISCHR(mode)  ? EXT2_FT_CHRDEV
           : S_ISBLK(mode)  ? EXT2_FT_BLKDEV
           : S_ISFIFO(mode) ? EXT2_FT_FIFO
                            : EXT2_FT_SOCK;
}

static int write_hard_link(struct writer *writer, const char *path, ext2_ino_t folder, const char *base,
                           const char *target_name)
{
    char target[NAME_LENGTH_MAX] = "";
    const char *target_base = "";
    ext2_ino_t target_folder = 0, number = 0;
    struct ext2_inode inode = {0};
    int result = clean_name(writer, target_name, target);
    if (result == 0 && target[0] == '\0')
        result = refuse(writer, path, "is a hard link to a folder");
    if (result == 0)
        result = find_parent(writer, target, &target_folder, &target_base);
    if (result < 0)
        return result;
    errcode_t code = look_up(writer, target_folder, target_base, strlen(target_base), &number);
    if (code == 0 && number == 0)
        return refuse(writer, path, "is a hard link to what is not in the image");
    if (code == 0)
        code = ext2fs_read_inode(writer->fs, number, &inode);
    if (code == 0 && LINUX_S_ISDIR(inode.i_mode))
        return refuse(writer, path, "is a hard link to a folder");
    if (code == 0 && inode.i_links_count >= LINKS_MAX)
        return refuse(writer, path, "is one hard link too many");
    inode.i_links_count++;
    if (code == 0)
        code = ext2fs_write_inode(writer->fs, number, &inode);
    if (code == 0)
        code = link_name(writer, folder, base, number, file_type(inode.i_mode));
    return code == 0 ? 0 : fail_code(writer, path, code);
}

static int write_xattrs(struct writer *writer, const char *path, ext2_ino_t number,
                        struct archive_entry *entry)
{
    struct ext2_xattr_handle *handle = NULL;
    const char *name;
    const void *value;
    size_t size;
    errcode_t code = 0;
    (void)archive_entry_xattr_reset(entry);
    while (code == 0 && archive_entry_xattr_next(entry, &name, &value, &size) == ARCHIVE_OK) {
        if (writer->rules->drops_privilege && strcmp(name, "security.capability") == 0)
            continue;
        if (handle == NULL) {
            code = ext2fs_xattrs_open(writer->fs, number, &handle);
            if (code == 0)
                code = ext2fs_xattrs_read(handle);
        }
        if (code == 0)
            code = ext2fs_xattr_set(handle, name, value, size);
    }
    if (code == 0 && handle != NULL)
        code = ext2fs_xattrs_write(handle);
    if (handle != NULL)
        (void)ext2fs_xattrs_close(&handle);
    return code == 0 ? 0 : fail_code(writer, path, code);
}

/* ---- entries ---- */

static struct attributes entry_attributes(const struct writer *writer, struct archive_entry *entry)
{
    struct attributes attributes = {
        .mode = (uint16_t)(archive_entry_filetype(entry) | (archive_entry_perm(entry) & 07777)),
        .uid = (uint32_t)archive_entry_uid(entry),
        .gid = (uint32_t)archive_entry_gid(entry),
        .seconds = archive_entry_mtime(entry),
        .nanoseconds = (uint32_t)archive_entry_mtime_nsec(entry) % 1000000000U,
    };
    if (writer->rules->drops_privilege && S_ISREG(attributes.mode))
        attributes.mode &= (uint16_t) ~(S_ISUID | S_ISGID);
    return attributes;
}

static int write_folder(struct writer *writer, const char *path, ext2_ino_t parent, const char *base,
                        const struct attributes *attributes, ext2_ino_t *ret_number)
{
    errcode_t code = 0;
    if (path[0] == '\0') {
        *ret_number = EXT2_ROOT_INO;
    } else {
        code = look_up(writer, parent, base, strlen(base), ret_number);
        if (code == 0 && *ret_number == 0)
            code = make_folder(writer, parent, base, ret_number);
        else if (code == 0 && check_folder(writer, path, *ret_number) < 0)
            return refuse(writer, path, "comes twice in the archive, not as a folder both times");
    }
    if (code == 0)
        code = set_attributes(writer, *ret_number, attributes);
    return code == 0 ? 0 : fail_code(writer, path, code);
}

static int write_leaf(struct writer *writer, const char *path, ext2_ino_t parent, const char *base,
                      struct archive_entry *entry, ext2_ino_t *ret_number)
{
    struct attributes attributes = entry_attributes(writer, entry);
    errcode_t code = look_up(writer, parent, base, strlen(base), ret_number);
    if (code != 0)
        return fail_code(writer, path, code);
    if (*ret_number != 0)
        return refuse(writer, path, "comes twice in the archive");
    switch (archive_entry_filetype(entry)) {
    case AE_IFREG:
        if (archive_entry_size(entry) < 0)
            return refuse(writer, path, "has a negative size");
        return write_file(writer, path, parent, base, &attributes, (uint64_t)archive_entry_size(entry),
                          ret_number);
    case AE_IFLNK: {
        const char *target = archive_entry_symlink_utf8(entry);
        if (target == NULL)
            target = archive_entry_symlink(entry);
        return write_symlink(writer, path, parent, base, &attributes, target, ret_number);
    }
    case AE_IFCHR:
    case AE_IFBLK:
    case AE_IFIFO:
    case AE_IFSOCK:
        return write_node(writer, path, parent, base, &attributes, archive_entry_rdev(entry), ret_number);
    default:
        return refuse(writer, path, "is of an unknown kind");
    }
}

static int write_entry(struct writer *writer, struct archive_entry *entry)
{
    char path[NAME_LENGTH_MAX] = "";
    const char *base = "", *target = archive_entry_hardlink_utf8(entry);
    ext2_ino_t parent = 0, number = 0;
    const char *name = archive_entry_pathname_utf8(entry);
    if (name == NULL)
        name = archive_entry_pathname(entry);
    if (target == NULL)
        target = archive_entry_hardlink(entry);
    if (name == NULL)
        return refuse(writer, "", "has no readable name");
    int result = clean_name(writer, name, path);
    if (result < 0)
        return result;
    bool is_folder = target == NULL && archive_entry_filetype(entry) == AE_IFDIR;
    if (path[0] == '\0' && !is_folder)
        return refuse(writer, name, "is the root, but no folder");
    if (is_excluded(writer->rules, path))
        return 0;
    result = find_parent(writer, path, &parent, &base);
    if (result < 0)
        return result;
    if (target != NULL) {
        errcode_t code = look_up(writer, parent, base, strlen(base), &number);
        if (code != 0 || number != 0)
            return code != 0 ? fail_code(writer, path, code)
                             : refuse(writer, path, "comes twice in the archive");
        return write_hard_link(writer, path, parent, base, target);
    }
    if (is_folder) {
        struct attributes attributes = entry_attributes(writer, entry);
        result = write_folder(writer, path, parent, base, &attributes, &number);
    } else {
        result = write_leaf(writer, path, parent, base, entry, &number);
    }
    return result < 0 ? result : write_xattrs(writer, path, number, entry);
}

/* Files that had nothing to be put behind, and the folders. */
static int write_additions(struct writer *writer)
{
    const char *base = "";
    ext2_ino_t parent = 0, number = 0;
    int result = 0;
    for (size_t i = 0; result == 0 && i < writer->rules->addition_count; i++) {
        const struct attributes attributes = {.mode = S_IFREG | 0644, .seconds = writer->fs->now};
        const char *path = writer->rules->additions[i].path;
        if (writer->is_added[i])
            continue;
        result = find_parent(writer, path, &parent, &base);
        if (result == 0)
            result = write_file(writer, path, parent, base, &attributes, 0, &number);
    }
    for (size_t i = 0; result == 0 && i < writer->rules->folder_count; i++) {
        const struct bt_ext4_folder *folder = &writer->rules->folders[i];
        const struct attributes attributes = {.mode = (uint16_t)(S_IFDIR | folder->mode),
                                              .uid = folder->uid,
                                              .gid = folder->gid,
                                              .seconds = writer->fs->now};
        result = find_parent(writer, folder->path, &parent, &base);
        if (result == 0)
            result = write_folder(writer, folder->path, parent, base, &attributes, &number);
    }
    return result;
}

static int write_entries(struct writer *writer)
{
    for (;;) {
        struct archive_entry *entry;
        int status = archive_read_next_header(writer->archive, &entry);
        if (status == ARCHIVE_EOF)
            break;
        if (status != ARCHIVE_OK)
            return bt_fail(writer->error, BT_EXIT_ERROR, bt_archive_errno(writer->archive), NULL,
                           "cannot read the archive: %s", archive_error_string(writer->archive));
        int result = write_entry(writer, entry);
        if (result < 0)
            return result;
    }
    int result = write_additions(writer);
    bt_progress_report(writer->progress, STEP, writer->written, writer->written);
    return result;
}

int bt_ext4_write_archive(struct archive *archive, const char *path, uint64_t size_bytes, const char *label,
                          const struct bt_ext4_rules *rules, const struct bt_progress *progress,
                          struct bt_error *error)
{
    static const struct bt_ext4_rules everything;
    struct bt_error local = {0};
    bt_auto_free struct writer *writer = bt_new(1, sizeof *writer);
    writer->archive = archive;
    writer->rules = rules == NULL ? &everything : rules;
    writer->progress = progress;
    writer->error = error == NULL ? &local : error;
    int result = writer->rules->base != NULL
                     ? bt_ext4_volume_copy(writer->rules->base, path, label, &writer->volume, error)
                     : bt_ext4_volume_create(path, size_bytes, label, false, &writer->volume, error);
    if (result < 0)
        return result;
    writer->fs = writer->volume->fs;
    bt_auto_free bool *is_added = writer->is_added =
        bt_new(writer->rules->addition_count + 1, sizeof *is_added);
    bt_auto_free uint8_t *chunk = bt_new(1, CHUNK_BYTES);
    writer->chunk = chunk;
    locale_t before = bt_archive_names_begin();
    result = write_entries(writer);
    bt_archive_names_end(before);
    if (result < 0) {
        bt_ext4_volume_discard(writer->volume);
        return result;
    }
    return bt_ext4_volume_commit(writer->volume, true, error);
}

int bt_ext4_from_tar(int tar_fd, const char *path, uint64_t size_bytes, const char *label,
                     const struct bt_progress *progress, struct bt_error *error)
{
    bt_auto_archive *archive = archive_read_new();
    if (archive == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot read the archive: out of memory");
    bt_archive_use_filters(archive);
    (void)archive_read_support_format_tar(archive);
    if (archive_read_open_fd(archive, tar_fd, 65536) != ARCHIVE_OK)
        return bt_fail(error, BT_EXIT_ERROR, bt_archive_errno(archive), NULL, "cannot read the archive: %s",
                       archive_error_string(archive));
    return bt_ext4_write_archive(archive, path, size_bytes, label, NULL, progress, error);
}
