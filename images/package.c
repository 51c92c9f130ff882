/* Finds and downloads Debian packages by apt, as the calling user. See package.h.
 *
 * Called by the kernel builder; the disk builder uses its list of sources. Must not change the host's apt
 * state: lists that have to be fetched go into a folder of the caller.
 */
#include "images/package.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "images/progress.h"
#include "lib/spawn.h"

#define SOURCES_MAX (256UL * 1024)
#define DOWNLOAD_TIMEOUT_MS (15 * 60 * 1000)
#define HOPS_MAX 4
#define NETWORK_HINT                                                                                         \
    "check the network and the apt sources of this machine; 'apt-get update' as root must work"

/* ---- sources ---- */

static int is_source_file(const struct dirent *entry)
{
    static const char *const suffixes[] = {".list", ".sources"};
    size_t length = strlen(entry->d_name);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(suffixes); i++) {
        size_t suffix = strlen(suffixes[i]);
        if (length > suffix && strcmp(entry->d_name + length - suffix, suffixes[i]) == 0)
            return 1;
    }
    return 0;
}

/* Whether a line is neither blank nor a comment. */
static bool has_content(const char *text)
{
    bool is_line_start = true;
    for (; *text != '\0'; text++) {
        if (is_line_start && *text == '#') {
            text += strcspn(text, "\n");
            if (*text == '\0')
                return false;
        } else if (*text != ' ' && *text != '\t' && *text != '\n' && *text != '\r') {
            return true;
        }
        is_line_start = *text == '\n';
    }
    return false;
}

static int add_source(const char *path, struct bt_list *files, struct bt_buffer *text, struct bt_error *error)
{
    bt_auto_buffer content = {0};
    struct bt_error missing = {0};
    int result = bt_file_read(path, SOURCES_MAX, &content, &missing);
    if (result == -ENOENT || result == -EACCES) /* what this user cannot read, apt cannot either */
        return 0;
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, missing.hint,
                       "cannot use this machine's apt sources: %s", missing.message);
    if (content.data == NULL || !has_content(content.data))
        return 0;
    bt_list_add(files, path);
    if (bt_buffer_add(text, content.data, content.length) < 0 || bt_buffer_add_text(text, "\n") < 0)
        return bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "this machine's apt sources are too large");
    return 0;
}

int bt_package_sources(struct bt_list *ret_files, struct bt_buffer *ret_text, struct bt_error *error)
{
    bt_auto_list files = {0};
    bt_auto_buffer text = {.limit = SOURCES_MAX * 4};
    struct dirent **entries = NULL;
    int result = add_source("/etc/apt/sources.list", &files, &text, error);
    int count = scandir("/etc/apt/sources.list.d", &entries, is_source_file, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512];
        (void)snprintf(path, sizeof path, "/etc/apt/sources.list.d/%s", entries[i]->d_name);
        free(entries[i]);
        if (result == 0)
            result = add_source(path, &files, &text, error);
    }
    free(entries);
    if (result < 0)
        return result;
    if (files.count == 0)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT,
                       "images are built on a Debian machine, from its own apt sources",
                       "this machine has no apt sources in /etc/apt");
    *ret_files = files;
    *ret_text = text;
    memset(&files, 0, sizeof files);
    memset(&text, 0, sizeof text);
    return 0;
}

void bt_package_environment(const char *temporary, struct bt_list *environment)
{
    static const char *const kept[] = {"PATH",        "HOME",        "TMPDIR",   "http_proxy",
                                       "https_proxy", "HTTPS_PROXY", "no_proxy", "ftp_proxy"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(kept); i++) {
        const char *value = strcmp(kept[i], "TMPDIR") == 0 && temporary != NULL ? temporary : getenv(kept[i]);
        if (value != NULL)
            bt_list_add_format(environment, "%s=%s", kept[i], value);
    }
    bt_list_add(environment, "LC_ALL=C.UTF-8");
    bt_list_add(environment, "DEBIAN_FRONTEND=noninteractive");
}

/* ---- apt ---- */

struct apt {
    const char *folder;     /* where it runs */
    struct bt_list options; /* put behind the command's name */
};

static int run_apt(const struct apt *apt, const char *const *words, struct bt_buffer *ret_output,
                   struct bt_error *error)
{
    bt_auto_list arguments = {0};
    bt_auto_list environment = {0};
    bt_list_add(&arguments, words[0]);
    for (size_t i = 0; i < apt->options.count; i++)
        bt_list_add(&arguments, apt->options.items[i]);
    for (size_t i = 1; words[i] != NULL; i++)
        bt_list_add(&arguments, words[i]);
    bt_package_environment(NULL, &environment);
    struct bt_spawn spawn = {.arguments = (const char *const *)arguments.items,
                             .environment = (const char *const *)environment.items,
                             .folder = apt->folder,
                             .timeout_ms = DOWNLOAD_TIMEOUT_MS};
    struct bt_spawn_result run = {0};
    int result = bt_spawn_check(&spawn, &run, error);
    if (result < 0)
        return result;
    if (ret_output != NULL) {
        *ret_output = run.output;
        memset(&run.output, 0, sizeof run.output);
    }
    bt_spawn_result_free(&run);
    return 0;
}

