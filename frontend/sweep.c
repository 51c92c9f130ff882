/* Leftovers of guests that are gone, found by what the runtime itself knows. See sweep.h.
 *
 * An engine that was killed forgets none of its networks: it makes their bridges anew when it starts, also
 * those of agents that ended while it could not be told.
 */
#include "frontend/sweep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"

struct sweep {
    struct bt_state *state;
    const struct bt_backend *backend;
};

/* Unknown counts as yes. A row comes before its guest, so it is read after that was seen. */
static bool has_owner(struct bt_state *state, const struct bt_guest_identity *identity)
{
    struct bt_agent *agents = NULL;
    struct bt_infra infra;
    size_t count = 0;
    bool is_live = false;
    if (identity->role != BT_GUEST_AGENT) {
        int result = bt_state_infra_get(state, identity->environment, identity->name, &infra, NULL);
        return result == 0 ? bt_process_is_alive(&infra.keeper) : result != -ENOENT;
    }
    if (bt_state_list(state, identity->environment, &agents, &count, NULL) < 0)
        return true;
    for (size_t i = 0; i < count; i++)
        is_live = is_live || (strcmp(agents[i].name, identity->name) == 0 && bt_agent_is_live(&agents[i]));
    free(agents);
    return is_live;
}

static void on_guest(void *context, const struct bt_guest_identity *identity)
{
    const struct sweep *sweep = context;
    struct bt_error error = {0};
    if (!has_owner(sweep->state, identity))
        (void)sweep->backend->cleanup(identity, false, &error);
}

void bt_sweep(const struct bt_paths *paths, struct bt_state *state, const char *environment,
              const struct bt_backend *backend)
{
    struct sweep sweep = {state, backend};
    struct bt_error error = {0};
    if (backend->enumerate != NULL)
        (void)backend->enumerate(paths->state, environment, false, on_guest, &sweep, &error);
}
