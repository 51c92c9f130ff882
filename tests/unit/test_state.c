/* The state database: names, what was written and who reads it, many processes at once. */
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/wire/pool.h"
#include "tests/unit/state_fixture.h"

static void t_state_files_are_the_users_alone(void **state)
{
    const struct fixture *fixture = *state;
    struct bt_state *database = open_state(fixture);
    struct stat status;
    char path[600];
    reserve(database, "one");
    assert_int_equal(stat(fixture->paths.state, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0700);
    for (const char *const *name = (const char *const[]){"berth.db", "berth.db-wal", NULL}; *name; name++) {
        snprintf(path, sizeof path, "%s/%s", fixture->paths.state, *name);
        assert_int_equal(stat(path, &status), 0);
        assert_int_equal(status.st_mode & 07777, 0600);
    }
    assert_null(bt_state_close(database));
    assert_null(bt_state_close(NULL));
}

/* A process of its own that takes a name when it is told to. */
static pid_t start_writer(const struct fixture *fixture, const char *name, int *ret_told_fd)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)close(ends[1]);
        (void)!read(ends[0], &byte, 1);
        struct bt_state *own = open_state(fixture);
        reserve(own, name);
        bt_state_close(own);
        _exit(0);
    }
    (void)close(ends[0]);
    *ret_told_fd = ends[1];
    return child;
}

/* A process that opens the database a second time, as a keeper does that starts a pair, still sees what
 * others write afterwards. */
static void t_state_two_in_one_process_see_what_others_write(void **state)
{
    const struct fixture *fixture = *state;
    static const char *const names[] = {"two", "three"};
    pid_t writers[2];
    int told_fds[2];
    struct bt_agent found;
    struct bt_error error = {0};
    for (int i = 0; i < 2; i++)
        writers[i] = start_writer(fixture, names[i], &told_fds[i]);
    struct bt_state *kept = open_state(fixture);
    reserve(kept, "one");
    assert_null(bt_state_close(open_state(fixture)));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(write(told_fds[i], "", 1), 1);
        (void)close(told_fds[i]);
        assert_int_equal(waitpid(writers[i], NULL, 0), writers[i]);
        assert_int_equal(bt_state_find(kept, "live", names[i], &found, &error), 0);
    }
    assert_null(bt_state_close(kept));
}

static void t_state_keeps_what_was_written(void **state)
{
    const struct fixture *fixture = *state;
    struct bt_state *database = open_state(fixture);
    struct bt_agent agent = reserve(database, "one"), read;
    assert_int_equal(agent.status, BT_AGENT_STARTING);
    assert_true(agent.created_seconds > 1000000000);
    agent.status = BT_AGENT_RUNNING;
    agent.slot = 7;
    agent.generation = 4000000000U;
    snprintf(agent.workspace, sizeof agent.workspace, "/home/user/a folder");
    snprintf(agent.folder, sizeof agent.folder, "/state/one");
    assert_int_equal(bt_state_update(database, &agent, NULL), 0);
    bt_state_close(database);
    database = open_state(fixture);
    assert_int_equal(bt_state_get(database, agent.id, &read, NULL), 0);
    assert_int_equal(read.slot, 7);
    assert_int_equal(read.generation, 4000000000U);
    assert_int_equal(read.keeper.start_ticks, agent.keeper.start_ticks);
    assert_string_equal(read.workspace, "/home/user/a folder");
    assert_int_equal(read.exit_status, -1);
    assert_int_equal(bt_state_set_status(database, agent.id, BT_AGENT_EXITED, 3, NULL, NULL), 0);
    assert_int_equal(bt_state_get(database, agent.id, &read, NULL), 0);
    assert_int_equal(read.status, BT_AGENT_EXITED);
    assert_int_equal(read.exit_status, 3);
    assert_true(read.ended_seconds > 0);
    assert_string_equal(read.folder, "/state/one"); /* nothing else was touched */
    assert_int_equal(bt_state_delete(database, agent.id, NULL), 0);
    assert_int_equal(bt_state_get(database, agent.id, &read, NULL), -ENOENT);
    assert_int_equal(bt_state_update(database, &agent, NULL), -ENOENT);
    bt_state_close(database);
}

