/* What is asked of the guest before the agent runs: its .git, and how every file looked.
 *
 * Called by the keeper. Commands run in the guest with an environment of their own; what comes back is data
 * from a machine that the agent may have taken over, so it is parsed strictly and bounded.
 */
#include "frontend/workspace_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LISTING_BYTES_MAX (256UL * 1024 * 1024)
#define ERRORS_BYTES_MAX 4096
#define STORE_FOLDER "/var/lib/berth/workspace"

const char *const bt_workspace_guest_environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C",
                                                      "HOME=/nonexistent", NULL};

int bt_workspace_sink_write(void *context, bool is_stderr, const char *data, size_t length)
{
    struct bt_workspace_sink *sink = context;
    if (is_stderr)
        return 0;
    sink->result = length > sink->room ? -EFBIG : bt_write_all(sink->fd, data, length);
    sink->room -= sink->result == 0 ? length : 0;
    return sink->result;
}

static int link_run(void *context, const struct bt_guest_command *command, int *ret_status,
                    struct bt_error *error)
{
    return bt_guest_run(context, command, ret_status, error);
}

static int link_copy_in(void *context, const char *host_path, const char *guest_path, uint32_t uid,
                        uint32_t gid, struct bt_error *error)
{
    return bt_guest_copy_in(context, host_path, guest_path, uid, gid, error);
}

void bt_workspace_guest_link(struct bt_guest_link *link, const char *folder, const char *name,
                             struct bt_workspace_guest *ret_guest)
{
    *ret_guest = (struct bt_workspace_guest){
        .context = link,
        .folder = name == NULL ? bt_string_copy(folder) : bt_string_format("%s/%s", folder, name),
        .store = name == NULL ? bt_string_copy(STORE_FOLDER) : bt_string_format(STORE_FOLDER "-%s", name),
        .uid = BT_GUEST_AGENT_ID,
        .gid = BT_GUEST_AGENT_ID,
        .reader = bt_guest_reader(link, BT_GUEST_AGENT_ID),
        .run = link_run,
        .copy_in = link_copy_in,
    };
}

void bt_workspace_guest_free(struct bt_workspace_guest *guest)
{
    free((char *)(uintptr_t)guest->folder);
    free((char *)(uintptr_t)guest->store);
    *guest = (struct bt_workspace_guest){0};
}

struct collector {
    struct bt_buffer output, errors;
};

static int collect(void *context, bool is_stderr, const char *data, size_t length)
{
    struct collector *collector = context;
    if (!is_stderr)
        return bt_buffer_add(&collector->output, data, length);
    size_t room = ERRORS_BYTES_MAX - collector->errors.length;
    return bt_buffer_add(&collector->errors, data, length < room ? length : room);
}

int bt_workspace_ask(const struct bt_workspace_guest *guest, const struct bt_workspace_ask *ask,
                     struct bt_buffer *ret_output, int *ret_status, struct bt_error *error)
{
    bt_auto_list environment = {0};
    struct collector collector = {.output = {.limit = ask->limit}, .errors = {.limit = ERRORS_BYTES_MAX}};
    for (size_t i = 0; bt_workspace_guest_environment[i] != NULL; i++)
        bt_list_add(&environment, bt_workspace_guest_environment[i]);
    if (ask->repository != NULL) {
        bt_list_add_format(&environment, "GIT_DIR=%s", ask->repository);
        bt_list_add_format(&environment, "GIT_WORK_TREE=%s", guest->folder);
        bt_list_add(&environment, "GIT_CONFIG_GLOBAL=/dev/null");
        bt_list_add(&environment, "GIT_CONFIG_NOSYSTEM=1");
    }
    const struct bt_guest_command command = {.arguments = ask->arguments,
                                             .environment = (const char *const *)environment.items,
                                             .folder = guest->folder,
                                             .uid = ask->is_reader ? guest->reader
                                                    : ask->is_root ? 0
                                                                   : guest->uid,
                                             .gid = ask->is_reader ? guest->reader
                                                    : ask->is_root ? 0
                                                                   : guest->gid,
                                             .input = ask->input,
                                             .input_length = ask->input_length,
                                             .input_fd = -1,
                                             .on_output = collect,
                                             .context = &collector};
    int status = 0;
    int result = guest->run(guest->context, &command, &status, error);
    if (result == 0 && status != 0 && ret_status == NULL) {
        char text[BT_WORKSPACE_TEXT_SIZE];
        result = bt_fail(
            error, BT_EXIT_ERROR, EIO, NULL, "%s in the guest ended with status %d: %s", ask->arguments[0],
            status, bt_workspace_printable(collector.errors.data == NULL ? "" : collector.errors.data, text));
    }
    if (result == 0 && ask->ret_errors != NULL)
        *ask->ret_errors = collector.errors;
    else
        bt_buffer_free(&collector.errors);
    if (result < 0) {
        bt_buffer_free(&collector.output);
        return result;
    }
    if (ret_status != NULL)
        *ret_status = status;
    *ret_output = collector.output;
    return 0;
}

