/* Builds root disks with mmdebstrap. See disk.h.
 *
 * Called by the image cache. Runs mmdebstrap in its unshare mode, whoever calls: as a normal user it maps ids
 * through newuidmap, as uid 0 it only takes a mount namespace of its own, so that its mounts end with it.
 */
#include "images/disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "images/ext4_tar.h"
#include "images/package.h"
#include "images/producer.h"
#include "images/progress.h"
#include "images/scratch.h"
#include "lib/spawn.h"

#define CONFIG_MAX (64UL * 1024)
#define MESSAGE_MAX 600

/* What mmdebstrap leaves of this machine (its sources and proxies, which may hold passwords) and what belongs
 * to one machine and not to an image. */
static const char *const always_excluded[] = {
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d/*",
    "etc/machine-id",
    "etc/hostname",
    "etc/resolv.conf",
};

/* How this machine's apt reaches its sources: proxies, and checks that its administrator relaxed. */
static bool is_wanted_setting(const char *line)
{
    static const char *const prefixes[] = {"Acquire::http::", "Acquire::https::", "Acquire::Check-",
                                           "Acquire::Force", "Acquire::Retries"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(prefixes); i++) {
        if (strncmp(line, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    }
    return false;
}

static int read_apt_settings(struct bt_buffer *ret_settings, struct bt_error *error)
{
    static const char *const arguments[] = {"apt-config", "dump", NULL};
    struct bt_spawn spawn = {.arguments = arguments, .timeout_ms = 30000};
    struct bt_spawn_result run = {0};
    int result = bt_spawn_check(&spawn, &run, error);
    if (result < 0)
        return result;
    char *saved = NULL;
    for (char *line = strtok_r(run.output.data, "\n", &saved); result == 0 && line != NULL;
         line = strtok_r(NULL, "\n", &saved)) {
        if (is_wanted_setting(line))
            result = bt_buffer_add_format(ret_settings, "%s\n", line);
    }
    bt_spawn_result_free(&run);
    if (result == 0)
        result = bt_buffer_add_text(ret_settings, "Acquire::Languages \"none\";\n");
    return result == 0
               ? 0
               : bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "this machine's apt settings are too large");
}

/* The settings as an anonymous file: mmdebstrap reads it under other ids, to which the user's folders are
 * closed, and nothing of it is on a command line. */
static int share_settings(int *ret_settings_fd, struct bt_error *error)
{
    bt_auto_buffer settings = {.limit = CONFIG_MAX};
    int result = read_apt_settings(&settings, error);
    if (result < 0)
        return result;
    bt_auto_fd settings_fd = memfd_create("apt.conf", MFD_CLOEXEC);
    result = settings_fd < 0 ? -errno : bt_write_all(settings_fd, settings.data, settings.length);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot pass on apt's settings: %s",
                       strerror(-result));
    *ret_settings_fd = bt_fd_take(&settings_fd);
    return 0;
}

static void make_arguments(const struct bt_recipe *recipe, const struct bt_list *sources, int settings_fd,
                           struct bt_list *arguments)
{
    bt_list_add(arguments, "mmdebstrap");
    bt_list_add(arguments, "--mode=unshare");
    bt_list_add(arguments, "--format=tar");
    bt_list_add_format(arguments, "--variant=%s", recipe->variant);
    for (size_t i = 0; i < recipe->packages.count; i++)
        bt_list_add_format(arguments, "--include=%s", recipe->packages.items[i]);
    bt_list_add_format(arguments, "--aptopt=/proc/self/fd/%d", settings_fd);
    bt_list_add(arguments, "--dpkgopt=force-unsafe-io");
    /* Documentation is not even unpacked; the writer leaves the rest of the list out. Folders like
     * /usr/share/man/man1 stay until then: packages' scripts put links into them. */
    for (size_t i = 0; i < recipe->exclude.count; i++) {
        const char *pattern = recipe->exclude.items[i];
        size_t length = strlen(pattern);
        if (strncmp(pattern, "usr/share/", 10) == 0 && strcmp(pattern + length - 2, "/*") == 0)
            bt_list_add_format(arguments, "--dpkgopt=path-exclude=/%s/*", pattern);
    }
    bt_list_add(arguments, recipe->suite);
    bt_list_add(arguments, "-");
    for (size_t i = 0; i < sources->count; i++)
        bt_list_add(arguments, sources->items[i]);
}

/* What to do about what mmdebstrap said. */
static const char *find_hint(const char *said, int *ret_code)
{
    static const struct {
        const char *text;
        int code;
        const char *hint;
    } known[] = {
        {"No space left on device", ENOSPC, "free some space (also in /tmp or $TMPDIR) and try again"},
        {"no space left", ENOSPC, "free some space (also in /tmp or $TMPDIR) and try again"},
        {"enough free space", ENOSPC, "free some space (also in /tmp or $TMPDIR) and try again"},
        {"subuid", EPERM,
         "an administrator must give this account ids: usermod --add-subuids 100000-165535 --add-subgids "
         "100000-165535 NAME"},
        {"subgid", EPERM,
         "an administrator must give this account ids: usermod --add-subuids 100000-165535 --add-subgids "
         "100000-165535 NAME"},
        {"newuidmap", EPERM, "berth doctor says whether the package uidmap or sub-ids are missing"},
        {"newgidmap", EPERM, "berth doctor says whether the package uidmap or sub-ids are missing"},
        {"Could not resolve", EHOSTUNREACH, "check the network and this machine's apt sources"},
        {"Temporary failure", EHOSTUNREACH, "check the network and this machine's apt sources"},
        {"Failed to fetch", EHOSTUNREACH, "check the network and this machine's apt sources"},
        {"Could not connect", EHOSTUNREACH, "check the network and this machine's apt sources"},
        {"Unable to locate package", ENOENT, "check the package names of the recipe"},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(known); i++) {
        if (strstr(said, known[i].text) != NULL) {
            *ret_code = known[i].code;
            return known[i].hint;
        }
    }
    *ret_code = EIO;
    return NULL;
}

/* Where the reason starts in what it said: the complaints that follow are about this one. */
static const char *find_reason(const char *said)
{
    static const char *const starts[] = {"E: ", "dpkg: error", "update-alternatives: error", "W: /etc/sub"};
    const char *reason = NULL;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(starts); i++) {
        const char *found = strstr(said, starts[i]);
        if (found != NULL && (reason == NULL || found < reason))
            reason = found;
    }
    return reason == NULL ? said : reason;
}

