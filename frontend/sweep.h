/* What guests that are gone left in the runtime of their backend: containers and networks, no data. */
#ifndef BERTH_FRONTEND_SWEEP_H
#define BERTH_FRONTEND_SWEEP_H

#include "frontend/state.h"

struct bt_backend;

/* Removes what of an environment nobody lives for any more; the caller holds the lock of its pair. What
 * cannot be removed now, or asked about, is left to the next time and to berth cleanup bots. */
void bt_sweep(const struct bt_paths *paths, struct bt_state *state, const char *environment,
              const struct bt_backend *backend);

#endif
