/* A child process whose standard output is read as an archive, while its standard error is followed for
 * progress and for the message if it fails. Internal to images/. */
#ifndef BERTH_IMAGES_PRODUCER_H
#define BERTH_IMAGES_PRODUCER_H

#include <sys/types.h>

#include "images/archive.h"
#include "images/images.h"

#define BT_PRODUCER_TAIL (64UL * 1024) /* a failed package is named before all that still goes well */

struct bt_producer {
    pid_t pid;
    int output_fd, errors_fd;
    bool is_ended; /* its standard output has come to its end */
    const struct bt_progress *progress;
    char tail[BT_PRODUCER_TAIL]; /* the end of its standard error, NUL-terminated */
    size_t tail_length;
    char line[256]; /* the line that is being written */
    size_t line_length;
    char chunk[65536];
};

/* Starts a program (looked up in PATH) in a session of its own with exactly this environment. shared_fd, when
 * not -1, stays open in it under the same number. It is told to stop (SIGTERM, so that it can clean up) when
 * the caller dies. -ENOENT: no such program. Lines "I: text..." on its standard error are reported as steps.
 */
int bt_producer_start(const char *const *arguments, const char *const *environment, int shared_fd,
                      const struct bt_progress *progress, struct bt_producer *ret_producer,
                      struct bt_error *error);

/* Opens its standard output as a tar stream; the archive must be freed before bt_producer_end. */
int bt_producer_open_archive(struct bt_producer *producer, struct archive *archive);

/* Reads its standard output to the end and drops it: a tar ends before its stream does, with padding that its
 * writer must get rid of. */
void bt_producer_drain(struct bt_producer *producer);

/* Stops it if its output was not read to the end, reaps it, closes. Returns its exit status, or 128 + signal.
 */
int bt_producer_end(struct bt_producer *producer);

#endif
