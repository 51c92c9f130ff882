/* Agent manifests: front matter and prompt; where they are looked for; the project's .berth folder.
 *
 * Called by manifest.c. Must follow no symbolic link that a repository ships: its target would end up in a
 * prompt.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frontend/manifest_internal.h"
#include "frontend/state.h"

#define BT_MANIFESTS_MAX 1000U

void bt_agent_manifest_free(struct bt_agent_manifest *manifest)
{
    free(manifest->source);
    free(manifest->bottle);
    free(manifest->bottle_at);
    free(manifest->prompt);
    *manifest = (struct bt_agent_manifest){0};
}

char *bt_manifest_position(const struct bt_yaml *node)
{
    return bt_string_format("%s:%u:%u", node->file, node->line, node->column);
}

int bt_manifest_refuse_unsupported(const struct bt_yaml *mapping, const char *const *unsupported,
                                   size_t count, struct bt_error *error)
{
    for (size_t i = 0; i < mapping->count; i++) {
        for (size_t k = 0; k < count; k++) {
            if (strcmp(mapping->keys[i]->text, unsupported[k]) == 0)
                return bt_yaml_fail(mapping->keys[i], error, "remove the key; it would not be enforced",
                                    "'%s' is not supported by this version", unsupported[k]);
        }
    }
    return 0;
}

/* ---- the text of a manifest -------------------------------------------------------------------------------
 */

/* The length of a line "---" with its end, or 0. */
static size_t bt_front_matter_fence(const char *text, size_t length)
{
    size_t at = 3;

    if (length < 3 || strncmp(text, "---", 3) != 0)
        return 0;
    while (at < length && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r'))
        at++;
    if (at == length)
        return at;
    return text[at] == '\n' ? at + 1 : 0;
}

/* Finds the two fences. front matter is text[*ret_front..*ret_front_end), the body begins at *ret_body. */
static int bt_front_matter_split(const char *path, const char *text, size_t length, size_t *ret_front,
                                 size_t *ret_front_end, size_t *ret_body, struct bt_error *error)
{
    size_t front = bt_front_matter_fence(text, length);

    if (front == 0)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL,
                       "begin the file with a line ---, 'harness: shell', a line ---",
                       "%s:1:1: an agent manifest begins with front matter", path);
    for (size_t at = front; at < length;) {
        const char *end = memchr(text + at, '\n', length - at);
        size_t fence = bt_front_matter_fence(text + at, length - at);
        if (fence > 0) {
            *ret_front = front;
            *ret_front_end = at;
            *ret_body = at + fence;
            return 0;
        }
        if (!end)
            break;
        at = (size_t)(end - text) + 1;
    }
    return bt_fail(error, BT_EXIT_ERROR, EINVAL, "end the front matter with a line ---",
                   "%s:1:1: the front matter has no end", path);
}

/* The body without the blank lines around it. It travels in JSON and in environments: UTF-8 without NUL. */
static int bt_agent_prompt(const char *path, const char *body, size_t length, char **ret_prompt,
                           struct bt_error *error)
{
    json_t *text;

    while (length > 0 && strchr(" \t\r\n", body[length - 1]) && body[length - 1])
        length--;
    while (length > 0 && (*body == '\n' || *body == '\r')) {
        body++;
        length--;
    }
    text = json_stringn(body, length);
    if (!text || memchr(body, '\0', length)) {
        json_decref(text);
        return bt_fail(error, BT_EXIT_ERROR, EILSEQ, "save the file as UTF-8 text",
                       "%s: the prompt is not UTF-8 text", path);
    }
    json_decref(text);
    *ret_prompt = bt_string_copy_length(body, length);
    return 0;
}

