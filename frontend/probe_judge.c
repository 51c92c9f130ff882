/* What the outcomes of a probe mean. Pure: no sockets, no clock; tested case by case.
 *
 * Used by probe_run.c. The document comes from the guest and is not trusted: what is missing or strange in it
 * is "no evidence", and that is a failure. A check never passes by silence alone.
 */
#include "frontend/probe_internal.h"

#include <errno.h>
#include <string.h>

#define PACKETS_MAX 16 /* more than a check can send in its time */

enum verdict { BLOCKED, LEAK, NO_EVIDENCE, CONTROL_OK, CONTROL_FAILED };

struct opinion {
    enum verdict verdict;
    const char *reason;
};

struct sighting {
    const char *outcome; /* "" when the guest said nothing about it */
    const char *from;
    const char *detail;
    json_int_t packets;
};

static const char *text_of(const json_t *check, const char *key)
{
    const char *text = json_string_value(json_object_get(check, key));
    return text ? text : "";
}

static struct sighting sighting_find(const json_t *document, const char *name)
{
    const json_t *checks = json_object_get(document, "checks");
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        if (strcmp(text_of(check, "name"), name) == 0)
            return (struct sighting){text_of(check, "outcome"), text_of(check, "from"),
                                     text_of(check, "detail"),
                                     json_integer_value(json_object_get(check, "packets"))};
    }
    return (struct sighting){"", "", "", 0};
}

static bool is_outcome(const struct sighting *seen, const char *outcome)
{
    return strcmp(seen->outcome, outcome) == 0;
}

/* How many packets of this item the host's firewall must have counted, if it stopped the item. */
static uint64_t drops_needed(const struct bt_probe_item *item, const struct sighting *seen)
{
    if (item->rule == BT_PROBE_RULE_CONTROL || item->rule == BT_PROBE_RULE_NAME)
        return 0;
    if (!is_outcome(seen, "prohibited") && !is_outcome(seen, "sent") && !is_outcome(seen, "silent"))
        return 0;
    /* At least the one without which there would be nothing to judge. */
    return seen->packets < 1 || seen->packets > PACKETS_MAX ? 1 : (uint64_t)seen->packets;
}

static struct opinion judge_control(const struct sighting *seen)
{
    if (is_outcome(seen, "connected"))
        return (struct opinion){CONTROL_OK, "the gateway answers, so silence elsewhere means something"};
    return (struct opinion){CONTROL_FAILED, "the gateway cannot be reached, so nothing is proved"};
}

/* The gateway must have counted the question, and must not have asked anybody. */
static struct opinion judge_name(const struct sighting *seen, const struct bt_probe_evidence *evidence)
{
    if (is_outcome(seen, "answered"))
        return (struct opinion){LEAK, "a name that no policy allows was resolved"};
    if (!is_outcome(seen, "refused"))
        return (struct opinion){CONTROL_FAILED, "the gateway's DNS does not answer"};
    if (!evidence->has_gateway)
        return (struct opinion){NO_EVIDENCE, "refused, but the gateway's counters are not known"};
    if (evidence->gateway_after.upstream_questions != evidence->gateway_before.upstream_questions)
        return (struct opinion){LEAK, "the gateway asked a resolver while an unknown name was asked for"};
    if (evidence->gateway_after.dns_questions <= evidence->gateway_before.dns_questions)
        return (struct opinion){NO_EVIDENCE, "refused, but the gateway has not counted the question"};
    return (struct opinion){BLOCKED, "the gateway refused it and asked no resolver"};
}

/* Whether an ICMP error comes from this host: its end of the slot, or the address of its own that was aimed
 * at. */
static bool is_from_host(const struct bt_probe_item *item, const struct sighting *seen,
                         const struct bt_probe_evidence *evidence)
{
    uint32_t from;
    if (item->rule == BT_PROBE_RULE_IPV6)
        return true;
    return bt_ipv4_parse(seen->from, &from) == 0 &&
           (from == evidence->slot_host_address || (item->nonce[0] && from == item->address));
}

static struct opinion judge_icmp(const struct bt_probe_item *item, const struct sighting *seen,
                                 const struct bt_probe_evidence *evidence, bool is_counted)
{
    if (*seen->from && !is_from_host(item, seen, evidence))
        return (struct opinion){LEAK, "an answer came from beyond the host's firewall"};
    if (is_outcome(seen, "prohibited") && is_counted)
        return (struct opinion){BLOCKED, "refused by the host's firewall"};
    if (is_outcome(seen, "prohibited"))
        return (struct opinion){NO_EVIDENCE,
                                "said to be refused, but the drop counter of the slot has not risen enough"};
    return (struct opinion){NO_EVIDENCE, "unreachable, but not by the host's firewall"};
}