static int ask_plain(const struct bt_workspace_guest *guest, bool is_root, const char *const *arguments,
                     struct bt_error *error)
{
    bt_auto_buffer output = {0};
    const struct bt_workspace_ask ask = {
        .arguments = arguments, .is_root = is_root, .limit = ERRORS_BYTES_MAX};
    return bt_workspace_ask(guest, &ask, &output, NULL, error);
}

/* A folder that vanished while find read it leaves the rest of the list good. Whatever else find says means
 * that files are missing from the list, which would look as if the agent had deleted them. */
static bool only_vanished(const char *errors, char ret_line[BT_WORKSPACE_TEXT_SIZE])
{
    static const char harmless[] = ": No such file or directory";
    size_t own = strlen(harmless);
    while (*errors != '\0') {
        size_t length = strcspn(errors, "\n");
        bt_auto_free char *line = bt_string_format("%.*s", (int)length, errors);
        if (errors[length] == '\0' || length < own || strcmp(line + length - own, harmless) != 0) {
            (void)bt_workspace_printable(line, ret_line);
            return false;
        }
        errors += length + 1;
    }
    return true;
}

/* ctime (%C@) is what makes a stamp trustworthy: the agent can set every other time, but not that one. Not
 * every guest's reader may enter every folder: those are listed as such, and nothing below them. */
int bt_workspace_stamps_ask(const struct bt_workspace_guest *guest, struct bt_buffer *ret_text,
                            struct bt_error *error)
{
    static const char *const arguments[] = {"find",        ".",
                                            "-name",       ".git",
                                            "-printf",     "g - 0 %P\\0",
                                            "-prune",      "-o",
                                            "-type",       "d",
                                            "(",           "!",
                                            "-readable",   "-o",
                                            "!",           "-executable",
                                            ")",           "-printf",
                                            "u - 0 %P\\0", "-prune",
                                            "-o",          "!",
                                            "-type",       "d",
                                            "-printf",     "%y %m:%i:%T@:%C@ %s %P\\0",
                                            NULL};
    bt_auto_buffer errors = {0};
    char line[BT_WORKSPACE_TEXT_SIZE] = "it did not say why";
    const struct bt_workspace_ask ask = {
        .arguments = arguments, .is_reader = true, .limit = LISTING_BYTES_MAX, .ret_errors = &errors};
    int status = 0;
    int result = bt_workspace_ask(guest, &ask, ret_text, &status, error);
    if (result < 0)
        return bt_error_prefix(error, "cannot list %s in the guest", guest->folder);
    if (status == 0 || (status == 1 && errors.length > 0 && only_vanished(errors.data, line)))
        return 0;
    bt_buffer_free(ret_text);
    return bt_fail(error, BT_EXIT_ERROR, EIO,
                   status > 1 ? "the guest's image needs find (Debian: findutils)"
                              : "berth exec shows what is wrong there; then try again",
                   "cannot list %s in the guest: find ended with status %d: %s", guest->folder, status, line);
}

