/* One process a core: workers that share what was opened and made before them, and the process that watches
 * them. Called by main.c only.
 *
 * Connections are taken from the same listening sockets by whoever is free. Agents, answers of the
 * orchestrator, kept connections and limits are each worker's own; whom they serve they tell each other
 * (peers.h).
 */
#ifndef BERTH_POLICY_GATEWAY_WORKERS_H
#define BERTH_POLICY_GATEWAY_WORKERS_H

#include "lib/error.h"
#include "policy/rules/service.h"

struct bt_workers {
    unsigned count;
    int pids[BT_SERVICE_WORKERS_MAX];
};

/* Forks count (2 to BT_SERVICE_WORKERS_MAX) workers, which end with this process. Returns a worker's index in
 * it, count in this process, or a negative errno, then without a worker left. */
int bt_workers_start(struct bt_workers *workers, unsigned count, struct bt_error *error);

/* Waits for the end of all: hands SIGTERM on, and ends the others when one ends by itself, since its agents'
 * connections are gone and the host notices the end of the whole only. Returns 0 after SIGTERM. */
int bt_workers_watch(struct bt_workers *workers, struct bt_error *error);

#endif
