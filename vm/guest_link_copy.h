/* What both directions of copying share: names that may be printed, the tar command in the guest. */
#ifndef BERTH_VM_GUEST_LINK_COPY_H
#define BERTH_VM_GUEST_LINK_COPY_H

#include "vm/guest_link_internal.h"

struct archive;

#define BT_COPY_NAME_SIZE 256

/* A file name for a message: control bytes become '?', cut at the size. Returns ret_text. */
const char *bt_copy_printable(const char *name, char ret_text[BT_COPY_NAME_SIZE]);
/* Environment of the tools that a copy runs in the guest. */
extern const char *const bt_copy_environment[];

/* The end of an absolute guest path without slashes at its ends; -EINVAL for a relative one, or one with ".."
 * in it. */
int bt_copy_guest_path(const char *guest_path, char **ret_relative, struct bt_error *error);

/* One tar stream on its way into a guest, the entries added one by one. */
struct bt_guest_tar_stream {
    struct bt_guest_session *session;
    struct bt_guest_session_errors errors;
    struct archive *archive;
    struct bt_error *error;
    int failure;        /* of sending: a negative errno, after which the rest is dropped */
    int root_fd;        /* host names are relative to it and never leave it or follow a symbolic link */
    const char *prefix; /* in front of names in the archive; "" or without a trailing slash */
    uint32_t uid, gid;
    uint64_t bytes;
    void (*on_progress)(void *context, uint64_t bytes);
    void *context;
    char *buffer;
};

/* Starts tar in the guest as uid:gid, extracting below "/". */
int bt_guest_tar_open(struct bt_guest_link *link, struct bt_guest_tar_stream *stream, struct bt_error *error);
/* Adds a file, folder or symbolic link; name is below root_fd, archive_name (or "" for the prefix itself)
 * below prefix. Sockets, pipes and devices are left out. -ENOENT: it is not there (any more). */
int bt_guest_tar_add(struct bt_guest_tar_stream *stream, const char *name, const char *archive_name);
/* Ends the stream, waits for tar, frees everything. result: what went before; a failure skips to the end. */
int bt_guest_tar_close(struct bt_guest_tar_stream *stream, int result);

/* A copy out of a guest on its way to the disk. */
struct bt_guest_unpack {
    struct bt_error *error;
    int parent_fd;    /* the folder that holds the destination; borrowed */
    const char *base; /* the destination's name in it: one part */
    uint64_t left;    /* bytes that may still come */
    bool is_top_seen;
    unsigned skipped; /* links that lead out of the copy, and devices */
    char first_skipped[BT_COPY_NAME_SIZE];
};
/* Unpacks an opened archive. What it holds under the name that was asked for becomes base. Returns 0 or a
 * negative errno: -EINVAL a name that leads elsewhere, -EFBIG more than the limit, -EIO a damaged archive, or
 * what the disk says. */
int bt_guest_unpack(struct bt_guest_unpack *unpack, struct archive *archive);

#endif
