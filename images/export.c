/* A cached image as a tar stream. See export.h.
 *
 * The ext4 image is read with libext2fs, so nothing is mounted and nobody needs a privilege.
 */
#include "images/export.h"

#include <errno.h>
#include <ext2fs/ext2fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "images/accounts.h"
#include "images/archive.h"
#include "images/hard_links.h"

#define PATH_SIZE 4096U
#define DEPTH_MAX 64
#define LINK_TARGET_MAX 4096U
#define CHUNK_SIZE 65536U
#define HARD_LINKS_SIZE_MAX (64UL << 20) /* some 400000 files of which names are still to come */

struct export
{
    struct archive *archive;
    ext2_filsys fs;
    const struct bt_image_export_options *options;
    uint64_t is_there;   /* bit i: the image has that name itself */
    uint64_t has_parent; /* bit i: it has the folder that the name lies in */
    struct bt_hard_links hard_links;
    char path[PATH_SIZE];
    size_t path_length;
    int depth;
    int tar_fd;
    int result;
    struct bt_error *error;
    char chunk[CHUNK_SIZE];
};

static int fail_volume(struct export *export, const char *what, errcode_t code)
{
    export->result = bt_fail(export->error, BT_EXIT_ERROR, EIO, "build it again with berth image build",
                             "cannot read %s in the image: %s", what, error_message(code));
    return export->result;
}

static int fail_archive(struct export *export)
{
    int code = bt_archive_errno(export->archive);
    export->result = bt_fail(export->error, BT_EXIT_ERROR, code, NULL, "cannot pass the image on: %s",
                             archive_error_string(export->archive));
    return export->result;
}

/* After a failure nothing more: libarchive would write the end of the archive, and it would look whole. */
static la_ssize_t write_block(struct archive *archive, void *context, const void *data, size_t length)
{
    const struct export *export = context;
    int result = export->result < 0 ? -ECANCELED : bt_write_all(export->tar_fd, data, length);
    if (result == 0)
        return (la_ssize_t)length;
    archive_set_error(archive, -result, "%s", strerror(-result));
    return -1;
}

static bool is_parent(const char *folder, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    return length > 0 && strncmp(folder, path, length) == 0 && folder[length] == '\0';
}

static void note_name(struct export *export, const char *path, bool is_folder)
{
    for (size_t i = 0; i < export->options->addition_count; i++) {
        if (strcmp(export->options->additions[i].path, path) == 0)
            export->is_there |= UINT64_C(1) << i;
        if (is_folder && is_parent(path, export->options->additions[i].path))
            export->has_parent |= UINT64_C(1) << i;
    }
}

/* A link comes instead. */
static bool is_replaced(const struct export *export, const char *path)
{
    for (size_t i = 0; i < export->options->addition_count; i++) {
        const struct bt_image_addition *addition = &export->options->additions[i];
        if (addition->link_target != NULL && strcmp(addition->path, path) == 0)
            return true;
    }
    return false;
}

/* Whatever an image has there, be it a link that leads elsewhere. */
static bool is_in_own_folder(const struct export *export, const char *path)
{
    const char *folder = export->options->own_folder;
    size_t length = folder == NULL ? 0 : strlen(folder);
    return folder != NULL && strncmp(path, folder, length) == 0 &&
           (path[length] == '/' || path[length] == '\0');
}

static int write_data(struct export *export, const void *data, size_t length)
{
    return archive_write_data(export->archive, data, length) < 0 ? fail_archive(export) : 0;
}

static int write_content(struct export *export, ext2_ino_t inode)
{
    ext2_file_t file;
    errcode_t code = ext2fs_file_open(export->fs, inode, 0, &file);
    if (code != 0)
        return fail_volume(export, export->path, code);
    for (;;) {
        unsigned got = 0;
        code = ext2fs_file_read(file, export->chunk, CHUNK_SIZE, &got);
        if (code != 0 || got == 0 || write_data(export, export->chunk, got) < 0)
            break;
    }
    (void)ext2fs_file_close(file);
    return code != 0 ? fail_volume(export, export->path, code) : export->result;
}

