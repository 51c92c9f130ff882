/* Bodies through filters. The first bytes choose direction, action, coding and how the body is cut.
 * Invariants: whatever the cut, the verdict is the same (but where more values than BT_MATCHES_MAX are to be
 * asked about, a block: where one begins in a chain of them depends on what is still held); what passes has
 * its length, and differs only by asterisks; the agent's secret is never in it; what is held stays within its
 * bound. */
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/filter.h"
#include "policy/gateway/matches.h"
#include "policy/gateway/secrets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char secret[] = "q7/Zp+4\"w{K2}x";

struct outcome {
    enum bt_filter_verdict verdict;
    bool is_overfull; /* more values to ask about than a request may have */
    struct evbuffer *out;
};

static void check_held(const struct bt_filter *filter)
{
    if (bt_filter_held(filter) > BT_FILTER_HELD_MAX)
        abort();
}

/* cut 0: one piece; else pieces of 1 to cut bytes. */
static struct outcome run(const struct bt_filter_settings *settings, bool is_request, const uint8_t *body,
                          size_t length, size_t cut)
{
    struct bt_filter *filter =
        is_request ? bt_filter_request_new(settings) : bt_filter_response_new(settings);
    struct outcome outcome = {.out = evbuffer_new()};
    struct bt_message head = {.path = {"/", 1}, .status = 200, .content_length = -1};
    outcome.verdict = bt_filter_head(filter, &head);
    for (size_t at = 0, i = 0; at < length && outcome.verdict == BT_FILTER_PASS; i++) {
        size_t count = cut == 0 ? length : 1 + i * 7 % cut;
        count = count < length - at ? count : length - at;
        outcome.verdict = bt_filter_data(filter, body + at, count, outcome.out);
        while (outcome.verdict == BT_FILTER_ASK)
            outcome.verdict = bt_filter_answer(filter, true, outcome.out);
        at += count;
        check_held(filter);
    }
    if (outcome.verdict == BT_FILTER_PASS)
        outcome.verdict = bt_filter_end(filter, NULL, outcome.out);
    const struct bt_matches *matches = bt_filter_matches(filter);
    outcome.is_overfull = matches != NULL && matches->is_overfull;
    (void)bt_filter_free(filter);
    return outcome;
}

static void check_bytes(const struct outcome *outcome, const uint8_t *body, size_t length, bool may_differ)
{
    size_t passed = evbuffer_get_length(outcome->out);
    const uint8_t *bytes = evbuffer_pullup(outcome->out, -1);
    if (passed > length || (outcome->verdict == BT_FILTER_PASS && passed != length))
        abort();
    for (size_t i = 0; i < passed; i++)
        if (bytes[i] != body[i] && (!may_differ || bytes[i] != '*'))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct bt_secrets *secrets;
    const struct bt_secret list[] = {{BT_SECRET_CREDENTIAL, secret, sizeof(secret) - 1}};
    if (secrets == NULL &&
        (bt_filters_start(NULL) < 0 || bt_secrets_new(list, 1, &secrets, NULL) < 0 || secrets == NULL))
        abort();
    if (size < 2)
        return 0;
    bool is_request = (data[0] & 1) != 0;
    const struct bt_filter_settings settings = {
        .secrets = secrets,
        .dlp = {.outbound = (enum bt_dlp_outbound)(data[0] >> 1 & 3),
                .inbound = (enum bt_dlp_inbound)((data[0] >> 3) % 3),
                .warns_of_entropy = (data[0] & 0x80) != 0},
    };
    bool is_searched = !is_request || settings.dlp.outbound != BT_DLP_OUTBOUND_OFF;
    bool may_differ = is_searched && (!is_request || settings.dlp.outbound == BT_DLP_OUTBOUND_REDACT);
    const uint8_t *body = data + 2;
    size_t length = size - 2;
    struct outcome whole = run(&settings, is_request, body, length, 0);
    struct outcome cut = run(&settings, is_request, body, length, 1 + data[1]);
    bool is_asking = is_request && settings.dlp.outbound == BT_DLP_OUTBOUND_SUPERVISE;
    if (whole.verdict != cut.verdict && !whole.is_overfull && !cut.is_overfull)
        abort();
    check_bytes(&whole, body, length, may_differ);
    check_bytes(&cut, body, length, may_differ);
    if (whole.verdict == BT_FILTER_PASS && cut.verdict == BT_FILTER_PASS && length != 0 &&
        memcmp(evbuffer_pullup(whole.out, -1), evbuffer_pullup(cut.out, -1), length) != 0)
        abort();
    size_t passed = evbuffer_get_length(cut.out);
    if (is_searched && !is_asking && passed != 0 &&
        memmem(evbuffer_pullup(cut.out, -1), passed, secret, sizeof(secret) - 1) != NULL)
        abort();
    evbuffer_free(whole.out);
    evbuffer_free(cut.out);
    return 0;
}
