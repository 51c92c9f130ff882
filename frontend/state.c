/* The state database: opening, schema, environments.
 *
 * Called through frontend/state.h by commands and keepers. Must not decide what is alive: see
 * bt_agent_status_now.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "frontend/state_internal.h"
#include "ipc/wire/pool.h"
#include "lib/memory.h"

#define BT_STATE_BUSY_MS 5000
#define BT_STATE_WAL_TRIES 100
#define BT_STATE_SPACE_BYTES (128U * 1024U) /* less than this is a full disk */

/* Step number i brings schema version i to i + 1. Never edit one that was released: append. */
static const char *const bt_state_schema[] = {
    "CREATE TABLE environments (name TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE) WITHOUT ROWID;"
    "INSERT INTO environments VALUES ('live', 0);"
    "CREATE TABLE agents (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, environment TEXT NOT "
    "NULL,"
    " manifest TEXT NOT NULL, harness TEXT NOT NULL, backend TEXT NOT NULL, status TEXT NOT NULL,"
    " exit_status INTEGER NOT NULL, slot INTEGER NOT NULL, generation INTEGER NOT NULL,"
    " keeper_pid INTEGER NOT NULL, keeper_start INTEGER NOT NULL, keeper_boot TEXT NOT NULL,"
    " folder TEXT NOT NULL, workspace TEXT NOT NULL, image TEXT NOT NULL, detail TEXT NOT NULL,"
    " created INTEGER NOT NULL, ended INTEGER NOT NULL, UNIQUE (environment, name));"
    "CREATE TABLE infra (environment TEXT NOT NULL, role TEXT NOT NULL, slot INTEGER NOT NULL,"
    " generation INTEGER NOT NULL, address INTEGER NOT NULL, keeper_pid INTEGER NOT NULL,"
    " keeper_start INTEGER NOT NULL, keeper_boot TEXT NOT NULL, folder TEXT NOT NULL, image TEXT NOT NULL,"
    " created INTEGER NOT NULL, PRIMARY KEY (environment, role)) WITHOUT ROWID;",
};
#define BT_STATE_VERSION ((int)BT_ARRAY_LENGTH(bt_state_schema))

bool bt_name_is_valid(const char *text)
{
    size_t length = strlen(text);

    return length > 0 && length < BT_NAME_SIZE && text[0] != '-' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

/* SQLite calls a full disk an I/O error when it meets it while it maps its index. */
static bool bt_state_is_full(struct bt_state *state)
{
    int number = sqlite3_system_errno(state->database);
    struct statvfs status;

    if (number == ENOSPC || number == EDQUOT)
        return true;
    return statvfs(state->path, &status) == 0 &&
           (uint64_t)status.f_bavail * status.f_frsize < BT_STATE_SPACE_BYTES;
}

/* Fills error from the database's last error. Returns a negative errno. */
static int fail(struct bt_state *state, struct bt_error *error, const char *what)
{
    const char *reason = sqlite3_errmsg(state->database);
    int code = sqlite3_errcode(state->database) & 0xff;

    if (code == SQLITE_FULL || (code == SQLITE_IOERR && bt_state_is_full(state)))
        return bt_fail(error, BT_EXIT_ERROR, ENOSPC,
                       "free some space there, for example with berth cleanup images",
                       "%s: no space left for the state database %s", what, state->path);
    switch (code) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return bt_fail(error, BT_EXIT_ERROR, EBUSY, "another berth holds it; try again",
                       "%s: the state database %s is busy", what, state->path);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return bt_fail(error, BT_EXIT_ERROR, EIO,
                       "move the file away; berth then begins a new one (agents that run are not in it)",
                       "%s: the state database %s is damaged: %s", what, state->path, reason);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
        return bt_fail(error, BT_EXIT_ERROR, EACCES, "check owner and mode of the file and its folder",
                       "%s: the state database %s cannot be written: %s", what, state->path, reason);
    default:
        return bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "%s: state database %s: %s", what, state->path,
                       reason);
    }
}

void bt_sql_finalize(sqlite3_stmt **statement)
{
    sqlite3_finalize(*statement);
    *statement = NULL;
}

int bt_sql_open(struct bt_state *state, const char *sql, const struct bt_sql_value *values, size_t count,
                sqlite3_stmt **ret_statement, struct bt_error *error)
{
    bt_auto_statement *statement = NULL;
    int r = sqlite3_prepare_v2(state->database, sql, -1, &statement, NULL);

    for (size_t i = 0; i < count && r == SQLITE_OK; i++) {
        if (values[i].is_text)
            r = sqlite3_bind_text(statement, (int)i + 1, values[i].text, -1, SQLITE_STATIC);
        else
            r = sqlite3_bind_int64(statement, (int)i + 1, values[i].number);
    }
    if (r != SQLITE_OK)
        return fail(state, error, "cannot ask the state database");
    *ret_statement = BT_TAKE(statement);
    return 0;
}

