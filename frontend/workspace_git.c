/* git on repositories that berth makes and configures itself.
 *
 * Called by the other files of the workspace module. Must never run git with a repository, configuration,
 * hook or filter that the user's project or an agent could have written: GIT_DIR is always one of berth's
 * own, the working folder is "/", and the environment is the list below and nothing else (git(1),
 * "ENVIRONMENT VARIABLES").
 */
#include "frontend/workspace_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUT_LIMIT (64UL * 1024 * 1024)

void bt_workspace_git_environment(const char *repository, const char *work_tree, struct bt_list *environment)
{
    static const char *const fixed[] = {
        "GIT_CONFIG_NOSYSTEM=1",
        "GIT_CONFIG_SYSTEM=/dev/null",
        "GIT_CONFIG_GLOBAL=/dev/null",
        "GIT_ATTR_NOSYSTEM=1",
        "GIT_TERMINAL_PROMPT=0",
        "GIT_OPTIONAL_LOCKS=0",
        "GIT_ALLOW_PROTOCOL=none",
        "GIT_PROTOCOL_FROM_USER=0",
        "GIT_NO_REPLACE_OBJECTS=1",
        "GIT_LITERAL_PATHSPECS=1",
        "GIT_NO_LAZY_FETCH=1",
        "GIT_PAGER=cat",
        "XDG_CONFIG_HOME=/dev/null",
        "HOME=/dev/null",
        "LC_ALL=C",
    };
    const char *path = getenv("PATH");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(fixed); i++)
        bt_list_add(environment, fixed[i]);
    bt_list_add_format(environment, "PATH=%s", path != NULL ? path : "/usr/local/bin:/usr/bin:/bin");
    bt_list_add_format(environment, "GIT_DIR=%s", repository);
    if (work_tree != NULL)
        bt_list_add_format(environment, "GIT_WORK_TREE=%s", work_tree);
}

static int write_below(const char *folder, const char *name, const char *text, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/%s", folder, name);
    return bt_file_write(path, text, strlen(text), 0644, error);
}

/* What the repository says of itself. attributesFile and excludesFile: not those of the user's home. */
static char *configuration(bool has_work_tree, const char *object_format)
{
    bool is_sha1 = strcmp(object_format, "sha1") == 0;
    return bt_string_format("[core]\n"
                            "\trepositoryformatversion = %d\n"
                            "\tfilemode = true\n"
                            "\tbare = %s\n"
                            "%s%s%s"
                            "%s",
                            is_sha1 ? 0 : 1, has_work_tree ? "false" : "true",
                            has_work_tree ? "" : "\tattributesFile = /dev/null\n",
                            has_work_tree ? "" : "\thooksPath = /dev/null\n",
                            has_work_tree ? "[user]\n\tname = agent\n\temail = agent@berth.invalid\n"
                                          : "\tbigFileThreshold = 32m\n"
                                            "[gc]\n\tauto = 0\n"
                                            "[fastimport]\n\tunpackLimit = 1\n"
                                            "[merge]\n\tdirectoryRenames = false\n\tconflictStyle = merge\n",
                            is_sha1 ? "" : "[extensions]\n\tobjectFormat = sha256\n");
}

int bt_workspace_repository_make(const char *path, bool has_work_tree, const char *object_format,
                                 struct bt_error *error)
{
    static const char *const folders[] = {"objects/pack", "objects/info", "refs/heads", "refs/berth", "info"};
    /* The file with the highest precedence (gitattributes(5)): whatever a .gitattributes asks for, bytes stay
     * bytes, and no filter, diff or merge driver has a name. */
    static const char attributes[] =
        "* -text -eol -ident -filter -working-tree-encoding -crlf !diff !merge\n";
    int result = 0;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(folders) && result == 0; i++) {
        bt_auto_free char *folder = bt_string_format("%s/%s", path, folders[i]);
        result = bt_folder_make(folder, 0755, error);
    }
    bt_auto_free char *text = configuration(has_work_tree, object_format);
    if (result == 0)
        result = write_below(path, "config", text, error);
    if (result == 0)
        result = write_below(path, "info/attributes", attributes, error);
    /* Last: without HEAD it is no repository. */
    return result < 0 ? result : write_below(path, "HEAD", "ref: refs/heads/main\n", error);
}

int bt_workspace_git_run(const struct bt_workspace_git *git, struct bt_buffer *ret_output, int *ret_status,
                         struct bt_error *error)
{
    bt_auto_list arguments = {0};
    bt_auto_list environment = {0};
    bt_auto_free char *repository = bt_string_format("%s/" BT_WORKSPACE_REPOSITORY, git->state_folder);
    bt_workspace_git_environment(repository, NULL, &environment);
    bt_list_add(&arguments, "git");
    for (size_t i = 0; git->arguments[i] != NULL; i++)
        bt_list_add(&arguments, git->arguments[i]);
    const struct bt_spawn spawn = {
        .arguments = (const char *const *)arguments.items,
        .environment = (const char *const *)environment.items,
        .folder = "/",
        .input = git->input,
        .input_length = git->input_length,
        .output_limit = git->output_limit == 0 ? OUTPUT_LIMIT : git->output_limit,
        .on_output = git->on_output,
        .context = git->context,
    };
    struct bt_spawn_result run;
    int result = ret_status != NULL ? bt_spawn_run(&spawn, &run, error) : bt_spawn_check(&spawn, &run, error);
    if (result < 0)
        return bt_error_prefix(error, "git %s", git->arguments[0]);
    if (ret_status != NULL)
        *ret_status = run.exit_status;
    *ret_output = run.output;
    run.output = (struct bt_buffer){0};
    bt_spawn_result_free(&run);
    return 0;
}

