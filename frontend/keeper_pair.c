/* An agent's keeper and its infra pair: registration, and a new pair when the old one dies. See
 * keeper_agent.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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

/* What is sent: tells whether the user has changed a credential since. */
static void digest_of(const json_t *policy, const json_t *credentials, char ret_digest[BT_DIGEST_TEXT_SIZE])
{
    json_t *both = json_pack("[O, O]", policy, credentials);
    char *text = json_dumps(both, JSON_SORT_KEYS | JSON_COMPACT);
    bt_digest_bytes(text == NULL ? "" : text, text == NULL ? 0 : strlen(text), ret_digest);
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    free(text);
    json_decref(both);
}

/* The values of credentials are read anew each time, so that the user's latest ones are sent. A first
 * registration needs all of them; later, routes whose credential was removed are left out. */
static int collect(const struct bt_keeper_agent *agent, json_t **ret_policy, json_t **ret_credentials,
                   struct bt_error *error)
{
    const struct bt_paths *paths = &agent->keeper->paths;
    if (agent->is_registered)
        return bt_credentials_collect_present(paths, agent->policy, ret_policy, ret_credentials, error);
    int result = bt_credentials_collect(paths, agent->policy, ret_credentials, error);
    if (result == 0)
        *ret_policy = json_incref(agent->policy);
    return result;
}

static int register_agent(struct bt_keeper_agent *agent, bool is_only_for_changes, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    json_t *credentials = NULL, *policy = NULL;
    char digest[BT_DIGEST_TEXT_SIZE];
    int result = collect(agent, &policy, &credentials, error);
    if (result < 0)
        return result;
    digest_of(policy, credentials, digest);
    struct bt_orchestrator orchestrator = bt_keeper_orchestrator(agent);
    struct bt_registration registration = {
        .slot = keeper->lease.slot,
        .generation = keeper->lease.generation,
        .name = agent->row.name,
        .address = keeper->lease.guest_address,
        .gateway_address = keeper->gateway_address,
        .token = agent->secrets.token,
        .policy = policy,
        .credentials = credentials,
        .canary = agent->secrets.canary,
        .credential_key = agent->secrets.credential_key,
    };
    if (!is_only_for_changes || strcmp(digest, agent->registered_digest) != 0)
        result = bt_orchestrator_register(&orchestrator, &registration, error);
    if (result == 0)
        memcpy(agent->registered_digest, digest, sizeof digest);
    json_decref(credentials);
    json_decref(policy);
    return result;
}

int bt_keeper_pair_join(struct bt_keeper_agent *agent, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    int result = bt_infra_status(&keeper->paths, bt_keeper_text(keeper, "environment"), &agent->pair, error);
    if (result == 0)
        result = watch_pair(agent, error);
    if (result == 0)
        result = register_agent(agent, false, error);
    agent->is_registered = agent->is_registered || result == 0;
    return result;
}

int bt_keeper_pair_refresh(struct bt_keeper_agent *agent, struct bt_error *error)
{
    return register_agent(agent, false, error);
}

int bt_keeper_pair_catch_up(struct bt_keeper_agent *agent, struct bt_error *error)
{
    return register_agent(agent, true, error);
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
    if (result == 0 && keeper->guest != NULL && keeper->backend->rejoin != NULL)
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
