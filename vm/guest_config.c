/* Writes what a guest is told before it boots: guest.conf and its files, as a cpio archive. See
 * guest_config.h.
 *
 * Called by the backends before they start a machine. The bytes hold secrets: they stay in memory, and the
 * caller wipes the buffer. Must not open a file or log a content.
 */
#include "vm/guest_config.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define CPIO_NAME_MAX 200U

static int pad_to_four(struct bt_buffer *archive)
{
    static const char zeros[4];
    size_t rest = archive->length % 4;
    return rest == 0 ? 0 : bt_buffer_add(archive, zeros, 4 - rest);
}

/* A name is relative and stays below where the archive is unpacked. */
static bool is_name_safe(const char *path)
{
    size_t length = strlen(path);
    if (length > CPIO_NAME_MAX)
        return false;
    /* Each part has at least one byte, so neither end can be a slash. */
    for (const char *part = path; part != NULL;) {
        const char *end = strchr(part, '/');
        size_t part_length = end != NULL ? (size_t)(end - part) : strlen(part);
        if (part_length == 0 || strncmp(part, ".", part_length) == 0 || strncmp(part, "..", part_length) == 0)
            return false;
        part = end != NULL ? end + 1 : NULL;
    }
    return true;
}

static int add_entry(struct bt_buffer *archive, const char *path, unsigned mode, const void *data,
                     size_t length)
{
    size_t name_length = strlen(path) + 1;
    if (length > UINT32_MAX)
        return -EFBIG;
    /* inode, mode, uid, gid, links, mtime, size, device, special device, name length, checksum */
    int result =
        bt_buffer_add_format(archive, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", 0U, mode,
                             0U, 0U, 1U, 0U, (unsigned)length, 0U, 0U, 0U, 0U, (unsigned)name_length, 0U);
    if (result == 0)
        result = bt_buffer_add(archive, path, name_length);
    if (result == 0)
        result = pad_to_four(archive);
    if (result == 0 && length > 0)
        result = bt_buffer_add(archive, data, length);
    return result == 0 ? pad_to_four(archive) : result;
}

int bt_cpio_add(struct bt_buffer *archive, const char *path, unsigned mode, const void *data, size_t length)
{
    if (!is_name_safe(path))
        return -EINVAL;
    if ((mode & S_IFMT) == 0)
        mode |= S_IFREG;
    if (!S_ISREG(mode) && !S_ISDIR(mode))
        return -EINVAL;
    return add_entry(archive, path, mode, data, S_ISDIR(mode) ? 0 : length);
}

int bt_cpio_finish(struct bt_buffer *archive)
{
    return add_entry(archive, "TRAILER!!!", 0, NULL, 0);
}

static bool is_host_name(const char *name)
{
    size_t length = name != NULL ? strlen(name) : 0;
    if (length == 0 || length > 63 || name[0] == '-' || name[length - 1] == '-')
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

static int add_disk(struct bt_buffer *text, bool has_disk, const char *key, unsigned *next)
{
    return has_disk ? bt_buffer_add_format(text, "%s %u\n", key, (*next)++) : 0;
}

static const char *const roles[] = {"agent", "gateway", "orchestrator"};

const char *bt_guest_role_name(enum bt_guest_role role)
{
    return roles[role];
}

enum bt_guest_role bt_guest_role_of(const char *name)
{
    enum bt_guest_role role = BT_GUEST_ORCHESTRATOR;
    while (role != BT_GUEST_AGENT && strcmp(roles[role], name) != 0)
        role--;
    return role;
}

/* The lines of guest.conf; read by vm/init/settings.c. A disk is named by its place in the order of
 * attachment. */
static int write_settings(const struct bt_guest_config *config, struct bt_buffer *text)
{
    char address[BT_IPV4_TEXT_SIZE];
    char host_address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(config->address, address);
    bt_ipv4_format(config->host_address, host_address);
    unsigned next = 0;
    int result =
        bt_buffer_add_format(text, "role %s\nhostname %s\ntime %llu\n", bt_guest_role_name(config->role),
                             config->host_name, (unsigned long long)config->time_seconds);
    if (result == 0 && config->address != 0)
        result = bt_buffer_add_format(text, "address %s\nprefix %u\ngateway %s\n", address,
                                      (unsigned)config->prefix_length, host_address);
    if (result == 0)
        result = add_disk(text, config->has_root_image, "root", &next);
    if (result == 0)
        result = add_disk(text, config->has_scratch_disk, "scratch", &next);
    if (result == 0)
        result = add_disk(text, config->has_home_disk, "home", &next);
    if (result == 0)
        result = add_disk(text, config->has_workspace_disk, "workspace", &next);
    if (result == 0)
        result = add_disk(text, config->has_registry_disk, "registry", &next);
    return result;
}

/* Folders above a file, each once. made holds the names that are in the archive already. */
static int add_parents(struct bt_buffer *archive, const char *path, struct bt_list *made)
{
    for (const char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        bt_auto_free char *folder = bt_string_copy_length(path, (size_t)(slash - path));
        if (bt_list_has(made, folder))
            continue;
        int result = bt_cpio_add(archive, folder, S_IFDIR | 0755, NULL, 0);
        if (result < 0)
            return result;
        bt_list_add(made, folder);
    }
    return 0;
}

static int add_file(struct bt_buffer *archive, const struct bt_guest_file *file, struct bt_list *made)
{
    bt_auto_free char *path = bt_string_format("berth/%s", file->name);
    if (!is_name_safe(path))
        return -EINVAL;
    int result = add_parents(archive, path, made);
    return result < 0 ? result
                      : bt_cpio_add(archive, path, S_IFREG | (file->mode & 0777U), file->data, file->length);
}

int bt_guest_config_write(const struct bt_guest_config *config, struct bt_buffer *archive,
                          struct bt_error *error)
{
    if (!is_host_name(config->host_name))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "use a-z, 0-9 and '-', at most 63 characters",
                       "the guest's host name is not valid");
    if (config->prefix_length > 32 || config->role > BT_GUEST_ORCHESTRATOR)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "the guest's configuration is not valid");
    bt_auto_buffer settings = {0};
    bt_auto_list made = {0};
    /* Whatever the caller put in front: an archive starts at a multiple of four bytes. */
    int result = pad_to_four(archive);
    if (result == 0)
        result = write_settings(config, &settings);
    if (result == 0)
        result = add_parents(archive, "berth/guest.conf", &made);
    if (result == 0)
        result = bt_cpio_add(archive, "berth/guest.conf", S_IFREG | 0400, settings.data, settings.length);
    const char *at = "guest.conf";
    for (size_t i = 0; result == 0 && i < config->file_count; i++) {
        at = config->files[i].name;
        result = add_file(archive, &config->files[i], &made);
    }
    if (result == 0)
        result = bt_cpio_finish(archive);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL,
                       "cannot write %s into the guest's configuration: %s", at, strerror(-result));
    return 0;
}
