/* Takes a Debian kernel package apart. See kernel.h.
 *
 * Called by the image cache with a folder that it made. Reads the package front to back, once, or once more
 * for each level of module dependencies that the recipe does not list.
 */
#include "images/kernel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "images/archive.h"
#include "images/module.h"
#include "images/progress.h"
#include "images/vmlinux.h"

#define KERNEL_MAX (128UL * 1024 * 1024)
#define MODULE_MAX (32UL * 1024 * 1024)
#define PROGRAM_MAX (64UL * 1024 * 1024)
#define INITRD_MAX (256UL * 1024 * 1024)
#define MODULES_MAX 64
#define PASSES_MAX 8

struct module {
    char name[BT_MODULE_NAME_SIZE];
    struct bt_buffer data; /* not compressed; empty: not found yet */
    struct bt_list depends;
};

struct parts {
    struct bt_buffer kernel;
    struct bt_buffer builtin; /* modules.builtin: paths of what is in the kernel already */
    struct module modules[MODULES_MAX];
    size_t module_count;
};

static void parts_free(struct parts **parts)
{
    if (*parts == NULL)
        return;
    bt_buffer_free(&(*parts)->kernel);
    bt_buffer_free(&(*parts)->builtin);
    for (size_t i = 0; i < (*parts)->module_count; i++) {
        bt_buffer_free(&(*parts)->modules[i].data);
        bt_list_free(&(*parts)->modules[i].depends);
    }
    free(*parts);
}

static struct module *find_module(struct parts *parts, const char *name)
{
    for (size_t i = 0; i < parts->module_count; i++) {
        if (strcmp(parts->modules[i].name, name) == 0)
            return &parts->modules[i];
    }
    return NULL;
}

static int add_wanted(struct parts *parts, const char *name, struct bt_error *error)
{
    size_t length = strlen(name);
    if (find_module(parts, name) != NULL)
        return 0;
    if (parts->module_count == MODULES_MAX || length >= BT_MODULE_NAME_SIZE)
        return bt_fail(error, BT_EXIT_ERROR, E2BIG, NULL, "the kernel recipe needs more than %d modules",
                       MODULES_MAX);
    memcpy(parts->modules[parts->module_count++].name, name, length + 1);
    return 0;
}

static bool is_builtin(const struct parts *parts, const char *name)
{
    if (parts->builtin.data == NULL)
        return false;
    bt_auto_free char *text = bt_string_copy(parts->builtin.data);
    char *saved = NULL;
    for (char *line = strtok_r(text, "\n", &saved); line != NULL; line = strtok_r(NULL, "\n", &saved)) {
        char found[BT_MODULE_NAME_SIZE];
        if (bt_module_name(line, found) && strcmp(found, name) == 0)
            return true;
    }
    return false;
}

static int take_module(struct parts *parts, struct module *module, struct archive *data,
                       struct bt_error *error)
{
    bt_auto_buffer packed = {0};
    int result = bt_archive_read_entry(data, MODULE_MAX, &packed, error);
    if (result == 0)
        result = bt_archive_decompress(packed.data, packed.length, MODULE_MAX, &module->data, error);
    if (result == 0)
        result = bt_module_depends(module->data.data, module->data.length, &module->depends, error);
    for (size_t i = 0; result == 0 && i < module->depends.count; i++) {
        if (!is_builtin(parts, module->depends.items[i]))
            result = add_wanted(parts, module->depends.items[i], error);
    }
    return result < 0 ? bt_error_prefix(error, "module %s", module->name) : 0;
}

static int take_entry(void *context, struct archive *data, struct archive_entry *entry,
                      struct bt_error *error)
{
    struct parts *parts = context;
    char name[BT_MODULE_NAME_SIZE];
    const char *path = archive_entry_pathname(entry);
    if (path == NULL || archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != NULL)
        return 0;
    path += strncmp(path, "./", 2) == 0 ? 2 : 0;
    path += strncmp(path, "usr/lib/", 8) == 0 ? 4 : 0;
    if (strncmp(path, "boot/vmlinuz-", 13) == 0 && parts->kernel.length == 0)
        return bt_archive_read_entry(data, KERNEL_MAX, &parts->kernel, error);
    if (strncmp(path, "lib/modules/", 12) != 0)
        return 0;
    const char *base = strrchr(path, '/') + 1;
    if (strcmp(base, "modules.builtin") == 0 && parts->builtin.length == 0)
        return bt_archive_read_entry(data, MODULE_MAX, &parts->builtin, error);
    if (!bt_module_name(base, name))
        return 0;
    struct module *module = find_module(parts, name);
    return module == NULL || module->data.length > 0 ? 0 : take_module(parts, module, data, error);
}

