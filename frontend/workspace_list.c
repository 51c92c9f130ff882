/* Which files of a host folder are the workspace.
 *
 * Called by bt_workspace_prepare. A git checkout is listed by git's own rules, but without its repository:
 * GIT_DIR is berth's empty one, into which the index and the ignore rules are copied as data. So the
 * configuration of the user's repository (fsmonitor, hooks, filters, include, remotes) is never read by any
 * program.
 */
#include "frontend/workspace_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_BYTES_MAX (512UL * 1024 * 1024)
#define RULES_BYTES_MAX (1024UL * 1024)
#define NESTING_MAX 8

struct lister {
    const char *root; /* real path of the folder */
    int root_fd;
    const char *repository; /* an empty one, whose index and rules are those of the checkout being listed */
    bool is_ignored_included;
    struct bt_buffer global_rules; /* of the user, for every repository */
    struct bt_workspace_listing *listing;
    struct bt_error *error;
};

static int add_name(struct lister *lister, const char *name)
{
    if (lister->listing->count >= BT_WORKSPACE_FILES_MAX ||
        bt_buffer_add(&lister->listing->names, name, strlen(name) + 1) < 0)
        return bt_fail(lister->error, BT_EXIT_ERROR, EFBIG, "choose a folder further down",
                       "%s has more than %u files", lister->root, BT_WORKSPACE_FILES_MAX);
    lister->listing->count++;
    return 0;
}

static int list_repository(struct lister *lister, const char *prefix, const char *top, int depth);

/* Whether a folder is the top of a checkout: it has a .git, which is a folder, or a file (worktree,
 * submodule). */
static bool has_repository(const char *folder, uid_t *ret_uid)
{
    bt_auto_free char *path = bt_string_format("%s/.git", folder);
    struct stat status;
    if (lstat(path, &status) < 0 || (!S_ISDIR(status.st_mode) && !S_ISREG(status.st_mode)))
        return false;
    *ret_uid = status.st_uid;
    return true;
}

/* A name that git listed: a file, a link, or a repository of its own (a submodule, or one that git does not
 * track). */
static int add_listed(struct lister *lister, const char *name, int depth)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    struct bt_workspace_found found;
    bt_auto_free char *plain = bt_string_copy(name);
    size_t length = strlen(plain);
    if (length > 0 && plain[length - 1] == '/')
        plain[length - 1] = '\0';
    int result = bt_workspace_look(lister->root_fd, plain, &found);
    if (result == -ELOOP || result == -ENOTDIR || (result == 0 && !found.is_there))
        return 0; /* tracked, but no longer there */
    if (result < 0)
        return bt_fail(lister->error, BT_EXIT_ERROR, -result, "make it readable, or let git ignore it",
                       "cannot read %s/%s: %s", lister->root, bt_workspace_printable(plain, text),
                       strerror(-result));
    if (found.mode != 0)
        return add_name(lister, plain);
    bt_auto_free char *folder = bt_string_format("%s/%s", lister->root, plain);
    uid_t uid;
    if (!S_ISDIR(found.status.st_mode))
        bt_list_add_format(&lister->listing->notes, "%s is left out: it is neither a file nor a folder",
                           bt_workspace_printable(plain, text));
    else if (!has_repository(folder, &uid))
        bt_list_add_format(&lister->listing->notes, "submodule %s is not checked out here: it is left out",
                           bt_workspace_printable(plain, text));
    else if (depth >= NESTING_MAX)
        bt_list_add_format(&lister->listing->notes, "repository %s is nested too deeply: it is left out",
                           bt_workspace_printable(plain, text));
    else
        return list_repository(lister, plain, folder, depth + 1);
    return 0;
}

/* Reads a small file that may be absent. */
static int read_optional(const char *path, size_t maximum, struct bt_buffer *ret_data, struct bt_error *error)
{
    if (access(path, F_OK) < 0)
        return 0;
    return bt_file_read(path, maximum, ret_data, error);
}

