/* The registry in SQLite. See registry.h.
 *
 * Statements are prepared per call: the rate is a few a second. Must not be opened twice.
 */
#include "policy/orchestrator/registry.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/memory.h"

#define TRIM_STEP 256 /* how many decisions go at once */

struct bt_registry {
    sqlite3 *database;
};

/* Exclusive locking keeps the WAL index in memory, so no shared-memory file is made. */
static const char schema[] =
    "PRAGMA locking_mode = EXCLUSIVE;"
    "PRAGMA journal_mode = WAL;"
    "PRAGMA synchronous = NORMAL;"
    "PRAGMA temp_store = MEMORY;"
    "CREATE TABLE IF NOT EXISTS agents (slot INTEGER PRIMARY KEY, generation INTEGER NOT NULL, name TEXT NOT "
    "NULL,"
    " address INTEGER NOT NULL UNIQUE, gateway_address INTEGER NOT NULL, token_sha256 TEXT NOT NULL,"
    " policy_version INTEGER NOT NULL, policy TEXT NOT NULL) STRICT;"
    "CREATE TABLE IF NOT EXISTS ended (slot INTEGER PRIMARY KEY, generation INTEGER NOT NULL,"
    " policy_version INTEGER NOT NULL) STRICT;"
    "CREATE TABLE IF NOT EXISTS decisions (id INTEGER PRIMARY KEY AUTOINCREMENT, slot INTEGER NOT NULL,"
    " generation INTEGER NOT NULL, record TEXT NOT NULL) STRICT;"
    "CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, last INTEGER NOT NULL) STRICT;";

static void finalize(sqlite3_stmt **statement)
{
    (void)sqlite3_finalize(*statement);
}
#define auto_statement BT_CLEANUP(finalize) sqlite3_stmt

void bt_registry_agent_clear(struct bt_registry_agent *agent)
{
    json_decref(agent->policy);
    bt_buffer_free(&agent->sealed);
    memset(agent, 0, sizeof(*agent));
}

static int database_fail(struct bt_registry *registry, struct bt_error *error)
{
    int code = sqlite3_errcode(registry->database) == SQLITE_FULL ? ENOSPC : EIO;
    return bt_fail(error, BT_EXIT_ERROR, code, code == ENOSPC ? "make room on the registry's disk" : NULL,
                   "registry: %s", sqlite3_errmsg(registry->database));
}

static int execute(struct bt_registry *registry, const char *sql, struct bt_error *error)
{
    if (sqlite3_exec(registry->database, sql, NULL, NULL, NULL) != SQLITE_OK)
        return database_fail(registry, error);
    return 0;
}

static int prepare(struct bt_registry *registry, const char *sql, sqlite3_stmt **ret_statement,
                   struct bt_error *error)
{
    if (sqlite3_prepare_v2(registry->database, sql, -1, ret_statement, NULL) != SQLITE_OK)
        return database_fail(registry, error);
    return 0;
}

static int run(struct bt_registry *registry, sqlite3_stmt *statement, struct bt_error *error)
{
    if (sqlite3_step(statement) != SQLITE_DONE)
        return database_fail(registry, error);
    return 0;
}

/* Of a registry that an older orchestrator made. */
static int add_column(struct bt_registry *registry, const char *table, const char *column, const char *add,
                      struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry, "SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2", &statement, error);
    if (result < 0)
        return result;
    sqlite3_bind_text(statement, 1, table, -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 2, column, -1, SQLITE_STATIC);
    int step = sqlite3_step(statement);
    if (step == SQLITE_ROW)
        return 0;
    if (step != SQLITE_DONE)
        return database_fail(registry, error);
    return execute(registry, add, error);
}

static int upgrade(struct bt_registry *registry, struct bt_error *error)
{
    int result = add_column(registry, "agents", "sealed", "ALTER TABLE agents ADD COLUMN sealed BLOB", error);
    return result < 0
               ? result
               : add_column(registry, "decisions", "is_allowed",
                            "ALTER TABLE decisions ADD COLUMN is_allowed INTEGER NOT NULL DEFAULT 0", error);
}

