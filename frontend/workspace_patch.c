/* The patch: made of base and agent, kept as a file, shown.
 *
 * Called by collect and `berth diff`. What is shown on a terminal is the work of an agent: control characters
 * (also those that reorder text, Unicode TR #36) are shown as text and never sent.
 */
#include "frontend/workspace_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

bool bt_workspace_has_patch(const char *state_folder)
{
    bt_auto_free char *path = bt_string_format("%s/" BT_WORKSPACE_PATCH, state_folder);
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0;
}

int bt_workspace_changes(const char *state_folder, struct bt_workspace_changes *ret_changes,
                         struct bt_error *error)
{
    return bt_workspace_git_changes(state_folder, BT_WORKSPACE_REF_BASE, BT_WORKSPACE_REF_AGENT, ret_changes,
                                    error);
}

struct sink {
    int fd;
    uint64_t bytes;
    int result;
};

static void write_patch(void *context, const char *data, size_t length)
{
    struct sink *sink = context;
    sink->bytes += length;
    if (sink->result == 0)
        sink->result =
            sink->bytes > BT_WORKSPACE_PATCH_BYTES_MAX ? -EFBIG : bt_write_all(sink->fd, data, length);
}

/* form: --binary (a patch that holds everything), or --stat; git gives a patch as well when both are there.
 */
static int run_diff(const char *state_folder, const char *form,
                    void (*on_output)(void *, const char *, size_t), void *context, struct bt_error *error)
{
    const char *const arguments[] = {"diff-tree",
                                     "-r",
                                     form,
                                     "--full-index",
                                     "-M",
                                     "--no-ext-diff",
                                     "--no-textconv",
                                     "--no-color",
                                     "--src-prefix=a/",
                                     "--dst-prefix=b/",
                                     BT_WORKSPACE_REF_BASE,
                                     BT_WORKSPACE_REF_AGENT,
                                     NULL};
    const struct bt_workspace_git git = {
        .state_folder = state_folder, .arguments = arguments, .on_output = on_output, .context = context};
    bt_auto_buffer output = {0};
    return bt_workspace_git_run(&git, &output, NULL, error);
}

static int replace_patch(const char *state_folder, uint64_t *ret_bytes, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/" BT_WORKSPACE_PATCH, state_folder);
    bt_auto_free char *partial = bt_string_format("%s.new", path);
    struct sink sink = {.fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)};
    if (sink.fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot write %s: %s", partial, strerror(errno));
    int result = run_diff(state_folder, "--binary", write_patch, &sink, error);
    if (result == 0 && sink.result < 0)
        result = bt_fail(error, BT_EXIT_ERROR, -sink.result, NULL, "cannot write %s: %s", partial,
                         strerror(-sink.result));
    if (result == 0 && (fsync(sink.fd) < 0 || rename(partial, path) < 0))
        result = bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot write %s: %s", path, strerror(errno));
    bt_fd_close(&sink.fd);
    if (result < 0)
        (void)unlink(partial);
    else
        *ret_bytes = sink.bytes;
    return result;
}

int bt_workspace_patch_write(const char *state_folder, struct bt_workspace_summary *summary,
                             struct bt_error *error)
{
    struct bt_workspace_changes changes;
    int result = bt_workspace_changes(state_folder, &changes, error);
    if (result < 0)
        return result;
    summary->changed_count = changes.count;
    bt_workspace_changes_free(&changes);
    if (summary->changed_count > 0)
        return replace_patch(state_folder, &summary->patch_bytes, error);
    bt_auto_free char *path = bt_string_format("%s/" BT_WORKSPACE_PATCH, state_folder);
    return unlink(path) < 0 && errno != ENOENT
               ? bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot remove %s: %s", path, strerror(errno))
               : 0;
}

/* ---- showing ---- */

enum line { LINE_START, LINE_HEADER, LINE_HUNK, LINE_ADDED, LINE_REMOVED, LINE_OTHER };

struct screen {
    int fd;
    bool has_color;
    bool is_in_hunk; /* then "---" is a removed line, and not a header */
    enum line line;
    struct bt_buffer out;
    char start[12]; /* the first bytes of a line, until they tell what it is */
    size_t start_length;
    unsigned char pending[3]; /* of a UTF-8 sequence that may be a control character */
    size_t pending_length;
    unsigned letter_left; /* continuation bytes that another character still has */
    int result;
};

static void put(struct screen *screen, const char *text, size_t length)
{
    if (bt_buffer_add(&screen->out, text, length) < 0)
        screen->result = -ENOSPC;
}

static void put_text(struct screen *screen, const char *text)
{
    put(screen, text, strlen(text));
}

static void flush_pending(struct screen *screen)
{
    char text[24];
    if (bt_workspace_is_control(screen->pending, screen->pending_length)) {
        unsigned point = screen->pending_length == 2
                             ? screen->pending[1]
                             : 0x2000U + ((screen->pending[1] & 0x3fU) << 6) + (screen->pending[2] & 0x3fU);
        (void)snprintf(text, sizeof text, "<U+%04X>", point);
        put_text(screen, text);
    } else {
        put(screen, (const char *)screen->pending, screen->pending_length);
    }
    screen->pending_length = 0;
}

/* A byte above ASCII that begins none of the sequences that are looked at. One that continues nothing is a
 * control character for an 8-bit terminal (0x9b begins an escape sequence). */