/* The target of a symbolic link; a short one lies in the inode itself. */
static int read_link(struct export *export, ext2_ino_t number, struct ext2_inode *inode,
                     char ret_target[LINK_TARGET_MAX + 1])
{
    ext2_file_t file;
    unsigned got = 0;
    size_t length = inode->i_size;
    if (length > LINK_TARGET_MAX)
        return fail_volume(export, export->path, EXT2_ET_SYMLINK_LOOP);
    if (ext2fs_is_fast_symlink(inode)) {
        memcpy(ret_target, inode->i_block, length < sizeof(inode->i_block) ? length : sizeof(inode->i_block));
        ret_target[length] = '\0';
        return 0;
    }
    errcode_t code = ext2fs_file_open(export->fs, number, 0, &file);
    if (code != 0)
        return fail_volume(export, export->path, code);
    code = ext2fs_file_read(file, ret_target, (unsigned)length, &got);
    (void)ext2fs_file_close(file);
    if (code != 0)
        return fail_volume(export, export->path, code);
    ret_target[got] = '\0';
    return 0;
}

/* The path under which this file was written before, or NULL. */
static const char *earlier_name(struct export *export, ext2_ino_t number, const struct ext2_inode *inode)
{
    const char *earlier = NULL;
    if (!LINUX_S_ISDIR(inode->i_mode) &&
        bt_hard_links_meet(&export->hard_links, number, inode->i_links_count, export->path, &earlier) < 0)
        export->result =
            bt_fail(export->error, BT_EXIT_ERROR, EFBIG, "build it with fewer files that have several names",
                    "cannot pass the image on: it has too many hard links");
    return earlier;
}

static unsigned number_of(const struct export *export, unsigned id)
{
    return id == export->options->from_id ? export->options->to_id : id;
}

static bool is_accounts(const struct export *export)
{
    return export->options->from_id != export->options->to_id &&
           (strcmp(export->path, "etc/passwd") == 0 || strcmp(export->path, "etc/group") == 0);
}

/* The file of users or groups with the other number in it. */
static int read_accounts(struct export *export, ext2_ino_t number, struct ext2_inode *inode,
                         struct bt_buffer *ret_text)
{
    ext2_file_t file;
    unsigned got = 0;
    errcode_t code = EXT2_I_SIZE(inode) >= CHUNK_SIZE ? EXT2_ET_FILE_TOO_BIG
                                                      : ext2fs_file_open(export->fs, number, 0, &file);
    if (code != 0)
        return fail_volume(export, export->path, code);
    code = ext2fs_file_read(file, export->chunk, CHUNK_SIZE - 1, &got);
    (void)ext2fs_file_close(file);
    if (code != 0)
        return fail_volume(export, export->path, code);
    export->chunk[got] = '\0';
    if (bt_accounts_renumber(export->chunk, export->options->from_id, export->options->to_id, ret_text) == 0)
        return 0;
    return fail_volume(export, export->path, EXT2_ET_NO_MEMORY);
}

