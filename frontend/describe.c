/* One wording of agents for all commands. See describe.h.
 */
#include <stdio.h>
#include <time.h>

#include "frontend/describe.h"

enum bt_color bt_describe_color(enum bt_agent_status status)
{
    static const enum bt_color colors[BT_AGENT_STATUS_MAX] = {
        [BT_AGENT_STARTING] = BT_COLOR_YELLOW, [BT_AGENT_RUNNING] = BT_COLOR_GREEN,
        [BT_AGENT_EXITED] = BT_COLOR_NONE,     [BT_AGENT_FAILED] = BT_COLOR_RED,
        [BT_AGENT_STOPPED] = BT_COLOR_DIM,     [BT_AGENT_LOST] = BT_COLOR_RED,
    };

    return (unsigned)status < BT_AGENT_STATUS_MAX ? colors[status] : BT_COLOR_NONE;
}

const char *bt_describe_advice(enum bt_agent_status status)
{
    if (status == BT_AGENT_LOST)
        return "its keeper is gone (killed, or the machine was restarted) and its way out is closed; "
               "berth rm removes what is left";
    if (status == BT_AGENT_FAILED)
        return "berth rm removes it";
    return NULL;
}

void bt_describe_time(int64_t seconds, char ret_text[BT_OUTPUT_TEXT_SIZE])
{
    time_t time_seconds = (time_t)seconds;
    struct tm parts;

    ret_text[0] = '\0';
    if (seconds && gmtime_r(&time_seconds, &parts))
        strftime(ret_text, BT_OUTPUT_TEXT_SIZE, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

static json_t *bt_describe_json_time(int64_t seconds)
{
    char text[BT_OUTPUT_TEXT_SIZE];

    bt_describe_time(seconds, text);
    return *text ? json_string(text) : json_null();
}

json_t *bt_describe_agent(const struct bt_agent *agent)
{
    enum bt_agent_status status = bt_agent_status_now(agent);
    bool is_live = status == BT_AGENT_STARTING || status == BT_AGENT_RUNNING;

    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:s, s:o, s:o}", "name",
        agent->name, "environment", agent->environment, "status", bt_agent_status_name(status), "manifest",
        agent->manifest, "harness", agent->harness, "backend", agent->backend, "exit_status",
        agent->exit_status >= 0 ? json_integer(agent->exit_status) : json_null(), "slot",
        is_live && agent->slot >= 0 ? json_integer(agent->slot) : json_null(), "generation",
        (json_int_t)agent->generation, "keeper_pid", is_live ? json_integer(agent->keeper.pid) : json_null(),
        "created", bt_describe_json_time(agent->created_seconds), "ended",
        bt_describe_json_time(agent->ended_seconds), "workspace",
        bt_output_json_text(*agent->workspace ? agent->workspace : NULL), "image", agent->image, "detail",
        bt_output_json_text(*agent->detail ? agent->detail : NULL), "what_to_do",
        bt_output_json_text(bt_describe_advice(status)));
}