static char *first_line(const struct bt_buffer *data)
{
    return data->data == NULL ? bt_string_copy("")
                              : bt_string_copy_length(data->data, strcspn(data->data, "\r\n"));
}

static char *below(const char *folder, const char *path)
{
    return path[0] == '/' ? bt_string_copy(path) : bt_string_format("%s/%s", folder, path);
}

/* Where a checkout keeps its index and where its ignore rules: gitrepository-layout(5), "gitdir:" files and
 * commondir. */
static int find_git_folders(const char *top, char **ret_private, char **ret_common, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/.git", top);
    bt_auto_free char *private_folder = NULL;
    bt_auto_buffer data = {0};
    struct stat status;
    if (lstat(path, &status) == 0 && S_ISREG(status.st_mode)) {
        int result = bt_file_read(path, BT_WORKSPACE_PATH_MAX, &data, error);
        if (result < 0)
            return result;
        bt_auto_free char *line = first_line(&data);
        if (strncmp(line, "gitdir: ", 8) != 0)
            return bt_fail(error, BT_EXIT_ERROR, EINVAL, "repair the checkout, or remove the file",
                           "%s is not a git folder, nor does it name one", path);
        private_folder = below(top, line + 8);
    } else {
        private_folder = bt_string_copy(path);
    }
    bt_auto_free char *pointer = bt_string_format("%s/commondir", private_folder);
    bt_auto_buffer common = {0};
    int result = read_optional(pointer, BT_WORKSPACE_PATH_MAX, &common, error);
    if (result < 0)
        return result;
    bt_auto_free char *line = first_line(&common);
    *ret_common = line[0] == '\0' ? bt_string_copy(private_folder) : below(private_folder, line);
    *ret_private = BT_TAKE(private_folder);
    return 0;
}

static int copy_optional(const char *from_folder, const char *to_folder, const char *name,
                         struct bt_error *error)
{
    bt_auto_free char *from = bt_string_format("%s/%s", from_folder, name);
    bt_auto_free char *to = bt_string_format("%s/%s", to_folder, name);
    bt_auto_buffer data = {.limit = INDEX_BYTES_MAX + 1};
    int result = read_optional(from, INDEX_BYTES_MAX, &data, error);
    if (result == 0 && data.data != NULL)
        result = bt_file_write(to, data.data, data.length, 0600, error);
    return result;
}

/* The index, and the shared part of a split one. */
static int copy_index(struct lister *lister, const char *private_folder)
{
    bt_auto_free char *old = bt_string_format("%s/index", lister->repository);
    if (unlink(old) < 0 && errno != ENOENT)
        return bt_fail(lister->error, BT_EXIT_ERROR, errno, NULL, "cannot remove %s: %s", old,
                       strerror(errno));
    int result = copy_optional(private_folder, lister->repository, "index", lister->error);
    char *const roots[] = {(char *)(uintptr_t)private_folder, NULL};
    FTS *tree =
        result < 0 ? NULL : fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_NOSTAT | FTS_COMFOLLOW, NULL);
    if (tree == NULL)
        return result;
    (void)fts_read(tree);
    for (FTSENT *found = fts_children(tree, FTS_NAMEONLY); found != NULL && result == 0;
         found = found->fts_link) {
        if (strncmp(found->fts_name, "sharedindex.", 12) == 0)
            result = copy_optional(private_folder, lister->repository, found->fts_name, lister->error);
    }
    (void)fts_close(tree);
    return result;
}

/* Ignore rules into one of berth's repositories: the user's own, then those of the checkout (NULL: none),
 * which win. */
