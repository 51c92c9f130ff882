/* The state database: agents. Names are reserved here, so that two launches at once never share one.
 *
 * Called through frontend/state.h. Must not remember what is alive: bt_agent_status_now asks the kernel.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "frontend/state_internal.h"
#include "lib/memory.h"

#define BT_AGENT_COLUMNS                                                                                     \
    "id, name, environment, manifest, harness, backend, status, exit_status, slot, generation, keeper_pid,"  \
    " keeper_start, keeper_boot, folder, workspace, image, detail, created, ended"
#define BT_NAME_TRIES 64

static const char *const bt_agent_status_names[BT_AGENT_STATUS_MAX] = {
    [BT_AGENT_STARTING] = "starting", [BT_AGENT_RUNNING] = "running", [BT_AGENT_EXITED] = "exited",
    [BT_AGENT_FAILED] = "failed",     [BT_AGENT_STOPPED] = "stopped", [BT_AGENT_LOST] = "lost",
};

const char *bt_agent_status_name(enum bt_agent_status status)
{
    return (unsigned)status < BT_AGENT_STATUS_MAX ? bt_agent_status_names[status] : "unknown";
}

bool bt_agent_is_live(const struct bt_agent *agent)
{
    return (agent->status == BT_AGENT_STARTING || agent->status == BT_AGENT_RUNNING) &&
           bt_process_is_alive(&agent->keeper);
}

enum bt_agent_status bt_agent_status_now(const struct bt_agent *agent)
{
    if ((agent->status == BT_AGENT_STARTING || agent->status == BT_AGENT_RUNNING) && !bt_agent_is_live(agent))
        return BT_AGENT_LOST;
    return agent->status;
}

static void bt_agent_from_row(sqlite3_stmt *row, struct bt_agent *agent)
{
    char status[16];

    memset(agent, 0, sizeof(*agent));
    agent->id = sqlite3_column_int64(row, 0);
    bt_sql_text(row, 1, agent->name, sizeof(agent->name));
    bt_sql_text(row, 2, agent->environment, sizeof(agent->environment));
    bt_sql_text(row, 3, agent->manifest, sizeof(agent->manifest));
    bt_sql_text(row, 4, agent->harness, sizeof(agent->harness));
    bt_sql_text(row, 5, agent->backend, sizeof(agent->backend));
    bt_sql_text(row, 6, status, sizeof(status));
    agent->status = BT_AGENT_LOST;
    for (unsigned i = 0; i < BT_AGENT_STATUS_MAX; i++) {
        if (strcmp(status, bt_agent_status_names[i]) == 0)
            agent->status = (enum bt_agent_status)i;
    }
    agent->exit_status = sqlite3_column_int(row, 7);
    agent->slot = sqlite3_column_int(row, 8);
    agent->generation = (uint32_t)sqlite3_column_int64(row, 9);
    agent->keeper.pid = (pid_t)sqlite3_column_int64(row, 10);
    agent->keeper.start_ticks = (uint64_t)sqlite3_column_int64(row, 11);
    bt_sql_text(row, 12, agent->keeper.boot, sizeof(agent->keeper.boot));
    bt_sql_text(row, 13, agent->folder, sizeof(agent->folder));
    bt_sql_text(row, 14, agent->workspace, sizeof(agent->workspace));
    bt_sql_text(row, 15, agent->image, sizeof(agent->image));
    bt_sql_text(row, 16, agent->detail, sizeof(agent->detail));
    agent->created_seconds = sqlite3_column_int64(row, 17);
    agent->ended_seconds = sqlite3_column_int64(row, 18);
}

/* The one row of a query. 1 found, 0 not. */
static int bt_agent_query(struct bt_state *state, const char *sql, const struct bt_sql_value *values,
                          size_t count, struct bt_agent *ret_agent, struct bt_error *error)
{
    bt_auto_statement *statement = NULL;
    int r = bt_sql_open(state, sql, values, count, &statement, error);

    if (r == 0)
        r = bt_sql_step(state, statement, "cannot look up an agent", error);
    if (r > 0)
        bt_agent_from_row(statement, ret_agent);
    return r;
}

