/* An agent's keeper and its infra pair: registration, and a new pair when the old one dies. See
 * keeper_agent.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "frontend/config.h"
#include "frontend/credentials.h"
#include "frontend/keeper_agent.h"

struct bt_orchestrator bt_keeper_orchestrator(const struct bt_keeper_agent *agent)
{
    return (struct bt_orchestrator){agent->pair.orchestrator.address, BT_ORCHESTRATOR_PORT, agent->host_key};
}

static int watch_pair(struct bt_keeper_agent *agent, struct bt_error *error)
{
    const struct bt_infra *members[] = {&agent->pair.orchestrator, &agent->pair.gateway};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(members); i++) {
        bt_fd_close(&agent->pair_fds[i]);
        if (bt_process_open(&members[i]->keeper, &agent->pair_fds[i]) < 0) {
            agent->pair_fds[i] = -1;
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ESRCH, "berth up starts it again",
                           "the %s of this environment does not run", i == 0 ? "orchestrator" : "gateway");
        }
    }
    return 0;
}

/* The values of credentials are read anew each time, so that the user's latest ones are sent. */
static int register_agent(struct bt_keeper_agent *agent, json_t *policy, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    json_t *credentials = NULL, *present = NULL;
    int result = agent->is_registered
                     ? bt_credentials_collect_present(&keeper->paths, policy, &present, &credentials, error)
                     : bt_credentials_collect(&keeper->paths, policy, &credentials, error);
    if (result < 0)
        return result;
    struct bt_orchestrator orchestrator = bt_keeper_orchestrator(agent);
    struct bt_registration registration = {
        .slot = keeper->lease.slot,
        .generation = keeper->lease.generation,
        .name = agent->row.name,
        .address = keeper->lease.guest_address,
        .gateway_address = keeper->gateway_address,
        .token = agent->secrets.token,
        .policy = present != NULL ? present : policy,
        .credentials = credentials,
        .canary = agent->secrets.canary,
        .credential_key = agent->secrets.credential_key,
    };
    result = bt_orchestrator_register(&orchestrator, &registration, error);
    json_decref(credentials);
    json_decref(present);
    return result;
}

int bt_keeper_pair_join(struct bt_keeper_agent *agent, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    int result = bt_infra_status(&keeper->paths, bt_keeper_text(keeper, "environment"), &agent->pair, error);
    if (result == 0)
        result = watch_pair(agent, error);
    if (result == 0)
        result = register_agent(agent, agent->policy, error);
    agent->is_registered = agent->is_registered || result == 0;
    return result;
}

int bt_keeper_pair_refresh(struct bt_keeper_agent *agent, json_t *policy, struct bt_error *error)
{
    json_t *wanted = policy != NULL ? policy : agent->policy;
    int result = register_agent(agent, wanted, error);
    if (result < 0)
        return result;
    (void)json_incref(wanted);
    json_decref(agent->policy);
    agent->policy = wanted;
    return 0;
}

int bt_keeper_pair_renew(struct bt_keeper_agent *agent, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    bt_auto_config config = {0};
    struct bt_infra_pair pair;
    int result = bt_config_load(&keeper->paths, &config, error);
    if (result == 0)
        result = bt_infra_up(&keeper->paths, &config, bt_keeper_text(keeper, "environment"), keeper->backend,
                             NULL, &pair, error);
    if (result == 0 && keeper->backend->rejoin != NULL)
        result = keeper->backend->rejoin(keeper->guest, error);
    return result < 0 ? result : bt_keeper_pair_join(agent, error);
}

void bt_keeper_pair_leave(struct bt_keeper_agent *agent)
{
    struct bt_error error = {0};
    struct bt_orchestrator orchestrator = bt_keeper_orchestrator(agent);
    if (agent->is_registered && bt_orchestrator_unregister(&orchestrator, agent->keeper->lease.slot,
                                                           agent->keeper->lease.generation, &error) < 0)
        (void)fprintf(stderr, "not unregistered (the slot's generation ends anyway): %s\n", error.message);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(agent->pair_fds); i++)
        bt_fd_close(&agent->pair_fds[i]);
}
