/* Packages, compressed blobs and initrd archives through libarchive. See archive.h.
 *
 * Called by the kernel and initrd builders. Must not write to disk.
 */
#include "images/archive.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define READ_CHUNK 65536

void bt_archive_free(struct archive **archive)
{
    if (*archive != NULL)
        (void)archive_free(*archive);
    *archive = NULL;
}

locale_t bt_archive_names_begin(void)
{
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    return utf8 == (locale_t)0 ? utf8 : uselocale(utf8);
}

void bt_archive_names_end(locale_t before)
{
    if (before != (locale_t)0)
        freelocale(uselocale(before));
}

void bt_archive_use_filters(struct archive *archive)
{
    (void)archive_read_support_filter_gzip(archive);
    (void)archive_read_support_filter_bzip2(archive);
    (void)archive_read_support_filter_xz(archive);
    (void)archive_read_support_filter_lzma(archive);
    (void)archive_read_support_filter_zstd(archive);
    (void)archive_read_support_filter_lz4(archive);
}

int bt_archive_errno(struct archive *archive)
{
    int code = archive_errno(archive);
    /* libarchive's own codes: -1 (misc), EILSEQ or EINVAL (file format), 0. */
    return code <= 0 || code == EILSEQ || code == EINVAL ? EBADMSG : code;
}

int bt_archive_read_entry(struct archive *archive, size_t maximum, struct bt_buffer *ret_data,
                          struct bt_error *error)
{
    bt_auto_buffer data = {.limit = maximum};
    char chunk[READ_CHUNK];
    for (;;) {
        la_ssize_t got = archive_read_data(archive, chunk, sizeof chunk);
        if (got == 0)
            break;
        if (got < 0)
            return bt_fail(error, BT_EXIT_ERROR, bt_archive_errno(archive), NULL, "cannot unpack: %s",
                           archive_error_string(archive));
        if (bt_buffer_add(&data, chunk, (size_t)got) < 0)
            return bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "cannot unpack: larger than %zu bytes",
                           maximum);
    }
    *ret_data = data;
    memset(&data, 0, sizeof data);
    return 0;
}

int bt_archive_decompress(const void *data, size_t length, size_t maximum, struct bt_buffer *ret_data,
                          struct bt_error *error)
{
    bt_auto_archive *archive = archive_read_new();
    if (archive == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot unpack: out of memory");
    struct archive_entry *entry;
    bt_archive_use_filters(archive);
    (void)archive_read_support_format_raw(archive);
    if (archive_read_open_memory(archive, data, length) != ARCHIVE_OK ||
        archive_read_next_header(archive, &entry) != ARCHIVE_OK)
        return bt_fail(error, BT_EXIT_ERROR, bt_archive_errno(archive), NULL, "cannot unpack: %s",
                       archive_error_string(archive));
    return bt_archive_read_entry(archive, maximum, ret_data, error);
}

/* ---- Debian packages: a tar inside an ar ---- */

struct member {
    struct archive *outer;
    char chunk[READ_CHUNK];
};

static la_ssize_t read_member(struct archive *inner, void *context, const void **ret_bytes)
{
    struct member *member = context;
    la_ssize_t got = archive_read_data(member->outer, member->chunk, sizeof member->chunk);
    *ret_bytes = member->chunk;
    if (got < 0) {
        archive_set_error(inner, bt_archive_errno(member->outer), "%s", archive_error_string(member->outer));
        return ARCHIVE_FATAL;
    }
    return got;
}

static int fail_package(const char *path, struct archive *archive, struct bt_error *error)
{
    return bt_fail(error, BT_EXIT_ERROR, bt_archive_errno(archive), NULL, "cannot read the package %s: %s",
                   path, archive_error_string(archive));
}

/* Moves a package's reader to its data.tar member. */
static int find_data_member(const char *path, struct archive *outer, struct bt_error *error)
{
    struct archive_entry *entry;
    (void)archive_read_support_format_ar(outer);
    if (archive_read_open_filename(outer, path, READ_CHUNK) != ARCHIVE_OK)
        return fail_package(path, outer, error);
    for (;;) {
        int status = archive_read_next_header(outer, &entry);
        if (status == ARCHIVE_EOF)
            return bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL,
                           "cannot read the package %s: it has no data.tar", path);
        if (status != ARCHIVE_OK)
            return fail_package(path, outer, error);
        const char *name = archive_entry_pathname(entry);
        if (name != NULL && strncmp(name, "data.tar", 8) == 0)
            return 0;
    }
}

