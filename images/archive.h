/* libarchive, wrapped for what images need: packages, compressed blobs and initrd archives. Only filters that
 * run inside this process are enabled (libarchive can also start external programs). */
#ifndef BERTH_IMAGES_ARCHIVE_H
#define BERTH_IMAGES_ARCHIVE_H

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>

#include "lib/error.h"
#include "lib/memory.h"

void bt_archive_free(struct archive **archive); /* for bt_auto_archive; accepts NULL, readers and writers */
#define bt_auto_archive BT_CLEANUP(bt_archive_free) struct archive

/* Names in pax headers are UTF-8; libarchive converts them through the locale, and the C locale has no
 * letters. Between these, this thread reads and writes them as they are. */
locale_t bt_archive_names_begin(void);
void bt_archive_names_end(locale_t before);

/* Enables gzip, bzip2, xz, lzma, zstd and lz4 on a reader. */
void bt_archive_use_filters(struct archive *archive);

/* The positive errno behind an archive's last failure; what libarchive itself found wrong is EBADMSG. */
int bt_archive_errno(struct archive *archive);

/* The bytes of the current entry into an empty buffer; -EFBIG above maximum. The caller frees the buffer. */
int bt_archive_read_entry(struct archive *archive, size_t maximum, struct bt_buffer *ret_data,
                          struct bt_error *error);

/* Unpacks one compressed stream; data that is not compressed comes back unchanged. -EFBIG above maximum. */
int bt_archive_decompress(const void *data, size_t length, size_t maximum, struct bt_buffer *ret_data,
                          struct bt_error *error);

/* Calls on_entry for each entry of a Debian package's data member (deb(5)), stopping at its first error. */
int bt_archive_read_deb(const char *path,
                        int (*on_entry)(void *context, struct archive *data, struct archive_entry *entry,
                                        struct bt_error *error),
                        void *context, struct bt_error *error);

/* An initrd: a newc cpio in memory (kernel: Documentation/driver-api/early-userspace/buffer-format.rst), with
 * fixed times and owner root, so that the same contents give the same bytes. Add parents before children. */
struct bt_initrd {
    struct archive *archive;
    struct bt_buffer *bytes; /* borrowed from the caller */
};
int bt_initrd_open(struct bt_initrd *ret_initrd, struct bt_buffer *bytes, struct bt_error *error);
int bt_initrd_add_folder(struct bt_initrd *initrd, const char *path, struct bt_error *error);
int bt_initrd_add_file(struct bt_initrd *initrd, const char *path, unsigned mode, const void *data,
                       size_t length, struct bt_error *error);
/* Writes the trailer, padded to 512 bytes so that another archive can follow. Frees; also after an error. */
int bt_initrd_close(struct bt_initrd *initrd, struct bt_error *error);

#endif
