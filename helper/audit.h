/* The audit log: who was given what, and what was refused, in a ring of preallocated segments.
 *
 * Used by the engine (through record.h) and, for the layout alone, by `berth-helper audit`. A line is one
 * JSON object of numbers and fixed words, padded with blanks to BT_AUDIT_LINE_SIZE: line n stands at place
 * (n - 1) modulo all lines of the ring, so that the log never grows, never needs space after the start, and
 * is found again without an index. "before" is the SHA-256 of the whole line before, padding and newline
 * included; that of line 1 is zero.
 *
 * Not synced line by line: a killed engine loses nothing, a machine that loses power may lose its last
 * seconds of lines (a copy of each goes to standard error, hence to the journal).
 */
#ifndef BERTH_HELPER_AUDIT_H
#define BERTH_HELPER_AUDIT_H

#include "helper/kernel.h"
#include "helper/sha256.h"

#define BT_AUDIT_FOLDER_DEFAULT "/var/log/berth"
#define BT_AUDIT_SEGMENTS 8U
#define BT_AUDIT_LINE_SIZE 384U
#define BT_AUDIT_LINES_DEFAULT 8192U /* of one segment: 3 MiB */
#define BT_AUDIT_NAME_SIZE 8         /* "audit.7" */
#define BT_AUDIT_NO_UID UINT32_MAX   /* nobody's: the engine itself, or users that are not served */

struct bt_audit {
    int segment_fds[BT_AUDIT_SEGMENTS];
    uint32_t segment_lines;
    uint64_t next; /* number of the next line, from 1 */
    uint32_t lost; /* lines that could not be written since the last one that could */
    uint8_t before[BT_SHA256_SIZE];
};

struct bt_audit_event {
    const char *name, *status; /* constants of this program */
    uint32_t uid;
    const struct bt_lease *lease; /* borrowed; NULL: not about a slot */
    uint32_t count, refused;      /* of what name says; 0 is left out */
};

/* Opens or makes folder (0700) and its segments audit.0 to audit.7 (0600), all root's alone, and finds the
 * end. folder: absolute. segment_lines: 1..1048576. -EALREADY: another engine writes there. -EPERM: somebody
 * else may change it. -EUCLEAN: segments of another size. -ENOSPC: no space for a whole ring. */
int bt_audit_open(const char *folder, uint32_t segment_lines, struct bt_audit *ret_audit) BT_MUST_CHECK;
void bt_audit_close(struct bt_audit *audit);

/* Writes one line. On failure the log is as before, and the next line tells how many are missing. */
int bt_audit_append(struct bt_audit *audit, const struct bt_audit_event *event) BT_MUST_CHECK;

/* ---- the layout, for readers ------------------------------------------------------------------------- */

void bt_audit_segment_name(unsigned segment, char ret_name[BT_AUDIT_NAME_SIZE]);
/* The number of a line that has the form of one, -EBADMSG otherwise. */
int bt_audit_line_number(const uint8_t line[BT_AUDIT_LINE_SIZE], uint64_t *ret_number) BT_MUST_CHECK;
/* Does the line say that its predecessor has this digest? */
bool bt_audit_line_follows(const uint8_t line[BT_AUDIT_LINE_SIZE], const uint8_t before[BT_SHA256_SIZE]);

#endif
