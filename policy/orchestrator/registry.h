/* The registry: agents and the last decisions, in one SQLite file that this process alone opens. Survives
 * restarts.
 *
 * Called by api.c. Knows nothing of HTTP or of who may ask.
 */
#ifndef BERTH_POLICY_ORCHESTRATOR_REGISTRY_H
#define BERTH_POLICY_ORCHESTRATOR_REGISTRY_H

#include <jansson.h>

#include "lib/error.h"
#include "lib/file.h"
#include "lib/memory.h"

#define BT_REGISTRY_DECISIONS_MAX 10000
/* So many of what one agent reached, and as many of what was refused to it, go only with their age. */
#define BT_REGISTRY_DECISIONS_SHARE 300

struct bt_registry;

struct bt_registry_agent {
    uint16_t slot;
    uint32_t generation;
    char name[65];
    uint32_t address, gateway_address;
    char token_sha256[BT_DIGEST_TEXT_SIZE];
    uint64_t policy_version;
    json_t *policy;          /* owned by who holds the struct, as is sealed */
    struct bt_buffer sealed; /* credentials and canary as vault.h seals them; empty: none */
    bool has_new_secrets;    /* bt_registry_next_version: what is sealed is not what it was */
};
void bt_registry_agent_clear(struct bt_registry_agent *agent);

int bt_registry_open(const char *path, struct bt_registry **ret_registry, struct bt_error *error);
struct bt_registry *bt_registry_close(struct bt_registry *registry);

/* The version under which an agent would be stored: its policy_version, or when that is 0 one more than what
 * holds its slot in the same generation when something changed, or held it when it was deleted. A gateway
 * reads credentials anew when the version is another, so one that does not rise with a change is -EINVAL, as
 * is one that falls. */
int bt_registry_next_version(struct bt_registry *registry, const struct bt_registry_agent *agent,
                             uint64_t *ret_version, struct bt_error *error);
/* Stores an agent in place of whatever held its slot or its address, under its next version. */
int bt_registry_put(struct bt_registry *registry, const struct bt_registry_agent *agent,
                    uint64_t *ret_version, struct bt_error *error);
/* -ENOENT when that generation does not hold the slot. */
int bt_registry_delete(struct bt_registry *registry, uint16_t slot, uint32_t generation,
                       struct bt_error *error);
/* -ENOENT when there is none. The caller clears *ret_agent. */
int bt_registry_find_slot(struct bt_registry *registry, uint16_t slot, struct bt_registry_agent *ret_agent,
                          struct bt_error *error);
int bt_registry_find_address(struct bt_registry *registry, uint32_t address,
                             struct bt_registry_agent *ret_agent, struct bt_error *error);
/* Calls visit for each agent, by slot. What it is shown is borrowed for the call. */
int bt_registry_visit(struct bt_registry *registry,
                      void (*visit)(void *context, const struct bt_registry_agent *agent), void *context,
                      struct bt_error *error);

/* Appends records (objects with "slot" and "generation") in one transaction, and forgets the
 * oldest above BT_REGISTRY_DECISIONS_MAX: first those of whom there are most, down to its share. */
int bt_registry_add_decisions(struct bt_registry *registry, const json_t *records, struct bt_error *error);

/* The next number of a question to the owner. Not given twice, also not by a later process: who types a
 * number after a restart does not answer another question. */
int bt_registry_next_number(struct bt_registry *registry, int64_t *ret_number, struct bt_error *error);

struct bt_decision_query {
    int64_t slot, generation; /* -1: any */
    int64_t after;            /* ids above this */
    int64_t limit;
};
int bt_registry_decisions(struct bt_registry *registry, const struct bt_decision_query *query,
                          json_t **ret_records, int64_t *ret_last, struct bt_error *error);

#endif