static int compare_stamps(const void *left, const void *right)
{
    return strcmp(((const struct bt_workspace_stamp *)left)->path,
                  ((const struct bt_workspace_stamp *)right)->path);
}

/* One record: "f 644:12:34.5:67.8 1234 path". Its blanks become ends of strings. */
static bool parse_stamp(char *record, struct bt_workspace_stamp *ret_stamp)
{
    char *stamp = record[0] != '\0' && record[1] == ' ' ? record + 2 : NULL;
    char *size = stamp == NULL ? NULL : strchr(stamp, ' ');
    char *path = size == NULL ? NULL : strchr(size + 1, ' ');
    if (path == NULL || (path[1] == '\0' && record[0] != 'u'))
        return false;
    *size++ = '\0';
    *path++ = '\0';
    *ret_stamp = (struct bt_workspace_stamp){.type = record[0], .stamp = stamp, .path = path};
    size_t length = strlen(path);
    if (record[0] == 'g') {
        /* The folder that has it, or "" for the workspace itself. */
        path[length > 5 ? length - 5 : 0] = '\0';
    }
    return bt_number_parse(size, strlen(size), 0, INT64_MAX, &ret_stamp->size) == 0;
}

int bt_workspace_stamps_parse(struct bt_buffer *text, struct bt_workspace_stamps *ret_stamps,
                              struct bt_error *error)
{
    struct bt_workspace_stamps stamps = {.text = *text};
    size_t capacity = 0;
    bool is_good = true;
    *text = (struct bt_buffer){0};
    for (size_t at = 0; at < stamps.text.length; at++)
        capacity += stamps.text.data[at] == '\0';
    stamps.items = bt_new(capacity + 1, sizeof *stamps.items);
    for (size_t at = 0; at < stamps.text.length && stamps.count < capacity && is_good;) {
        size_t length = strlen(stamps.text.data + at);
        is_good = parse_stamp(stamps.text.data + at, &stamps.items[stamps.count++]);
        at += length + 1;
    }
    if (!is_good || stamps.count > BT_WORKSPACE_FILES_MAX) {
        int result = bt_fail(error, BT_EXIT_ERROR, is_good ? EFBIG : EBADMSG,
                             is_good ? "delete what is not needed, or let .gitignore name it" : NULL,
                             is_good ? "the workspace in the guest has more than a million files"
                                     : "the guest's list of files cannot be read");
        bt_workspace_stamps_free(&stamps);
        return result;
    }
    qsort(stamps.items, stamps.count, sizeof *stamps.items, compare_stamps);
    *ret_stamps = stamps;
    return 0;
}

void bt_workspace_stamps_free(struct bt_workspace_stamps *stamps)
{
    bt_buffer_free(&stamps->text);
    free(stamps->items);
    *stamps = (struct bt_workspace_stamps){0};
}

static int save_stamps(const struct bt_workspace_guest *guest, const char *state_folder,
                       struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/" BT_WORKSPACE_STAMPS, state_folder);
    bt_auto_buffer text = {0};
    int result = bt_workspace_stamps_ask(guest, &text, error);
    return result < 0 ? result : bt_file_write(path, text.data, text.length, 0600, error);
}

/* The folder for root, and in it the repository that ignore rules are asked of. */
static int make_store(const struct bt_workspace_guest *guest, const char *state_folder,
                      struct bt_error *error)
{
    const char *const make[] = {"mkdir", "-p", "-m", "0755", "--", guest->store, NULL};
    bt_auto_free char *from = bt_string_format("%s/" BT_WORKSPACE_SKELETON, state_folder);
    bt_auto_free char *to = bt_string_format("%s/ignore.git", guest->store);
    int result = ask_plain(guest, true, make, error);
    return result < 0 ? result : guest->copy_in(guest->context, from, to, 0, 0, error);
}