static void put_high(struct screen *screen, unsigned char byte)
{
    char text[8] = {(char)byte, '\0'};
    bool is_lone = (byte & 0xc0) == 0x80 && screen->letter_left == 0;
    if ((byte & 0xc0) != 0x80)
        screen->letter_left = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
    else if (!is_lone)
        screen->letter_left--;
    if (is_lone && byte < 0xa0)
        (void)snprintf(text, sizeof text, "<%02X>", byte);
    put_text(screen, text);
}

static void put_visible(struct screen *screen, unsigned char byte)
{
    size_t pending = screen->pending_length;
    bool is_continued =
        (byte & 0xc0) == 0x80 && pending > 0 && pending < (screen->pending[0] == 0xc2 ? 2 : 3);
    if (!is_continued)
        flush_pending(screen);
    if (is_continued || byte == 0xc2 || byte == 0xe2) {
        screen->pending[screen->pending_length++] = byte;
        screen->letter_left = 0;
        return;
    }
    if (byte >= 0x80) {
        put_high(screen, byte);
        return;
    }
    screen->letter_left = 0;
    if (byte == '\t' || (byte >= ' ' && byte != 0x7f)) {
        char plain = (char)byte;
        put(screen, &plain, 1);
        return;
    }
    char text[3] = {'^', (char)(byte == 0x7f ? '?' : byte + '@'), '\0'};
    put_text(screen, text);
}

/* Decides by its first bytes what a line is, and begins its colour. */
static void begin_line(struct screen *screen)
{
    static const char *const colors[] = {"", "\033[1m", "\033[36m", "\033[32m", "\033[31m", ""};
    const char *start = screen->start;
    size_t length = screen->start_length;
    if (length >= 10 && strncmp(start, "diff --git", 10) == 0) {
        screen->is_in_hunk = false;
        screen->line = LINE_HEADER;
    } else if (length >= 2 && strncmp(start, "@@", 2) == 0) {
        screen->is_in_hunk = true;
        screen->line = LINE_HUNK;
    } else if (!screen->is_in_hunk) {
        screen->line = LINE_HEADER;
    } else {
        screen->line = start[0] == '+' ? LINE_ADDED : start[0] == '-' ? LINE_REMOVED : LINE_OTHER;
    }
    if (screen->has_color)
        put_text(screen, colors[screen->line]);
    for (size_t i = 0; i < length; i++)
        put_visible(screen, (unsigned char)start[i]);
    screen->start_length = 0;
}

static void end_line(struct screen *screen)
{
    if (screen->line == LINE_START && screen->start_length > 0)
        begin_line(screen);
    flush_pending(screen);
    if (screen->has_color && screen->line != LINE_START && screen->line != LINE_OTHER)
        put_text(screen, "\033[m");
    put_text(screen, "\n");
    screen->line = LINE_START;
}

static void show(void *context, const char *data, size_t length)
{
    struct screen *screen = context;
    for (size_t i = 0; i < length && screen->result == 0; i++) {
        if (data[i] == '\n') {
            end_line(screen);
        } else if (screen->line != LINE_START) {
            put_visible(screen, (unsigned char)data[i]);
        } else {
            screen->start[screen->start_length++] = data[i];
            if (screen->start_length == 10)
                begin_line(screen);
        }
        if (screen->out.length > 65536) {
            screen->result = bt_write_all(screen->fd, screen->out.data, screen->out.length);
            screen->out.length = 0;
        }
    }
}

static void pass_on(void *context, const char *data, size_t length)
{
    struct sink *sink = context;
    if (sink->result == 0)
        sink->result = bt_write_all(sink->fd, data, length);
}

static int show_stored(const char *path, struct screen *screen, struct sink *sink, bool is_terminal,
                       struct bt_error *error)
{
    static char chunk[65536];
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, chunk, sizeof chunk);
    for (; got > 0 && sink->result == 0 && screen->result == 0; got = read(fd, chunk, sizeof chunk)) {
        if (is_terminal)
            show(screen, chunk, (size_t)got);
        else
            pass_on(sink, chunk, (size_t)got);
    }
    return got < 0 ? bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", path, strerror(errno))
                   : 0;
}

int bt_workspace_diff(const char *state_folder, const struct bt_workspace_diff_options *options,
                      int output_fd, struct bt_error *error)
{
    if (!bt_workspace_has_patch(state_folder))
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL,
                       "the agent changed nothing, or its changes were not collected");
    bt_auto_free char *path = bt_string_format("%s/" BT_WORKSPACE_PATCH, state_folder);
    struct screen screen = {.fd = output_fd, .has_color = options->has_color && !options->is_stat};
    struct sink sink = {.fd = output_fd};
    int result = options->is_stat ? run_diff(state_folder, "--stat", options->is_terminal ? show : pass_on,
                                             options->is_terminal ? (void *)&screen : (void *)&sink, error)
                                  : show_stored(path, &screen, &sink, options->is_terminal, error);
    if (screen.start_length > 0)
        end_line(&screen);
    if (screen.result == 0 && screen.out.length > 0)
        screen.result = bt_write_all(output_fd, screen.out.data, screen.out.length);
    bt_buffer_free(&screen.out);
    int written = screen.result < 0 ? screen.result : sink.result;
    if (result == 0 && written < 0)
        result =
            bt_fail(error, BT_EXIT_ERROR, -written, NULL, "cannot write the patch: %s", strerror(-written));
    return result;
}
