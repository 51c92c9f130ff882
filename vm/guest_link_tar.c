/* A tar stream into a guest: libarchive's writer on this side, tar in the guest on the other.
 *
 * Called by guest_link_copy_in.c. Bounded: one file's buffer and one block of the archive, whatever is
 * copied. Holes of files are sent as holes. tar runs as the user that shall own the files, so that links
 * which that user planted lead it nowhere that the user could not write anyway.
 */
#include "vm/guest_link_copy.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILE_BUFFER (256 * 1024)
#define SPARSE_SEGMENTS_MAX 4096
#define LINK_TARGET_MAX 4096

const char *const bt_copy_environment[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/", NULL};

const char *bt_copy_printable(const char *name, char ret_text[BT_COPY_NAME_SIZE])
{
    size_t length = strnlen(name, BT_COPY_NAME_SIZE - 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)name[i];
        ret_text[i] = (char)(byte < 0x20 || byte == 0x7f ? '?' : byte);
    }
    ret_text[length] = '\0';
    return ret_text;
}

static int open_beneath(int root_fd, const char *name, int flags)
{
    const struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC | O_NOFOLLOW,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    int fd = (int)syscall(SYS_openat2, root_fd, name, &how, sizeof(how));
    return fd < 0 ? -errno : fd;
}

/* Never tells libarchive of a failure: it would then not free its buffers. The rest goes nowhere instead. */
static la_ssize_t write_block(struct archive *archive, void *context, const void *data, size_t length)
{
    struct bt_guest_tar_stream *stream = context;
    (void)archive;
    if (stream->failure == 0)
        stream->failure = bt_guest_session_write(stream->session, data, length, stream->error);
    return (la_ssize_t)length;
}

static int archive_open(struct bt_guest_tar_stream *stream)
{
    struct archive *archive = archive_write_new();
    stream->archive = archive;
    if (!archive || archive_write_set_format_pax_restricted(archive) != ARCHIVE_OK ||
        /* names are bytes here, whatever the locale */
        archive_write_set_format_option(archive, "pax", "hdrcharset", "BINARY") != ARCHIVE_OK ||
        archive_write_add_filter_none(archive) != ARCHIVE_OK ||
        archive_write_set_bytes_per_block(archive, FILE_BUFFER) != ARCHIVE_OK ||
        archive_write_set_bytes_in_last_block(archive, 1) != ARCHIVE_OK ||
        archive_write_open(archive, stream, NULL, write_block, NULL) != ARCHIVE_OK)
        return bt_fail(stream->error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot set up a tar stream: %s",
                       archive ? archive_error_string(archive) : "no memory");
    return 0;
}

int bt_guest_tar_open(struct bt_guest_link *link, struct bt_guest_tar_stream *stream, struct bt_error *error)
{
    static const char *const arguments[] = {"tar",
                                            "-x",
                                            "-p",
                                            "--no-same-owner",
                                            "--no-overwrite-dir",
                                            "--warning=no-timestamp",
                                            "-f",
                                            "-",
                                            "--warning=no-unknown-keyword",
                                            "-C",
                                            "/",
                                            NULL};
    const struct bt_guest_command command = {.arguments = arguments,
                                             .environment = bt_copy_environment,
                                             .folder = "/",
                                             .uid = stream->uid,
                                             .gid = stream->gid,
                                             .input_fd = -1,
                                             .on_output = bt_guest_session_keep_errors,
                                             .context = &stream->errors};
    stream->error = error;
    stream->session = bt_new(1, sizeof(*stream->session));
    stream->buffer = bt_new(1, FILE_BUFFER);
    int result = bt_guest_session_start(link, &command, NULL, 0, 0, stream->session, error);
    return result < 0 ? result : archive_open(stream);
}

static int archive_fail(struct bt_guest_tar_stream *stream, const char *name)
{
    char text[BT_COPY_NAME_SIZE];
    return bt_fail(stream->error, BT_EXIT_ERROR, EIO, NULL, "cannot send %s: %s",
                   bt_copy_printable(name, text), archive_error_string(stream->archive));
}

static int file_fail(struct bt_guest_tar_stream *stream, const char *name, int code)
{
    char text[BT_COPY_NAME_SIZE];
    return bt_fail(stream->error, BT_EXIT_ERROR, code,
                   code == EACCES ? "make it readable, or leave it out" : NULL, "cannot read %s: %s",
                   bt_copy_printable(name, text), strerror(code));
}