static int write_rules(struct lister *lister, const char *common_folder, const char *repository)
{
    bt_auto_free char *from = bt_string_format("%s/info/exclude", common_folder == NULL ? "" : common_folder);
    bt_auto_free char *to = bt_string_format("%s/info/exclude", repository);
    bt_auto_buffer own = {0};
    bt_auto_buffer rules = {0};
    int result = common_folder == NULL ? 0 : read_optional(from, RULES_BYTES_MAX, &own, lister->error);
    if (result < 0)
        return result;
    if (bt_buffer_add(&rules, lister->global_rules.data, lister->global_rules.length) < 0 ||
        bt_buffer_add(&rules, "\n", 1) < 0 || bt_buffer_add(&rules, own.data, own.length) < 0)
        return bt_fail(lister->error, BT_EXIT_ERROR, EFBIG, NULL, "the ignore rules in %s are too long",
                       from);
    return bt_file_write(to, rules.data, rules.length, 0644, lister->error);
}

static int run_list_files(struct lister *lister, const char *folder, const char *top,
                          struct bt_spawn_result *ret_run)
{
    const char *const arguments[] = {
        "git",           "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard",
        "--deduplicate", NULL};
    bt_auto_list environment = {0};
    bt_workspace_git_environment(lister->repository, top, &environment);
    const struct bt_spawn spawn = {.arguments = arguments,
                                   .environment = (const char *const *)environment.items,
                                   .folder = "/",
                                   .output_limit = BT_WORKSPACE_NAMES_BYTES_MAX};
    int result = bt_spawn_run(&spawn, ret_run, lister->error);
    return result < 0 ? bt_error_prefix(lister->error, "cannot list the files of %s", folder) : 0;
}

static int check_listing(struct lister *lister, const char *folder, const struct bt_spawn_result *run)
{
    const char *errors = run->errors.data == NULL ? "" : run->errors.data;
    /* git only warns about a folder that it cannot read, and would leave it out. */
    if (run->exit_status == 0 && strstr(errors, "could not open directory") == NULL)
        return 0;
    bool is_sparse = strstr(errors, "sparse") != NULL || strstr(errors, "unable to read") != NULL;
    return bt_fail(lister->error, BT_EXIT_ERROR, EIO,
                   is_sparse ? "turn the sparse index off: git sparse-checkout reapply --no-sparse-index"
                             : "make it readable, or let git ignore it",
                   "cannot list the files of %s: git: %.*s", folder, (int)strcspn(errors, "\n"), errors);
}

/* Which kind of ids an index holds is said nowhere but in the configuration: the one word of it that is
 * looked at, as text. */
static const char *find_object_format(const char *common_folder)
{
    bt_auto_free char *path = bt_string_format("%s/config", common_folder);
    bt_auto_buffer text = {0};
    if (bt_file_read(path, RULES_BYTES_MAX, &text, NULL) < 0 || text.data == NULL)
        return "sha1";
    const char *line = strcasestr(text.data, "objectformat");
    bt_auto_free char *value =
        bt_string_copy_length(line != NULL ? line : "", line != NULL ? strcspn(line, "\n") : 0);
    return strcasestr(value, "sha256") != NULL ? "sha256" : "sha1";
}

/* Makes berth's own repository look like the checkout to git ls-files: its index, its ignore rules, and no
 * more. */
static int imitate(struct lister *lister, const char *top)
{
    bt_auto_free char *private_folder = NULL;
    bt_auto_free char *common_folder = NULL;
    int result = find_git_folders(top, &private_folder, &common_folder, lister->error);
    if (result == 0)
        result = bt_workspace_repository_make(lister->repository, false, find_object_format(common_folder),
                                              lister->error);
    if (result == 0)
        result = copy_index(lister, private_folder);
    return result < 0 ? result : write_rules(lister, common_folder, lister->repository);
}

/* Lists a checkout. top: its folder; prefix: the part of the workspace asked for, relative to the root. */
static int list_repository(struct lister *lister, const char *prefix, const char *top, int depth)
{
    bt_auto_free char *folder =
        prefix[0] == '\0' ? bt_string_copy(lister->root) : bt_string_format("%s/%s", lister->root, prefix);
    struct bt_spawn_result run = {0};
    int result = imitate(lister, top);
    if (result == 0)
        result = run_list_files(lister, folder, top, &run);
    if (result < 0)
        return result;
    result = check_listing(lister, folder, &run);
    for (size_t at = 0; at < run.output.length && result == 0; at += strlen(run.output.data + at) + 1) {
        bt_auto_free char *name =
            bt_string_format("%s%s%s", prefix, prefix[0] == '\0' ? "" : "/", run.output.data + at);
        result = add_listed(lister, name, depth);
    }
    bt_spawn_result_free(&run);
    return result;
}

