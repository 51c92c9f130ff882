/* What the tests of manifests share: plans from files that a test wrote, and what must be refused. */
#ifndef BERTH_TESTS_UNIT_MANIFEST_FIXTURE_H
#define BERTH_TESTS_UNIT_MANIFEST_FIXTURE_H

#include "frontend/manifest.h"
#include "tests/unit/frontend_fixture.h"

static inline int plan_with(const struct fixture *fixture, const char *agent, const char *const *bottles,
                            size_t count, struct bt_plan *plan, struct bt_error *error)
{
    char admin[320];
    snprintf(admin, sizeof admin, "%s/admin.yaml", fixture->folder);
    struct bt_plan_request request = {.paths = &fixture->paths,
                                      .agent = agent,
                                      .bottles = bottles,
                                      .bottle_count = count,
                                      .project_folder = fixture->project,
                                      .admin_policy_path = admin};
    return bt_plan_make(&request, plan, error);
}

static inline void plan_ok(const struct fixture *fixture, const char *agent, struct bt_plan *plan)
{
    struct bt_error error = {0};
    if (plan_with(fixture, agent, NULL, 0, plan, &error) < 0)
        fail_msg("%s (%s)", error.message, error.hint);
}

static inline void refuse_agent(const struct fixture *fixture, const char *agent, enum bt_exit status,
                                const char *part)
{
    struct bt_plan plan = {0};
    struct bt_error error = {0};
    assert_true(plan_with(fixture, agent, NULL, 0, &plan, &error) < 0);
    assert_int_equal(error.status, status);
    assert_says(&error, part);
}

static inline const struct bt_route *route_of(const struct bt_plan *plan, const char *host)
{
    for (size_t i = 0; i < plan->route_count; i++) {
        if (strcmp(plan->routes[i].host, host) == 0)
            return &plan->routes[i];
    }
    return NULL;
}

static inline bool notes_have(const struct bt_plan *plan, const char *part)
{
    for (size_t i = 0; i < plan->notes.count; i++) {
        if (strstr(plan->notes.items[i], part))
            return true;
    }
    return false;
}

#endif
