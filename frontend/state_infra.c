/* The state database: infra pairs.
 *
 * Called through frontend/state.h by `berth up|down|status` and the infra keepers.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "frontend/state_internal.h"

#define BT_INFRA_COLUMNS                                                                                     \
    "environment, role, slot, generation, address, keeper_pid, keeper_start, keeper_boot, folder, image, "   \
    "created"

static void bt_infra_from_row(sqlite3_stmt *row, struct bt_infra *infra)
{
    bt_sql_text(row, 0, infra->environment, sizeof(infra->environment));
    bt_sql_text(row, 1, infra->role, sizeof(infra->role));
    infra->slot = sqlite3_column_int(row, 2);
    infra->generation = (uint32_t)sqlite3_column_int64(row, 3);
    infra->address = (uint32_t)sqlite3_column_int64(row, 4);
    infra->keeper.pid = (pid_t)sqlite3_column_int64(row, 5);
    infra->keeper.start_ticks = (uint64_t)sqlite3_column_int64(row, 6);
    bt_sql_text(row, 7, infra->keeper.boot, sizeof(infra->keeper.boot));
    bt_sql_text(row, 8, infra->folder, sizeof(infra->folder));
    bt_sql_text(row, 9, infra->image, sizeof(infra->image));
    infra->created_seconds = sqlite3_column_int64(row, 10);
}

int bt_state_infra_put(struct bt_state *state, const struct bt_infra *infra, struct bt_error *error)
{
    const struct bt_sql_value values[] = {
        BT_SQL_TEXT(infra->environment),
        BT_SQL_TEXT(infra->role),
        BT_SQL_NUMBER(infra->slot),
        BT_SQL_NUMBER(infra->generation),
        BT_SQL_NUMBER(infra->address),
        BT_SQL_NUMBER(infra->keeper.pid),
        BT_SQL_NUMBER(infra->keeper.start_ticks),
        BT_SQL_TEXT(infra->keeper.boot),
        BT_SQL_TEXT(infra->folder),
        BT_SQL_TEXT(infra->image),
        BT_SQL_NUMBER(infra->created_seconds ? infra->created_seconds : (int64_t)time(NULL)),
    };

    return bt_sql_run(
        state, "INSERT OR REPLACE INTO infra (" BT_INFRA_COLUMNS ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values, BT_ARRAY_LENGTH(values), "cannot record the infra pair", error);
}

int bt_state_infra_get(struct bt_state *state, const char *environment, const char *role,
                       struct bt_infra *ret_infra, struct bt_error *error)
{
    const struct bt_sql_value values[] = {BT_SQL_TEXT(environment), BT_SQL_TEXT(role)};
    bt_auto_statement *statement = NULL;
    int r = bt_sql_open(state, "SELECT " BT_INFRA_COLUMNS " FROM infra WHERE environment = ? AND role = ?",
                        values, 2, &statement, error);

    if (r == 0)
        r = bt_sql_step(state, statement, "cannot look up the infra pair", error);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    bt_infra_from_row(statement, ret_infra);
    return 0;
}

int bt_state_infra_list(struct bt_state *state, const char *environment, struct bt_infra **ret_infra,
                        size_t *ret_count, struct bt_error *error)
{
    const struct bt_sql_value name = BT_SQL_TEXT(environment);
    bt_auto_statement *statement = NULL;
    struct bt_infra *list = NULL;
    size_t count = 0;
    int r = bt_sql_open(state,
                        "SELECT " BT_INFRA_COLUMNS " FROM infra WHERE ?1 IS NULL OR environment = ?1"
                        " ORDER BY environment, role",
                        &name, 1, &statement, error);

    while (r == 0 && (r = bt_sql_step(state, statement, "cannot list the infra pairs", error)) > 0) {
        struct bt_infra *grown = realloc(list, (count + 1) * sizeof(*list));
        if (!grown)
            abort();
        list = grown;
        bt_infra_from_row(statement, &list[count++]);
        r = 0;
    }
    if (r < 0) {
        free(list);
        return r;
    }
    *ret_infra = list;
    *ret_count = count;
    return 0;
}

int bt_state_infra_delete(struct bt_state *state, const char *environment, const char *role,
                          const struct bt_process *keeper, struct bt_error *error)
{
    const struct bt_sql_value values[] = {
        BT_SQL_TEXT(environment),
        BT_SQL_TEXT(role),
        BT_SQL_NUMBER(keeper ? keeper->pid : 0),
        BT_SQL_NUMBER(keeper ? keeper->start_ticks : 0),
        BT_SQL_TEXT(keeper ? keeper->boot : ""),
    };

    return bt_sql_run(state,
                      keeper ? "DELETE FROM infra WHERE environment = ? AND role = ? AND keeper_pid = ?"
                               " AND keeper_start = ? AND keeper_boot = ?"
                             : "DELETE FROM infra WHERE environment = ? AND role = ?",
                      values, keeper ? 5 : 2, "cannot remove the infra pair", error);
}
