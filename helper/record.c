/* Decides what is audited, see record.h.
 *
 * Called by the engine. It must not let a client choose a byte of a line, or how many lines there are beyond
 * its rate.
 */
#include "helper/record.h"

#include "helper/audit.h"
#include "helper/say.h"

static const char *const status_names[BT_STATUS_MAX] = {
    "OK",     "VERSION",   "STATE",       "STALE",         "RATE",      "QUOTA", "FULL",
    "EXISTS", "NOT_FOUND", "UNSUPPORTED", "NOT_PERMITTED", "UNHEALTHY", "KERNEL"};

static int write_event(struct bt_engine *engine, const struct bt_audit_event *event)
{
    struct bt_audit *audit = engine->options.audit;
    if (!audit)
        return 0;
    bool was_failing = audit->lost > 0;
    int error = bt_audit_append(audit, event);
    if (error < 0 && !was_failing)
        bt_say_error("the audit log cannot be written", error,
                     "no leases until it can; see the disk of audit_folder");
    else if (error == 0 && was_failing)
        bt_say("the audit log is written again");
    return error;
}

int bt_record_event(struct bt_engine *engine, const char *name, uint32_t uid, const struct bt_lease *lease,
                    uint32_t count)
{
    struct bt_audit_event event = {.name = name, .status = "OK", .uid = uid, .lease = lease, .count = count};
    return write_event(engine, &event);
}

static bool is_query(enum bt_verb verb)
{
    return verb == BT_VERB_HELLO || verb == BT_VERB_STATUS || verb == BT_VERB_COUNTERS;
}

static void schedule_summary(struct bt_engine *engine)
{
    if (engine->summary_due_ms == 0)
        engine->summary_due_ms = engine->options.now_ms() + BT_RECORD_SUMMARY_MS;
}

static void count(struct bt_engine *engine, uint32_t uid, bool is_status_only, bool is_refused)
{
    if (!engine->options.audit)
        return;
    bt_admission_count(bt_engine_admission(engine, is_status_only), uid, is_refused);
    schedule_summary(engine);
}

/* Nobody can push others' lines out of the ring with requests that are refused anyway. */
static void write_refusal(struct bt_engine *engine, const struct bt_connection *connection,
                          const struct bt_audit_event *event)
{
    if (!engine->options.audit)
        return;
    schedule_summary(engine); /* which renews the lines, too */
    if (bt_admission_take_line(bt_engine_admission(engine, connection->is_status_only), connection->uid))
        (void)write_event(engine, event);
    else
        count(engine, connection->uid, connection->is_status_only, true);
}

int bt_record_answer(struct bt_engine *engine, const struct bt_connection *connection,
                     const struct bt_request *request, enum bt_status status, const struct bt_lease *held)
{
    bool is_adoption = request->verb == BT_VERB_LEASE && request->body.lease.is_adopt;
    struct bt_audit_event event = {.name = is_adoption ? "ADOPT" : bt_verb_name(request->verb),
                                   .status = status < BT_STATUS_MAX ? status_names[status] : "?",
                                   .uid = connection->uid,
                                   .lease = held};
    if (status == BT_STATUS_RATE || (status == BT_STATUS_OK && is_query(request->verb))) {
        count(engine, connection->uid, connection->is_status_only, status == BT_STATUS_RATE);
        return 0;
    }
    if (!held && connection->state == BT_CONNECTION_LEASED)
        event.lease = bt_ledger_find(&engine->ledger, connection->slot, BT_HOLD_LIVE);
    if (status == BT_STATUS_OK)
        return write_event(engine, &event);
    write_refusal(engine, connection, &event);
    return 0;
}

void bt_record_malformed(struct bt_engine *engine, const struct bt_connection *connection)
{
    struct bt_audit_event event = {.name = "FRAME", .status = "MALFORMED", .uid = connection->uid};
    write_refusal(engine, connection, &event);
}

void bt_record_turned_away(struct bt_engine *engine, uint32_t uid, bool is_status_only)
{
    count(engine, uid, is_status_only, true);
}

static void summarise(struct bt_engine *engine, struct bt_admission *admission)
{
    struct bt_audit_event event = {.name = "SUMMARY", .status = "OK"};
    while (bt_admission_take_counts(admission, &event.uid, &event.count, &event.refused))
        (void)write_event(engine, &event);
}

void bt_record_summaries(struct bt_engine *engine, uint64_t now)
{
    if (engine->summary_due_ms == 0 || now < engine->summary_due_ms)
        return;
    engine->summary_due_ms = 0;
    summarise(engine, &engine->admission);
    summarise(engine, &engine->status_admission);
    bt_admission_renew_lines(&engine->admission);
    bt_admission_renew_lines(&engine->status_admission);
}
