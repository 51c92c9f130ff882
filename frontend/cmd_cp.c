/* berth cp: files into and out of a running agent's guest. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "frontend/agent.h"
#include "frontend/audit.h"
#include "frontend/command.h"

struct bt_cp_side {
    bool is_guest;
    char name[BT_NAME_SIZE];
    const char *path;
};

/* "name:path" is in a guest, everything else here; "./a:b" is a way to name a file with a colon. */
static void bt_cp_split(const char *text, struct bt_cp_side *ret_side)
{
    size_t length = strcspn(text, ":/");

    *ret_side = (struct bt_cp_side){.path = text};
    if (text[length] != ':' || length == 0 || length >= sizeof(ret_side->name))
        return;
    memcpy(ret_side->name, text, length);
    if (strspn(ret_side->name, "abcdefghijklmnopqrstuvwxyz0123456789-") != length)
        return;
    ret_side->is_guest = true;
    ret_side->path = text + length + 1;
}

/* As cp(1) does: into a folder that is there, or that a final slash says there is, under the name it has.
 * Otherwise NULL: the target names the copy itself. The caller frees. */
static char *bt_cp_inside(const struct bt_cp_side *from, const struct bt_cp_side *to)
{
    size_t length = strlen(to->path), end = strlen(from->path), start;
    struct stat status;
    bool is_folder = length == 0 || to->path[length - 1] == '/';

    if (!to->is_guest)
        is_folder = stat(to->path, &status) == 0 && S_ISDIR(status.st_mode);
    while (end > 1 && from->path[end - 1] == '/')
        end--;
    for (start = end; start > 0 && from->path[start - 1] != '/'; start--)
        continue;
    if (!is_folder || start == end || strspn(from->path + start, "./") == strlen(from->path + start))
        return NULL;
    return bt_string_format("%s%s%.*s", to->path, length == 0 || to->path[length - 1] == '/' ? "" : "/",
                            (int)(end - start), from->path + start);
}

static int bt_cp_run(struct bt_context *context, struct bt_error *error)
{
    const struct bt_list *operands = &context->arguments.operands;
    struct bt_cp_side from, to;
    struct bt_state *state = NULL;
    struct bt_agent agent;
    bt_auto_free char *inside = NULL;
    int r;

    bt_cp_split(operands->items[0], &from);
    bt_cp_split(operands->items[1], &to);
    if (from.is_guest == to.is_guest)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "berth cp N:path path, or berth cp path N:path",
                       from.is_guest ? "both sides are in guests" : "neither side is in a guest");
    if ((from.is_guest && !*from.path) || (!from.is_guest && !*from.path))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "the path to copy is missing");
    inside = bt_cp_inside(&from, &to);
    if (inside)
        to.path = inside;
    r = bt_state_open(&context->paths, &state, error);
    if (r == 0)
        r = bt_state_find(state, context->environment, from.is_guest ? from.name : to.name, &agent, error);
    bt_state_close(state);
    if (r == 0 && from.is_guest)
        r = bt_agent_copy_out(&context->paths, &agent, from.path, to.path, error);
    else if (r == 0)
        r = bt_agent_copy_in(&context->paths, &agent, from.path, to.path, error);
    if (r == 0)
        r = bt_audit_write(&context->paths, "cp", agent.environment, agent.name,
                           json_pack("{s:s}", "direction", from.is_guest ? "out" : "in"), error);
    if (r < 0)
        return r;
    bt_output_document(&context->output,
                       json_pack("{s:s, s:s, s:o, s:o}", "name", agent.name, "direction",
                                 from.is_guest ? "out" : "in", "from", bt_output_json_text(from.path), "to",
                                 bt_output_json_text(to.path)));
    return 0;
}

const struct bt_command bt_command_cp = {
    .name = "cp",
    .operands = "N:path path | path N:path",
    .summary = "Copy files or folders between here and a running agent",
    .details = "Paths in the guest that are not absolute are below /workspace. Into a folder that is there, "
               "or with\n"
               "a final slash, the copy keeps its name. Nothing is written through a symbolic link that came "
               "from the\n"
               "guest, and set-id bits are dropped.",
    .minimum = 2,
    .maximum = 2,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_cp_run,
};
