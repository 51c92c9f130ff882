/* Running the isolation probe: canaries, the two runs in the guest, counters, the verdict document.
 *
 * Called by the agent's keeper. It changes nothing: no rule, no route, no state.
 */
#include "frontend/probe_internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vm/guest_config.h"

#define OUTPUT_MAX 65536
#define RUN_MS 20000
/* The gateway reports a change after a tenth of a second, and every two seconds that it lives. */
#define GATEWAY_WAIT_MS 5000
#define GATEWAY_POLL_MS 50
/* While an agent works its gateway asks resolvers for it: a question that is asked upstream must be told from
 * those. */
#define NAME_ATTEMPTS 4

struct probe {
    struct bt_guest_link *link;
    const struct bt_probe_facts *facts;
    struct bt_probe_canary host, slot;
    json_t *checks;
    bool is_well;
};

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Runs berth-probe with the plan of these items; its document is owned by the caller. */
static int run_in_guest(struct probe *probe, const struct bt_probe_items *items, uint32_t uid,
                        json_t **ret_document, struct bt_error *error)
{
    static const char *const arguments[] = {BT_GUEST_PROBE, NULL};
    static const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    bt_auto_buffer plan = {0}, output = {0}, errors = {0};
    int status = 0;
    int result = bt_probe_items_plan(items, &plan);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot plan the isolation probe");
    const struct bt_guest_command command = {.arguments = arguments,
                                             .environment = environment,
                                             .folder = "/",
                                             .uid = uid,
                                             .gid = uid,
                                             .input = plan.data,
                                             .input_length = plan.length,
                                             .input_fd = -1,
                                             .timeout_ms = RUN_MS};
    result = bt_guest_run_collect(probe->link, &command, OUTPUT_MAX, &output, &errors, &status, error);
    if (result < 0) {
        (void)bt_error_prefix(error, "the isolation probe");
        return result;
    }
    json_t *document = status == 0 && output.data ? json_loadb(output.data, output.length, 0, NULL) : NULL;
    if (!document)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EPROTO, "berth probe N tries again",
                       "the isolation probe did not run in the guest (exit status %d): nothing is proved",
                       status);
    *ret_document = document;
    return 0;
}

/* Waits until the gateway's report holds the questions that this run asked. No report in time: no evidence.
 */
static void gateway_after(const struct bt_probe_facts *facts, struct bt_probe_evidence *evidence)
{
    const struct timespec pause = {.tv_nsec = GATEWAY_POLL_MS * 1000000L};
    int64_t until_ms = now_ms() + GATEWAY_WAIT_MS;
    while (facts->read_gateway && evidence->has_gateway) {
        if (facts->read_gateway(facts->context, &evidence->gateway_after, NULL) < 0)
            evidence->has_gateway = false;
        else if (evidence->gateway_after.dns_questions > evidence->gateway_before.dns_questions ||
                 now_ms() > until_ms)
            return;
        else
            (void)nanosleep(&pause, NULL);
    }
}

/* One run with its evidence around it. The caller frees *ret_document. */
static int run_with_evidence(struct probe *probe, struct bt_probe_items *items, uint32_t uid,
                             struct bt_probe_evidence *evidence, json_t **ret_document,
                             struct bt_error *error)
{
    const struct bt_probe_facts *facts = probe->facts;
    evidence->has_gateway =
        facts->read_gateway && facts->read_gateway(facts->context, &evidence->gateway_before, NULL) == 0;
    int result = facts->read_drops(facts->context, &evidence->drops_before, error);
    if (result == 0)
        result = run_in_guest(probe, items, uid, ret_document, error);
    if (result < 0)
        return result;
    result = facts->read_drops(facts->context, &evidence->drops_after, error);
    if (result < 0) {
        json_decref(*ret_document);
        return result;
    }
    if (!bt_probe_canary_collect(&probe->host, facts->guest_address, items) ||
        !bt_probe_canary_collect(&probe->slot, facts->guest_address, items)) {
        json_decref(*ret_document);
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EOVERFLOW, "try again when nobody does",
                       "somebody floods the probe's canary on this host, so nothing is proved");
    }
    gateway_after(facts, evidence);
    return 0;
}

/* When the gateway asked a resolver during a run: asks for an unknown name again, alone, a few times. One
 * time without a question upstream shows that the others were the agent's own. */