int bt_archive_read_deb(const char *path,
                        int (*on_entry)(void *context, struct archive *data, struct archive_entry *entry,
                                        struct bt_error *error),
                        void *context, struct bt_error *error)
{
    bt_auto_archive *outer = archive_read_new();
    bt_auto_archive *inner = archive_read_new();
    if (outer == NULL || inner == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot read the package %s: out of memory", path);
    int result = find_data_member(path, outer, error);
    if (result < 0)
        return result;
    bt_auto_free struct member *member = bt_new(1, sizeof *member);
    member->outer = outer;
    bt_archive_use_filters(inner);
    (void)archive_read_support_format_tar(inner);
    if (archive_read_open(inner, member, NULL, read_member, NULL) != ARCHIVE_OK)
        return fail_package(path, inner, error);
    for (;;) {
        struct archive_entry *entry;
        int status = archive_read_next_header(inner, &entry);
        if (status == ARCHIVE_EOF)
            return 0;
        if (status != ARCHIVE_OK)
            return fail_package(path, inner, error);
        result = on_entry(context, inner, entry, error);
        if (result < 0)
            return result;
    }
}

/* ---- initrds ---- */

static la_ssize_t append_bytes(struct archive *archive, void *context, const void *bytes, size_t length)
{
    struct bt_initrd *initrd = context;
    if (bt_buffer_add(initrd->bytes, bytes, length) < 0) {
        archive_set_error(archive, EFBIG, "the archive is larger than %zu bytes", initrd->bytes->limit);
        return -1;
    }
    return (la_ssize_t)length;
}

static int fail_initrd(struct bt_initrd *initrd, struct bt_error *error)
{
    return bt_fail(error, BT_EXIT_ERROR, bt_archive_errno(initrd->archive), NULL,
                   "cannot make the initrd: %s", archive_error_string(initrd->archive));
}

int bt_initrd_open(struct bt_initrd *ret_initrd, struct bt_buffer *bytes, struct bt_error *error)
{
    *ret_initrd = (struct bt_initrd){.archive = archive_write_new(), .bytes = bytes};
    if (ret_initrd->archive == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot make the initrd: out of memory");
    (void)archive_write_set_format_cpio_newc(ret_initrd->archive);
    (void)archive_write_set_bytes_per_block(ret_initrd->archive, READ_CHUNK);
    (void)archive_write_set_bytes_in_last_block(ret_initrd->archive, 512);
    if (archive_write_open(ret_initrd->archive, ret_initrd, NULL, append_bytes, NULL) != ARCHIVE_OK)
        return fail_initrd(ret_initrd, error);
    return 0;
}

static int add_entry(struct bt_initrd *initrd, const char *path, unsigned mode, const void *data,
                     size_t length, struct bt_error *error)
{
    struct archive_entry *entry = archive_entry_new();
    if (entry == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot make the initrd: out of memory");
    archive_entry_set_pathname(entry, path);
    archive_entry_set_mode(entry, mode);
    archive_entry_set_size(entry, (la_int64_t)length);
    archive_entry_set_nlink(entry, 1);
    archive_entry_set_mtime(entry, 0, 0);
    bool is_written =
        archive_write_header(initrd->archive, entry) == ARCHIVE_OK &&
        (length == 0 || archive_write_data(initrd->archive, data, length) == (la_ssize_t)length);
    archive_entry_free(entry);
    return is_written ? 0 : fail_initrd(initrd, error);
}

int bt_initrd_add_folder(struct bt_initrd *initrd, const char *path, struct bt_error *error)
{
    return add_entry(initrd, path, S_IFDIR | 0755, NULL, 0, error);
}

int bt_initrd_add_file(struct bt_initrd *initrd, const char *path, unsigned mode, const void *data,
                       size_t length, struct bt_error *error)
{
    return add_entry(initrd, path, S_IFREG | (mode & 07777), data, length, error);
}

int bt_initrd_close(struct bt_initrd *initrd, struct bt_error *error)
{
    int result = 0;
    if (initrd->archive != NULL && archive_write_close(initrd->archive) != ARCHIVE_OK)
        result = fail_initrd(initrd, error);
    bt_archive_free(&initrd->archive);
    return result;
}