static int write_entry(struct export *export, ext2_ino_t number, struct ext2_inode *inode)
{
    char target[LINK_TARGET_MAX + 1];
    bt_auto_buffer accounts = {0};
    unsigned type = inode->i_mode & (unsigned)S_IFMT;
    if (is_in_own_folder(export, export->path) || (type != S_IFDIR && is_replaced(export, export->path)))
        return 0;
    const char *earlier = earlier_name(export, number, inode);
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, export->path);
    archive_entry_set_mode(entry, inode->i_mode);
    archive_entry_set_uid(entry, number_of(export, inode_uid(*inode)));
    archive_entry_set_gid(entry, number_of(export, inode_gid(*inode)));
    archive_entry_set_mtime(entry, inode->i_mtime, 0);
    if (earlier != NULL)
        archive_entry_set_hardlink(entry, earlier);
    else if (type == S_IFREG && is_accounts(export) && read_accounts(export, number, inode, &accounts) == 0)
        archive_entry_set_size(entry, (la_int64_t)accounts.length);
    else if (type == S_IFREG)
        archive_entry_set_size(entry, (la_int64_t)EXT2_I_SIZE(inode));
    else if (type == S_IFLNK && read_link(export, number, inode, target) == 0)
        archive_entry_set_symlink(entry, target);
    note_name(export, export->path, type == S_IFDIR);
    if (export->result == 0 && archive_write_header(export->archive, entry) < ARCHIVE_WARN)
        (void)fail_archive(export);
    archive_entry_free(entry);
    if (export->result == 0 && accounts.length > 0)
        (void)write_data(export, accounts.data, accounts.length);
    else if (export->result == 0 && type == S_IFREG && earlier == NULL)
        (void)write_content(export, number);
    return export->result;
}

static int visit(struct ext2_dir_entry *found, int offset, int block_size, char *buffer, void *context);

static int walk(struct export *export, ext2_ino_t folder)
{
    if (export->depth >= DEPTH_MAX)
        return fail_volume(export, export->path, EXT2_ET_DIR_CORRUPTED);
    export->depth++;
    errcode_t code = ext2fs_dir_iterate(export->fs, folder, 0, NULL, visit, export);
    export->depth--;
    if (code != 0 && export->result == 0)
        (void)fail_volume(export, export->path, code);
    return export->result;
}

static bool is_own_name(const char *name, size_t length)
{
    return (length == 1 && name[0] == '.') || (length == 2 && memcmp(name, "..", 2) == 0);
}

/* Called for each name of a folder. */
static int visit(struct ext2_dir_entry *found, int offset, int block_size, char *buffer, void *context)
{
    struct export *export = context;
    struct ext2_inode inode;
    size_t length = (size_t)ext2fs_dirent_name_len(found);
    size_t before = export->path_length;
    (void)offset;
    (void)block_size;
    (void)buffer;
    if (is_own_name(found->name, length) ||
        (export->depth == 1 && length == 10 && memcmp(found->name, "lost+found", 10) == 0))
        return 0;
    if (before + length + 2 > sizeof(export->path)) {
        (void)fail_volume(export, "a very long path", EXT2_ET_DIR_CORRUPTED);
        return DIRENT_ABORT;
    }
    if (before > 0)
        export->path[export->path_length++] = '/';
    memcpy(export->path + export->path_length, found->name, length);
    export->path_length += length;
    export->path[export->path_length] = '\0';
    errcode_t code = ext2fs_read_inode(export->fs, found->inode, &inode);
    unsigned type = inode.i_mode & (unsigned)S_IFMT;
    if (code != 0)
        (void)fail_volume(export, export->path, code);
    else if ((type == S_IFREG || type == S_IFDIR || type == S_IFLNK) &&
             write_entry(export, found->inode, &inode) == 0 && type == S_IFDIR)
        (void)walk(export, found->inode);
    export->path_length = before;
    export->path[before] = '\0';
    return export->result < 0 ? DIRENT_ABORT : 0;
}

static int export_ext4(struct export *export, const char *path)
{
    errcode_t code = ext2fs_open(path, EXT2_FLAG_64BITS, 0, 0, unix_io_manager, &export->fs);
    if (code != 0)
        return fail_volume(export, path, code);
    int result = walk(export, EXT2_ROOT_INO);
    (void)ext2fs_close_free(&export->fs);
    bt_hard_links_free(&export->hard_links);
    return result;
}