static int bt_agent_harness(const struct bt_yaml *root, enum bt_harness *ret_harness, struct bt_error *error)
{
    const char *text = NULL;
    const struct bt_yaml *at = bt_yaml_get(root, "harness");
    const char *nearest;
    int r = bt_yaml_string(root, "harness", NULL, &text, error);

    if (r < 0)
        return r;
    if (!text)
        return bt_yaml_fail(root, error, "add harness: shell", "an agent manifest needs 'harness'");
    if (bt_harness_find(text, ret_harness))
        return 0;
    nearest = bt_nearest(text, bt_harness_names(), BT_HARNESS_MAX);
    return bt_yaml_fail(at, error, "known: claude, codex, pi, shell", "unknown harness '%.40s'%s%s%s", text,
                        nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

static int bt_agent_from_yaml(const struct bt_yaml *root, struct bt_agent_manifest *manifest,
                              struct bt_error *error)
{
    static const char *const known[] = {"harness", "bottle", "skills"};
    static const char *const unsupported[] = {"skills"};
    const char *bottle = NULL;
    int r = bt_yaml_check_keys(root, known, BT_ARRAY_LENGTH(known), error);

    if (r == 0)
        r = bt_manifest_refuse_unsupported(root, unsupported, BT_ARRAY_LENGTH(unsupported), error);
    if (r == 0)
        r = bt_agent_harness(root, &manifest->harness, error);
    if (r == 0)
        r = bt_yaml_string(root, "bottle", NULL, &bottle, error);
    if (r < 0 || !bottle)
        return r;
    if (!bt_name_is_valid(bottle))
        return bt_yaml_fail(bt_yaml_get(root, "bottle"), error,
                            "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                            "'%.60s' cannot be the name of a bottle", bottle);
    manifest->bottle = bt_string_copy(bottle);
    manifest->bottle_at = bt_manifest_position(bt_yaml_get(root, "bottle"));
    return 0;
}

int bt_agent_manifest_parse(const char *path, const char *text, size_t length,
                            struct bt_agent_manifest *ret_manifest, struct bt_error *error)
{
    struct bt_agent_manifest manifest = {0};
    struct bt_yaml *root = NULL;
    size_t front = 0, front_end = 0, body = 0;
    int r = bt_front_matter_split(path, text, length, &front, &front_end, &body, error);

    if (r == 0)
        r = bt_yaml_parse(path, text + front, front_end - front, 2, &root, error);
    if (r == 0)
        r = bt_agent_from_yaml(root, &manifest, error);
    bt_yaml_free(root);
    if (r == 0)
        r = bt_agent_prompt(path, text + body, length - body, &manifest.prompt, error);
    if (r < 0) {
        bt_agent_manifest_free(&manifest);
        return r;
    }
    manifest.source = bt_string_copy(path);
    *ret_manifest = manifest;
    return 0;
}

/* ---- the project ------------------------------------------------------------------------------------------
 */

static int bt_project_check(int fd, const char *path, struct bt_error *error)
{
    struct stat status;

    if (fstat(fd, &status) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot look at %s: %s", path, strerror(errno));
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return bt_fail(error, BT_EXIT_ERROR, EPERM, "remove it, or make it your own",
                       "%s belongs to another user (uid %u); its agents and policy are not trusted", path,
                       (unsigned)status.st_uid);
    return 0;
}

int bt_project_open(const char *project_folder, int *ret_fd, char ret_path[4096], struct bt_error *error)
{
    bt_auto_free char *folder = realpath(project_folder, NULL);
    bt_auto_fd fd = -1;
    char path[4096];
    char *slash;
    int r;

    *ret_fd = -1;
    if (!folder)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot enter %s: %s", project_folder,
                       strerror(errno));
    for (;;) {
        if (snprintf(path, sizeof(path), "%s/.berth", strcmp(folder, "/") == 0 ? "" : folder) >=
            (int)sizeof(path))
            return bt_fail(error, BT_EXIT_ERROR, ENAMETOOLONG, NULL, "the path %s is too long", folder);
        fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            break;
        if (errno != ENOENT)
            return bt_fail(error, BT_EXIT_ERROR, errno,
                           errno == EACCES ? "make its folder readable for yourself"
                                           : "it must be a folder of your own, not a symbolic link",
                           "cannot enter %s: %s", path, strerror(errno));
        slash = strrchr(folder, '/');
        if (!slash || strcmp(folder, "/") == 0)
            return 0;
        slash[slash == folder ? 1 : 0] = '\0';
    }
    r = bt_project_check(fd, path, error);
    if (r < 0)
        return r;
    memcpy(ret_path, path, sizeof(path));
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

int bt_project_read(int folder_fd, const char *folder, const char *name, struct bt_buffer *ret_text,
                    struct bt_error *error)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    bt_auto_fd fd = (int)syscall(SYS_openat2, folder_fd, name, &how, sizeof(how));
    bt_auto_buffer text = {.limit = BT_MANIFEST_BYTES_MAX};
    struct stat status;
    char part[8192];
    ssize_t length;

    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno,
                       errno == ELOOP || errno == EXDEV ? "a project's files cannot be symbolic links" : NULL,
                       "cannot read %s/%s: %s", folder, name, strerror(errno));
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "%s/%s is not a file", folder, name);
    while ((length = read(fd, part, sizeof(part))) > 0) {
        if (bt_buffer_add(&text, part, (size_t)length) < 0)
            return bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "%s/%s is larger than %u bytes", folder, name,
                           BT_MANIFEST_BYTES_MAX);
    }
    if (length < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s/%s: %s", folder, name,
                       strerror(errno));
    *ret_text = text;
    text = (struct bt_buffer){0};
    return 0;
}

/* ---- finding them -----------------------------------------------------------------------------------------
 */

static int bt_agent_builtin(const char *name, struct bt_agent_manifest *ret_manifest)
{
    enum bt_harness harness;

    if (!bt_harness_find(name, &harness))
        return -ENOENT;
    *ret_manifest = (struct bt_agent_manifest){
        .source = bt_string_copy("built in"), .harness = harness, .prompt = bt_string_copy("")};
    return 0;
}