static int repeat_name(struct probe *probe, uint32_t uid, struct bt_probe_evidence *evidence,
                       struct bt_error *error)
{
    for (int i = 1; i < NAME_ATTEMPTS && evidence->has_gateway &&
                    evidence->gateway_after.upstream_questions != evidence->gateway_before.upstream_questions;
         i++) {
        struct bt_probe_items items, only = {.count = 0};
        struct bt_probe_evidence again = {0};
        json_t *document = NULL;
        int result = bt_probe_items_make(probe->facts, &probe->host, &probe->slot, &items);
        for (size_t at = 0; result == 0 && at < items.count; at++) {
            if (items.list[at].rule == BT_PROBE_RULE_NAME)
                only.list[only.count++] = items.list[at];
        }
        if (result == 0)
            result = run_with_evidence(probe, &only, uid, &again, &document, error);
        if (result < 0)
            return result;
        json_decref(document);
        evidence->has_gateway = again.has_gateway;
        evidence->gateway_before = again.gateway_before;
        evidence->gateway_after = again.gateway_after;
    }
    return 0;
}

static int run_as(struct probe *probe, uint32_t uid, const char *as, struct bt_error *error)
{
    struct bt_probe_items items;
    struct bt_probe_evidence evidence = {.slot_host_address = probe->facts->slot_host_address,
                                         .is_without_route = probe->facts->is_without_route};
    json_t *document = NULL;
    if (bt_probe_items_make(probe->facts, &probe->host, &probe->slot, &items) < 0)
        return bt_fail(error, BT_EXIT_ERROR, E2BIG, NULL, "the isolation probe has too many checks");
    int result = run_with_evidence(probe, &items, uid, &evidence, &document, error);
    if (result < 0)
        return result;
    result = repeat_name(probe, uid, &evidence, error);
    if (result == 0)
        probe->is_well &= bt_probe_judge(&items, document, as, &evidence, probe->checks);
    json_decref(document);
    return result;
}

static int probe_all(struct probe *probe, struct bt_error *error)
{
    const struct bt_probe_facts *facts = probe->facts;
    int result = bt_probe_canary_open(facts->slot_host_address, &probe->slot, error);
    if (result == 0 && facts->has_host_wide && facts->host_primary_address)
        result = bt_probe_canary_open(facts->host_primary_address, &probe->host, error);
    if (result == 0)
        result = run_as(probe, 0, "root", error);
    if (result == 0)
        result = run_as(probe, BT_GUEST_AGENT_ID, "agent", error);
    bt_probe_canary_close(&probe->host);
    bt_probe_canary_close(&probe->slot);
    return result;
}

int bt_probe_run(struct bt_guest_link *link, const struct bt_probe_facts *facts, json_t **ret_document,
                 struct bt_error *error)
{
    char started[32];
    time_t now = time(NULL);
    struct tm parts;
    int64_t started_ms = now_ms();
    if (!facts->read_drops || !facts->guest_address || !facts->slot_host_address)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "the isolation probe lacks the facts of its slot");
    (void)strftime(started, sizeof(started), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    struct probe probe = {.link = link, .facts = facts, .checks = json_array(), .is_well = true};
    int result = probe_all(&probe, error);
    if (result < 0) {
        json_decref(probe.checks);
        return result;
    }
    *ret_document = json_pack("{s:b, s:s, s:I, s:b, s:o}", "passed", probe.is_well, "started", started,
                              "took_ms", (json_int_t)(now_ms() - started_ms), "host_wide",
                              facts->has_host_wide, "checks", probe.checks);
    return 0;
}

int bt_probe_check(const json_t *document, struct bt_error *error)
{
    const json_t *checks = json_object_get(document, "checks");
    bt_auto_buffer names = {.limit = 600};
    bool has_leak = false;
    if (json_is_true(json_object_get(document, "passed")) && json_array_size(checks) > 0)
        return 0;
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        const char *verdict = json_string_value(json_object_get(check, "verdict"));
        if (!verdict || strcmp(verdict, "blocked") == 0 || strcmp(verdict, "control-ok") == 0)
            continue;
        has_leak |= strcmp(verdict, "leak") == 0;
        if (bt_buffer_add_format(&names, "%s%s as %s: %s", names.length ? "; " : "",
                                 json_string_value(json_object_get(check, "name")),
                                 json_string_value(json_object_get(check, "as")), verdict) < 0)
            break; /* enough to see what is wrong */
    }
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EPERM,
                   has_leak ? "the agent was not started; berth doctor checks the firewall"
                            : "the agent was not started; try again, and see berth doctor",
                   "%s (%s)",
                   has_leak ? "the isolation probe found a way out" : "the isolation could not be proved",
                   names.data ? names.data : "no checks");
}
