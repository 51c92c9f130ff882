/* What both programs of policy/ do at start: read their configuration, leave root, give up the file system;
 * and how they compare secrets. Called by policy/orchestrator and policy/gateway only.
 */
#ifndef BERTH_POLICY_RULES_SERVICE_H
#define BERTH_POLICY_RULES_SERVICE_H

#include <jansson.h>

#include "lib/error.h"
#include "lib/file.h"

#define BT_SERVICE_WORKERS_MAX 8 /* processes of a gateway */
#define BT_SERVICE_UID 900       /* also the gid; the infra guests have no account file, so a number it is */

/* Reads a JSON object of at most 256 KiB, duplicate keys refused. The caller owns *ret_document. */
int bt_service_config_load(const char *path, json_t **ret_document, struct bt_error *error);

/* Borrows a string of a configuration. Missing, empty or holding a NUL: -EINVAL, unless it may be absent (or
 * null): then NULL. */
int bt_service_config_text(const json_t *document, const char *key, bool may_be_absent, const char **ret_text,
                           struct bt_error *error);

/* Splits "address:port" (dotted quad). fallback_port is taken when there is no colon; 0 makes the port
 * necessary. */
int bt_service_endpoint_parse(const char *text, uint16_t fallback_port, uint32_t *ret_address,
                              uint16_t *ret_port, struct bt_error *error);

/* As root: owned_folder (or NULL) is given to BT_SERVICE_UID, which the process then becomes, for good,
 * without capabilities. As anybody else: nothing to do. */
int bt_service_become_user(const char *owned_folder, struct bt_error *error);

/* For good: no new privileges, not dumpable, no core file, no other program or process (seccomp), and with
 * Landlock (where the kernel has it) no file but those below folder; NULL: none. Open descriptors stay
 * usable. */
int bt_service_confine(const char *folder, struct bt_error *error);

/* Raises the limit of open descriptors to what is permitted, at most maximum. Returns the limit in force. */
size_t bt_service_raise_descriptors(size_t maximum);

/* Compares two lower-case hex SHA-256 texts in constant time; anything that is not one is unequal. */
bool bt_service_digest_equal(const char *left, const char *right);

/* SHA-256 of a secret's text as it is written on the wire (policy/API.md), lower-case hex. */
void bt_service_secret_digest(const char *secret, size_t length, char ret_digest[BT_DIGEST_TEXT_SIZE]);

#endif