/* One of two that resume it at once gets it; what was written of its last run is gone, its folder is not. */
static void t_state_an_agent_is_taken_again_once(void **state)
{
    const struct fixture *fixture = *state;
    struct bt_state *database = open_state(fixture);
    struct bt_agent agent = reserve(database, "one"), seen, taken = {0}, late = {0};
    struct bt_error error = {0};
    snprintf(agent.folder, sizeof agent.folder, "/state/one");
    agent.slot = 7;
    assert_int_equal(bt_state_update(database, &agent, NULL), 0);
    assert_int_equal(bt_state_set_status(database, agent.id, BT_AGENT_FAILED, 3, "why", NULL), 0);
    assert_int_equal(bt_state_get(database, agent.id, &seen, NULL), 0);
    taken.keeper = late.keeper = agent.keeper;
    assert_int_equal(bt_state_take_again(database, &seen, &taken, NULL), 0);
    assert_int_equal(taken.status, BT_AGENT_STARTING);
    assert_int_equal(taken.exit_status, -1);
    assert_int_equal(taken.slot, -1);
    assert_int_equal(taken.ended_seconds, 0);
    assert_string_equal(taken.detail, "");
    assert_string_equal(taken.folder, "/state/one");
    assert_int_equal(bt_state_take_again(database, &seen, &late, &error), -EBUSY);
    assert_non_null(strstr(error.message, "another command"));
    assert_int_equal(bt_state_delete(database, agent.id, NULL), 0);
    assert_int_equal(bt_state_take_again(database, &taken, &late, NULL), -EBUSY);
    bt_state_close(database);
}

static void t_state_a_name_is_given_once(void **state)
{
    struct bt_state *database = open_state(*state);
    struct bt_agent first = reserve(database, "one"), second = blank("one"), other = blank("one"),
                    bad = blank("One");
    struct bt_error error = {0};
    assert_int_equal(bt_state_reserve(database, &second, &error), -EEXIST);
    assert_says(&error, "the name 'one' is already taken by an agent that is starting");
    assert_says(&error, "berth stop one");
    assert_int_equal(second.id, 0); /* untouched */
    snprintf(other.environment, sizeof other.environment,
             "test"); /* another environment: another name space */
    assert_int_equal(bt_state_reserve(database, &other, &error), 0);
    assert_int_equal(bt_state_reserve(database, &bad, &error), -EINVAL);
    assert_int_equal(error.status, BT_EXIT_USAGE);
    assert_int_equal(bt_state_delete(database, first.id, NULL), 0);
    assert_int_equal(bt_state_reserve(database, &second, &error), 0);
    assert_true(second.id > first.id); /* numbers are not used again */
    bt_state_close(database);
}

static void t_state_makes_names(void **state)
{
    struct bt_state *database = open_state(*state);
    for (int i = 0; i < 200; i++) {
        struct bt_agent agent = reserve(database, "");
        assert_true(bt_name_is_valid(agent.name));
        assert_int_equal(strncmp(agent.name, "dev-", 4), 0);
    }
    struct bt_agent lengthy = blank("");
    snprintf(lengthy.manifest, sizeof lengthy.manifest, "abcdefghijklmno-qrstuvwxyz01234");
    assert_int_equal(bt_state_reserve(database, &lengthy, NULL), 0);
    assert_true(bt_name_is_valid(lengthy.name));
    assert_null(strstr(lengthy.name, "--"));
    bt_state_close(database);
}