/* One entry of a plain folder. */
static int add_walked(struct lister *lister, FTS *tree, FTSENT *found)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    uid_t uid;
    const char *name = found->fts_path + strlen(lister->root);
    name += strspn(name, "/");
    if (found->fts_level > 0 && strcmp(found->fts_name, ".git") == 0) {
        (void)fts_set(tree, found, FTS_SKIP);
        return 0;
    }
    switch (found->fts_info) {
    case FTS_F:
    case FTS_SL:
    case FTS_SLNONE:
        return add_name(lister, name);
    case FTS_D:
        if (found->fts_level == 0 || lister->is_ignored_included || !has_repository(found->fts_path, &uid))
            return 0;
        (void)fts_set(tree, found, FTS_SKIP);
        return list_repository(lister, name, found->fts_path, 1);
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return bt_fail(lister->error, BT_EXIT_ERROR, found->fts_errno,
                       "make it readable, or choose another folder", "cannot read %s: %s", found->fts_path,
                       strerror(found->fts_errno));
    case FTS_DEFAULT:
        bt_list_add_format(&lister->listing->notes, "%s is left out: it is neither a file nor a folder",
                           bt_workspace_printable(name, text));
        return 0;
    default:
        return 0;
    }
}

static int list_folder(struct lister *lister)
{
    bt_auto_free char *root = bt_string_copy(lister->root);
    char *const roots[] = {root, NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (tree == NULL)
        return bt_fail(lister->error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", root,
                       strerror(errno));
    int result = 0;
    errno = 0;
    for (FTSENT *found; result == 0 && (found = fts_read(tree)) != NULL; errno = 0)
        result = add_walked(lister, tree, found);
    if (result == 0 && errno != 0)
        result =
            bt_fail(lister->error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", root, strerror(errno));
    (void)fts_close(tree);
    return result;
}

/* The checkout that a folder lies in, or NULL. One above the folder counts only when it is the user's (or
 * root's): in /tmp anybody may put a .git above. */
static char *find_top(const char *root)
{
    bt_auto_free char *top = bt_string_copy(root);
    for (bool is_root = true;; is_root = false) {
        uid_t uid;
        if (has_repository(top, &uid) && (is_root || uid == geteuid() || uid == 0))
            return bt_string_copy(top);
        char *slash = strrchr(top, '/');
        if (slash == NULL || slash == top)
            return NULL;
        *slash = '\0';
    }
}

/* The user's own ignore rules (gitignore(5)): core.excludesFile of the global configuration, else git/ignore
 * beside it. That configuration is the user's, not the project's. */
static int read_global_rules(struct bt_buffer *ret_rules, struct bt_error *error)
{
    static const char *const arguments[] = {
        "git", "config", "--global", "--type=path", "--get", "core.excludesFile", NULL};
    static const char *const kept[] = {"HOME", "XDG_CONFIG_HOME", "PATH"};
    bt_auto_list environment = {0};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(kept); i++) {
        const char *value = getenv(kept[i]);
        if (value != NULL)
            bt_list_add_format(&environment, "%s=%s", kept[i], value);
    }
    const struct bt_spawn spawn = {
        .arguments = arguments, .environment = (const char *const *)environment.items, .folder = "/"};
    struct bt_spawn_result run;
    int result = bt_spawn_run(&spawn, &run, error);
    if (result < 0)
        return result;
    const char *home = getenv("HOME");
    const char *config = getenv("XDG_CONFIG_HOME");
    bt_auto_free char *path = first_line(&run.output);
    if (path[0] == '\0') {
        free(path);
        path = config != NULL && config[0] == '/'
                   ? bt_string_format("%s/git/ignore", config)
                   : bt_string_format("%s/.config/git/ignore", home != NULL ? home : "");
    }
    bt_spawn_result_free(&run);
    return path[0] == '/' ? read_optional(path, RULES_BYTES_MAX, ret_rules, error) : 0;
}

/* Lists, then leaves the ignore rules of the outermost checkout in the skeleton, which goes on to the guest.
 */
static int list_all(struct lister *lister, const char *skeleton)
{
    bt_auto_free char *top = find_top(lister->root);
    bt_auto_free char *private_folder = NULL;
    bt_auto_free char *common_folder = NULL;
    int result = read_global_rules(&lister->global_rules, lister->error);
    if (result < 0)
        return result;
    lister->listing->is_checkout = top != NULL;
    if (top == NULL || lister->is_ignored_included)
        result = list_folder(lister);
    else
        result = list_repository(lister, "", top, 0);
    if (result == 0 && lister->listing->count == 0)
        bt_list_add_format(&lister->listing->notes, "%s has no files%s", lister->root,
                           top == NULL ? "" : " that git does not ignore");
    if (result == 0 && top != NULL)
        result = find_git_folders(top, &private_folder, &common_folder, lister->error);
    return result < 0 ? result : write_rules(lister, common_folder, skeleton);
}

/* The home folder itself, and every folder above it. */
static bool holds_home(const char *root)
{
    const char *variable = getenv("HOME");
    bt_auto_free char *home = variable == NULL ? NULL : realpath(variable, NULL);
    size_t length = strlen(root);
    if (strcmp(root, "/") == 0)
        return true;
    return home != NULL && strncmp(home, root, length) == 0 && (home[length] == '/' || home[length] == '\0');
}

static int open_root(const char *host_folder, char **ret_root, struct bt_error *error)
{
    bt_auto_free char *root = realpath(host_folder, NULL);
    int fd = root == NULL ? -1 : open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, "give an existing folder that you may read",
                       "cannot use %s as workspace: %s", host_folder, strerror(errno));
    if (holds_home(root)) {
        bt_fd_close(&fd);
        return bt_fail(
            error, BT_EXIT_ERROR, EINVAL, "choose a folder further down: the project's own",
            "cannot use %s as workspace: your whole home folder, with the keys and passwords in it, "
            "would be copied to the agent",
            root);
    }
    *ret_root = BT_TAKE(root);
    return fd;
}

