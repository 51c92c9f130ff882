/* `berth-helper audit`: shows the audit log, or verifies its chain.
 *
 * Run by an administrator, also while the engine writes. It must not change a byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "helper/admin.h"
#include "helper/audit.h"

#define ATTEMPTS 5 /* the engine may overwrite the oldest lines while they are read */

struct ring {
    int segment_fds[BT_AUDIT_SEGMENTS];
    uint64_t segment_lines;
    uint64_t newest; /* 0: no line */
};

static uint64_t ring_size(const struct ring *ring)
{
    return ring->segment_lines * BT_AUDIT_SEGMENTS;
}

static int open_ring(const char *folder, struct ring *ring)
{
    for (unsigned i = 0; i < BT_AUDIT_SEGMENTS; i++) {
        char name[BT_AUDIT_NAME_SIZE], path[BT_CONFIG_PATH_SIZE + BT_AUDIT_NAME_SIZE];
        struct stat status;
        bt_audit_segment_name(i, name);
        (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
        int fd = ring->segment_fds[i] = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &status) < 0) {
            int error = errno;
            bt_admin_complain("%s: %s%s", path, strerror(error),
                              error == ENOENT ? "; has the helper run with this configuration?" : "");
            return -error;
        }
        uint64_t lines = (uint64_t)status.st_size / BT_AUDIT_LINE_SIZE;
        bool is_whole = S_ISREG(status.st_mode) && lines > 0 && status.st_size % BT_AUDIT_LINE_SIZE == 0;
        if (!is_whole || (i > 0 && lines != ring->segment_lines)) {
            bt_admin_complain("%s: its size is not that of a segment; it was cut off or exchanged", path);
            return -EUCLEAN;
        }
        ring->segment_lines = lines;
    }
    return 0;
}

/* The line at a place of the ring, 0 to ring_size - 1. */
static int read_place(const struct ring *ring, uint64_t place, uint8_t line[BT_AUDIT_LINE_SIZE])
{
    ssize_t got = pread(ring->segment_fds[place / ring->segment_lines], line, BT_AUDIT_LINE_SIZE,
                        (off_t)(place % ring->segment_lines * BT_AUDIT_LINE_SIZE));
    if (got == (ssize_t)BT_AUDIT_LINE_SIZE)
        return 0;
    return got < 0 ? -errno : -EIO;
}

static int find_newest(struct ring *ring)
{
    uint8_t line[BT_AUDIT_LINE_SIZE];
    uint64_t newest = 0, number;
    for (uint64_t place = 0; place < ring_size(ring); place++) {
        int error = read_place(ring, place, line);
        if (error < 0)
            return error;
        if (bt_audit_line_number(line, &number) == 0 && (number - 1) % ring_size(ring) == place &&
            number > newest)
            newest = number;
    }
    ring->newest = newest;
    return 0;
}

static uint64_t oldest_of(const struct ring *ring)
{
    return ring->newest > ring_size(ring) ? ring->newest - ring_size(ring) + 1 : 1;
}

static bool is_blank(const uint8_t line[BT_AUDIT_LINE_SIZE])
{
    for (size_t i = 0; i < BT_AUDIT_LINE_SIZE; i++)
        if (line[i] != 0)
            return false;
    return true;
}

struct fault {
    uint64_t number; /* which line should be there */
    const char *what;
};

/* From the oldest line to the newest, and nothing behind it before the ring is full. 0, -EBADMSG with fault.
 */
static int verify_chain(const struct ring *ring, struct fault *ret_fault)
{
    uint8_t line[BT_AUDIT_LINE_SIZE], before[BT_SHA256_SIZE] = {0};
    uint64_t first = oldest_of(ring), last = first + ring_size(ring) - 1, found = 0;
    for (uint64_t number = first; number <= last; number++) {
        int error = read_place(ring, (number - 1) % ring_size(ring), line);
        const char *what = NULL;
        if (error < 0)
            return error;
        if (number > ring->newest)
            what = is_blank(line) ? NULL : "is behind the last line, and is none";
        else if (bt_audit_line_number(line, &found) < 0)
            what = "is not a line of the log";
        else if (found != number)
            what = "has another number";
        else if ((number > first || number == 1) && !bt_audit_line_follows(line, before))
            what = "does not follow from the line before it: one of the two was changed";
        if (what) {
            *ret_fault = (struct fault){.number = number, .what = what};
            return -EBADMSG;
        }
        bt_sha256(line, sizeof(line), before);
    }
    return 0;
}

static int verify(struct ring *ring)
{
    struct fault fault = {0};
    int error = find_newest(ring);
    for (unsigned attempt = 0; attempt < ATTEMPTS && error == 0; attempt++) {
        uint64_t newest = ring->newest;
        error = verify_chain(ring, &fault);
        if (error != -EBADMSG)
            break;
        int search_error = find_newest(ring);
        if (search_error < 0 || ring->newest == newest)
            break;
        error = 0;
    }
    if (error == -EBADMSG) {
        uint64_t place = (fault.number - 1) % ring_size(ring);
        bt_admin_tell("BAD audit.%" PRIu64 " line %" PRIu64 " (number %" PRIu64 "): %s",
                      place / ring->segment_lines, place % ring->segment_lines + 1, fault.number, fault.what);
    } else if (error < 0) {
        bt_admin_complain("the audit log cannot be read: %s", strerror(-error));
    } else if (ring->newest == 0) {
        bt_admin_tell("ok: no line yet");
    } else {
        bt_admin_tell("ok: lines %" PRIu64 " to %" PRIu64 " are whole, each follows from the one before",
                      oldest_of(ring), ring->newest);
    }
    return error < 0 ? 1 : 0;
}

static int show(struct ring *ring, uint64_t wanted)
{
    uint8_t line[BT_AUDIT_LINE_SIZE];
    int error = find_newest(ring);
    uint64_t first = oldest_of(ring);
    if (ring->newest >= wanted && ring->newest - wanted + 1 > first)
        first = ring->newest - wanted + 1;
    for (uint64_t number = first; error == 0 && number <= ring->newest; number++) {
        error = read_place(ring, (number - 1) % ring_size(ring), line);
        size_t length = BT_AUDIT_LINE_SIZE - 1;
        while (length > 0 && line[length - 1] == ' ')
            length--;
        if (error == 0)
            printf("%.*s\n", (int)length, (const char *)line);
    }
    if (error < 0)
        bt_admin_complain("the audit log cannot be read: %s", strerror(-error));
    return error < 0 ? 1 : 0;
}

int bt_admin_audit(const struct bt_admin *admin)
{
    struct bt_config config;
    struct ring ring = {.newest = 0};
    int status = 1;
    if (bt_admin_read_config(admin, &config) < 0)
        return 1;
    if (config.audit_folder[0] == '\0') {
        bt_admin_complain("no audit log: the configuration says audit_folder: none");
        return 1;
    }
    for (unsigned i = 0; i < BT_AUDIT_SEGMENTS; i++)
        ring.segment_fds[i] = -1;
    if (open_ring(config.audit_folder, &ring) == 0)
        status = admin->is_verify ? verify(&ring) : show(&ring, admin->lines);
    for (unsigned i = 0; i < BT_AUDIT_SEGMENTS; i++)
        bt_fd_close(&ring.segment_fds[i]);
    return status;
}