static void t_state_knows_valid_names(void **state)
{
    (void)state;
    for (const char *const *good =
             (const char *const[]){"a", "0", "a-b", "abcdefghijklmnopqrstuvwxyz01234", NULL};
         *good; good++)
        assert_true(bt_name_is_valid(*good));
    for (const char *const *bad = (const char *const[]){"", "-a", "A", "a_b", "a.b", "a/b", "..", "a b",
                                                        "\xc3\xa9", "abcdefghijklmnopqrstuvwxyz012345", NULL};
         *bad; bad++)
        assert_false(bt_name_is_valid(*bad));
}

static void t_state_finds_by_part(void **state)
{
    struct bt_state *database = open_state(*state);
    struct bt_agent agent;
    struct bt_error error = {0};
    assert_int_equal(bt_state_find_latest(database, "live", &agent, &error), -ENOENT);
    assert_int_equal(error.status, BT_EXIT_NO_TARGET);
    reserve(database, "dev-calm-otter");
    reserve(database, "dev-wise-otter");
    reserve(database, "dev");
    assert_int_equal(bt_state_find(database, "live", "calm", &agent, &error), 0);
    assert_string_equal(agent.name, "dev-calm-otter");
    assert_int_equal(bt_state_find(database, "live", "dev", &agent, &error), 0); /* exact before part */
    assert_string_equal(agent.name, "dev");
    assert_int_equal(bt_state_find(database, "live", "otter", &agent, &error), -ENOTUNIQ);
    assert_int_equal(error.status, BT_EXIT_NO_TARGET);
    assert_says(&error, "dev-wise-otter, dev-calm-otter");
    assert_int_equal(bt_state_find(database, "live", "dex", &agent, &error), -ENOENT);
    assert_int_equal(error.status, BT_EXIT_NO_TARGET);
    assert_says(&error, "did you mean 'dev'?");
    assert_int_equal(bt_state_find(database, "live", "", &agent, &error), -ENOENT);
    assert_int_equal(bt_state_find(database, "live", "%", &agent, &error),
                     -ENOENT); /* no pattern characters */
    assert_int_equal(bt_state_find(database, "live", "'; DROP TABLE agents; --", &agent, &error), -ENOENT);
    assert_int_equal(bt_state_find(database, "test", "dev", &agent, &error), -ENOENT);
    assert_int_equal(bt_state_find_latest(database, "live", &agent, &error), 0);
    assert_string_equal(agent.name, "dev");
    bt_state_close(database);
}

static void t_state_numbers_environments(void **state)
{
    struct bt_state *database = open_state(*state);
    struct bt_error error = {0};
    unsigned number = 99;
    char name[BT_NAME_SIZE];
    assert_int_equal(bt_state_environment(database, "live", &number, &error), 0);
    assert_int_equal(number, 0);
    for (unsigned i = 1; i < BT_ENVIRONMENTS; i++) {
        struct bt_agent agent = blank("one");
        snprintf(name, sizeof name, "e%u", i);
        assert_int_equal(bt_state_environment(database, name, &number, &error), 0);
        assert_int_equal(number, i);
        snprintf(agent.environment, sizeof agent.environment, "%s", name);
        assert_int_equal(bt_state_reserve(database, &agent, &error), 0);
    }
    assert_int_equal(bt_state_environment(database, "e7", &number, &error), 0); /* the same again */
    assert_int_equal(number, 7);
    assert_int_equal(bt_state_environment(database, "more", &number, &error), -ENOSPC);
    assert_int_equal(bt_state_environment(database, "Bad", &number, &error), -EINVAL);
    /* One that holds nothing any more gives its number back. */
    struct bt_agent agent;
    assert_int_equal(bt_state_find(database, "e5", "one", &agent, &error), 0);
    assert_int_equal(bt_state_delete(database, agent.id, &error), 0);
    assert_int_equal(bt_state_environment(database, "more", &number, &error), 0);
    assert_int_equal(number, 5);
    bt_state_close(database);
}

/* Many processes that open a new database and reserve the same names at the same time: each name has one
 * winner. */
