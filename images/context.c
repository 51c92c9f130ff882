/* A folder as the tar that a builder gets. See context.h. Called by the frontend, before anybody is asked. */
#include "images/context.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "images/archive.h"

#define PATH_SIZE 4096U
#define DEPTH_MAX 64

struct packer {
    struct archive *archive;
    EVP_MD_CTX *digest;
    int fd;
    uint64_t bytes;
    size_t entries;
    char path[PATH_SIZE]; /* in the tar */
    int depth;
    int result;
    struct bt_error *error;
    char chunk[65536];
};

static int fail(struct packer *packer, int code, const char *what)
{
    packer->result =
        bt_fail(packer->error, BT_EXIT_ERROR, code, NULL, "cannot pack %s: %s", packer->path, what);
    return packer->result;
}

static la_ssize_t write_block(struct archive *archive, void *context, const void *data, size_t length)
{
    struct packer *packer = context;
    int result = packer->result < 0                              ? -ECANCELED
                 : length > BT_CONTEXT_BYTES_MAX - packer->bytes ? -EFBIG
                                                                 : bt_write_all(packer->fd, data, length);
    if (result == 0 && EVP_DigestUpdate(packer->digest, data, length) == 1) {
        packer->bytes += length;
        return (la_ssize_t)length;
    }
    archive_set_error(archive, -result, "%s", result == -EFBIG ? "more than 512 MiB" : strerror(-result));
    return -1;
}

static int begin_entry(struct packer *packer, unsigned type, unsigned mode, uint64_t size, const char *target)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, packer->path);
    archive_entry_set_mode(entry, type | mode);
    archive_entry_set_uid(entry, 0);
    archive_entry_set_gid(entry, 0);
    archive_entry_set_mtime(entry, 0, 0);
    archive_entry_set_size(entry, (la_int64_t)size);
    if (target != NULL)
        archive_entry_set_symlink(entry, target);
    if (++packer->entries > BT_CONTEXT_ENTRIES_MAX)
        (void)fail(packer, EFBIG, "more than 20000 files");
    else if (archive_write_header(packer->archive, entry) < ARCHIVE_WARN)
        (void)fail(packer, bt_archive_errno(packer->archive), archive_error_string(packer->archive));
    archive_entry_free(entry);
    return packer->result;
}

static int write_bytes(struct packer *packer, const void *data, size_t length)
{
    return archive_write_data(packer->archive, data, length) == (la_ssize_t)length
               ? 0
               : fail(packer, bt_archive_errno(packer->archive), archive_error_string(packer->archive));
}

static int pack_file(struct packer *packer, int folder_fd, const char *name)
{
    struct stat status;
    bt_auto_fd fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0)
        return fail(packer, errno, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail(packer, EBUSY, "it changes meanwhile");
    uint64_t left = (uint64_t)status.st_size;
    int result = begin_entry(packer, AE_IFREG, (status.st_mode & 0100) != 0 ? 0755 : 0644, left, NULL);
    while (result == 0 && left > 0) {
        ssize_t got =
            read(fd, packer->chunk, left < sizeof packer->chunk ? (size_t)left : sizeof packer->chunk);
        if (got <= 0)
            return fail(packer, got < 0 ? errno : EBUSY, got < 0 ? strerror(errno) : "it changes meanwhile");
        left -= (uint64_t)got;
        result = write_bytes(packer, packer->chunk, (size_t)got);
    }
    return result;
}

static int pack_link(struct packer *packer, int folder_fd, const char *name)
{
    ssize_t length = readlinkat(folder_fd, name, packer->chunk, PATH_SIZE);
    if (length < 0 || (size_t)length >= PATH_SIZE)
        return fail(packer, length < 0 ? errno : ENAMETOOLONG, "a link that cannot be read");
    packer->chunk[length] = '\0';
    return begin_entry(packer, AE_IFLNK, 0777, 0, packer->chunk);
}

static int pack_folder(struct packer *packer, int folder_fd);