/* The entries of a newc archive, as they are. */
static int export_initrd(struct export *export, const char *path)
{
    bt_auto_archive *reader = archive_read_new();
    struct archive_entry *entry;
    (void)archive_read_support_format_cpio(reader);
    if (archive_read_open_filename(reader, path, CHUNK_SIZE) != ARCHIVE_OK)
        return bt_fail(export->error, BT_EXIT_ERROR, bt_archive_errno(reader), NULL, "cannot read %s: %s",
                       path, archive_error_string(reader));
    int code = ARCHIVE_OK;
    while (export->result == 0 && (code = archive_read_next_header(reader, &entry)) == ARCHIVE_OK) {
        bool is_folder = archive_entry_filetype(entry) == AE_IFDIR;
        if (!is_folder && is_replaced(export, archive_entry_pathname(entry)))
            continue;
        note_name(export, archive_entry_pathname(entry), is_folder);
        if (archive_write_header(export->archive, entry) < ARCHIVE_WARN)
            return fail_archive(export);
        la_ssize_t got = 0;
        while (export->result == 0 &&
               (got = archive_read_data(reader, export->chunk, sizeof(export->chunk))) > 0)
            (void)write_data(export, export->chunk, (size_t)got);
        if (got < 0)
            code = ARCHIVE_FATAL;
        if (code != ARCHIVE_OK)
            break;
    }
    if (export->result == 0 && code != ARCHIVE_EOF)
        export->result = bt_fail(export->error, BT_EXIT_ERROR, EIO, "build it again with berth image build",
                                 "cannot read %s: %s", path, archive_error_string(reader));
    return export->result;
}

static int add(struct export *export, const struct bt_image_addition *addition)
{
    bt_auto_buffer content = {0};
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, addition->path);
    archive_entry_set_mode(entry, addition->mode |
                                      (addition->link_target != NULL                           ? S_IFLNK
                                       : addition->host_path != NULL || addition->text != NULL ? S_IFREG
                                                                                               : S_IFDIR));
    if (addition->link_target != NULL)
        archive_entry_set_symlink(entry, addition->link_target);
    archive_entry_set_uid(entry, addition->owner);
    archive_entry_set_gid(entry, addition->owner);
    archive_entry_set_mtime(entry, 0, 0);
    if (addition->host_path != NULL)
        export->result = bt_file_read(addition->host_path, 64UL << 20, &content, export->error);
    else if (addition->text != NULL)
        export->result = bt_buffer_add(&content, addition->text, strlen(addition->text));
    archive_entry_set_size(entry, (la_int64_t)content.length);
    if (export->result == 0 && archive_write_header(export->archive, entry) < ARCHIVE_WARN)
        (void)fail_archive(export);
    archive_entry_free(entry);
    if (export->result == 0 && content.length > 0)
        (void)write_data(export, content.data, content.length);
    return export->result;
}

static bool is_ext4(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".ext4") == 0;
}

int bt_image_export(const struct bt_image *image, const struct bt_image_export_options *options, int tar_fd,
                    struct bt_error *error)
{
    bt_auto_archive *archive = archive_write_new();
    struct export *export = bt_new(1, sizeof(*export));
    export->archive = archive;
    export->options = options;
    export->error = error;
    export->tar_fd = tar_fd;
    export->hard_links.size_max = HARD_LINKS_SIZE_MAX;
    if (archive_write_set_format_pax_restricted(archive) != ARCHIVE_OK ||
        archive_write_open(archive, export, NULL, write_block, NULL) != ARCHIVE_OK)
        (void)fail_archive(export);
    if (export->result == 0)
        export->result =
            is_ext4(image->path) ? export_ext4(export, image->path) : export_initrd(export, image->path);
    for (size_t i = 0; export->result == 0 && i < options->addition_count; i++)
        if ((export->is_there >> i & 1) == 0 &&
            (options->additions[i].link_target == NULL || (export->has_parent >> i & 1) == 1))
            (void)add(export, &options->additions[i]);
    if (export->result == 0 && archive_write_close(archive) != ARCHIVE_OK)
        (void)fail_archive(export);
    bt_archive_free(&archive);
    int result = export->result;
    free(export);
    return result;
}