int bt_registry_open(const char *path, struct bt_registry **ret_registry, struct bt_error *error)
{
    struct bt_registry *registry = bt_new(1, sizeof(*registry));
    mode_t mask = umask(077);
    int opened = sqlite3_open_v2(path, &registry->database,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW, NULL);
    int result = opened == SQLITE_OK ? execute(registry, schema, error) : database_fail(registry, error);
    if (result == 0)
        result = upgrade(registry, error);
    (void)umask(mask);
    if (result < 0) {
        bt_registry_close(registry);
        return bt_error_prefix(error, "cannot open %s", path);
    }
    *ret_registry = registry;
    return 0;
}

struct bt_registry *bt_registry_close(struct bt_registry *registry)
{
    if (registry != NULL)
        (void)sqlite3_close(registry->database);
    free(registry);
    return NULL;
}

/* Keeps the version that a lease had last: registered again, it counts on from there, or a gateway that did
 * not ask meanwhile would take the new policy for the one it knows. address: -1 for none. */
static int keep_versions(struct bt_registry *registry, int64_t slot, int64_t address, struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry,
                         "INSERT OR REPLACE INTO ended SELECT slot, generation, policy_version FROM agents"
                         " WHERE slot = ?1 OR address = ?2",
                         &statement, error);
    if (result < 0)
        return result;
    sqlite3_bind_int64(statement, 1, slot);
    sqlite3_bind_int64(statement, 2, address);
    return run(registry, statement, error);
}

/* The version of a lease that ended, or 0. */
static int ended_version(struct bt_registry *registry, const struct bt_registry_agent *agent,
                         uint64_t *ret_version, struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry, "SELECT policy_version FROM ended WHERE slot = ?1 AND generation = ?2",
                         &statement, error);
    if (result < 0)
        return result;
    sqlite3_bind_int64(statement, 1, agent->slot);
    sqlite3_bind_int64(statement, 2, agent->generation);
    int step = sqlite3_step(statement);
    if (step != SQLITE_ROW && step != SQLITE_DONE)
        return database_fail(registry, error);
    *ret_version = step == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(statement, 0) : 0;
    return 0;
}

static int insert_agent(struct bt_registry *registry, const struct bt_registry_agent *agent, uint64_t version,
                        struct bt_error *error)
{
    auto_statement *clear = NULL;
    auto_statement *insert = NULL;
    int result = keep_versions(registry, agent->slot, agent->address, error);
    if (result == 0)
        result = prepare(registry, "DELETE FROM agents WHERE slot = ?1 OR address = ?2", &clear, error);
    if (result == 0)
        result = prepare(registry, "INSERT INTO agents VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)", &insert,
                         error);
    if (result < 0)
        return result;
    bt_auto_free char *policy = json_dumps(agent->policy, JSON_COMPACT);
    if (policy == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "registry: cannot write the policy");
    sqlite3_bind_int64(clear, 1, agent->slot);
    sqlite3_bind_int64(clear, 2, agent->address);
    result = run(registry, clear, error);
    if (result < 0)
        return result;
    sqlite3_bind_int64(insert, 1, agent->slot);
    sqlite3_bind_int64(insert, 2, agent->generation);
    sqlite3_bind_text(insert, 3, agent->name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(insert, 4, agent->address);
    sqlite3_bind_int64(insert, 5, agent->gateway_address);
    sqlite3_bind_text(insert, 6, agent->token_sha256, -1, SQLITE_STATIC);
    sqlite3_bind_int64(insert, 7, (sqlite3_int64)version);
    sqlite3_bind_text(insert, 8, policy, -1, SQLITE_STATIC);
    if (agent->sealed.length > 0)
        sqlite3_bind_blob(insert, 9, agent->sealed.data, (int)agent->sealed.length, SQLITE_STATIC);
    return run(registry, insert, error);
}

/* Ends a transaction: commits when result is 0, else rolls back. Returns the error of either. */
static int end_transaction(struct bt_registry *registry, int result, struct bt_error *error)
{
    if (result == 0)
        result = execute(registry, "COMMIT", error);
    if (result < 0)
        (void)execute(registry, "ROLLBACK", NULL);
    return result;
}

int bt_registry_next_version(struct bt_registry *registry, const struct bt_registry_agent *agent,
                             uint64_t *ret_version, struct bt_error *error)
{
    struct bt_registry_agent held = {0};
    int result = bt_registry_find_slot(registry, agent->slot, &held, error);
    if (result < 0 && result != -ENOENT)
        return result;
    uint64_t lowest = 0;
    bool is_held = result == 0 && held.generation == agent->generation;
    if (is_held) {
        bool is_changed = agent->has_new_secrets || !json_equal(held.policy, agent->policy);
        lowest = held.policy_version + (is_changed ? 1 : 0);
    }
    bt_registry_agent_clear(&held);
    result = is_held ? 0 : ended_version(registry, agent, &lowest, error);
    if (result < 0)
        return result;
    lowest += is_held ? 0 : 1;
    if (agent->policy_version != 0 && agent->policy_version < lowest)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "leave it out, and it is counted here",
                       "\"policy_version\" is %llu, and the next one of slot %u is %llu",
                       (unsigned long long)agent->policy_version, agent->slot, (unsigned long long)lowest);
    *ret_version = agent->policy_version != 0 ? agent->policy_version : lowest;
    return 0;
}