static int fail_producer(struct bt_producer *producer, int status, struct bt_error *error)
{
    int code;
    const char *hint = find_hint(producer->tail, &code);
    const char *reason = find_reason(producer->tail);
    for (char *at = strchr(producer->tail, '\n'); at != NULL; at = strchr(at + 1, '\n'))
        *at = ' ';
    return bt_fail(error, BT_EXIT_ERROR, code, hint, "mmdebstrap failed with status %d: %.*s", status,
                   MESSAGE_MAX, *reason == '\0' ? "it said nothing" : reason);
}

/* ---- accounts ---- */

enum { ADDITION_PASSWD, ADDITION_GROUP, ADDITION_SHADOW, ADDITION_GSHADOW, ADDITION_COUNT };

struct plan {
    struct bt_list exclude;
    char *lines[ADDITION_COUNT];
    struct bt_ext4_addition additions[ADDITION_COUNT];
    struct bt_ext4_folder *folders;
    struct bt_ext4_rules rules;
};

static void plan_free(struct plan *plan)
{
    bt_list_free(&plan->exclude);
    for (size_t i = 0; i < ADDITION_COUNT; i++)
        free(plan->lines[i]);
    free(plan->folders);
}

/* The account is written into passwd(5) and its kin while they pass: nothing has to run in the image. It has
 * no password ("*" matches none). */
