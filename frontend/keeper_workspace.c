/* An agent's workspace from its keeper's side: into the guest at the launch, out of it at the end. See
 * keeper_agent.h; what a base and a patch are is frontend/workspace.h's.
 *
 * A folder of the host becomes /workspace. One repository without a folder is cloned into /workspace itself;
 * more of them, or one beside a folder, into /workspace/<name> with a state folder of its own
 * (<folder>/clone-<name>).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "frontend/guest_environment.h"
#include "frontend/keeper_agent.h"
#include "frontend/workspace.h"

static const json_t *repositories(const struct bt_keeper_agent *agent)
{
    return json_object_get(agent->keeper->request, "repositories");
}

/* Whether repository number index is /workspace itself. */
static bool is_whole_workspace(const struct bt_keeper_agent *agent)
{
    return bt_keeper_text(agent->keeper, "workspace") == NULL && json_array_size(repositories(agent)) == 1;
}

int bt_keeper_workspace_prepare(struct bt_keeper_agent *agent, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    const char *workspace = bt_keeper_text(keeper, "workspace");
    struct bt_workspace_options options = {.is_ignored_included =
                                               bt_keeper_flag(keeper, "is_ignored_included")};
    if (workspace == NULL)
        return 0;
    return bt_workspace_prepare(workspace, keeper->folder, &options, &agent->base, error);
}

static void report_copied(void *context, uint64_t bytes)
{
    struct bt_keeper_agent *agent = context;
    bt_keeper_note(agent->keeper, "copying the workspace", bytes, agent->base.byte_count);
}

static int copy_folder(struct bt_keeper_agent *agent, const char *workspace, struct bt_error *error)
{
    struct bt_workspace_guest guest = {0};
    size_t length = agent->base.names.length;
    int result = length == 0 ? 0
                             : bt_guest_copy_list_in(agent->link, workspace, agent->base.names.data, length,
                                                     BT_AGENT_WORKSPACE, BT_GUEST_AGENT_ID, BT_GUEST_AGENT_ID,
                                                     report_copied, agent, error);
    if (result < 0)
        return result;
    bt_workspace_guest_link(agent->link, BT_AGENT_WORKSPACE, NULL, &guest);
    result = bt_workspace_settle(&guest, agent->keeper->folder, error);
    bt_workspace_guest_free(&guest);
    return result;
}

