/* Copies out of a guest: tar there, a careful unpacker here.
 *
 * Called by `berth cp` and the commands that bring work back. Everything that arrives is the agent's word:
 * names are checked part by part, nothing is written through a symbolic link or outside the destination,
 * modes lose their set-id bits, links may only point into the copy, and there is a limit on the bytes.
 */
#include "vm/guest_link_copy.h"

#include <archive.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct reader {
    struct bt_guest_session *session;
    struct bt_guest_session_errors errors;
    struct bt_error *error;
    struct bt_error broken; /* why the connection failed, when failure says that it did */
    int failure;
};

/* libarchive asks for more: the chunk given last is done with, the next is waited for. */
static la_ssize_t read_block(struct archive *archive, void *context, const void **ret_data)
{
    struct reader *reader = context;
    struct bt_guest_session *session = reader->session;
    session->chunk_length = 0;
    while (session->chunk_length == 0 && !session->is_closed) {
        int result = bt_guest_session_step(session, &reader->broken);
        if (result == 0)
            result = bt_guest_session_wait(session, NULL, 0, -1, &reader->broken);
        if (result < 0) {
            reader->failure = result;
            archive_set_error(archive, -result, "connection");
            return -1;
        }
    }
    *ret_data = session->chunk;
    return (la_ssize_t)session->chunk_length;
}

static int receive(struct reader *reader, struct bt_guest_unpack *unpack)
{
    struct archive *archive = archive_read_new();
    int code = ARCHIVE_FATAL;
    if (archive && archive_read_support_format_tar(archive) == ARCHIVE_OK &&
        archive_read_support_format_empty(archive) == ARCHIVE_OK)
        code = archive_read_open(archive, reader, NULL, read_block, NULL);
    int result = code == ARCHIVE_OK ? bt_guest_unpack(unpack, archive)
                                    : bt_fail(reader->error, BT_EXIT_ERROR, EIO, NULL,
                                              "cannot read an archive from the guest");
    (void)archive_read_free(archive);
    return result;
}

/* Takes what follows the archive (padding) without keeping it, then the exit status. */
static int tar_finish(struct reader *reader, const struct bt_guest_unpack *unpack)
{
    int status = 0;
    reader->session->is_pull = false;
    reader->session->chunk_length = 0;
    int result = bt_guest_session_finish(reader->session, &status, reader->error);
    /* 1: a file changed while tar read it; what came is whole as an archive. */
    if (result == 0 && status > 1)
        result = bt_guest_session_fail(&reader->errors, status, "packing", reader->error);
    if (result == 0 && unpack->skipped > 0)
        result =
            bt_fail(reader->error, BT_EXIT_ERROR, EXDEV, "copy what it points to by its own path",
                    "all but %u was copied: links that lead out of the copy, and devices, are left out (%s)",
                    unpack->skipped, unpack->first_skipped);
    return result;
}

/* Standard output after the archive's end is padding; only standard error is of interest. */
static int keep_stderr(void *context, bool is_stderr, const char *data, size_t length)
{
    return is_stderr ? bt_guest_session_keep_errors(context, is_stderr, data, length) : 0;
}

static int copy_out(struct bt_guest_link *link, struct reader *reader, struct bt_guest_unpack *unpack,
                    const char *guest_name)
{
    const char *slash = strrchr(guest_name, '/');
    bt_auto_free char *folder = bt_string_format("/%.*s", slash ? (int)(slash - guest_name) : 0, guest_name);
    const char *const arguments[] = {
        "tar", "-c", "-S",   "--format=gnu", "--hard-dereference",           "-f",
        "-",   "-C", folder, "--",           slash ? slash + 1 : guest_name, NULL};
    const struct bt_guest_command command = {.arguments = arguments,
                                             .environment = bt_copy_environment,
                                             .folder = "/",
                                             .uid = bt_guest_reader(link, BT_GUEST_AGENT_ID),
                                             .gid = bt_guest_reader(link, BT_GUEST_AGENT_ID),
                                             .input_fd = -1,
                                             .on_output = keep_stderr,
                                             .context = &reader->errors};
    int result = bt_guest_session_start(link, &command, NULL, 0, 0, reader->session, reader->error);
    if (result < 0)
        return result;
    reader->session->is_pull = true;
    reader->session->may_end = true;
    result = receive(reader, unpack);
    if (reader->failure < 0) { /* says more than the archive that it cut */
        if (reader->error)
            *reader->error = reader->broken;
        result = reader->failure;
    }
    if (result == 0)
        result = tar_finish(reader, unpack);
    bt_guest_session_close(reader->session);
    return result;
}

int bt_guest_copy_out(struct bt_guest_link *link, const char *guest_path, const char *host_path,
                      uint64_t maximum_bytes, struct bt_error *error)
{
    bt_auto_free char *guest_name = NULL;
    int result = bt_copy_guest_path(guest_path, &guest_name, error);
    if (result < 0)
        return result;
    bt_auto_free char *path = bt_string_copy(host_path);
    for (size_t length = strlen(path); length > 1 && path[length - 1] == '/'; length--)
        path[length - 1] = '\0';
    char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    if (!*guest_name || !*base || strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                       "name a file or folder, and what it shall be called here", "cannot copy %s to %s",
                       guest_path, host_path);
    bt_auto_free char *parent =
        slash ? bt_string_copy_length(path, (size_t)(slash - path) + 1) : bt_string_copy(".");
    bt_auto_fd parent_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot open %s: %s", parent, strerror(errno));
    struct reader reader = {.session = bt_new(1, sizeof(*reader.session)), .error = error};
    struct bt_guest_unpack unpack = {
        .parent_fd = parent_fd, .base = base, .left = maximum_bytes, .error = error};
    result = copy_out(link, &reader, &unpack, guest_name);
    free(reader.session);
    return result;
}