int bt_workspace_settle(const struct bt_workspace_guest *guest, const char *state_folder,
                        struct bt_error *error)
{
    bt_auto_free char *repository = bt_string_format("%s/" BT_WORKSPACE_GUEST_REPOSITORY, state_folder);
    bt_auto_free char *guest_repository = bt_string_format("%s/.git", guest->folder);
    struct stat status;
    int result = make_store(guest, state_folder, error);
    if (result == 0 && stat(repository, &status) == 0)
        result = guest->copy_in(guest->context, repository, guest_repository, guest->uid, guest->gid, error);
    if (result == 0)
        result = save_stamps(guest, state_folder, error);
    if (result < 0)
        return bt_error_prefix(error, "cannot set up the workspace in the guest");
    (void)bt_tree_remove(repository, NULL); /* it has been sent; base.git holds all of it */
    return 0;
}

/* The commit of the clone and its files. */
static int ask_commit(const struct bt_workspace_guest *guest, const char *repository,
                      struct bt_buffer *ret_files, char ret_commit[BT_WORKSPACE_ID_SIZE],
                      struct bt_error *error)
{
    static const char *const resolve[] = {"git", "rev-parse", "--verify", "HEAD^{commit}", NULL};
    static const char *const list[] = {"git", "ls-tree", "-r", "-z", "--full-tree", "HEAD", NULL};
    struct bt_workspace_ask ask = {
        .arguments = resolve, .is_root = true, .repository = repository, .limit = 4096};
    bt_auto_buffer output = {0};
    int result = bt_workspace_ask(guest, &ask, &output, NULL, error);
    if (result < 0)
        return bt_error_prefix(error, "the clone has no commit");
    const char *commit = output.data == NULL ? "" : output.data;
    size_t length = strcspn(commit, "\n");
    if (!bt_workspace_id_is_valid(commit, length))
        return bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL, "git in the guest gave no commit id");
    memcpy(ret_commit, commit, length);
    ret_commit[length] = '\0';
    ask.arguments = list;
    ask.limit = LISTING_BYTES_MAX;
    return bt_workspace_ask(guest, &ask, ret_files, NULL, error);
}

int bt_workspace_record_clone(const struct bt_workspace_guest *guest, const char *state_folder,
                              char ret_commit[BT_WORKSPACE_ID_SIZE], struct bt_error *error)
{
    bt_auto_free char *skeleton = bt_string_format("%s/" BT_WORKSPACE_SKELETON, state_folder);
    bt_auto_free char *base = bt_string_format("%s/" BT_WORKSPACE_REPOSITORY, state_folder);
    bt_auto_free char *list = bt_string_format("%s/" BT_WORKSPACE_CLONE_LIST, state_folder);
    bt_auto_free char *from = bt_string_format("%s/.git", guest->folder);
    bt_auto_free char *to = bt_string_format("%s/clone.git", guest->store);
    /* A copy that the agent cannot change: the base must outlive what it does to its own .git. */
    const char *const copy[] = {"cp", "-R", "--no-preserve=ownership", "--", from, to, NULL};
    char commit[BT_WORKSPACE_ID_SIZE];
    bt_auto_buffer files = {0};
    int result = bt_workspace_repository_make(skeleton, false, "sha1", error);
    if (result == 0)
        result = bt_workspace_repository_make(base, false, "sha1", error);
    if (result == 0)
        result = make_store(guest, state_folder, error);
    if (result == 0)
        result = ask_plain(guest, true, copy, error);
    if (result == 0)
        result = ask_commit(guest, to, &files, commit, error);
    if (result == 0)
        result = bt_file_write(list, files.data, files.length, 0600, error);
    if (result == 0)
        result = save_stamps(guest, state_folder, error);
    if (result < 0)
        return bt_error_prefix(error, "cannot record the clone in %s", guest->folder);
    memcpy(ret_commit, commit, sizeof commit);
    return 0;
}