/* Tells the archive where a file has data, so that holes cost nothing on the way. */
static void note_holes(struct archive_entry *entry, int fd, const struct stat *about)
{
    if (about->st_blocks * 512 >= about->st_size)
        return;
    off_t at = 0;
    for (int segments = 0; segments < SPARSE_SEGMENTS_MAX && at < about->st_size; segments++) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
        if (hole < 0 || segments == SPARSE_SEGMENTS_MAX - 1)
            hole = about->st_size;
        if (data < 0)
            data = at;
        if (hole > about->st_size)
            hole = about->st_size;
        if (data < hole)
            archive_entry_sparse_add_entry(entry, data, hole - data);
        at = hole;
    }
    if (archive_entry_sparse_count(entry) == 0)
        archive_entry_sparse_add_entry(entry, 0, 0);
    (void)lseek(fd, 0, SEEK_SET);
}

/* Sends size bytes; a file that grew is cut there, one that shrank is filled with zeros, as tar does. */
static int send_data(struct bt_guest_tar_stream *stream, const char *name, int fd, uint64_t size)
{
    uint64_t left = size;
    while (left > 0) {
        ssize_t count = read(fd, stream->buffer, left < FILE_BUFFER ? left : FILE_BUFFER);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return file_fail(stream, name, errno);
        if (count == 0)
            break;
        if (archive_write_data(stream->archive, stream->buffer, (size_t)count) < 0)
            return archive_fail(stream, name);
        if (stream->failure < 0)
            return stream->failure;
        left -= (uint64_t)count;
        stream->bytes += (uint64_t)count;
        if (stream->on_progress)
            stream->on_progress(stream->context, stream->bytes);
    }
    return 0;
}

static int add_opened(struct bt_guest_tar_stream *stream, const char *name, int fd, const struct stat *about,
                      struct archive_entry *entry)
{
    bt_auto_fd data_fd = -1;
    archive_entry_set_mode(entry, about->st_mode & (S_IFMT | 0777));
    archive_entry_set_uid(entry, stream->uid);
    archive_entry_set_gid(entry, stream->gid);
    archive_entry_set_mtime(entry, about->st_mtim.tv_sec, about->st_mtim.tv_nsec);
    if (S_ISLNK(about->st_mode)) {
        char target[LINK_TARGET_MAX + 1];
        ssize_t length = readlinkat(fd, "", target, LINK_TARGET_MAX);
        if (length < 0)
            return file_fail(stream, name, errno);
        target[length] = '\0';
        archive_entry_set_symlink(entry, target);
    } else if (S_ISREG(about->st_mode)) {
        data_fd = open_beneath(stream->root_fd, name, O_RDONLY | O_NONBLOCK);
        if (data_fd < 0)
            return file_fail(stream, name, -data_fd);
        archive_entry_set_size(entry, about->st_size);
        note_holes(entry, data_fd, about);
    }
    if (archive_write_header(stream->archive, entry) < ARCHIVE_WARN)
        return archive_fail(stream, name);
    if (stream->failure < 0)
        return stream->failure;
    return S_ISREG(about->st_mode) ? send_data(stream, name, data_fd, (uint64_t)about->st_size) : 0;
}

int bt_guest_tar_add(struct bt_guest_tar_stream *stream, const char *name, const char *archive_name)
{
    struct stat about;
    bt_auto_fd fd = open_beneath(stream->root_fd, name, O_PATH);
    if (fd < 0)
        return file_fail(stream, name, -fd);
    if (fstat(fd, &about) < 0)
        return file_fail(stream, name, errno);
    if (!S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode) && !S_ISLNK(about.st_mode))
        return 0;
    const char *slash = *stream->prefix && *archive_name ? "/" : "";
    bt_auto_free char *full = bt_string_format("%s%s%s", stream->prefix, slash, archive_name);
    if (!*full)
        return 0;
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, full);
    int result = add_opened(stream, name, fd, &about, entry);
    archive_entry_free(entry);
    return result;
}

/* What tar says of its end. It may have ended before the archive did: its own words say why. */
static int tar_result(struct bt_guest_tar_stream *stream)
{
    int status = 0;
    int result = bt_guest_session_finish(stream->session, &status, stream->error);
    if (result == 0 && (status != 0 || stream->failure != 0))
        result = bt_guest_session_fail(&stream->errors, status, "unpacking", stream->error);
    return result;
}

int bt_guest_tar_close(struct bt_guest_tar_stream *stream, int result)
{
    if (stream->archive) {
        if (result < 0 && stream->failure == 0)
            stream->failure = result; /* nothing more is sent */
        if (archive_write_close(stream->archive) != ARCHIVE_OK && result == 0)
            result = archive_fail(stream, "the end of the archive");
        if (result == 0)
            result = stream->failure;
        (void)archive_write_free(stream->archive);
    }
    if (stream->session->channel) {
        if (result == 0 || result == -EPIPE)
            result = tar_result(stream);
        bt_guest_session_close(stream->session);
    }
    free(stream->session);
    free(stream->buffer);
    return result;
}
