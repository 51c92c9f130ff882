/* The state database: the truth about what lives, whatever was written. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/state_fixture.h"

/* A process that lives until it is killed. */
static pid_t start_child(struct bt_process *process)
{
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(bt_process_identify(child, process), 0);
    return child;
}

static void t_state_tells_what_is_lost(void **state)
{
    struct bt_state *database = open_state(*state);
    struct bt_agent agent = reserve(database, "one");
    pid_t child = start_child(&agent.keeper);
    agent.status = BT_AGENT_RUNNING;
    assert_int_equal(bt_state_update(database, &agent, NULL), 0);
    assert_int_equal(bt_agent_status_now(&agent), BT_AGENT_RUNNING);
    assert_true(bt_agent_is_live(&agent));
    assert_int_equal(kill(child, SIGKILL), 0);
    /* A zombie is not a keeper: it is asked before it is reaped. */
    siginfo_t information;
    assert_int_equal(waitid(P_PID, (id_t)child, &information, WEXITED | WNOWAIT), 0);
    assert_int_equal(bt_agent_status_now(&agent), BT_AGENT_LOST);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(bt_agent_status_now(&agent), BT_AGENT_LOST);
    assert_false(bt_agent_is_live(&agent));
    agent.status = BT_AGENT_STOPPED; /* an end that was recorded stays as it is */
    assert_int_equal(bt_agent_status_now(&agent), BT_AGENT_STOPPED);
    bt_state_close(database);
}

static void t_state_forgets_launches_that_were_given_up(void **state)
{
    struct fixture *fixture = *state;
    struct bt_state *database = open_state(fixture);
    struct bt_error error = {0};
    struct bt_agent early = blank("early"), begun = blank("begun"), live = blank("live-one"), found;
    pid_t child = start_child(&early.keeper);
    begun.keeper = early.keeper;
    assert_int_equal(bt_state_reserve(database, &early, &error), 0);
    assert_int_equal(bt_state_reserve(database, &begun, &error), 0);
    assert_int_equal(bt_state_reserve(database, &live, &error), 0);
    snprintf(begun.folder, sizeof begun.folder, "/somewhere"); /* something was made: that is to be removed */
    assert_int_equal(bt_state_update(database, &begun, &error), 0);
    bt_state_close(database);
    database = open_state(fixture);
    assert_int_equal(bt_state_get(database, early.id, &found, &error), 0);
    bt_state_close(database);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    database = open_state(fixture);
    assert_int_equal(bt_state_get(database, early.id, &found, &error), -ENOENT);
    assert_int_equal(bt_state_get(database, begun.id, &found, &error), 0);
    assert_int_equal(bt_agent_status_now(&found), BT_AGENT_LOST);
    assert_int_equal(bt_state_get(database, live.id, &found, &error), 0);
    early.keeper = live.keeper;
    assert_int_equal(bt_state_reserve(database, &early, &error), 0); /* its name is free again */
    bt_state_close(database);
}

static void t_state_is_not_fooled_by_a_used_pid(void **state)
{
    struct bt_process process, other;
    int fd = -1;
    (void)state;
    assert_int_equal(bt_process_identify(getpid(), &process), 0);
    assert_true(bt_process_is_alive(&process));
    assert_int_equal(bt_process_open(&process, &fd), 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    bt_fd_close(&fd);
    other = process;
    other.start_ticks--;
    assert_false(bt_process_is_alive(&other));
    assert_int_equal(bt_process_open(&other, &fd), -ESRCH);
    assert_int_equal(fd, -1);
    other = process;
    other.boot[0] = other.boot[0] == 'x' ? 'y' : 'x'; /* before a reboot */
    assert_false(bt_process_is_alive(&other));
    other = (struct bt_process){0};
    assert_false(bt_process_is_alive(&other));
    assert_int_equal(bt_process_identify(0x3fffffff, &other), -ESRCH);
}

static void t_state_a_strange_name_of_a_process_is_no_matter(void **state)
{
    struct bt_process process = {0};
    char name[16] = "a) R 1 2 (3";
    FILE *file = fopen("/proc/self/comm", "we");
    (void)state;
    assert_non_null(file);
    fputs(name, file);
    fclose(file);
    assert_int_equal(bt_process_identify(getpid(), &process), 0);
    assert_true(process.start_ticks > 10);
    assert_true(bt_process_is_alive(&process));
}

static void t_state_a_late_keeper_removes_only_its_own_pair(void **state)
{
    struct bt_state *database = open_state(*state);
    struct bt_infra infra = {
        .environment = "live", .role = "gateway", .slot = 3, .generation = 9, .address = 0x0af30007};
    struct bt_infra read, *list = NULL;
    struct bt_process old = {.pid = 1, .start_ticks = 2, .boot = "b"};
    size_t count = 0;
    assert_int_equal(bt_state_infra_get(database, "live", "gateway", &read, NULL), -ENOENT);
    infra.keeper = old;
    assert_int_equal(bt_state_infra_put(database, &infra, NULL), 0);
    infra.keeper.pid = 5;
    assert_int_equal(bt_state_infra_put(database, &infra, NULL), 0); /* its successor */
    assert_int_equal(bt_state_infra_delete(database, "live", "gateway", &old, NULL), 0);
    assert_int_equal(bt_state_infra_get(database, "live", "gateway", &read, NULL), 0);
    assert_int_equal(read.keeper.pid, 5);
    assert_int_equal(read.address, 0x0af30007);
    assert_true(read.created_seconds > 0);
    assert_int_equal(bt_state_infra_list(database, NULL, &list, &count, NULL), 0);
    assert_int_equal(count, 1);
    free(list);
    assert_int_equal(bt_state_infra_delete(database, "live", "gateway", NULL, NULL), 0);
    assert_int_equal(bt_state_infra_get(database, "live", "gateway", &read, NULL), -ENOENT);
    bt_state_close(database);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(t_state_tells_what_is_lost),
        FIXTURE_TEST(t_state_forgets_launches_that_were_given_up),
        cmocka_unit_test(t_state_is_not_fooled_by_a_used_pid),
        cmocka_unit_test(t_state_a_strange_name_of_a_process_is_no_matter),
        FIXTURE_TEST(t_state_a_late_keeper_removes_only_its_own_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
