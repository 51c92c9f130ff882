/* Doctor: what belongs to the user. */
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/approvals.h"
#include "frontend/doctor.h"
#include "frontend/resolvers.h"

static void bt_doctor_state(struct bt_doctor *doctor)
{
    struct bt_error error = {0};
    struct bt_state *state = NULL;
    bt_auto_free struct bt_agent *agents = NULL;
    size_t count = 0, lost = 0;
    int r = bt_state_open(&doctor->context->paths, &state, &error);

    if (r == 0)
        r = bt_state_list(state, NULL, &agents, &count, &error);
    bt_state_close(state);
    if (r < 0) {
        bt_doctor_add(doctor, BT_HEALTH_FAIL, "state", *error.hint ? error.hint : NULL, "%s", error.message);
        return;
    }
    for (size_t i = 0; i < count; i++)
        lost += bt_agent_status_now(&agents[i]) == BT_AGENT_LOST;
    if (lost > 0)
        bt_doctor_add(doctor, BT_HEALTH_WARN, "state",
                      "berth list --all-environments names them; berth cleanup bots",
                      "%zu agents, %zu of them lost", count, lost);
    else
        bt_doctor_add(doctor, BT_HEALTH_OK, "state", NULL, "%zu agents in %s/berth.db", count,
                      doctor->context->paths.state);
}

/* The runtime folder goes at logout, with the control sockets in it, unless the user lingers. */
static void bt_doctor_runtime(struct bt_doctor *doctor)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const struct passwd *entry = getpwuid(geteuid());
    bt_auto_free char *linger = entry ? bt_string_format("/var/lib/systemd/linger/%s", entry->pw_name) : NULL;
    struct stat status;

    if (!runtime || !*runtime)
        bt_doctor_add(doctor, BT_HEALTH_OK, "runtime folder", NULL,
                      "XDG_RUNTIME_DIR is unset; sockets are in %s", doctor->context->paths.runtime);
    else if (stat(runtime, &status) < 0 || status.st_uid != geteuid() || (status.st_mode & 0077) != 0)
        bt_doctor_add(doctor, BT_HEALTH_FAIL, "runtime folder",
                      "unset XDG_RUNTIME_DIR, or make it a folder of yours, 0700",
                      "%s is missing, not yours, or open to others", runtime);
    else if (linger && access(linger, F_OK) == 0)
        bt_doctor_add(doctor, BT_HEALTH_OK, "runtime folder", NULL, "%s, and you linger", runtime);
    else
        bt_doctor_add(doctor, BT_HEALTH_WARN, "runtime folder", "loginctl enable-linger keeps it",
                      "%s goes when you log out; agents that still run then can only be killed", runtime);
}

static void bt_doctor_resolvers(struct bt_doctor *doctor)
{
    struct bt_error error = {0};
    bt_auto_list resolvers = {0};

    if (bt_resolvers_find(&doctor->context->config.resolvers, &resolvers, &error) < 0)
        bt_doctor_add(doctor, BT_HEALTH_FAIL, "resolvers", *error.hint ? error.hint : NULL, "%s",
                      error.message);
    else
        bt_doctor_add(doctor, BT_HEALTH_OK, "resolvers", NULL, "%s%s",
                      resolvers.count ? resolvers.items[0] : "none",
                      resolvers.count > 1 ? " and others" : "");
}

static void bt_doctor_approvals(struct bt_doctor *doctor)
{
    json_t *numbers = bt_approvals_numbers(&doctor->context->paths, doctor->context->config.environment);
    size_t count = json_array_size(numbers);

    json_decref(numbers);
    if (count > 0)
        bt_doctor_add(doctor, BT_HEALTH_WARN, "approvals", "berth approvals list", "%zu %s for you", count,
                      count == 1 ? "request waits" : "requests wait");
}

void bt_doctor_user(struct bt_doctor *doctor)
{
    bt_doctor_state(doctor);
    bt_doctor_runtime(doctor);
    bt_doctor_resolvers(doctor);
    bt_doctor_approvals(doctor);
}
