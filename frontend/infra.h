/* The infra pair of one environment: started or adopted under a lock, each of the two in a guest with its own
 * keeper.
 */
#ifndef BERTH_FRONTEND_INFRA_H
#define BERTH_FRONTEND_INFRA_H

#include "frontend/state.h"
#include "images/images.h"
#include "lib/error.h"
#include "lib/file.h"

struct bt_backend;
struct bt_config;

struct bt_infra_pair {
    struct bt_infra orchestrator, gateway; /* keeper.pid 0: not running */
};

/* Adopts a healthy pair or starts what is missing, under flock on $STATE/env/<environment>/infra.lock, which
 * the keepers hold as well until they are recorded: what a command started that was given up is waited for
 * and adopted. A pair that runs on another backend than this one is refused by name (-EBUSY): its gateway is
 * on networks of another kind. backend NULL: the one that a live pair has, else the best of this machine. */
int bt_infra_up(const struct bt_paths *paths, const struct bt_config *config, const char *environment,
                const struct bt_backend *backend, const struct bt_progress *progress,
                struct bt_infra_pair *ret_pair, struct bt_error *error);

/* The lock, after waiting for a pair that is being started; closing *ret_fd gives it back. */
int bt_infra_lock(const struct bt_paths *paths, const char *environment, const struct bt_progress *progress,
                  int *ret_fd, struct bt_error *error);

/* What is there now, without starting anything; members that do not run have keeper.pid 0. */
int bt_infra_status(const struct bt_paths *paths, const char *environment, struct bt_infra_pair *ret_pair,
                    struct bt_error *error);

/* Stops both, also those that are being started. Refused with -EBUSY while agents of the environment run,
 * unless is_forced. */
int bt_infra_down(const struct bt_paths *paths, const char *environment, bool is_forced,
                  const struct bt_progress *progress, struct bt_error *error);

/* The per-install key of the orchestrator's host API (64 hex digits), made on first use; 0600 in $STATE. */
int bt_infra_host_key(const struct bt_paths *paths, char ret_key[BT_DIGEST_TEXT_SIZE],
                      struct bt_error *error);

#endif
