/* One wording of agents for all commands. See describe.h.
 */
#include <time.h>

#include "frontend/describe.h"

#include <string.h>

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

/* What its slot means while it lives: interface and address. */
static void bt_describe_slot(json_t *document, const struct bt_agent *agent, const struct bt_pool *pool)
{
    static const struct bt_pool any = {.slots = BT_POOL_SLOTS_MAX}; /* names depend on the number alone */
    char address_text[BT_IPV4_TEXT_SIZE];
    struct bt_place place = {0};
    enum bt_kind kind = strcmp(agent->backend, "docker") == 0 ? BT_KIND_BRIDGE : BT_KIND_TAP_FD;
    bool has_slot = bt_agent_is_live(agent) && agent->slot >= 0 && agent->slot < (int)BT_POOL_SLOTS_MAX;
    bool has_name = has_slot && bt_pool_place(pool ? pool : &any, kind, BT_ROLE_AGENT, (uint16_t)agent->slot,
                                              &place) == 0;
    bool has_address = has_name && pool;

    if (has_address)
        bt_ipv4_format(place.guest_address, address_text);
    json_object_set_new(document, "slot", has_slot ? json_integer(agent->slot) : json_null());
    json_object_set_new(document, "generation", has_slot ? json_integer(agent->generation) : json_null());
    json_object_set_new(document, "interface", has_name ? json_string(place.interface_name) : json_null());
    json_object_set_new(document, "address", has_address ? json_string(address_text) : json_null());
    json_object_set_new(document, "keeper_pid", has_slot ? json_integer(agent->keeper.pid) : json_null());
}

json_t *bt_describe_agent(const struct bt_agent *agent, const struct bt_pool *pool)
{
    enum bt_agent_status status = bt_agent_status_now(agent);
    json_t *exit_status = agent->exit_status >= 0 ? json_integer(agent->exit_status) : json_null();
    json_t *document =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:s, s:o, s:o}", "name", agent->name,
                  "environment", agent->environment, "status", bt_agent_status_name(status), "manifest",
                  agent->manifest, "harness", agent->harness, "backend", agent->backend, "exit_status",
                  exit_status, "created", bt_describe_json_time(agent->created_seconds), "ended",
                  bt_describe_json_time(agent->ended_seconds), "workspace",
                  bt_output_json_text(*agent->workspace ? agent->workspace : NULL), "image", agent->image,
                  "detail", bt_output_json_text(*agent->detail ? agent->detail : NULL), "what_to_do",
                  bt_output_json_text(bt_describe_advice(status)));

    bt_describe_slot(document, agent, pool);
    return document;
}

/* "GET, POST" of a list of texts. */
static void bt_describe_list(struct bt_buffer *text, const json_t *list)
{
    const json_t *item;
    size_t index;

    json_array_foreach(list, index, item)
    {
        if (bt_buffer_add_format(text, "%s%s", index > 0 ? ", " : "", json_string_value(item)) < 0)
            return;
    }
}

static void bt_describe_add(struct bt_buffer *text, const char *what, const char *value)
{
    if (text->length > 0 && bt_buffer_add_text(text, "; ") < 0)
        return;
    (void)!bt_buffer_add_format(text, "%s%s", what, value);
}

char *bt_describe_rules(const json_t *rules)
{
    const json_t *methods = json_object_get(rules, "methods"), *paths = json_object_get(rules, "paths");
    const char *tls = json_string_value(json_object_get(rules, "tls"));
    const char *credential = json_string_value(json_object_get(json_object_get(rules, "auth"), "from"));
    struct bt_buffer text = {.limit = 1024};

    bt_describe_list(&text, methods);
    if (methods && paths)
        (void)!bt_buffer_add_text(&text, " ");
    bt_describe_list(&text, paths);
    if (json_object_get(rules, "headers"))
        bt_describe_add(&text, "certain header fields", "");
    if (tls && strcmp(tls, "pass") == 0)
        bt_describe_add(&text, "TLS passed through", "");
    if (credential)
        bt_describe_add(&text, "credential ", credential);
    if (json_is_true(json_object_get(rules, "preserve_auth")))
        bt_describe_add(&text, "its own credentials", "");
    if (json_is_true(json_object_get(rules, "private")))
        bt_describe_add(&text, "private addresses", "");
    return text.length > 0 ? text.data : bt_string_copy("everything");
}
