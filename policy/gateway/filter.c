/* What filters are told to look for, and what follows from a find. See filter.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/filter_internal.h"

int bt_filters_start(struct bt_error *error)
{
    bt_matches_start();
    return bt_detectors_start(error);
}

void bt_filters_stop(void)
{
    bt_scanner_free_spares();
    bt_detectors_stop();
}

static bool is_overwriting(const struct bt_filter *filter)
{
    return !filter->is_request || filter->settings.dlp.outbound == BT_DLP_OUTBOUND_REDACT;
}

struct bt_scanner_settings bt_filter_scanner_settings(const struct bt_filter *filter, bool can_mask)
{
    const struct bt_filter_settings *settings = &filter->settings;
    struct bt_scanner_settings scanner = {
        .secrets = settings->secrets,
        .masks_detectors = can_mask && filter->is_request && is_overwriting(filter),
        .masks_secrets = can_mask && is_overwriting(filter),
    };
    if (filter->is_request && settings->dlp.outbound == BT_DLP_OUTBOUND_OFF)
        return scanner; /* only a warning of what looks random is wanted */
    if (filter->is_request) {
        scanner.detectors = bt_detectors_outbound();
        scanner.secret_kinds = (1U << BT_SECRET_KINDS) - 1;
        scanner.matches = filter->matches;
    } else {
        scanner.detectors = settings->dlp.inbound != BT_DLP_INBOUND_OFF ? bt_detectors_inbound() : NULL;
        scanner.secret_kinds = 1U << BT_SECRET_CREDENTIAL;
    }
    return scanner;
}

/* ---- life -----------------------------------------------------------------------------------------------
 */

static struct bt_filter *filter_new(const struct bt_filter_settings *settings, bool is_request)
{
    struct bt_filter *filter = bt_new(1, sizeof(*filter));
    filter->is_request = is_request;
    filter->settings = *settings;
    (void)bt_secrets_keep(settings->secrets);
    if (is_request && settings->dlp.outbound == BT_DLP_OUTBOUND_SUPERVISE) {
        filter->matches = bt_new(1, sizeof(*filter->matches));
        bt_approved_get(settings->approved, settings->host, filter->matches);
    }
    filter->settings.approved = NULL; /* the agent's entry may be another's soon */
    filter->settings.host = NULL;
    return filter;
}

struct bt_filter *bt_filter_request_new(const struct bt_filter_settings *settings)
{
    /* Whatever reads the response asks for something in the request's head. */
    bool reads_response = settings->dlp.inbound != BT_DLP_INBOUND_OFF ||
                          bt_secrets_have(settings->secrets, BT_SECRET_CREDENTIAL) || settings->is_injected;
    bool is_needed =
        settings->dlp.outbound != BT_DLP_OUTBOUND_OFF || settings->dlp.warns_of_entropy || reads_response;
    return is_needed ? filter_new(settings, true) : NULL;
}

struct bt_filter *bt_filter_response_new(const struct bt_filter_settings *settings)
{
    bool is_needed = settings->dlp.inbound != BT_DLP_INBOUND_OFF ||
                     bt_secrets_have(settings->secrets, BT_SECRET_CREDENTIAL);
    return is_needed ? filter_new(settings, false) : NULL;
}

struct bt_filter *bt_filter_free(struct bt_filter *filter)
{
    if (filter == NULL)
        return NULL;
    bt_filter_body_clear(filter);
    filter->settings.secrets = bt_secrets_free(filter->settings.secrets);
    bt_buffer_wipe(&filter->text);
    free(filter->matches);
    free(filter);
    return NULL;
}

/* ---- findings -------------------------------------------------------------------------------------------
 */

static const char *const hints[] = {
    [BT_FILTER_BLOCKED] = "take it out of the request; if it belongs there, set dlp.outbound of this route",
    [BT_FILTER_ASKED] = "the owner of this agent is asked: berth approvals list",
    [BT_FILTER_REDACTED] = "it was overwritten with asterisks before the request was sent",
    [BT_FILTER_SCRUBBED] = "it was overwritten with asterisks before the response was passed on",
    [BT_FILTER_WARNED] = "read what the agent does next with care",
    [BT_FILTER_REMEMBERED] = "berth approvals allow --remember holds until the agent ends",
};