/* The first word of a Depends field's entry that starts with prefix, or NULL. The caller owns it. */
static char *find_dependency(const char *record, const char *prefix)
{
    const char *field = strncmp(record, "Depends: ", 9) == 0 ? record : strstr(record, "\nDepends: ");
    if (field == NULL)
        return NULL;
    field = strchr(field, ':') + 1;
    const char *end = field + strcspn(field, "\n");
    while (field < end) {
        field += strspn(field, " ,|");
        size_t length = strcspn(field, " ,|(\n");
        if (length > strlen(prefix) && strncmp(field, prefix, strlen(prefix)) == 0)
            return bt_string_copy_length(field, length);
        field += length;
        field += strcspn(field, ",|\n");
    }
    return NULL;
}

/* From a metapackage to the package that holds the files. *ret_name is owned by the caller. */
static int resolve(const struct apt *apt, const char *package, const char *follow, char **ret_name,
                   struct bt_error *error)
{
    bt_auto_free char *name = bt_string_copy(package);
    for (int hop = 0; hop < HOPS_MAX; hop++) {
        bt_auto_buffer record = {0};
        const char *const words[] = {"apt-cache", "show", "--no-all-versions", name, NULL};
        int result = run_apt(apt, words, &record, error);
        if (result < 0)
            return result;
        char *next = record.data == NULL ? NULL : find_dependency(record.data, follow);
        if (next == NULL) {
            *ret_name = BT_TAKE(name);
            return 0;
        }
        free(name);
        name = next;
    }
    return bt_fail(error, BT_EXIT_ERROR, ELOOP, NULL, "package %s does not lead to a real one", package);
}

bool bt_package_find(const char *folder, char ret_path[768])
{
    DIR *stream = opendir(folder);
    const struct dirent *entry;
    bool is_found = false;
    while (stream != NULL && !is_found && (entry = readdir(stream)) != NULL) {
        const char *suffix = strrchr(entry->d_name, '.');
        if (suffix == NULL || strcmp(suffix, ".deb") != 0)
            continue;
        is_found = snprintf(ret_path, 768, "%s/%s", folder, entry->d_name) < 768;
    }
    if (stream != NULL)
        (void)closedir(stream);
    return is_found;
}

int bt_package_keep(const char *path, const char *folder, const char *kept)
{
    char old[768];
    while (bt_package_find(folder, old)) {
        if (unlink(old) < 0)
            return -errno;
    }
    return rename(path, kept) < 0 ? -errno : 0;
}

static int fetch(const struct apt *apt, const char *package, const char *follow,
                 const struct bt_progress *progress, char ret_path[768], struct bt_error *error)
{
    bt_auto_free char *name = NULL;
    bt_progress_report(progress, "finding the kernel package", 0, 0);
    int result = resolve(apt, package, follow, &name, error);
    if (result < 0)
        return result;
    bt_auto_free char *step = bt_string_format("downloading %s", name);
    bt_progress_report(progress, step, 0, 0);
    const char *const words[] = {"apt-get", "-q", "download", name, NULL};
    result = run_apt(apt, words, NULL, error);
    if (result < 0)
        return result;
    if (!bt_package_find(apt->folder, ret_path))
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "apt-get left no package in %s", apt->folder);
    return 0;
}

/* Package lists of our own, from the host's sources. */
static int update_lists(struct apt *apt, const char *scratch, const struct bt_progress *progress,
                        struct bt_error *error)
{
    static const char *const folders[] = {"lists/partial", "cache/archives/partial"};
    /* Hooks of the host (cleaning up after docker builds, telling PackageKit) would fail as a normal user. */
    static const char settings[] = "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n"
                                   "#clear APT::Update::Post-Invoke-Success;\nAPT::Sandbox::User \"root\";\n"
                                   "Acquire::Languages \"none\";\n";
    char path[768];
    for (size_t i = 0; i < BT_ARRAY_LENGTH(folders); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", scratch, folders[i]);
        int result = bt_folder_make(path, 0700, error);
        if (result < 0)
            return result;
    }
    (void)snprintf(path, sizeof path, "%s/apt.conf", scratch);
    int result = bt_file_write(path, settings, sizeof settings - 1, 0600, error);
    if (result < 0)
        return result;
    bt_list_add(&apt->options, "-c");
    bt_list_add(&apt->options, path);
    bt_list_add(&apt->options, "-o");
    bt_list_add_format(&apt->options, "Dir::State::Lists=%s/lists", scratch);
    bt_list_add(&apt->options, "-o");
    bt_list_add_format(&apt->options, "Dir::Cache=%s/cache", scratch);
    bt_progress_report(progress, "fetching package lists", 0, 0);
    const char *const words[] = {"apt-get", "-q", "update", "--error-on=any", NULL};
    return run_apt(apt, words, NULL, error);
}

int bt_package_download(const char *package, const char *follow, const char *folder,
                        const struct bt_progress *progress, char ret_path[768], struct bt_error *error)
{
    struct apt apt = {.folder = folder};
    int result = fetch(&apt, package, follow, progress, ret_path, error);
    if (result == -ENOENT && access("/usr/bin/apt-get", X_OK) < 0)
        return result;
    if (result < 0) {
        result = update_lists(&apt, folder, progress, error);
        if (result == 0)
            result = fetch(&apt, package, follow, progress, ret_path, error);
        if (result < 0 && error != NULL) {
            (void)snprintf(error->hint, sizeof error->hint, "%s", NETWORK_HINT);
            (void)bt_error_prefix(error, "cannot download %s", package);
        }
    }
    bt_list_free(&apt.options);
    return result;
}