static int pack_name(struct packer *packer, int folder_fd, const char *name)
{
    struct stat status;
    size_t before = strlen(packer->path);
    int length =
        snprintf(packer->path + before, sizeof packer->path - before, "%s%s", before == 0 ? "" : "/", name);
    if (length < 0 || (size_t)length >= sizeof packer->path - before)
        (void)fail(packer, ENAMETOOLONG, "its path is too long");
    else if (fstatat(folder_fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
        (void)fail(packer, errno, strerror(errno));
    else if (S_ISREG(status.st_mode))
        (void)pack_file(packer, folder_fd, name);
    else if (S_ISLNK(status.st_mode))
        (void)pack_link(packer, folder_fd, name);
    else if (!S_ISDIR(status.st_mode))
        (void)fail(packer, EINVAL, "it is neither a file nor a folder nor a link");
    else if (begin_entry(packer, AE_IFDIR, 0755, 0, NULL) == 0) {
        bt_auto_fd fd = openat(folder_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        (void)(fd < 0 ? fail(packer, errno, strerror(errno)) : pack_folder(packer, fd));
    }
    packer->path[before] = '\0';
    return packer->result;
}

static int compare(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static int pack_folder(struct packer *packer, int folder_fd)
{
    bt_auto_list names = {0};
    const struct dirent *entry;
    int copy_fd = fcntl(folder_fd, F_DUPFD_CLOEXEC, 3);
    DIR *folder = copy_fd < 0 ? NULL : fdopendir(copy_fd);
    if (folder == NULL)
        return fail(packer, errno, strerror(errno));
    if (packer->depth >= DEPTH_MAX)
        (void)fail(packer, ELOOP, "folders too deep");
    while (packer->result == 0 && (entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            bt_list_add(&names, entry->d_name);
        if (names.count > BT_CONTEXT_ENTRIES_MAX)
            (void)fail(packer, EFBIG, "more than 20000 files");
    }
    (void)closedir(folder);
    if (names.count > 0)
        qsort(names.items, names.count, sizeof *names.items, compare);
    packer->depth++;
    for (size_t i = 0; packer->result == 0 && i < names.count; i++)
        (void)pack_name(packer, folder_fd, names.items[i]);
    packer->depth--;
    return packer->result;
}

static int pack_all(struct packer *packer, const char *folder, bool is_overlay, const char *dockerfile)
{
    bt_auto_fd folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder_fd < 0)
        return bt_fail(packer->error, BT_EXIT_ERROR, errno, NULL, "cannot read the folder %s: %s", folder,
                       strerror(errno));
    (void)snprintf(packer->path, sizeof packer->path, "%s", BT_CONTEXT_DOCKERFILE);
    if (begin_entry(packer, AE_IFREG, 0644, strlen(dockerfile), NULL) == 0)
        (void)write_bytes(packer, dockerfile, strlen(dockerfile));
    (void)snprintf(packer->path, sizeof packer->path, "%s", is_overlay ? BT_CONTEXT_OVERLAY : "");
    if (packer->result == 0 && is_overlay)
        (void)begin_entry(packer, AE_IFDIR, 0755, 0, NULL);
    return packer->result < 0 ? packer->result : pack_folder(packer, folder_fd);
}

static int pack_into(struct packer *packer, const char *folder, bool is_overlay, const char *dockerfile,
                     char ret_digest[BT_DIGEST_TEXT_SIZE])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (packer->archive == NULL || packer->digest == NULL ||
        EVP_DigestInit_ex(packer->digest, EVP_sha256(), NULL) != 1 ||
        archive_write_set_format_pax_restricted(packer->archive) != ARCHIVE_OK ||
        archive_write_open(packer->archive, packer, NULL, write_block, NULL) != ARCHIVE_OK)
        return fail(packer, ENOMEM, "out of memory");
    locale_t before = bt_archive_names_begin();
    int result = pack_all(packer, folder, is_overlay, dockerfile);
    packer->result = result;
    bt_archive_names_end(before);
    if (result == 0 && archive_write_close(packer->archive) != ARCHIVE_OK)
        result = fail(packer, bt_archive_errno(packer->archive), archive_error_string(packer->archive));
    if (result < 0)
        return result;
    (void)EVP_DigestFinal_ex(packer->digest, digest, &length);
    for (unsigned i = 0; i < length && i < 32; i++)
        (void)snprintf(ret_digest + 2 * (size_t)i, 3, "%02x", digest[i]);
    return lseek(packer->fd, 0, SEEK_SET) < 0 ? fail(packer, errno, strerror(errno)) : 0;
}

int bt_context_pack(const struct bt_paths *paths, const char *folder, bool is_overlay, const char *dockerfile,
                    struct bt_build_context *ret_context, struct bt_error *error)
{
    int result = bt_folder_make(paths->cache, 0700, error);
    if (result < 0)
        return result;
    bt_auto_fd fd = open(paths->cache, O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make a file in %s: %s", paths->cache,
                       strerror(errno));
    bt_auto_archive *archive = archive_write_new();
    struct packer *packer = bt_new(1, sizeof *packer);
    packer->archive = archive;
    packer->digest = EVP_MD_CTX_new();
    packer->fd = fd;
    packer->error = error;
    struct bt_build_context context = {.fd = -1};
    result = pack_into(packer, folder, is_overlay, dockerfile, context.digest);
    context.bytes = packer->bytes;
    bt_archive_free(&archive); /* it writes what it holds */
    EVP_MD_CTX_free(packer->digest);
    free(packer);
    if (result < 0)
        return result;
    context.fd = bt_fd_take(&fd);
    *ret_context = context;
    return 0;
}