/* An owner may be asked about several values of one kind. */
static bool was_found(const struct bt_filter *filter, enum bt_filter_act act, const char *rule)
{
    for (size_t i = 0; i < filter->finding_count; i++)
        if (filter->findings[i].act == act && strcmp(filter->findings[i].rule, rule) == 0)
            return true;
    return false;
}

static void add_finding(struct bt_filter *filter, enum bt_filter_act act, const char *rule_kind,
                        const char *rule_name, const char *title)
{
    char rule[sizeof(filter->findings[0].rule)];
    (void)snprintf(rule, sizeof(rule), "%s:%s", rule_kind, rule_name);
    if (filter->finding_count == BT_FILTER_FINDINGS_MAX || was_found(filter, act, rule))
        return;
    struct bt_filter_finding *finding = &filter->findings[filter->finding_count++];
    finding->act = act;
    bool is_response_blocked = act == BT_FILTER_BLOCKED && !filter->is_request;
    memcpy(finding->rule, rule, sizeof(rule));
    (void)snprintf(finding->reason, sizeof(finding->reason), "the %s carries %s",
                   filter->is_request ? "request" : "response", title);
    (void)snprintf(finding->hint, sizeof(finding->hint), "%s",
                   is_response_blocked ? "dlp.inbound of this route decides about instructions to the agent"
                                       : hints[act]);
}

bool bt_filter_take_finding(struct bt_filter *filter, struct bt_filter_finding *ret_finding)
{
    if (filter == NULL || filter->finding_taken == filter->finding_count)
        return false;
    *ret_finding = filter->findings[filter->finding_taken++];
    return true;
}

/* ---- verdicts -------------------------------------------------------------------------------------------
 */

static enum bt_filter_act judge_request(const struct bt_filter *filter, bool can_mask)
{
    switch (filter->settings.dlp.outbound) {
    case BT_DLP_OUTBOUND_REDACT:
        return can_mask ? BT_FILTER_REDACTED : BT_FILTER_BLOCKED;
    case BT_DLP_OUTBOUND_SUPERVISE:
        return BT_FILTER_ASKED;
    case BT_DLP_OUTBOUND_BLOCK:
    case BT_DLP_OUTBOUND_OFF:
        break;
    }
    return BT_FILTER_BLOCKED;
}

static enum bt_filter_act judge_secret(const struct bt_filter *filter, bool can_mask)
{
    if (filter->is_request)
        return judge_request(filter, can_mask);
    return can_mask ? BT_FILTER_SCRUBBED : BT_FILTER_BLOCKED;
}

static enum bt_filter_act judge_detector(const struct bt_filter *filter, bool can_mask)
{
    if (filter->is_request)
        return judge_request(filter, can_mask);
    return filter->settings.dlp.inbound == BT_DLP_INBOUND_BLOCK ? BT_FILTER_BLOCKED : BT_FILTER_WARNED;
}

static void join(struct bt_finds *finds, uint64_t detectors, unsigned secrets)
{
    finds->detectors |= detectors;
    finds->secrets |= secrets;
}

/* Notes what an act means for the exchange. */
static void apply(struct bt_filter *filter, enum bt_filter_act act, uint64_t detectors, unsigned secrets)
{
    switch (act) {
    case BT_FILTER_BLOCKED:
        filter->is_blocked = true;
        return;
    case BT_FILTER_ASKED:
        filter->is_asking = true;
        join(&filter->asked, detectors, secrets);
        return;
    case BT_FILTER_WARNED:
        join(&filter->passed_hidden, detectors, secrets);
        break;
    case BT_FILTER_REDACTED:
    case BT_FILTER_SCRUBBED:
    case BT_FILTER_REMEMBERED:
        break;
    }
    join(&filter->passed, detectors, secrets);
}

enum bt_filter_verdict bt_filter_verdict_of(const struct bt_filter *filter)
{
    if (filter->is_blocked)
        return BT_FILTER_BLOCK;
    return filter->is_asking ? BT_FILTER_ASK : BT_FILTER_PASS;
}

static const struct {
    const char *name, *title;
} secrets[BT_SECRET_KINDS] = {
    [BT_SECRET_CREDENTIAL] = {"secret", "a credential that only the gateway should know"},
    [BT_SECRET_IDENTITY] = {"identity", "the agent's own token for the gateway"},
    [BT_SECRET_CANARY] = {"canary", "the agent's canary: something in it collects secrets"},
};