void bt_state_forget_given_up(struct bt_state *state)
{
    static const char sql[] =
        "SELECT " BT_AGENT_COLUMNS " FROM agents WHERE status = 'starting' AND folder = ''";
    struct bt_error error = {0};
    int64_t ids[16];
    size_t count = 0;
    {
        bt_auto_statement *statement = NULL;
        int r = bt_sql_open(state, sql, NULL, 0, &statement, &error);
        while (r >= 0 && count < BT_ARRAY_LENGTH(ids) &&
               (r = bt_sql_step(state, statement, "cannot look for launches", &error)) > 0) {
            struct bt_agent agent;
            bt_agent_from_row(statement, &agent);
            if (!bt_agent_is_live(&agent))
                ids[count++] = agent.id;
        }
    }
    /* What cannot be deleted now (a full disk) is forgotten another time. The folder is asked again: the
     * launch was dead, so it cannot have gone on, but a row with this id must not be another one's. */
    for (size_t i = 0; i < count; i++) {
        const struct bt_sql_value values[] = {BT_SQL_NUMBER(ids[i])};
        (void)bt_sql_run(state, "DELETE FROM agents WHERE id = ? AND status = 'starting' AND folder = ''",
                         values, 1, "cannot forget a launch", &error);
    }
}

static int bt_agent_by_name(struct bt_state *state, const char *environment, const char *name,
                            struct bt_agent *ret_agent, struct bt_error *error)
{
    const struct bt_sql_value values[] = {BT_SQL_TEXT(environment), BT_SQL_TEXT(name)};

    return bt_agent_query(state, "SELECT " BT_AGENT_COLUMNS " FROM agents WHERE environment = ? AND name = ?",
                          values, 2, ret_agent, error);
}

/* "shell-calm-otter": from the manifest's name and two words, within BT_NAME_SIZE. */
static void bt_agent_make_name(const char *manifest, unsigned try, char ret_name[BT_NAME_SIZE])
{
    static const char *const first[] = {
        "amber", "brave", "brisk", "calm",  "clear",  "coral", "eager", "early", "fair", "gentle", "green",
        "handy", "keen",  "late",  "light", "lively", "lucky", "merry", "mild",  "neat", "noble",  "plain",
        "proud", "quick", "quiet", "rapid", "sharp",  "sunny", "swift", "tidy",  "warm", "wise"};
    static const char *const second[] = {
        "anchor", "barge", "beacon", "buoy",   "canoe",  "cape",  "cove",  "crane", "delta",  "dory", "ferry",
        "fjord",  "gull",  "heron",  "inlet",  "island", "jetty", "kayak", "keel",  "lagoon", "oar",  "otter",
        "pier",   "quay",  "reef",   "rudder", "sail",   "shoal", "skiff", "sloop", "tide",   "wharf"};
    uint8_t random[4];
    int stem = (int)strlen(manifest);

    if (stem > 16)
        stem = 16;
    while (stem > 0 && manifest[stem - 1] == '-')
        stem--;
    bt_random_bytes(random, sizeof(random));
    if (try < BT_NAME_TRIES / 2)
        snprintf(ret_name, BT_NAME_SIZE, "%.*s-%s-%s", stem, manifest,
                 first[random[0] % BT_ARRAY_LENGTH(first)], second[random[1] % BT_ARRAY_LENGTH(second)]);
    else
        snprintf(ret_name, BT_NAME_SIZE, "%.*s-%08x", stem, manifest, bt_load_u32(random));
}

