/* The audit log, see audit.h.
 *
 * Opened by main as root, written by the engine. It must not take a byte from a client, follow a link, work
 * in a folder that others can change, or allocate.
 */
#include "helper/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "helper/say.h"
#include "helper/trusted.h"

static const char line_start[] = "{\"n\":";
static const char before_key[] = ",\"before\":\"";

static const char *const role_names[BT_ROLE_MAX] = {"agent", "gateway", "orchestrator"};
static const char *const kind_names[BT_KIND_MAX] = {"tap-fd", "tap-named", "bridge", "pf"};

void bt_audit_segment_name(unsigned segment, char ret_name[BT_AUDIT_NAME_SIZE])
{
    memcpy(ret_name, "audit.0", BT_AUDIT_NAME_SIZE);
    ret_name[BT_AUDIT_NAME_SIZE - 2] = (char)('0' + segment % BT_AUDIT_SEGMENTS);
}

/* ---- lines -------------------------------------------------------------------------------------------- */

static void format_digest(const uint8_t digest[BT_SHA256_SIZE], char ret_text[2 * BT_SHA256_SIZE + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < BT_SHA256_SIZE; i++) {
        ret_text[2 * i] = digits[digest[i] >> 4];
        ret_text[2 * i + 1] = digits[digest[i] & 15];
    }
    ret_text[2 * BT_SHA256_SIZE] = '\0';
}

static void add_number(struct bt_text *text, const char *key, uint64_t number)
{
    bt_text_add(text, key);
    bt_text_add_number(text, number);
}

static void add_word(struct bt_text *text, const char *key, const char *word)
{
    bt_text_add(text, key);
    bt_text_add(text, "\"");
    bt_text_add(text, word);
    bt_text_add(text, "\"");
}

static void add_lease(struct bt_text *text, const struct bt_lease *lease)
{
    add_number(text, ",\"slot\":", lease->slot);
    add_number(text, ",\"generation\":", lease->generation);
    add_word(text, ",\"kind\":", lease->kind < BT_KIND_MAX ? kind_names[lease->kind] : "?");
    add_word(text, ",\"role\":", lease->role < BT_ROLE_MAX ? role_names[lease->role] : "?");
    add_number(text, ",\"environment\":", lease->environment);
}

static void format_event(const struct bt_audit *audit, const struct bt_audit_event *event,
                         struct bt_text *text)
{
    char digest[2 * BT_SHA256_SIZE + 1];
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    *text = (struct bt_text){.length = 0};
    bt_text_add(text, line_start);
    bt_text_add_number(text, audit->next);
    add_number(text, ",\"time\":", (uint64_t)now.tv_sec);
    add_word(text, ",\"event\":", event->name);
    add_word(text, ",\"status\":", event->status);
    if (event->uid != BT_AUDIT_NO_UID)
        add_number(text, ",\"uid\":", event->uid);
    if (event->lease)
        add_lease(text, event->lease);
    if (event->count > 0)
        add_number(text, ",\"count\":", event->count);
    if (event->refused > 0)
        add_number(text, ",\"refused\":", event->refused);
    if (audit->lost > 0)
        add_number(text, ",\"lost\":", audit->lost);
    format_digest(audit->before, digest);
    bt_text_add(text, before_key);
    bt_text_add(text, digest);
    bt_text_add(text, "\"}");
}

int bt_audit_line_number(const uint8_t line[BT_AUDIT_LINE_SIZE], uint64_t *ret_number)
{
    const size_t start = sizeof(line_start) - 1;
    const char *text = (const char *)line;
    const char *end = memchr(text + start, ',', 24);
    if (memcmp(text, line_start, start) != 0 || !end || line[BT_AUDIT_LINE_SIZE - 1] != '\n')
        return -EBADMSG;
    return bt_number_parse(text + start, (size_t)(end - text) - start, 1, UINT64_MAX - 1, ret_number) < 0
               ? -EBADMSG
               : 0;
}

bool bt_audit_line_follows(const uint8_t line[BT_AUDIT_LINE_SIZE], const uint8_t before[BT_SHA256_SIZE])
{
    char digest[2 * BT_SHA256_SIZE + 1];
    const size_t key_length = sizeof(before_key) - 1;
    const uint8_t *key = memmem(line, BT_AUDIT_LINE_SIZE - 2 * BT_SHA256_SIZE, before_key, key_length);
    format_digest(before, digest);
    return key && memcmp(key + key_length, digest, 2 * (size_t)BT_SHA256_SIZE) == 0;
}

/* ---- the ring ----------------------------------------------------------------------------------------- */

static int locate(const struct bt_audit *audit, uint64_t number, off_t *ret_offset)
{
    uint64_t place = (number - 1) % ((uint64_t)audit->segment_lines * BT_AUDIT_SEGMENTS);
    *ret_offset = (off_t)(place % audit->segment_lines * BT_AUDIT_LINE_SIZE);
    return audit->segment_fds[place / audit->segment_lines];
}

/* A short write is followed by one of the rest, which tells why. What was written of a line that fails is
 * written over by the next. */
static int write_whole(int fd, const uint8_t line[BT_AUDIT_LINE_SIZE], off_t offset)
{
    size_t done = 0;
    while (done < BT_AUDIT_LINE_SIZE) {
        ssize_t written = pwrite(fd, line + done, BT_AUDIT_LINE_SIZE - done, offset + (off_t)done);
        if (written <= 0)
            return written < 0 ? -errno : -EIO;
        done += (size_t)written;
    }
    return 0;
}