int bt_registry_put(struct bt_registry *registry, const struct bt_registry_agent *agent,
                    uint64_t *ret_version, struct bt_error *error)
{
    uint64_t version;
    int result = bt_registry_next_version(registry, agent, &version, error);
    if (result < 0)
        return result;
    result = execute(registry, "BEGIN IMMEDIATE", error);
    if (result < 0)
        return result;
    result = end_transaction(registry, insert_agent(registry, agent, version, error), error);
    if (result == 0)
        *ret_version = version;
    return result;
}

int bt_registry_delete(struct bt_registry *registry, uint16_t slot, uint32_t generation,
                       struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = keep_versions(registry, slot, -1, error);
    if (result == 0)
        result =
            prepare(registry, "DELETE FROM agents WHERE slot = ?1 AND generation = ?2", &statement, error);
    if (result < 0)
        return result;
    sqlite3_bind_int64(statement, 1, slot);
    sqlite3_bind_int64(statement, 2, generation);
    result = run(registry, statement, error);
    if (result < 0)
        return result;
    if (sqlite3_changes(registry->database) == 0)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "no agent of generation %u holds slot %u",
                       generation, slot);
    return 0;
}

static void copy_text(char *target, size_t size, const unsigned char *text)
{
    size_t length = text != NULL ? strnlen((const char *)text, size - 1) : 0;
    if (length > 0)
        memcpy(target, text, length);
    target[length] = '\0';
}

static int read_agent(sqlite3_stmt *row, struct bt_registry_agent *agent, struct bt_error *error)
{
    struct bt_registry_agent read = {
        .slot = (uint16_t)sqlite3_column_int64(row, 0),
        .generation = (uint32_t)sqlite3_column_int64(row, 1),
        .address = (uint32_t)sqlite3_column_int64(row, 3),
        .gateway_address = (uint32_t)sqlite3_column_int64(row, 4),
        .policy_version = (uint64_t)sqlite3_column_int64(row, 6),
    };
    copy_text(read.name, sizeof(read.name), sqlite3_column_text(row, 2));
    copy_text(read.token_sha256, sizeof(read.token_sha256), sqlite3_column_text(row, 5));
    const char *policy = (const char *)sqlite3_column_text(row, 7);
    read.policy = policy != NULL ? json_loads(policy, 0, NULL) : NULL;
    if (read.policy == NULL)
        return bt_fail(error, BT_EXIT_ERROR, EIO, "register that agent again",
                       "registry: the policy of slot %u is damaged", read.slot);
    const void *sealed = sqlite3_column_blob(row, 8);
    size_t length = (size_t)sqlite3_column_bytes(row, 8);
    if (sealed != NULL && bt_buffer_add(&read.sealed, sealed, length) < 0) {
        bt_registry_agent_clear(&read);
        return bt_fail(error, BT_EXIT_ERROR, EIO, "register that agent again",
                       "registry: the secrets of that slot are damaged");
    }
    *agent = read;
    return 0;
}