int bt_workspace_list(const char *host_folder, const char *state_folder, bool is_ignored_included,
                      struct bt_workspace_listing *ret_listing, struct bt_error *error)
{
    bt_auto_free char *root = NULL;
    bt_auto_fd root_fd = open_root(host_folder, &root, error);
    if (root_fd < 0)
        return root_fd;
    bt_auto_free char *skeleton = bt_string_format("%s/" BT_WORKSPACE_SKELETON, state_folder);
    bt_auto_free char *repository = bt_string_format("%s/listing.git", state_folder);
    struct bt_workspace_listing listing = {.names = {.limit = BT_WORKSPACE_NAMES_BYTES_MAX}};
    struct lister lister = {.root = root,
                            .root_fd = root_fd,
                            .repository = repository,
                            .is_ignored_included = is_ignored_included,
                            .listing = &listing,
                            .error = error};
    int result = bt_workspace_repository_make(repository, false, "sha1", error);
    if (result == 0)
        result = bt_workspace_repository_make(skeleton, false, "sha1", error);
    if (result == 0)
        result = list_all(&lister, skeleton);
    (void)bt_tree_remove(repository, NULL); /* copies of the user's index: no longer needed */
    bt_buffer_free(&lister.global_rules);
    if (result < 0) {
        bt_workspace_listing_free(&listing);
        return result;
    }
    *ret_listing = listing;
    return 0;
}

void bt_workspace_listing_free(struct bt_workspace_listing *listing)
{
    bt_buffer_free(&listing->names);
    bt_list_free(&listing->notes);
}
