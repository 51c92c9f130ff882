/* What of the engine's life goes into the audit log. The one place that decides it.
 *
 * A line: each LEASE, ADOPT, SEAL, RELEASE and RECONCILE with its outcome, the end of a lease by its
 * connection (EOF) or for want of adoption (EXPIRE), the start, drift and its repair, every other refusal and
 * a malformed frame (BT_REFUSAL_LINES a uid and minute). Counted, one line a uid a minute: the refusals
 * beyond, HELLO, STATUS and COUNTERS that were answered, and whatever was refused for coming too often, so
 * that a flood cannot push other lines out of the ring.
 *
 * With no log (engine->options.audit is NULL) nothing happens and 0 is returned.
 */
#ifndef BERTH_HELPER_RECORD_H
#define BERTH_HELPER_RECORD_H

#include "helper/engine.h"

#define BT_RECORD_SUMMARY_MS 60000U

/* One line. The failure has been said; whether it matters is the caller's to know: only a grant must not
 * stand without its line. lease may be NULL. */
int bt_record_event(struct bt_engine *engine, const char *name, uint32_t uid, const struct bt_lease *lease,
                    uint32_t count);

/* An answer to a request. held: what the connection held before it (NULL: nothing). */
int bt_record_answer(struct bt_engine *engine, const struct bt_connection *connection,
                     const struct bt_request *request, enum bt_status status, const struct bt_lease *held);

/* A frame that is none. */
void bt_record_malformed(struct bt_engine *engine, const struct bt_connection *connection);

/* A connection that was not admitted: only counted. */
void bt_record_turned_away(struct bt_engine *engine, uint32_t uid, bool is_status_only);

/* The summaries, when they are due. */
void bt_record_summaries(struct bt_engine *engine, uint64_t now);

#endif