/* "https://host/owner/name.git" -> "name": a single path component of harmless characters, never hidden. */
static int clone_name(const char *url, char ret_name[64], struct bt_error *error)
{
    size_t length = strlen(url);
    while (length > 0 && url[length - 1] == '/')
        length--;
    size_t start = length;
    while (start > 0 && url[start - 1] != '/')
        start--;
    if (length - start > 4 && strncmp(url + length - 4, ".git", 4) == 0)
        length -= 4;
    size_t size = length - start;
    if (size == 0 || size > 63 || url[start] == '.' || url[start] == '-' ||
        strspn(url + start, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") < size)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "name a repository as https://host/owner/name",
                       "the address %s has no usable name at its end", url);
    (void)snprintf(ret_name, 64, "%.*s", (int)size, url + start);
    return 0;
}

/* git itself, in the guest, as the agent, through the gateway; no prompt can come and no helper of the host
 * is near. */
static int run_clone(struct bt_keeper_agent *agent, const char *url, const char *folder,
                     struct bt_error *error)
{
    const char *const arguments[] = {"git", "clone", "--quiet", "--", url, folder, NULL};
    bt_auto_list environment = {0};
    bt_auto_buffer output = {0};
    bt_auto_buffer errors = {0};
    int status = 0;
    bt_guest_environment(agent->keeper->gateway_address, agent->secrets.token, NULL, NULL, NULL,
                         &environment);
    bt_list_add(&environment, "GIT_TERMINAL_PROMPT=0");
    struct bt_guest_command command = {
        .arguments = arguments,
        .environment = (const char *const *)environment.items,
        .folder = BT_AGENT_WORKSPACE,
        .uid = BT_GUEST_AGENT_ID,
        .gid = BT_GUEST_AGENT_ID,
        .input_fd = -1,
    };
    int result = bt_guest_run_collect(agent->link, &command, 65536, &output, &errors, &status, error);
    if (result < 0 || status == 0)
        return result;
    return bt_fail(
        error, BT_EXIT_ERROR, EIO,
        "berth why HOST says whether a route allows it; a private repository needs a route with auth, which "
        "this version does not have",
        "cannot clone %s: %.500s", url, errors.data == NULL ? "git gave no reason" : errors.data);
}

static int clone_one(struct bt_keeper_agent *agent, const char *url, struct bt_error *error)
{
    struct bt_workspace_guest guest = {0};
    char name[64];
    char commit[BT_WORKSPACE_ID_SIZE];
    bool is_whole = is_whole_workspace(agent);
    int result = clone_name(url, name, error);
    if (result < 0)
        return result;
    bt_auto_free char *folder =
        is_whole ? bt_string_copy(BT_AGENT_WORKSPACE) : bt_string_format(BT_AGENT_WORKSPACE "/%s", name);
    bt_auto_free char *state = is_whole ? bt_string_copy(agent->keeper->folder)
                                        : bt_string_format("%s/clone-%s", agent->keeper->folder, name);
    result = bt_folder_make(state, 0700, error);
    if (result == 0)
        result = run_clone(agent, url, folder, error);
    if (result < 0)
        return result;
    bt_workspace_guest_link(agent->link, folder, is_whole ? NULL : name, &guest);
    result = bt_workspace_record_clone(&guest, state, commit, error);
    bt_workspace_guest_free(&guest);
    return result;
}

int bt_keeper_workspace_fill(struct bt_keeper_agent *agent, struct bt_error *error)
{
    const char *workspace = bt_keeper_text(agent->keeper, "workspace");
    int result = workspace == NULL ? 0 : copy_folder(agent, workspace, error);
    size_t index;
    const json_t *url;
    json_array_foreach(repositories(agent), index, url)
    {
        if (result == 0)
            result = clone_one(agent, json_string_value(url), error);
    }
    bt_buffer_free(&agent->base.names);
    return result;
}

static int collect_one(struct bt_keeper_agent *agent, const char *folder, const char *name, const char *state,
                       struct bt_error *error)
{
    struct bt_workspace_guest guest = {0};
    struct bt_workspace_summary summary = {0};
    bt_workspace_guest_link(agent->link, folder, name, &guest);
    int result = bt_workspace_collect(&guest, state, &summary, error);
    bt_workspace_guest_free(&guest);
    if (result < 0)
        return result;
    agent->has_patch = agent->has_patch || summary.changed_count > 0;
    for (size_t i = 0; i < summary.notes.count; i++)
        (void)fprintf(stderr, "workspace: %s\n", summary.notes.items[i]);
    bt_workspace_summary_free(&summary);
    return 0;
}

int bt_keeper_workspace_collect(struct bt_keeper_agent *agent, struct bt_error *error)
{
    int result = 0;
    size_t index;
    const json_t *url;
    agent->has_patch = false;
    if (bt_keeper_text(agent->keeper, "workspace") != NULL || is_whole_workspace(agent))
        result = collect_one(agent, BT_AGENT_WORKSPACE, NULL, agent->keeper->folder, error);
    json_array_foreach(repositories(agent), index, url)
    {
        char name[64];
        if (result < 0 || is_whole_workspace(agent) || clone_name(json_string_value(url), name, error) < 0)
            continue;
        bt_auto_free char *folder = bt_string_format(BT_AGENT_WORKSPACE "/%s", name);
        bt_auto_free char *state = bt_string_format("%s/clone-%s", agent->keeper->folder, name);
        result = collect_one(agent, folder, name, state, error);
    }
    return result;
}
