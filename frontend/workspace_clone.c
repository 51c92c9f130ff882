/* The base of a clone: its bytes were never on the host, so those of the changed files are fetched
 * afterwards, from a copy of the clone's objects that only the guest's root can write.
 *
 * Called by collect. Which files there were and their ids were recorded before the agent ran; what is fetched
 * must have those ids, which git fast-import's result is compared with.
 */
#include "frontend/workspace_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIST_BYTES_MAX (256UL * 1024 * 1024)

static int compare_files(const void *left, const void *right)
{
    return strcmp(((const struct bt_workspace_clone_file *)left)->path,
                  ((const struct bt_workspace_clone_file *)right)->path);
}

static int compare_path(const void *path, const void *file)
{
    return strcmp(path, ((const struct bt_workspace_clone_file *)file)->path);
}

/* One record of `git ls-tree -r -z`: "100644 blob <id>" TAB "path". */
static bool parse_file(char *record, struct bt_workspace_clone_file *ret_file)
{
    char *tab = strchr(record, '\t');
    if (tab == NULL || tab - record < 12 + 40)
        return false;
    *tab = '\0';
    char *id = strrchr(record, ' ') + 1;
    *ret_file = (struct bt_workspace_clone_file){
        .mode = (unsigned)strtoul(record, NULL, 8), .id = id, .path = tab + 1};
    return bt_workspace_id_is_valid(id, strlen(id));
}

int bt_workspace_clone_load(const char *state_folder, struct bt_workspace_clone *ret_clone,
                            struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/" BT_WORKSPACE_CLONE_LIST, state_folder);
    struct bt_workspace_clone clone = {.text = {.limit = LIST_BYTES_MAX + 1}, .content_fd = -1};
    if (access(path, F_OK) < 0) {
        *ret_clone = clone;
        return 0;
    }
    int result = bt_file_read(path, LIST_BYTES_MAX, &clone.text, error);
    if (result < 0)
        return result;
    size_t capacity = 1;
    for (size_t at = 0; at < clone.text.length; at++)
        capacity += clone.text.data[at] == '\0';
    clone.is_clone = true;
    clone.files = bt_new(capacity, sizeof *clone.files);
    bool is_good = true;
    for (size_t at = 0; at < clone.text.length && is_good;) {
        size_t length = strlen(clone.text.data + at);
        is_good = parse_file(clone.text.data + at, &clone.files[clone.count++]);
        at += length + 1;
    }
    if (!is_good) {
        bt_workspace_clone_free(&clone);
        return bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL, "%s is damaged", path);
    }
    qsort(clone.files, clone.count, sizeof *clone.files, compare_files);
    *ret_clone = clone;
    return 0;
}

void bt_workspace_clone_free(struct bt_workspace_clone *clone)
{
    bt_buffer_free(&clone->text);
    free(clone->files);
    if (clone->is_clone)
        bt_fd_close(&clone->content_fd);
    *clone = (struct bt_workspace_clone){.content_fd = -1};
}

struct bt_workspace_clone_file *bt_workspace_clone_find(const struct bt_workspace_clone *clone,
                                                        const char *path)
{
    return bsearch(path, clone->files, clone->count, sizeof *clone->files, compare_path);
}

void bt_workspace_clone_want(struct bt_workspace_clone *clone, const char *path)
{
    struct bt_workspace_clone_file *file = bt_workspace_clone_find(clone, path);
    if (file != NULL && file->mode != BT_MODE_GITLINK)
        file->is_wanted = true;
}