static int bt_agent_from_project(const char *project_folder, const char *name,
                                 struct bt_agent_manifest *ret_manifest, struct bt_error *error)
{
    bt_auto_free char *relative = bt_string_format("agents/%s.md", name);
    bt_auto_free char *path = NULL;
    bt_auto_buffer text = {0};
    bt_auto_fd fd = -1;
    char folder[4096];
    int r;

    if (!project_folder)
        return -ENOENT;
    r = bt_project_open(project_folder, &fd, folder, error);
    if (r < 0)
        return r == -ENOENT ? -EIO : r;
    if (fd < 0)
        return -ENOENT;
    r = bt_project_read(fd, folder, relative, &text, error);
    if (r < 0)
        return r;
    path = bt_string_format("%s/%s", folder, relative);
    r = bt_agent_manifest_parse(path, text.data ? text.data : "", text.length, ret_manifest, error);
    if (r == 0)
        ret_manifest->is_project = true;
    return r;
}

static int bt_agent_missing(const struct bt_paths *paths, const char *project_folder, const char *name,
                            struct bt_error *error)
{
    bt_auto_list names = {0};
    const char *nearest = NULL;
    char hint[700];

    if (bt_agent_names(paths, project_folder, &names, NULL) == 0)
        nearest = bt_nearest(name, (const char *const *)names.items, names.count);
    if (nearest)
        snprintf(hint, sizeof(hint), "did you mean '%s'?", nearest);
    else
        snprintf(hint, sizeof(hint),
                 "make %s/agents/%s.md, or use a built-in agent: shell, claude, codex, pi", paths->config,
                 name);
    return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, hint, "there is no agent manifest '%.64s'", name);
}

int bt_agent_manifest_find(const struct bt_paths *paths, const char *project_folder, const char *name,
                           struct bt_agent_manifest *ret_manifest, struct bt_error *error)
{
    bt_auto_free char *path = NULL;
    bt_auto_buffer text = {0};
    int r;

    if (!bt_name_is_valid(name))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                       "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                       "'%.64s' cannot be the name of an agent manifest", name);
    path = bt_string_format("%s/agents/%s.md", paths->config, name);
    r = bt_file_read(path, BT_MANIFEST_BYTES_MAX, &text, error);
    if (r == 0)
        return bt_agent_manifest_parse(path, text.data ? text.data : "", text.length, ret_manifest, error);
    if (r != -ENOENT)
        return r;
    if (bt_agent_builtin(name, ret_manifest) == 0)
        return 0;
    r = bt_agent_from_project(project_folder, name, ret_manifest, error);
    return r == -ENOENT ? bt_agent_missing(paths, project_folder, name, error) : r;
}

/* Adds the names of files <name><suffix> in a folder. Takes the descriptor. */
static void bt_names_scan(int folder_fd, const char *suffix, struct bt_list *names)
{
    DIR *folder = folder_fd >= 0 ? fdopendir(folder_fd) : NULL;
    const struct dirent *entry;

    if (!folder) {
        bt_fd_close(&folder_fd);
        return;
    }
    while ((entry = readdir(folder)) && names->count < BT_MANIFESTS_MAX) {
        char name[BT_NAME_SIZE];
        size_t length = strlen(entry->d_name), tail = strlen(suffix);
        if (length <= tail || length - tail >= sizeof(name) ||
            strcmp(entry->d_name + length - tail, suffix) != 0)
            continue;
        memcpy(name, entry->d_name, length - tail);
        name[length - tail] = '\0';
        if (bt_name_is_valid(name) && !bt_list_has(names, name))
            bt_list_add(names, name);
    }
    closedir(folder);
}

int bt_agent_names(const struct bt_paths *paths, const char *project_folder, struct bt_list *ret_names,
                   struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/agents", paths->config);
    char folder[4096];
    int fd = -1, r = 0;

    for (unsigned i = 0; i < BT_HARNESS_MAX; i++)
        bt_list_add(ret_names, bt_harness_names()[i]);
    bt_names_scan(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), ".md", ret_names);
    if (project_folder)
        r = bt_project_open(project_folder, &fd, folder, error);
    if (r == 0 && fd >= 0) {
        bt_names_scan(openat(fd, "agents", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), ".md",
                      ret_names);
        bt_fd_close(&fd);
    }
    return r;
}

int bt_bottle_names(const struct bt_paths *paths, struct bt_list *ret_names, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/bottles", paths->config);

    (void)error;
    bt_list_add(ret_names, BT_BOTTLE_NONE);
    for (unsigned i = 0; i < BT_HARNESS_MAX; i++)
        if (bt_harness_bottle((enum bt_harness)i) != NULL)
            bt_list_add(ret_names, bt_harness_bottle((enum bt_harness)i));
    bt_names_scan(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), ".yaml", ret_names);
    return 0;
}
