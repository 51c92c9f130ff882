/* The user's credentials, which the gateway writes into an agent's requests and the agent never sees:
 * $STATE/credentials/<name>, one value a file.
 *
 * In the state folder and not beside the configuration, which people put under version control. Files are
 * 0600 in a folder of 0700, and not encrypted: berth must read them without a question whenever an agent is
 * registered again, so the key would lie beside them.
 */
#ifndef BERTH_FRONTEND_CREDENTIALS_H
#define BERTH_FRONTEND_CREDENTIALS_H

#include <jansson.h>

#include "lib/error.h"
#include "lib/file.h"

/* Shorter ones could not be told from other text when the gateway takes them out of responses. */
#define BT_CREDENTIAL_VALUE_MIN 8

/* 1 to 31 of a-z, 0-9 and '-', not beginning with '-'. BT_EXIT_USAGE. */
int bt_credential_check_name(const char *name, struct bt_error *error);

/* Stores a value in place of an older one. It must be printable ASCII of BT_CREDENTIAL_VALUE_MIN to
 * BT_CREDENTIAL_VALUE_MAX bytes: it becomes part of a header field. The value is in no error. */
int bt_credential_set(const struct bt_paths *paths, const char *name, const char *value, size_t length,
                      struct bt_error *error);
/* BT_EXIT_NO_TARGET, -ENOENT: there is none of this name. */
int bt_credential_remove(const struct bt_paths *paths, const char *name, struct bt_error *error);

struct bt_credential {
    char name[32];
    int64_t changed_seconds; /* time(2) */
};
/* By name; without values. The caller frees *ret_credentials with free(). */
int bt_credential_list(const struct bt_paths *paths, struct bt_credential **ret_credentials,
                       size_t *ret_count, struct bt_error *error);

/* Reads what the routes of a policy document name: an owned object, empty when they name none. A missing one
 * is -ENOKEY; the error names it, the route and the command that sets it. */
int bt_credentials_collect(const struct bt_paths *paths, const json_t *policy, json_t **ret_credentials,
                           struct bt_error *error);

/* The same for an agent that runs: routes whose credential is there no more are left out of *ret_policy, a
 * new reference, so that taking a credential away takes away what it opened. */
int bt_credentials_collect_present(const struct bt_paths *paths, json_t *policy, json_t **ret_policy,
                                   json_t **ret_credentials, struct bt_error *error);

/* Whether a policy document's routes name this credential. */
bool bt_credential_is_used(const json_t *policy, const char *name);

#endif