static int bt_agent_insert(struct bt_state *state, struct bt_agent *agent, struct bt_error *error)
{
    const struct bt_sql_value values[] = {
        BT_SQL_TEXT(agent->name),
        BT_SQL_TEXT(agent->environment),
        BT_SQL_TEXT(agent->manifest),
        BT_SQL_TEXT(agent->harness),
        BT_SQL_TEXT(agent->backend),
        BT_SQL_TEXT(bt_agent_status_name(agent->status)),
        BT_SQL_NUMBER(agent->exit_status),
        BT_SQL_NUMBER(agent->slot),
        BT_SQL_NUMBER(agent->generation),
        BT_SQL_NUMBER(agent->keeper.pid),
        BT_SQL_NUMBER(agent->keeper.start_ticks),
        BT_SQL_TEXT(agent->keeper.boot),
        BT_SQL_TEXT(agent->folder),
        BT_SQL_TEXT(agent->workspace),
        BT_SQL_TEXT(agent->image),
        BT_SQL_TEXT(agent->detail),
        BT_SQL_NUMBER(agent->created_seconds),
    };
    int r = bt_sql_run(
        state,
        "INSERT INTO agents (name, environment, manifest, harness, backend, status, exit_status, slot,"
        " generation, keeper_pid, keeper_start, keeper_boot, folder, workspace, image, detail, created,"
        " ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        values, BT_ARRAY_LENGTH(values), "cannot reserve a name", error);

    if (r == 0)
        agent->id = sqlite3_last_insert_rowid(state->database);
    return r;
}

static int bt_agent_name_taken(const struct bt_agent *other, struct bt_error *error)
{
    bool is_live = bt_agent_is_live(other);
    char hint[256];

    snprintf(hint, sizeof(hint),
             is_live ? "choose another --name, or end it: berth stop %s, then berth rm %s"
                     : "choose another --name, or remove it: berth rm %s",
             other->name, other->name);
    return bt_fail(error, BT_EXIT_ERROR, EEXIST, hint,
                   "the name '%s' is already taken by an agent that is %s", other->name,
                   bt_agent_status_name(bt_agent_status_now(other)));
}

/* Within the transaction: chooses agent->name if it is empty, and refuses one that is taken. */
static int bt_agent_choose_name(struct bt_state *state, struct bt_agent *agent, struct bt_error *error)
{
    struct bt_agent other;
    int r = 1;

    if (*agent->name) {
        r = bt_agent_by_name(state, agent->environment, agent->name, &other, error);
        return r > 0 ? bt_agent_name_taken(&other, error) : r;
    }
    for (unsigned try = 0; r > 0 && try < BT_NAME_TRIES; try++) {
        char name[BT_NAME_SIZE];
        bt_agent_make_name(agent->manifest, try, name);
        r = bt_agent_by_name(state, agent->environment, name, &other, error);
        if (r == 0)
            memcpy(agent->name, name, sizeof(name));
    }
    return r > 0 ? bt_fail(error, BT_EXIT_ERROR, EEXIST, "give it one with --name", "no free name was found")
                 : r;
}

int bt_state_reserve(struct bt_state *state, struct bt_agent *agent, struct bt_error *error)
{
    struct bt_agent reserved = *agent;
    int r;

    if (*agent->name && !bt_name_is_valid(agent->name))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                       "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                       "'%s' cannot be the name of an agent", agent->name);
    reserved.status = BT_AGENT_STARTING;
    reserved.created_seconds = (int64_t)time(NULL);
    reserved.ended_seconds = 0;
    reserved.exit_status = -1;
    r = bt_state_begin(state, error);
    if (r < 0)
        return r;
    r = bt_agent_choose_name(state, &reserved, error);
    if (r == 0)
        r = bt_agent_insert(state, &reserved, error);
    r = bt_state_end(state, r, error);
    if (r == 0)
        *agent = reserved;
    return r;
}

static int bt_agent_require_change(struct bt_state *state, struct bt_error *error)
{
    if (sqlite3_changes(state->database) > 0)
        return 0;
    return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, NULL, "the agent was removed meanwhile");
}