static void t_state_first_starts_at_the_same_time(void **state)
{
    const struct fixture *fixture = *state;
    enum { CHILDREN = 12, NAMES = 5 };
    pid_t children[CHILDREN];
    unsigned won = 0;
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            struct bt_state *database = NULL;
            unsigned mine = 0;
            if (bt_state_open(&fixture->paths, &database, NULL) < 0)
                _exit(100);
            for (int n = 0; n < NAMES; n++) {
                char name[16];
                snprintf(name, sizeof name, "n%d", n);
                struct bt_agent agent = blank(name);
                /* A name whose process is dead already would be free again. */
                int r = bt_process_identify(getppid(), &agent.keeper);
                if (r == 0)
                    r = bt_state_reserve(database, &agent, NULL);
                if (r < 0 && r != -EEXIST)
                    _exit(101);
                mine += r == 0;
            }
            bt_state_close(database);
            _exit((int)mine);
        }
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status = 0;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status));
        assert_true(WEXITSTATUS(status) <= NAMES);
        won += (unsigned)WEXITSTATUS(status);
    }
    assert_int_equal(won, NAMES);
}

static void t_state_lists_a_hundred_agents_fast(void **state)
{
    struct bt_state *database = open_state(*state);
    struct bt_agent *agents = NULL;
    struct timespec before, after;
    size_t count = 0, live = 0;
    for (int i = 0; i < 100; i++)
        reserve(database, "");
    bt_state_close(database);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    database = open_state(*state);
    assert_int_equal(bt_state_list(database, "live", &agents, &count, NULL), 0);
    for (size_t i = 0; i < count; i++)
        live += bt_agent_status_now(&agents[i]) == BT_AGENT_STARTING;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    assert_int_equal(count, 100);
    assert_int_equal(live, 100);
    assert_true(agents[0].id > agents[99].id);
    free(agents);
    bt_state_close(database);
    double ms = (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    print_message("# 100 agents, with liveness: %.1f ms of a processor\n", ms);
    assert_true(ms < 200); /* under sanitizers */
}

static void t_state_refuses_what_it_does_not_know(void **state)
{
    const struct fixture *fixture = *state;
    struct bt_state *database = open_state(fixture);
    struct bt_error error = {0};
    sqlite3 *raw = NULL;
    char path[600];
    bt_state_close(database);
    snprintf(path, sizeof path, "%s/berth.db", fixture->paths.state);
    assert_int_equal(sqlite3_open(path, &raw), SQLITE_OK);
    assert_int_equal(sqlite3_exec(raw, "PRAGMA user_version = 999", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(raw);
    database = NULL;
    assert_int_equal(bt_state_open(&fixture->paths, &database, &error), -EPROTO);
    assert_says(&error, "newer berth");
    assert_int_equal(bt_tree_remove(fixture->paths.state, NULL), 0);
    fixture_write(fixture, "state/berth.db",
                  "this is no database at all, however long it is made to be ........");
    assert_int_equal(bt_state_open(&fixture->paths, &database, &error), -EIO);
    assert_says(&error, "damaged");
    assert_null(database);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(t_state_files_are_the_users_alone),
        FIXTURE_TEST(t_state_two_in_one_process_see_what_others_write),
        FIXTURE_TEST(t_state_keeps_what_was_written),
        FIXTURE_TEST(t_state_an_agent_is_taken_again_once),
        FIXTURE_TEST(t_state_a_name_is_given_once),
        FIXTURE_TEST(t_state_makes_names),
        cmocka_unit_test(t_state_knows_valid_names),
        FIXTURE_TEST(t_state_finds_by_part),
        FIXTURE_TEST(t_state_numbers_environments),
        FIXTURE_TEST(t_state_first_starts_at_the_same_time),
        FIXTURE_TEST(t_state_lists_a_hundred_agents_fast),
        FIXTURE_TEST(t_state_refuses_what_it_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