#define SELECT_AGENTS                                                                                        \
    "SELECT slot, generation, name, address, gateway_address, token_sha256, policy_version, policy, sealed " \
    "FROM "                                                                                                  \
    "agents "

static int find(struct bt_registry *registry, const char *sql, int64_t value,
                struct bt_registry_agent *ret_agent, struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry, sql, &statement, error);
    if (result < 0)
        return result;
    sqlite3_bind_int64(statement, 1, value);
    int step = sqlite3_step(statement);
    if (step == SQLITE_DONE)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "no such agent is registered");
    if (step != SQLITE_ROW)
        return database_fail(registry, error);
    return read_agent(statement, ret_agent, error);
}

int bt_registry_find_slot(struct bt_registry *registry, uint16_t slot, struct bt_registry_agent *ret_agent,
                          struct bt_error *error)
{
    return find(registry, SELECT_AGENTS "WHERE slot = ?1", slot, ret_agent, error);
}

int bt_registry_find_address(struct bt_registry *registry, uint32_t address,
                             struct bt_registry_agent *ret_agent, struct bt_error *error)
{
    return find(registry, SELECT_AGENTS "WHERE address = ?1", address, ret_agent, error);
}

int bt_registry_visit(struct bt_registry *registry,
                      void (*visit)(void *context, const struct bt_registry_agent *agent), void *context,
                      struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry, SELECT_AGENTS "ORDER BY slot", &statement, error);
    int step = SQLITE_DONE;
    while (result == 0 && (step = sqlite3_step(statement)) == SQLITE_ROW) {
        struct bt_registry_agent agent = {0};
        result = read_agent(statement, &agent, error);
        if (result == 0)
            visit(context, &agent);
        bt_registry_agent_clear(&agent);
    }
    if (result == 0 && step != SQLITE_DONE)
        result = database_fail(registry, error);
    return result;
}

/* The first column of the first row. */
static int ask_number(struct bt_registry *registry, const char *sql, int64_t *ret_number,
                      struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry, sql, &statement, error);
    if (result < 0)
        return result;
    if (sqlite3_step(statement) != SQLITE_ROW)
        return database_fail(registry, error);
    *ret_number = sqlite3_column_int64(statement, 0);
    return 0;
}

/* Deletes some, by a statement that takes their number as ?1, and how many an agent has who can lose them as
 * ?2. Returns how many it were. */
static int delete_decisions(struct bt_registry *registry, const char *sql, struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry, sql, &statement, error);
    if (result < 0)
        return result;
    sqlite3_bind_int(statement, 1, TRIM_STEP);
    if (sqlite3_bind_parameter_count(statement) > 1)
        sqlite3_bind_int(statement, 2, BT_REGISTRY_DECISIONS_SHARE + TRIM_STEP);
    result = run(registry, statement, error);
    return result < 0 ? result : sqlite3_changes(registry->database);
}

/* The oldest go, but first of whom there are most, if a share is left to it: who floods pushes out its
 * own records, and with refusals, which cost it nothing, not even those of what it reached. */