int bt_audit_append(struct bt_audit *audit, const struct bt_audit_event *event)
{
    struct bt_text text;
    uint8_t line[BT_AUDIT_LINE_SIZE];
    off_t offset;
    format_event(audit, event, &text);
    bt_say_text(&text);
    bt_require(text.length < BT_AUDIT_LINE_SIZE, "audit: a line is too long");
    memset(line, ' ', sizeof(line));
    memcpy(line, text.bytes, text.length);
    line[BT_AUDIT_LINE_SIZE - 1] = '\n';
    int fd = locate(audit, audit->next, &offset);
    int error = write_whole(fd, line, offset);
    if (error < 0) {
        if (audit->lost < UINT32_MAX)
            audit->lost++;
        return error;
    }
    bt_sha256(line, sizeof(line), audit->before);
    audit->next++;
    audit->lost = 0;
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static int open_folder(const char *folder, int *ret_fd)
{
    struct stat status;
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return -errno;
    bt_auto_fd fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0)
        return -errno;
    if (!bt_trusted_is_roots(&status, S_IFDIR))
        return -EPERM;
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

static int open_segment(int folder_fd, unsigned segment, off_t size, int *ret_fd)
{
    char name[BT_AUDIT_NAME_SIZE];
    struct stat status;
    bt_audit_segment_name(segment, name);
    bt_auto_fd fd =
        openat(folder_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0 || fstat(fd, &status) < 0)
        return -errno;
    if (!bt_trusted_is_roots(&status, S_IFREG) || status.st_nlink != 1)
        return -EPERM;
    if (segment == 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EALREADY : -errno;
    if (status.st_size != 0 && status.st_size != size)
        return -EUCLEAN;
    /* Also when it is there: one that was written sparse, or lost its blocks, gets them back now. */
    int error = posix_fallocate(fd, 0, size);
    if (error != 0) {
        if (status.st_size == 0 && ftruncate(fd, 0) < 0) /* as it was found: the next start tries again */
            return -errno;
        return -error;
    }
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

static int read_line(const struct bt_audit *audit, uint64_t place_number, uint8_t line[BT_AUDIT_LINE_SIZE],
                     uint64_t *ret_number)
{
    off_t offset;
    int fd = locate(audit, place_number, &offset);
    ssize_t got = pread(fd, line, BT_AUDIT_LINE_SIZE, offset);
    if (got != (ssize_t)BT_AUDIT_LINE_SIZE)
        return got < 0 ? -errno : -EIO;
    return bt_audit_line_number(line, ret_number);
}

/* The number of the first line of the segment that was begun last; 0: no line yet. */
static int find_segment(const struct bt_audit *audit, uint64_t *ret_first)
{
    uint8_t line[BT_AUDIT_LINE_SIZE];
    uint64_t first = 0, number = 0;
    for (uint64_t segment = 0; segment < BT_AUDIT_SEGMENTS; segment++) {
        int error = read_line(audit, segment * audit->segment_lines + 1, line, &number);
        if (error < 0 && error != -EBADMSG)
            return error;
        bool is_in_place = error == 0 && (number - 1) / audit->segment_lines % BT_AUDIT_SEGMENTS == segment &&
                           (number - 1) % audit->segment_lines == 0;
        if (is_in_place && number > first)
            first = number;
    }
    *ret_first = first;
    return 0;
}

/* By halves: the lines from first on bear their numbers up to the last one, and what stands behind it is of
 * an earlier round, or nothing. */
static int find_end(struct bt_audit *audit)
{
    uint8_t line[BT_AUDIT_LINE_SIZE];
    uint64_t first = 0, number = 0;
    audit->next = 1;
    int error = find_segment(audit, &first);
    if (error < 0 || first == 0)
        return error;
    uint64_t last = first, end = first + audit->segment_lines;
    while (end - last > 1) {
        uint64_t middle = last + (end - last) / 2;
        error = read_line(audit, middle, line, &number);
        if (error < 0 && error != -EBADMSG)
            return error;
        if (error == 0 && number == middle)
            last = middle;
        else
            end = middle;
    }
    error = read_line(audit, last, line, &number);
    if (error < 0)
        return error;
    bt_sha256(line, sizeof(line), audit->before);
    audit->next = last + 1;
    return 0;
}

int bt_audit_open(const char *folder, uint32_t segment_lines, struct bt_audit *ret_audit)
{
    bt_auto_fd folder_fd = -1;
    struct bt_audit audit = {.segment_lines = segment_lines};
    for (unsigned i = 0; i < BT_AUDIT_SEGMENTS; i++)
        audit.segment_fds[i] = -1;
    int error = open_folder(folder, &folder_fd);
    for (unsigned i = 0; i < BT_AUDIT_SEGMENTS && error == 0; i++)
        error = open_segment(folder_fd, i, (off_t)segment_lines * BT_AUDIT_LINE_SIZE, &audit.segment_fds[i]);
    if (error == 0)
        error = find_end(&audit);
    if (error < 0) {
        bt_audit_close(&audit);
        return error;
    }
    *ret_audit = audit;
    return 0;
}

void bt_audit_close(struct bt_audit *audit)
{
    for (unsigned i = 0; i < BT_AUDIT_SEGMENTS; i++)
        bt_fd_close(&audit->segment_fds[i]);
}