static struct opinion judge_blocked(const struct bt_probe_item *item, const struct sighting *seen,
                                    const struct bt_probe_evidence *evidence, bool is_counted)
{
    static const char *const answers[] = {"connected", "data", "reset", "answered", "refused"};
    if (item->is_received)
        return (struct opinion){LEAK, "the host has received it"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(answers); i++) {
        if (is_outcome(seen, answers[i]))
            return (struct opinion){LEAK,
                                    i == 2 ? "somebody refused it, so it got there" : "it was answered"};
    }
    if (is_outcome(seen, "prohibited") || is_outcome(seen, "unreachable"))
        return judge_icmp(item, seen, evidence, is_counted);
    if (is_outcome(seen, "silent") || (is_outcome(seen, "sent") && item->rule == BT_PROBE_RULE_SPOOF))
        return is_counted
                   ? (struct opinion){BLOCKED, "silence, and the drop counter of the slot has risen"}
                   : (struct opinion){NO_EVIDENCE,
                                      "silence, but the drop counter of the slot has not risen enough"};
    if (is_outcome(seen, "unsendable") && item->rule == BT_PROBE_RULE_IPV6)
        return (struct opinion){BLOCKED, "the guest has no IPv6"};
    if (is_outcome(seen, "unsendable") && item->rule == BT_PROBE_RULE_SPOOF)
        return (struct opinion){BLOCKED, "this user may not send packets of its own making"};
    /* What its kernel, the host's, says: the engine gave the container's network no way out. */
    if (is_outcome(seen, "unsendable") && evidence->is_without_route &&
        strcmp(seen->detail, strerror(ENETUNREACH)) == 0)
        return (struct opinion){BLOCKED, "the container has no route there"};
    if (is_outcome(seen, "unsendable"))
        return (struct opinion){NO_EVIDENCE, "the guest itself refused to send it"};
    return (struct opinion){NO_EVIDENCE, "the guest reported nothing that can be judged"};
}

static bool report(const struct bt_probe_item *item, const struct sighting *seen, const char *as,
                   struct opinion opinion, json_t *checks)
{
    static const char *const names[] = {"blocked", "leak", "no-evidence", "control-ok", "control-failed"};
    char outcome[32];
    size_t length = strnlen(seen->outcome, sizeof(outcome) - 1);
    memcpy(outcome, seen->outcome, length);
    outcome[length] = '\0';
    bt_auto_free char *detail = *seen->detail ? bt_string_format("%s (%.95s)", opinion.reason, seen->detail)
                                              : bt_string_copy(opinion.reason);
    (void)json_array_append_new(checks, json_pack("{s:s, s:s, s:s, s:s, s:s}", "name", item->name, "as", as,
                                                  "outcome", length ? outcome : "none", "verdict",
                                                  names[opinion.verdict], "detail", detail));
    return opinion.verdict == BLOCKED || opinion.verdict == CONTROL_OK;
}

bool bt_probe_judge(const struct bt_probe_items *items, const json_t *document, const char *as,
                    const struct bt_probe_evidence *evidence, json_t *checks)
{
    uint64_t needed = 0, risen = evidence->drops_after - evidence->drops_before;
    bool is_well = items->count > 0;
    if (evidence->drops_after < evidence->drops_before)
        risen = 0; /* another lease's counter: proves nothing */
    for (size_t i = 0; i < items->count; i++) {
        const struct sighting seen = sighting_find(document, items->list[i].name);
        needed += drops_needed(&items->list[i], &seen);
    }
    for (size_t i = 0; i < items->count; i++) {
        const struct bt_probe_item *item = &items->list[i];
        const struct sighting seen = sighting_find(document, item->name);
        struct opinion opinion = item->rule == BT_PROBE_RULE_CONTROL ? judge_control(&seen)
                                 : item->rule == BT_PROBE_RULE_NAME
                                     ? judge_name(&seen, evidence)
                                     : judge_blocked(item, &seen, evidence, risen >= needed);
        is_well &= report(item, &seen, as, opinion, checks);
    }
    return is_well;
}