void bt_filter_name_match(const struct bt_match *match, char ret_rule[64], const char **ret_title)
{
    const struct bt_detector *detector =
        match->is_secret ? NULL : bt_detector_get(bt_detectors_outbound(), match->index);
    (void)snprintf(ret_rule, 64, "dlp:%s", detector != NULL ? detector->name : secrets[match->index].name);
    *ret_title = detector != NULL ? detector->title : secrets[match->index].title;
}

const struct bt_matches *bt_filter_matches(const struct bt_filter *filter)
{
    return filter->matches;
}

/* What the values that were noted mean beyond their kinds. */
static void judge_matches(struct bt_filter *filter)
{
    if (filter->matches == NULL)
        return;
    if (filter->matches->was_remembered)
        add_finding(filter, BT_FILTER_REMEMBERED, "approval", "remembered",
                    "what its owner allowed until the agent ends");
    if (filter->matches->is_overfull && !filter->is_blocked) {
        add_finding(filter, BT_FILTER_BLOCKED, "approval", "too-many",
                    "more tokens than its owner can be asked about");
        filter->is_blocked = true;
    }
}

void bt_filter_look_at_randomness(struct bt_filter *filter, const void *data, size_t length)
{
    if (filter->is_request && filter->settings.dlp.warns_of_entropy &&
        bt_entropy_scan(&filter->entropy, data, length))
        add_finding(filter, BT_FILTER_WARNED, "dlp", "entropy", "text that looks random, as keys do");
}

enum bt_filter_verdict bt_filter_judge(struct bt_filter *filter, struct bt_finds finds, bool can_mask)
{
    const struct bt_detectors *detectors =
        filter->is_request ? bt_detectors_outbound() : bt_detectors_inbound();
    const struct bt_finds *passed = can_mask ? &filter->passed : &filter->passed_hidden;
    /* What was asked about once in the same piece is not asked about again. */
    uint64_t new_detectors = finds.detectors & ~passed->detectors & ~filter->asked.detectors;
    unsigned new_secrets = finds.secrets & ~passed->secrets & ~filter->asked.secrets;
    for (unsigned kind = 0; kind < BT_SECRET_KINDS && !filter->is_blocked; kind++) {
        if ((new_secrets >> kind & 1) == 0)
            continue;
        enum bt_filter_act act = judge_secret(filter, can_mask);
        add_finding(filter, act, "dlp", secrets[kind].name, secrets[kind].title);
        apply(filter, act, 0, 1U << kind);
    }
    for (unsigned index = 0; new_detectors >> index != 0 && !filter->is_blocked; index++) {
        if ((new_detectors >> index & 1) == 0)
            continue;
        const struct bt_detector *detector = bt_detector_get(detectors, index);
        enum bt_filter_act act = judge_detector(filter, can_mask);
        add_finding(filter, act, filter->is_request ? "dlp" : "inbound", detector->name, detector->title);
        apply(filter, act, 1ULL << index, 0);
        if (index == BT_DETECTORS_MAX - 1)
            break;
    }
    judge_matches(filter);
    return bt_filter_verdict_of(filter);
}

enum bt_filter_verdict bt_filter_judge_unreadable(struct bt_filter *filter, const char *reason)
{
    bool is_blocking = filter->is_request ? filter->settings.dlp.outbound != BT_DLP_OUTBOUND_OFF
                                          : filter->settings.is_injected ||
                                                filter->settings.dlp.inbound == BT_DLP_INBOUND_BLOCK;
    add_finding(filter, is_blocking ? BT_FILTER_BLOCKED : BT_FILTER_WARNED,
                filter->is_request ? "dlp" : "inbound", "content-coding", reason);
    filter->is_blocked = filter->is_blocked || is_blocking;
    return bt_filter_verdict_of(filter);
}

/* ---- memory ---------------------------------------------------------------------------------------------
 */

#define FILTER_SIZE (8U * 1024) /* itself and its scanners */

size_t bt_filter_weight(const struct bt_filter *filter)
{
    return FILTER_SIZE + filter->text.capacity +
           (filter->waiting != NULL ? evbuffer_get_length(filter->waiting) : 0) +
           (filter->rest != NULL ? evbuffer_get_length(filter->rest) : 0) +
           (filter->inflate != NULL ? bt_inflate_weight(filter->inflate) : 0);
}
