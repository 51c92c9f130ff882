/* Whom a worker has served, told to the other workers, so that all of them know an agent when the
 * orchestrator is out of reach. Called by main.c (made before the workers) and agents.c.
 *
 * What is told is an address and the digest of a token: the orchestrator is asked about both, so a word of
 * another worker decides nothing. Each worker reads from a socket of its own (unix(7), SOCK_DGRAM); what
 * finds no room in it is lost, and told again later.
 */
#ifndef BERTH_POLICY_GATEWAY_PEERS_H
#define BERTH_POLICY_GATEWAY_PEERS_H

#include <event2/event.h>

#include "lib/error.h"
#include "lib/file.h"
#include "policy/rules/service.h"

struct bt_peers {
    unsigned count;
    int tell_fds[BT_SERVICE_WORKERS_MAX]; /* -1: this worker's own, or there is none */
    int hear_fds[BT_SERVICE_WORKERS_MAX]; /* -1 after bt_peers_join but for its own */
    struct event *event;
    void (*on_word)(void *context, uint32_t address, const char *digest);
    void *context;
};

/* count: of workers, 1 to BT_SERVICE_WORKERS_MAX; one has nobody to talk to, and gets no socket. */
int bt_peers_make(struct bt_peers *peers, unsigned count, struct bt_error *error);

/* In a worker: from now on on_word hears what the others tell. Address in host byte order; digest: of
 * BT_DIGEST_TEXT_SIZE, may be empty. */
int bt_peers_join(struct bt_peers *peers, unsigned own, struct event_base *base,
                  void (*on_word)(void *context, uint32_t address, const char *digest), void *context,
                  struct bt_error *error);

void bt_peers_tell(const struct bt_peers *peers, uint32_t address, const char *digest);

/* Closes all of them. */
void bt_peers_end(struct bt_peers *peers);

#endif