int bt_workspace_clone_fetch(struct bt_workspace_clone *clone, const struct bt_workspace_guest *guest,
                             const char *state_folder, struct bt_error *error)
{
    static const char *const arguments[] = {"git", "cat-file", "--batch", NULL};
    bt_auto_list environment = {0};
    bt_auto_buffer ids = {.limit = LIST_BYTES_MAX};
    int result = 0, status = 0;
    for (size_t i = 0; bt_workspace_guest_environment[i] != NULL; i++)
        bt_list_add(&environment, bt_workspace_guest_environment[i]);
    bt_list_add_format(&environment, "GIT_DIR=%s/clone.git", guest->store);
    bt_list_add(&environment, "GIT_CONFIG_GLOBAL=/dev/null");
    bt_list_add(&environment, "GIT_CONFIG_NOSYSTEM=1");
    for (size_t i = 0; i < clone->count && result == 0; i++) {
        if (clone->files[i].is_wanted)
            result = bt_buffer_add_format(&ids, "%s\n", clone->files[i].id);
    }
    clone->content_fd = open(state_folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (result < 0 || clone->content_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, result < 0 ? EFBIG : errno, NULL,
                       "cannot keep the base of the clone");
    if (ids.length == 0)
        return 0;
    struct bt_workspace_sink sink = {.fd = clone->content_fd, .room = 2 * BT_WORKSPACE_PATCH_BYTES_MAX};
    const struct bt_guest_command command = {.arguments = arguments,
                                             .environment = (const char *const *)environment.items,
                                             .folder = "/",
                                             .input = ids.data,
                                             .input_length = ids.length,
                                             .input_fd = -1,
                                             .on_output = bt_workspace_sink_write,
                                             .context = &sink};
    result = guest->run(guest->context, &command, &status, error);
    if (sink.result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -sink.result, "make room on the disk, then try again",
                       "cannot keep the base of the clone: %s", strerror(-sink.result));
    if (result == 0 && status != 0)
        result = bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "git in the guest ended with status %d", status);
    return result;
}

/* Reads "<id> blob <size>", which must be about this file. */
static int read_header(FILE *content, const char *id, uint64_t *ret_size)
{
    char line[160];
    size_t length = strlen(id);
    if (fgets(line, sizeof line, content) == NULL || strncmp(line, id, length) != 0 ||
        strncmp(line + length, " blob ", 6) != 0)
        return -EBADMSG;
    const char *size = line + length + 6;
    return bt_number_parse(size, strcspn(size, "\n"), 0, BT_WORKSPACE_PATCH_BYTES_MAX, ret_size);
}

static int import_content(FILE *content, const struct bt_workspace_clone_file *file,
                          struct bt_workspace_import *import)
{
    static char chunk[65536];
    uint64_t size = 0;
    int result = read_header(content, file->id, &size);
    if (result < 0)
        return result;
    bt_workspace_import_file(import, file->mode, file->path, size);
    while (size > 0) {
        size_t got = fread(chunk, 1, size < sizeof chunk ? (size_t)size : sizeof chunk, content);
        if (got == 0)
            return -EBADMSG;
        bt_workspace_import_data(import, chunk, got);
        size -= got;
    }
    return getc(content) == '\n' ? 0 : -EBADMSG;
}

int bt_workspace_clone_import(struct bt_workspace_clone *clone, struct bt_workspace_import *import,
                              struct bt_error *error)
{
    FILE *content = lseek(clone->content_fd, 0, SEEK_SET) < 0 ? NULL : fdopen(clone->content_fd, "r");
    if (content == NULL)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read the base of the clone: %s",
                       strerror(errno));
    clone->content_fd = -1;
    int result = 0;
    for (size_t i = 0; i < clone->count && result == 0; i++) {
        if (clone->files[i].is_wanted)
            result = import_content(content, &clone->files[i], import);
    }
    (void)fclose(content);
    return result < 0 ? bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL,
                                "the guest sent something else than the files of the clone")
                      : 0;
}

int bt_workspace_clone_check(const struct bt_workspace_clone *clone, const char *state_folder,
                             struct bt_error *error)
{
    static const char *const arguments[] = {"ls-tree", "-r", "-z", "--full-tree", BT_WORKSPACE_REF_BASE,
                                            NULL};
    const struct bt_workspace_git git = {
        .state_folder = state_folder, .arguments = arguments, .output_limit = LIST_BYTES_MAX};
    bt_auto_buffer output = {0};
    int result = clone->is_clone ? bt_workspace_git_run(&git, &output, NULL, error) : 0;
    for (size_t at = 0; at < output.length && result == 0;) {
        struct bt_workspace_clone_file file;
        size_t length = strlen(output.data + at);
        bool is_good = parse_file(output.data + at, &file);
        const struct bt_workspace_clone_file *recorded =
            is_good ? bt_workspace_clone_find(clone, file.path) : NULL;
        if (recorded == NULL || strcmp(recorded->id, file.id) != 0)
            result = bt_fail(error, BT_EXIT_ERROR, EBADMSG, "do not trust this patch",
                             "the guest sent another base than the commit that was cloned");
        at += length + 1;
    }
    return result;
}
