/* The user's own trail of what berth was told to do: $STATE/audit.jsonl, 0600, one JSON object a line, append
 * only.
 *
 * Written by commands and keepers for changing acts; no prompt, command line, environment or secret goes in.
 */
#ifndef BERTH_FRONTEND_AUDIT_H
#define BERTH_FRONTEND_AUDIT_H

#include <jansson.h>

#include "lib/error.h"
#include "lib/file.h"

/* Appends {"time": ..., "act": act, "environment": ..., "agent": name, ...more}. agent and more may be NULL;
 * takes the reference of more. One write(2) in append mode, so that lines of several processes never mix. */
int bt_audit_write(const struct bt_paths *paths, const char *act, const char *environment, const char *agent,
                   json_t *more, struct bt_error *error);

/* The newest lines, oldest of them first, as an array (new reference). Lines that are not JSON are passed
 * over and counted. A missing file is an empty trail. */
int bt_audit_read(const struct bt_paths *paths, size_t lines, json_t **ret_lines, size_t *ret_damaged,
                  struct bt_error *error);

#endif