static int trim_decisions(struct bt_registry *registry, struct bt_error *error)
{
    static const char of_most[] =
        "DELETE FROM decisions WHERE id IN (SELECT id FROM decisions JOIN (SELECT slot AS s, generation AS g,"
        " is_allowed AS a FROM decisions GROUP BY slot, generation, is_allowed HAVING count(*) > ?2"
        " ORDER BY count(*) DESC LIMIT 1) ON slot = s AND generation = g AND is_allowed = a"
        " ORDER BY id LIMIT ?1)";
    static const char of_all[] =
        "DELETE FROM decisions WHERE id IN (SELECT id FROM decisions ORDER BY id LIMIT ?1)";
    int64_t count = 0;
    int result = ask_number(registry, "SELECT count(*) FROM decisions", &count, error);
    while (result == 0 && count > BT_REGISTRY_DECISIONS_MAX) {
        int deleted = delete_decisions(registry, of_most, error);
        if (deleted == 0)
            deleted = delete_decisions(registry, of_all, error);
        if (deleted <= 0)
            return deleted;
        count -= deleted;
    }
    return result;
}

static int insert_decisions(struct bt_registry *registry, const json_t *records, struct bt_error *error)
{
    auto_statement *insert = NULL;
    int result = prepare(
        registry, "INSERT INTO decisions (slot, generation, record, is_allowed) VALUES (?1, ?2, ?3, ?4)",
        &insert, error);
    for (size_t i = 0; i < json_array_size(records) && result == 0; i++) {
        const json_t *record = json_array_get(records, i);
        bt_auto_free char *text = json_dumps(record, JSON_COMPACT);
        if (text == NULL)
            return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "registry: cannot write a decision");
        sqlite3_bind_int64(insert, 1, json_integer_value(json_object_get(record, "slot")));
        sqlite3_bind_int64(insert, 2, json_integer_value(json_object_get(record, "generation")));
        sqlite3_bind_text(insert, 3, text, -1, SQLITE_STATIC);
        sqlite3_bind_int(insert, 4, json_is_true(json_object_get(record, "allowed")));
        result = run(registry, insert, error);
        (void)sqlite3_reset(insert);
        (void)sqlite3_clear_bindings(insert);
    }
    return result == 0 ? trim_decisions(registry, error) : result;
}

int bt_registry_add_decisions(struct bt_registry *registry, const json_t *records, struct bt_error *error)
{
    int result = execute(registry, "BEGIN IMMEDIATE", error);
    if (result < 0)
        return result;
    return end_transaction(registry, insert_decisions(registry, records, error), error);
}

int bt_registry_next_number(struct bt_registry *registry, int64_t *ret_number, struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry,
                         "INSERT INTO numbers (name, last) VALUES ('approval', 1)"
                         " ON CONFLICT (name) DO UPDATE SET last = last + 1 RETURNING last",
                         &statement, error);
    if (result < 0)
        return result;
    if (sqlite3_step(statement) != SQLITE_ROW)
        return database_fail(registry, error);
    int64_t number = sqlite3_column_int64(statement, 0);
    result = run(registry, statement, error);
    if (result == 0)
        *ret_number = number;
    return result;
}

int bt_registry_decisions(struct bt_registry *registry, const struct bt_decision_query *query,
                          json_t **ret_records, int64_t *ret_last, struct bt_error *error)
{
    auto_statement *statement = NULL;
    int result = prepare(registry,
                         "SELECT id, record FROM decisions WHERE id > ?1 AND (?2 < 0 OR slot = ?2)"
                         " AND (?3 < 0 OR generation = ?3) ORDER BY id LIMIT ?4",
                         &statement, error);
    if (result < 0)
        return result;
    sqlite3_bind_int64(statement, 1, query->after);
    sqlite3_bind_int64(statement, 2, query->slot);
    sqlite3_bind_int64(statement, 3, query->generation);
    sqlite3_bind_int64(statement, 4, query->limit);
    json_t *records = json_array();
    int64_t last = query->after;
    int step;
    while ((step = sqlite3_step(statement)) == SQLITE_ROW) {
        last = sqlite3_column_int64(statement, 0);
        json_t *record = json_loads((const char *)sqlite3_column_text(statement, 1), 0, NULL);
        if (record != NULL)
            json_object_set_new(record, "id", json_integer(last));
        json_array_append_new(records, record);
    }
    if (step != SQLITE_DONE) {
        json_decref(records);
        return database_fail(registry, error);
    }
    *ret_records = records;
    *ret_last = last;
    return 0;
}
