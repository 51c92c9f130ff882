/* Shared by the state_*.c files only: statements with bound values, and SQLite's errors as the user should
 * read them.
 */
#ifndef BERTH_FRONTEND_STATE_INTERNAL_H
#define BERTH_FRONTEND_STATE_INTERNAL_H

#include <sqlite3.h>

#include "frontend/state.h"

struct bt_state {
    sqlite3 *database;
    char path[600];
};

/* A value to bind; text NULL with is_text unset means the number. Borrows the text until the statement has
 * run. */
struct bt_sql_value {
    bool is_text;
    const char *text;
    int64_t number;
};
#define BT_SQL_TEXT(value) ((struct bt_sql_value){.is_text = true, .text = (value)})
#define BT_SQL_NUMBER(value) ((struct bt_sql_value){.number = (int64_t)(value)})

void bt_sql_finalize(sqlite3_stmt **statement);
#define bt_auto_statement BT_CLEANUP(bt_sql_finalize) sqlite3_stmt

/* Prepares and binds. The caller finalizes (bt_auto_statement) before the bound texts go. */
int bt_sql_open(struct bt_state *state, const char *sql, const struct bt_sql_value *values, size_t count,
                sqlite3_stmt **ret_statement, struct bt_error *error);
/* 1: a row is there; 0: no more; negative errno. */
int bt_sql_step(struct bt_state *state, sqlite3_stmt *statement, const char *what, struct bt_error *error);
/* Runs a statement that gives no rows. */
int bt_sql_run(struct bt_state *state, const char *sql, const struct bt_sql_value *values, size_t count,
               const char *what, struct bt_error *error);

/* Forgets launches whose command was ended before it made anything: nothing of them exists but their row. */
void bt_state_forget_given_up(struct bt_state *state);

/* Copies a text column, cut to size. */
void bt_sql_text(sqlite3_stmt *statement, int column, char *ret_text, size_t size);

/* BEGIN IMMEDIATE; end commits when result is 0, else rolls back, and returns the first failure of the two.
 */
int bt_state_begin(struct bt_state *state, struct bt_error *error);
int bt_state_end(struct bt_state *state, int result, struct bt_error *error);

#endif