int bt_sql_step(struct bt_state *state, sqlite3_stmt *statement, const char *what, struct bt_error *error)
{
    int r = sqlite3_step(statement);

    if (r == SQLITE_ROW)
        return 1;
    return r == SQLITE_DONE ? 0 : fail(state, error, what);
}

int bt_sql_run(struct bt_state *state, const char *sql, const struct bt_sql_value *values, size_t count,
               const char *what, struct bt_error *error)
{
    bt_auto_statement *statement = NULL;
    int r = bt_sql_open(state, sql, values, count, &statement, error);

    if (r < 0)
        return r;
    do {
        r = bt_sql_step(state, statement, what, error);
    } while (r > 0);
    return r;
}

void bt_sql_text(sqlite3_stmt *statement, int column, char *ret_text, size_t size)
{
    const unsigned char *text = sqlite3_column_text(statement, column);

    snprintf(ret_text, size, "%s", text ? (const char *)text : "");
}

int bt_state_begin(struct bt_state *state, struct bt_error *error)
{
    return bt_sql_run(state, "BEGIN IMMEDIATE", NULL, 0, "cannot begin a change", error);
}

int bt_state_end(struct bt_state *state, int result, struct bt_error *error)
{
    if (result == 0)
        result = bt_sql_run(state, "COMMIT", NULL, 0, "cannot record a change", error);
    /* A failed COMMIT may leave the transaction open. */
    if (result < 0 && !sqlite3_get_autocommit(state->database))
        bt_sql_run(state, "ROLLBACK", NULL, 0, "cannot undo a change", NULL);
    return result;
}

static int bt_state_pragma(struct bt_state *state, const char *sql, char *ret_text, size_t size,
                           struct bt_error *error)
{
    bt_auto_statement *statement = NULL;
    int r = bt_sql_open(state, sql, NULL, 0, &statement, error);

    if (r == 0)
        r = bt_sql_step(state, statement, "cannot open", error);
    if (r < 0)
        return r;
    bt_sql_text(statement, 0, ret_text, size);
    return 0;
}

/* Changing to WAL takes an exclusive lock for which SQLite does not wait, so first starts at the same time
 * retry. */
static int bt_state_enter_wal(struct bt_state *state, struct bt_error *error)
{
    const struct timespec pause = {.tv_nsec = 20L * 1000 * 1000};
    char mode[16] = "";
    int r = 0;

    for (int i = 0; i < BT_STATE_WAL_TRIES; i++) {
        r = bt_state_pragma(state, "PRAGMA journal_mode = WAL", mode, sizeof(mode), error);
        if (r == 0 && strcmp(mode, "wal") == 0)
            return 0;
        if (r < 0 && r != -EBUSY)
            return r;
        nanosleep(&pause, NULL);
    }
    if (r == 0)
        r = bt_fail(error, BT_EXIT_ERROR, ENOTSUP,
                    "put the state folder (BERTH_STATE_HOME) on a local file system",
                    "the state database %s cannot use a write-ahead log", state->path);
    return r;
}

static int bt_state_version(struct bt_state *state, int *ret_version, struct bt_error *error)
{
    char text[16] = "";
    uint64_t version;
    int r = bt_state_pragma(state, "PRAGMA user_version", text, sizeof(text), error);

    if (r < 0)
        return r;
    if (bt_number_parse(text, strlen(text), 0, INT32_MAX, &version) < 0 ||
        version > (uint64_t)BT_STATE_VERSION)
        return bt_fail(error, BT_EXIT_ERROR, EPROTO, "use the newer berth, or another BERTH_STATE_HOME",
                       "the state database %s was written by a newer berth (schema %s, this one knows %d)",
                       state->path, text, BT_STATE_VERSION);
    *ret_version = (int)version;
    return 0;
}

static int bt_state_migrate(struct bt_state *state, struct bt_error *error)
{
    int version = 0;
    int r = bt_state_version(state, &version, error);

    if (r < 0 || version == BT_STATE_VERSION)
        return r;
    r = bt_state_begin(state, error);
    if (r < 0)
        return r;
    /* Somebody else may have done it while this one waited for the lock. */
    r = bt_state_version(state, &version, error);
    for (; r == 0 && version < BT_STATE_VERSION; version++) {
        if (sqlite3_exec(state->database, bt_state_schema[version], NULL, NULL, NULL) != SQLITE_OK)
            r = fail(state, error, "cannot prepare");
    }
    if (r == 0) {
        char sql[48];
        snprintf(sql, sizeof(sql), "PRAGMA user_version = %d", BT_STATE_VERSION);
        r = bt_sql_run(state, sql, NULL, 0, "cannot prepare", error);
    }
    return bt_state_end(state, r, error);
}

/* SQLite gives its log and index the mode of the database file, so that is made first. One that is there is
 * not opened: closing a descriptor of a file ends all record locks that the process has on it, those of
 * another connection included, and whoever closes the database next would take its log away from below that.
 */