static void plan_account(const struct bt_recipe *recipe, struct plan *plan)
{
    static const char *const paths[ADDITION_COUNT] = {"etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"};
    const char *name = recipe->user_name;
    plan->lines[ADDITION_PASSWD] = bt_string_format("%s:x:%u:%u::%s:%s\n", name, recipe->user_uid,
                                                    recipe->user_gid, recipe->user_home, recipe->user_shell);
    plan->lines[ADDITION_GROUP] = bt_string_format("%s:x:%u:\n", name, recipe->user_gid);
    plan->lines[ADDITION_SHADOW] = bt_string_format("%s:*:10957:0:99999:7:::\n", name);
    plan->lines[ADDITION_GSHADOW] = bt_string_format("%s:!::\n", name);
    for (size_t i = 0; i < ADDITION_COUNT; i++)
        plan->additions[i] = (struct bt_ext4_addition){paths[i], plan->lines[i]};
    plan->rules.additions = plan->additions;
    plan->rules.addition_count = ADDITION_COUNT;
    plan->folders = bt_new(recipe->folders.count + 1, sizeof *plan->folders);
    plan->rules.folders = plan->folders;
    for (size_t i = 0; i <= recipe->folders.count; i++) {
        const char *path = i == 0 ? recipe->user_home : recipe->folders.items[i - 1];
        path += strspn(path, "/");
        if (*path != '\0')
            plan->folders[plan->rules.folder_count++] =
                (struct bt_ext4_folder){path, recipe->user_uid, recipe->user_gid, 0755};
    }
}

static void make_plan(const struct bt_recipe *recipe, struct plan *plan)
{
    for (size_t i = 0; i < BT_ARRAY_LENGTH(always_excluded); i++)
        bt_list_add(&plan->exclude, always_excluded[i]);
    for (size_t i = 0; i < recipe->exclude.count; i++)
        bt_list_add(&plan->exclude, recipe->exclude.items[i]);
    plan->rules.exclude = (const char *const *)plan->exclude.items;
    plan->rules.exclude_count = plan->exclude.count;
    plan->rules.drops_privilege = !recipe->keeps_privilege;
    if (recipe->user_name != NULL)
        plan_account(recipe, plan);
}

/* ---- the build ---- */

static int start(const struct bt_recipe *recipe, const struct bt_list *sources, const char *scratch,
                 const struct bt_progress *progress, struct bt_producer *ret_producer, struct bt_error *error)
{
    bt_auto_list arguments = {0};
    bt_auto_list environment = {0};
    bt_auto_fd settings_fd = -1;
    int result = share_settings(&settings_fd, error);
    if (result < 0)
        return result;
    make_arguments(recipe, sources, settings_fd, &arguments);
    bt_package_environment(scratch, &environment);
    result = bt_producer_start((const char *const *)arguments.items, (const char *const *)environment.items,
                               settings_fd, progress, ret_producer, error);
    if (result == -ENOENT)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, "install the package mmdebstrap",
                       "cannot start mmdebstrap: it is not installed");
    return result;
}

static int write_image(const struct bt_recipe *recipe, struct bt_producer *producer, const char *path,
                       const struct bt_progress *progress, struct bt_error *error)
{
    BT_CLEANUP(plan_free) struct plan plan = {0};
    bt_auto_archive *archive = archive_read_new();
    if (archive == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot read the archive: out of memory");
    make_plan(recipe, &plan);
    (void)archive_read_support_format_tar(archive);
    if (bt_producer_open_archive(producer, archive) != ARCHIVE_OK)
        return bt_fail(error, BT_EXIT_ERROR, bt_archive_errno(archive), NULL, "cannot read the archive: %s",
                       archive_error_string(archive));
    int result =
        bt_ext4_write_archive(archive, path, recipe->size_bytes, recipe->name, &plan.rules, progress, error);
    if (result == 0)
        bt_producer_drain(producer);
    return result;
}

int bt_disk_build(const struct bt_recipe *recipe, const struct bt_list *sources, const char *folder,
                  const struct bt_progress *progress, struct bt_error *error)
{
    char path[800], scratch[512];
    bt_auto_free struct bt_producer *producer = bt_new(1, sizeof *producer);
    (void)snprintf(path, sizeof path, "%s/" BT_DISK_FILE, folder);
    int result = bt_scratch_make(folder, scratch, error);
    if (result < 0)
        return result;
    result = start(recipe, sources, scratch, progress, producer, error);
    if (result == 0) {
        result = write_image(recipe, producer, path, progress, error);
        bool is_stopped = !producer->is_ended;
        int status = bt_producer_end(producer);
        /* Its own failure explains a stream that ends early; when we stopped it, our failure does. */
        if (status != 0 && !is_stopped)
            result = fail_producer(producer, status, error);
    }
    bt_scratch_remove(folder);
    return result;
}
