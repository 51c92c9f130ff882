/* What the tests of the state database share: a database in a folder of the test's, and children that live.
 */
#ifndef BERTH_TESTS_UNIT_STATE_FIXTURE_H
#define BERTH_TESTS_UNIT_STATE_FIXTURE_H

#include "frontend/state.h"
#include "tests/unit/frontend_fixture.h"

static inline struct bt_state *open_state(const struct fixture *fixture)
{
    struct bt_state *state = NULL;
    struct bt_error error = {0};
    if (bt_state_open(&fixture->paths, &state, &error) < 0)
        fail_msg("%s", error.message);
    return state;
}

static inline struct bt_agent blank(const char *name)
{
    struct bt_agent agent = {.slot = -1};
    snprintf(agent.name, sizeof agent.name, "%s", name);
    snprintf(agent.environment, sizeof agent.environment, "live");
    snprintf(agent.manifest, sizeof agent.manifest, "dev");
    assert_int_equal(bt_process_identify(getpid(), &agent.keeper), 0);
    return agent;
}

static inline struct bt_agent reserve(struct bt_state *state, const char *name)
{
    struct bt_agent agent = blank(name);
    struct bt_error error = {0};
    if (bt_state_reserve(state, &agent, &error) < 0)
        fail_msg("%s", error.message);
    return agent;
}

#endif