static int bt_state_make_file(const struct bt_paths *paths, const char *path, struct bt_error *error)
{
    bt_auto_fd fd = -1;
    struct stat status;
    int r = bt_folder_make_own(paths->state, error);

    if (r < 0)
        return r;
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        return 0;
    if (errno == EEXIST && (lstat(path, &status) < 0 || S_ISREG(status.st_mode)))
        return 0;
    return bt_fail(error, BT_EXIT_ERROR, errno, "check owner and mode of the file and its folder",
                   "cannot open the state database %s: %s", path,
                   errno == EEXIST ? "it is not a file" : strerror(errno));
}

int bt_state_open(const struct bt_paths *paths, struct bt_state **ret_state, struct bt_error *error)
{
    struct bt_state *state = bt_new(1, sizeof(*state));
    int r;

    snprintf(state->path, sizeof(state->path), "%s/berth.db", paths->state);
    r = bt_state_make_file(paths, state->path, error);
    if (r == 0 && sqlite3_open_v2(state->path, &state->database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                                  NULL) != SQLITE_OK)
        r = fail(state, error, "cannot open");
    if (r == 0) {
        sqlite3_busy_timeout(state->database, BT_STATE_BUSY_MS);
        r = bt_state_enter_wal(state, error);
    }
    if (r == 0)
        r = bt_sql_run(state, "PRAGMA synchronous = NORMAL", NULL, 0, "cannot open", error);
    if (r == 0)
        r = bt_state_migrate(state, error);
    if (r < 0) {
        bt_state_close(state);
        return r;
    }
    bt_state_forget_given_up(state);
    *ret_state = state;
    return 0;
}

struct bt_state *bt_state_close(struct bt_state *state)
{
    if (state) {
        sqlite3_close(state->database);
        free(state);
    }
    return NULL;
}

/* The lowest free number, or BT_ENVIRONMENTS. */
static int bt_state_free_number(struct bt_state *state, unsigned *ret_number, struct bt_error *error)
{
    bt_auto_statement *statement = NULL;
    unsigned number = 0;
    int r = bt_sql_open(state, "SELECT number FROM environments ORDER BY number", NULL, 0, &statement, error);

    while (r == 0 && (r = bt_sql_step(state, statement, "cannot list environments", error)) > 0) {
        if (sqlite3_column_int64(statement, 0) == (int64_t)number)
            number++;
        r = 0;
    }
    if (r == 0)
        *ret_number = number;
    return r;
}

static int bt_state_allot(struct bt_state *state, const char *environment, unsigned *ret_number,
                          struct bt_error *error)
{
    /* Numbers are few; those of environments that hold nothing any more are given out again when all are
     * used. */
    static const char *const sweep = "DELETE FROM environments WHERE number <> 0"
                                     " AND name NOT IN (SELECT environment FROM agents)"
                                     " AND name NOT IN (SELECT environment FROM infra)";
    unsigned number = 0;
    int r = bt_state_free_number(state, &number, error);

    if (r == 0 && number >= BT_ENVIRONMENTS) {
        r = bt_sql_run(state, sweep, NULL, 0, "cannot free environments", error);
        if (r == 0)
            r = bt_state_free_number(state, &number, error);
    }
    if (r < 0)
        return r;
    if (number >= BT_ENVIRONMENTS)
        return bt_fail(error, BT_EXIT_ERROR, ENOSPC,
                       "remove the agents of an environment that is no longer needed",
                       "all %u environments are used", BT_ENVIRONMENTS);
    const struct bt_sql_value values[] = {BT_SQL_TEXT(environment), BT_SQL_NUMBER(number)};
    r = bt_sql_run(state, "INSERT INTO environments VALUES (?, ?)", values, 2, "cannot add an environment",
                   error);
    if (r == 0)
        *ret_number = number;
    return r;
}

/* 1 found, 0 not. */
static int bt_state_lookup_number(struct bt_state *state, const char *environment, unsigned *ret_number,
                                  struct bt_error *error)
{
    const struct bt_sql_value name = BT_SQL_TEXT(environment);
    bt_auto_statement *statement = NULL;
    int r = bt_sql_open(state, "SELECT number FROM environments WHERE name = ?", &name, 1, &statement, error);

    if (r == 0)
        r = bt_sql_step(state, statement, "cannot look up an environment", error);
    if (r > 0)
        *ret_number = (unsigned)sqlite3_column_int64(statement, 0);
    return r;
}

int bt_state_environment(struct bt_state *state, const char *environment, unsigned *ret_number,
                         struct bt_error *error)
{
    unsigned number = 0;
    int r = bt_state_lookup_number(state, environment, &number, error);

    if (r == 0) {
        if (!bt_name_is_valid(environment))
            return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                           "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                           "'%.64s' cannot be the name of an environment", environment);
        r = bt_state_begin(state, error);
        if (r < 0)
            return r;
        r = bt_state_lookup_number(state, environment, &number, error);
        if (r == 0)
            r = bt_state_allot(state, environment, &number, error);
        r = bt_state_end(state, r < 0 ? r : 0, error);
    }
    if (r < 0)
        return r;
    *ret_number = number;
    return 0;
}