int bt_state_update(struct bt_state *state, const struct bt_agent *agent, struct bt_error *error)
{
    const struct bt_sql_value values[] = {
        BT_SQL_TEXT(agent->manifest),
        BT_SQL_TEXT(agent->harness),
        BT_SQL_TEXT(agent->backend),
        BT_SQL_TEXT(bt_agent_status_name(agent->status)),
        BT_SQL_NUMBER(agent->exit_status),
        BT_SQL_NUMBER(agent->slot),
        BT_SQL_NUMBER(agent->generation),
        BT_SQL_NUMBER(agent->keeper.pid),
        BT_SQL_NUMBER(agent->keeper.start_ticks),
        BT_SQL_TEXT(agent->keeper.boot),
        BT_SQL_TEXT(agent->folder),
        BT_SQL_TEXT(agent->workspace),
        BT_SQL_TEXT(agent->image),
        BT_SQL_TEXT(agent->detail),
        BT_SQL_NUMBER(agent->ended_seconds),
        BT_SQL_NUMBER(agent->id),
    };
    int r = bt_sql_run(
        state,
        "UPDATE agents SET manifest = ?, harness = ?, backend = ?, status = ?, exit_status = ?, slot = ?,"
        " generation = ?, keeper_pid = ?, keeper_start = ?, keeper_boot = ?, folder = ?, workspace = ?,"
        " image = ?, detail = ?, ended = ? WHERE id = ?",
        values, BT_ARRAY_LENGTH(values), "cannot record the agent", error);

    return r < 0 ? r : bt_agent_require_change(state, error);
}

int bt_state_take_again(struct bt_state *state, const struct bt_agent *seen, struct bt_agent *agent,
                        struct bt_error *error)
{
    const struct bt_sql_value values[] = {
        BT_SQL_NUMBER(agent->keeper.pid),
        BT_SQL_NUMBER(agent->keeper.start_ticks),
        BT_SQL_TEXT(agent->keeper.boot),
        BT_SQL_NUMBER(seen->id),
        BT_SQL_TEXT(bt_agent_status_name(seen->status)),
        BT_SQL_NUMBER(seen->keeper.pid),
        BT_SQL_NUMBER(seen->keeper.start_ticks),
        BT_SQL_NUMBER(seen->ended_seconds),
    };
    int r = bt_sql_run(
        state,
        "UPDATE agents SET status = 'starting', exit_status = -1, slot = -1, detail = '', ended = 0,"
        " keeper_pid = ?, keeper_start = ?, keeper_boot = ?"
        " WHERE id = ? AND status = ? AND keeper_pid = ? AND keeper_start = ? AND ended = ?",
        values, BT_ARRAY_LENGTH(values), "cannot take the agent", error);

    if (r == 0 && bt_agent_require_change(state, NULL) < 0)
        r = bt_fail(error, BT_EXIT_ERROR, EBUSY, "berth list shows what became of it",
                    "the agent %s was started or removed by another command just now", seen->name);
    return r < 0 ? r : bt_state_get(state, seen->id, agent, error);
}

int bt_state_set_status(struct bt_state *state, int64_t id, enum bt_agent_status status, int exit_status,
                        const char *detail, struct bt_error *error)
{
    bool has_ended = status != BT_AGENT_STARTING && status != BT_AGENT_RUNNING;
    const struct bt_sql_value values[] = {
        BT_SQL_TEXT(bt_agent_status_name(status)),          BT_SQL_NUMBER(exit_status), BT_SQL_TEXT(detail),
        BT_SQL_NUMBER(has_ended ? (int64_t)time(NULL) : 0), BT_SQL_NUMBER(id),
    };
    int r =
        bt_sql_run(state,
                   "UPDATE agents SET status = ?, exit_status = ?, detail = coalesce(?, detail), ended = ?"
                   " WHERE id = ?",
                   values, BT_ARRAY_LENGTH(values), "cannot record the agent's status", error);

    return r < 0 ? r : bt_agent_require_change(state, error);
}

int bt_state_list(struct bt_state *state, const char *environment, struct bt_agent **ret_agents,
                  size_t *ret_count, struct bt_error *error)
{
    const struct bt_sql_value name = BT_SQL_TEXT(environment);
    bt_auto_statement *statement = NULL;
    struct bt_agent *agents = NULL;
    size_t count = 0, capacity = 0;
    int r = bt_sql_open(state,
                        "SELECT " BT_AGENT_COLUMNS
                        " FROM agents WHERE ?1 IS NULL OR environment = ?1 ORDER BY id DESC",
                        &name, 1, &statement, error);

    while (r == 0 && (r = bt_sql_step(state, statement, "cannot list agents", error)) > 0) {
        if (count == capacity) {
            capacity = capacity ? capacity * 2 : 16;
            struct bt_agent *grown = bt_new(capacity, sizeof(*grown));
            if (count)
                memcpy(grown, agents, count * sizeof(*grown));
            free(agents);
            agents = grown;
        }
        bt_agent_from_row(statement, &agents[count++]);
        r = 0;
    }
    if (r < 0) {
        free(agents);
        return r;
    }
    *ret_agents = agents;
    *ret_count = count;
    return 0;
}