/* Reads the package until every module is there, with what it depends on. */
static int collect(const struct bt_recipe *recipe, const char *deb_path, struct parts *parts,
                   struct bt_error *error)
{
    for (size_t i = 0; i < recipe->modules.count; i++) {
        int result = add_wanted(parts, recipe->modules.items[i], error);
        if (result < 0)
            return result;
    }
    for (int pass = 0; pass < PASSES_MAX; pass++) {
        int result = bt_archive_read_deb(deb_path, take_entry, parts, error);
        if (result < 0)
            return result;
        bool is_complete = true;
        for (size_t i = 0; i < parts->module_count; i++)
            is_complete = is_complete &&
                          (parts->modules[i].data.length > 0 || is_builtin(parts, parts->modules[i].name));
        if (is_complete && parts->kernel.length > 0)
            return 0;
    }
    for (size_t i = 0; i < parts->module_count; i++) {
        if (parts->modules[i].data.length == 0 && !is_builtin(parts, parts->modules[i].name))
            return bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "%s has no module %s", deb_path,
                           parts->modules[i].name);
    }
    return bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "%s has no boot/vmlinuz", deb_path);
}

/* Appends the module behind everything it depends on. Dependencies have no cycles in a kernel that could be
 * built; depth stops one that does. */
static void order_module(struct parts *parts, const struct module *module, int depth,
                         const struct module **order, size_t *count)
{
    for (size_t i = 0; i < *count; i++) {
        if (order[i] == module)
            return;
    }
    for (size_t i = 0; depth < MODULES_MAX && i < module->depends.count; i++) {
        const struct module *other = find_module(parts, module->depends.items[i]);
        if (other != NULL && other != module)
            order_module(parts, other, depth + 1, order, count);
    }
    if (module->data.length > 0 && *count < MODULES_MAX)
        order[(*count)++] = module;
}

static int add_program(struct bt_initrd *initrd, const char *program, const char *path,
                       struct bt_error *error)
{
    char program_path[512];
    bt_auto_buffer data = {0};
    int result = bt_program_path(program, program_path, error);
    if (result == 0)
        result = bt_file_read(program_path, PROGRAM_MAX, &data, error);
    return result < 0 ? result : bt_initrd_add_file(initrd, path, 0755, data.data, data.length, error);
}

static int fill_initrd(const struct bt_recipe *recipe, struct parts *parts, struct bt_initrd *initrd,
                       struct bt_error *error)
{
    const struct module *order[MODULES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < parts->module_count; i++)
        order_module(parts, &parts->modules[i], 0, order, &count);
    int result = add_program(initrd, recipe->init, "init", error);
    if (result == 0)
        result = bt_initrd_add_folder(initrd, "berth", error);
    if (result == 0)
        result = bt_initrd_add_folder(initrd, "berth/modules", error);
    for (size_t i = 0; result == 0 && i < count; i++) {
        char path[BT_MODULE_NAME_SIZE + 64];
        (void)snprintf(path, sizeof path, "berth/modules/%02zu-%s.ko", i, order[i]->name);
        result = bt_initrd_add_file(initrd, path, 0644, order[i]->data.data, order[i]->data.length, error);
    }
    return result;
}

static int write_part(const char *folder, const char *name, const struct bt_buffer *data,
                      struct bt_error *error)
{
    char path[768];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return bt_file_write(path, data->data, data->length, 0600, error);
}

static int write_kernel(const struct parts *parts, const char *folder, struct bt_error *error)
{
    bt_auto_buffer kernel = {0};
    /* Any failure means: a form that this qemu boots as it is (arm64, a newer payload), so no error. */
    int result = bt_vmlinux_extract(parts->kernel.data, parts->kernel.length, &kernel, NULL);
    return write_part(folder, BT_KERNEL_FILE, result == 0 ? &kernel : &parts->kernel, error);
}

int bt_kernel_build(const struct bt_recipe *recipe, const char *deb_path, const char *folder,
                    const struct bt_progress *progress, struct bt_error *error)
{
    BT_CLEANUP(parts_free) struct parts *parts = bt_new(1, sizeof *parts);
    bt_auto_buffer bytes = {.limit = INITRD_MAX};
    struct bt_initrd initrd;
    bt_progress_report(progress, "taking the kernel package apart", 0, 0);
    int result = collect(recipe, deb_path, parts, error);
    if (result < 0)
        return result;
    result = bt_initrd_open(&initrd, &bytes, error);
    if (result == 0)
        result = fill_initrd(recipe, parts, &initrd, error);
    int closed = bt_initrd_close(&initrd, result == 0 ? error : NULL);
    if (result == 0)
        result = closed;
    if (result == 0)
        result = write_part(folder, BT_INITRD_FILE, &bytes, error);
    return result == 0 ? write_kernel(parts, folder, error) : result;
}

int bt_programs_build(const struct bt_recipe *recipe, const char *folder, struct bt_error *error)
{
    bt_auto_buffer bytes = {.limit = INITRD_MAX};
    struct bt_initrd initrd;
    int result = bt_initrd_open(&initrd, &bytes, error);
    if (result == 0)
        result = bt_initrd_add_folder(&initrd, "berth", error);
    if (result == 0)
        result = bt_initrd_add_folder(&initrd, "berth/bin", error);
    for (size_t i = 0; result == 0 && i < recipe->programs.count; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "berth/bin/%.100s", recipe->programs.items[i]);
        result = add_program(&initrd, recipe->programs.items[i], path, error);
    }
    int closed = bt_initrd_close(&initrd, result == 0 ? error : NULL);
    if (result == 0)
        result = closed;
    return result == 0 ? write_part(folder, BT_INITRD_FILE, &bytes, error) : result;
}