bool bt_workspace_id_is_valid(const char *text, size_t length)
{
    return (length == 40 || length == 64) && strspn(text, "0123456789abcdef") >= length;
}

int bt_workspace_git_resolve(const char *state_folder, const char *revision,
                             char ret_id[BT_WORKSPACE_ID_SIZE], struct bt_error *error)
{
    const char *const arguments[] = {"rev-parse", "--verify", "--quiet", revision, NULL};
    const struct bt_workspace_git git = {.state_folder = state_folder, .arguments = arguments};
    bt_auto_buffer output = {0};
    int status = 0;
    int result = bt_workspace_git_run(&git, &output, &status, error);
    if (result < 0)
        return result;
    if (status != 0 || output.length < 2 || !bt_workspace_id_is_valid(output.data, output.length - 1))
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "%s holds no %s", state_folder, revision);
    memcpy(ret_id, output.data, output.length - 1);
    ret_id[output.length - 1] = '\0';
    return 0;
}

/* Parses one record of `git diff-tree --raw -z`: ":100644 100755 <id> <id> M" NUL "path" NUL. Returns its
 * length, or 0 when it is not one. */
static size_t parse_change(const char *at, size_t length, struct bt_workspace_change *ret_change)
{
    const char *end = memchr(at, '\0', length);
    if (end == NULL || length < 100 || at[0] != ':' || at[7] != ' ' || at[14] != ' ')
        return 0;
    const char *ids = at + 15;
    size_t id_length = strcspn(ids, " ");
    if (!bt_workspace_id_is_valid(ids, id_length) || (size_t)(end - at) != 15 + 2 * id_length + 3 ||
        !bt_workspace_id_is_valid(ids + id_length + 1, id_length))
        return 0;
    const char *path = end + 1;
    const char *path_end = memchr(path, '\0', length - (size_t)(path - at));
    if (path_end == NULL)
        return 0;
    struct bt_workspace_change change = {.status = end[-1], .path = bt_string_copy(path)};
    change.old_mode = (unsigned)strtoul(at + 1, NULL, 8);
    change.new_mode = (unsigned)strtoul(at + 8, NULL, 8);
    memcpy(change.old_id, ids, id_length);
    memcpy(change.new_id, ids + id_length + 1, id_length);
    *ret_change = change;
    return (size_t)(path_end + 1 - at);
}

static int compare_changes(const void *left, const void *right)
{
    return strcmp(((const struct bt_workspace_change *)left)->path,
                  ((const struct bt_workspace_change *)right)->path);
}

static int compare_path(const void *path, const void *change)
{
    return strcmp(path, ((const struct bt_workspace_change *)change)->path);
}

const struct bt_workspace_change *bt_workspace_changes_find(const struct bt_workspace_changes *changes,
                                                            const char *path)
{
    return changes->count == 0
               ? NULL
               : bsearch(path, changes->items, changes->count, sizeof *changes->items, compare_path);
}

int bt_workspace_git_changes(const char *state_folder, const char *old_revision, const char *new_revision,
                             struct bt_workspace_changes *ret_changes, struct bt_error *error)
{
    const char *const arguments[] = {
        "diff-tree",        "-r",         "-z",         "--raw", "--no-renames", "--no-abbrev",
        "--end-of-options", old_revision, new_revision, NULL};
    const struct bt_workspace_git git = {
        .state_folder = state_folder, .arguments = arguments, .output_limit = BT_WORKSPACE_NAMES_BYTES_MAX};
    bt_auto_buffer output = {0};
    int result = bt_workspace_git_run(&git, &output, NULL, error);
    if (result < 0)
        return result;
    struct bt_workspace_changes changes = {0};
    size_t capacity = 0;
    for (size_t at = 0; at < output.length;) {
        if (changes.count == capacity) {
            capacity = capacity == 0 ? 64 : capacity * 2;
            struct bt_workspace_change *grown = bt_new(capacity, sizeof *grown);
            if (changes.count > 0)
                memcpy(grown, changes.items, changes.count * sizeof *grown);
            free(changes.items);
            changes.items = grown;
        }
        size_t used = parse_change(output.data + at, output.length - at, &changes.items[changes.count]);
        if (used == 0) {
            bt_workspace_changes_free(&changes);
            return bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL, "git diff-tree wrote what berth cannot read");
        }
        changes.count++;
        at += used;
    }
    if (changes.count > 0)
        qsort(changes.items, changes.count, sizeof *changes.items, compare_changes);
    *ret_changes = changes;
    return 0;
}

void bt_workspace_changes_free(struct bt_workspace_changes *changes)
{
    for (size_t i = 0; i < changes->count; i++)
        free(changes->items[i].path);
    free(changes->items);
    *changes = (struct bt_workspace_changes){0};
}