static int bt_agent_none(const struct bt_agent *agents, size_t count, const char *name_part,
                         struct bt_error *error)
{
    bt_auto_list names = {0};
    const char *nearest;
    char hint[160];

    for (size_t i = 0; i < count; i++)
        bt_list_add(&names, agents[i].name);
    nearest = bt_nearest(name_part, (const char *const *)names.items, names.count);
    if (nearest)
        snprintf(hint, sizeof(hint), "did you mean '%s'?", nearest);
    else
        snprintf(hint, sizeof(hint), "berth list shows all agents");
    return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, hint, "there is no agent '%.64s'", name_part);
}

static int bt_agent_ambiguous(const struct bt_agent *agents, size_t count, const char *name_part,
                              struct bt_error *error)
{
    bt_auto_buffer names = {.limit = 600};
    bool is_cut = false;

    for (size_t i = 0; i < count && !is_cut; i++) {
        if (strstr(agents[i].name, name_part))
            is_cut = bt_buffer_add_format(&names, "%s%s", names.length ? ", " : "", agents[i].name) < 0;
    }
    return bt_fail(error, BT_EXIT_NO_TARGET, ENOTUNIQ, "write more of the name",
                   "'%.64s' matches several agents: %s%s", name_part, names.data, is_cut ? ", ..." : "");
}

int bt_state_find(struct bt_state *state, const char *environment, const char *name_part,
                  struct bt_agent *ret_agent, struct bt_error *error)
{
    bt_auto_free struct bt_agent *agents = NULL;
    const struct bt_agent *match = NULL;
    size_t count = 0, matches = 0;
    int r = bt_agent_by_name(state, environment, name_part, ret_agent, error);

    if (r != 0)
        return r < 0 ? r : 0;
    r = bt_state_list(state, environment, &agents, &count, error);
    if (r < 0)
        return r;
    for (size_t i = 0; i < count && *name_part; i++) {
        if (strstr(agents[i].name, name_part)) {
            match = &agents[i];
            matches++;
        }
    }
    if (matches > 1)
        return bt_agent_ambiguous(agents, count, name_part, error);
    if (!match)
        return bt_agent_none(agents, count, name_part, error);
    *ret_agent = *match;
    return 0;
}

int bt_state_find_latest(struct bt_state *state, const char *environment, struct bt_agent *ret_agent,
                         struct bt_error *error)
{
    const struct bt_sql_value name = BT_SQL_TEXT(environment);
    int r = bt_agent_query(
        state, "SELECT " BT_AGENT_COLUMNS " FROM agents WHERE environment = ? ORDER BY id DESC LIMIT 1",
        &name, 1, ret_agent, error);

    if (r == 0)
        return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, "start one with: berth spawn shell",
                       "there is no agent yet");
    return r < 0 ? r : 0;
}

int bt_state_get(struct bt_state *state, int64_t id, struct bt_agent *ret_agent, struct bt_error *error)
{
    const struct bt_sql_value value = BT_SQL_NUMBER(id);
    int r = bt_agent_query(state, "SELECT " BT_AGENT_COLUMNS " FROM agents WHERE id = ?", &value, 1,
                           ret_agent, error);

    if (r == 0)
        return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, NULL, "the agent was removed meanwhile");
    return r < 0 ? r : 0;
}

int bt_state_delete(struct bt_state *state, int64_t id, struct bt_error *error)
{
    const struct bt_sql_value value = BT_SQL_NUMBER(id);

    return bt_sql_run(state, "DELETE FROM agents WHERE id = ?", &value, 1, "cannot remove the agent", error);
}
