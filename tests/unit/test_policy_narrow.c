/* A property of all policies: what a narrowing list leaves of a bottle's routes never allows, injects or
 * passes on more than the bottle did, and never more than the list does. Random documents, random requests;
 * the seed of a failure is printed.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "frontend/manifest_internal.h"

#define ROUNDS 8000
#define REQUESTS 40

static const char *const hosts[] = {"a.example", "b.a.example", "c.b.a.example", "example", "d.test"};
static const char *const patterns[] = {"a.example",       "*.a.example",   "*.example",
                                       "b.a.example:443", "d.test",        "*.example:8443",
                                       "example",         "*.b.a.example", "a.example:443"};
static const char *const methods[] = {"GET", "HEAD", "POST", "DELETE"};
static const char *const path_patterns[] = {"/", "/*", "/a", "/a/*", "/a/b", "/a/b/*", "/c"};
static const char *const paths[] = {"/", "/a", "/a/", "/a/b", "/a/b/c?d", "/c", "/c/d", "/a/../c", "/a//b"};
static const char *const names[] = {"x-one", "x-two"};
static const char *const values[] = {"1", "2"};
static const uint16_t ports[] = {80, 443, 8443};

#define PICK(array) (array)[pick(BT_ARRAY_LENGTH(array))]

static uint64_t random_state;

static unsigned pick(size_t count) /* xorshift64* */
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (unsigned)((random_state * 2685821657736338717ULL >> 33) % count);
}

static json_t *some(const char *const *items, size_t count)
{
    json_t *list = json_array();
    for (unsigned left = 1 + pick(3); left > 0; left--)
        json_array_append_new(list, json_string(items[pick(count)]));
    return list;
}

static void add_shared(json_t *rules)
{
    static const char *const outbound[] = {"off", "supervise", "redact", "block"};
    static const char *const inbound[] = {"off", "warn", "block"};
    if (pick(3) == 0)
        json_object_set_new(rules, "methods", some(methods, BT_ARRAY_LENGTH(methods)));
    if (pick(3) == 0)
        json_object_set_new(rules, "paths", some(path_patterns, BT_ARRAY_LENGTH(path_patterns)));
    if (pick(4) == 0)
        json_object_set_new(rules, "headers", json_pack("{s:s}", PICK(names), PICK(values)));
    if (pick(4) == 0)
        json_object_set_new(rules, "dlp",
                            json_pack("{s:s, s:s, s:s}", "outbound", PICK(outbound), "inbound", PICK(inbound),
                                      "entropy", inbound[pick(2)]));
    if (pick(4) == 0)
        json_object_set_new(rules, "log", json_integer(pick(3)));
}

static json_t *make_rules(void)
{
    json_t *rules = json_object();
    if (pick(4) == 0) {
        json_object_set_new(rules, "tls", json_string("pass"));
    } else {
        add_shared(rules);
        unsigned kind = pick(5);
        if (kind == 0)
            json_object_set_new(rules, "preserve_auth", json_true());
        if (kind == 1)
            json_object_set_new(rules, "auth",
                                json_pack("{s:s, s:s}", "scheme", "bearer", "from", pick(2) ? "one" : "two"));
        if (kind == 2)
            json_object_set_new(
                rules, "auth",
                json_pack("{s:s, s:s, s:s}", "scheme", "header", "header", "x-special", "from", "one"));
        if ((kind == 1 || kind == 2) && pick(2))
            json_object_set_new(rules, "transparent", json_string("credentials"));
    }
    if (pick(3) == 0)
        json_object_set_new(rules, "private", json_true());
    return rules;
}

static json_t *make_limits(void)
{
    static const char *const flags[] = {"private", "auth", "preserve_auth", "transparent"};
    json_t *limits = json_object();
    if (pick(3) > 0)
        add_shared(limits);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(flags); i++)
        if (pick(5) == 0)
            json_object_set_new(limits, flags[i], json_false());
    if (pick(5) == 0)
        json_object_set_new(limits, "tls", json_string("intercept"));
    return limits;
}

static struct bt_policy *parse(json_t *routes)
{
    struct bt_policy *policy = NULL;
    struct bt_error error = {0};
    json_t *document = json_pack("{s:i, s:o}", "version", 1, "routes", routes);
    if (bt_policy_parse(document, &policy, &error) < 0)
        fail_msg("%s", error.message);
    json_decref(document);
    return policy;
}

static struct bt_policy *policy_of_routes(const struct bt_plan *plan)
{
    json_t *routes = json_array();
    for (size_t i = 0; i < plan->route_count; i++) {
        json_t *route = json_deep_copy(plan->routes[i].rules);
        json_object_set_new(route, "host", json_string(plan->routes[i].host));
        json_array_append_new(routes, route);
    }
    return parse(routes);
}

/* The list as if it granted what it lets through: reading everything, injecting nothing. */
static struct bt_policy *policy_of_list(const struct bt_allow_list *list)
{
    static const char *const kept[] = {"methods", "paths", "headers", "dlp", "log"};
    json_t *routes = json_array();
    for (size_t i = 0; i < list->count; i++) {
        json_t *route = json_pack("{s:s, s:i}", "host", list->entries[i].pattern, "log", 0);
        for (size_t k = 0; k < BT_ARRAY_LENGTH(kept); k++)
            if (json_object_get(list->entries[i].limits, kept[k]) != NULL)
                json_object_set(route, kept[k], json_object_get(list->entries[i].limits, kept[k]));
        json_array_append_new(routes, route);
    }
    return parse(routes);
}

/* What becomes of a request: a connection whose TLS passes unread allows every request in it. */
static struct bt_verdict settle(const struct bt_policy *policy, const struct bt_policy_request *request)
{
    struct bt_verdict verdict;
    bt_policy_decide_connection(policy, request->host, request->port, &verdict);
    if (verdict.is_allowed && request->is_tls && !verdict.is_intercepted) {
        verdict.strips_credentials = false;
        verdict.dlp = (struct bt_dlp){BT_DLP_OUTBOUND_OFF, BT_DLP_INBOUND_OFF, false};
        return verdict;
    }
    bt_policy_decide(policy, request, &verdict);
    return verdict;
}

static int outbound_strictness(enum bt_dlp_outbound outbound)
{
    static const int strictness[] = {[BT_DLP_OUTBOUND_OFF] = 0,
                                     [BT_DLP_OUTBOUND_SUPERVISE] = 1,
                                     [BT_DLP_OUTBOUND_REDACT] = 2,
                                     [BT_DLP_OUTBOUND_BLOCK] = 3};
    return strictness[outbound];
}

static int inbound_strictness(enum bt_dlp_inbound inbound)
{
    static const int strictness[] = {
        [BT_DLP_INBOUND_OFF] = 0, [BT_DLP_INBOUND_WARN] = 1, [BT_DLP_INBOUND_BLOCK] = 2};
    return strictness[inbound];
}

static const char *widened(const struct bt_verdict *before, const struct bt_verdict *after)
{
    if (!before->is_allowed)
        return "the bottle did not allow it";
    if (after->may_be_private && !before->may_be_private)
        return "private addresses";
    if (after->auth != BT_AUTH_NONE &&
        (before->auth != after->auth || strcmp(before->credential, after->credential) != 0))
        return "another credential";
    if ((before->strips_credentials && !after->strips_credentials) ||
        (before->auth_header[0] != '\0' && strcmp(before->auth_header, after->auth_header) != 0))
        return "the agent's own credentials";
    if (before->is_intercepted && !after->is_intercepted)
        return "passed through";
    if (outbound_strictness(after->dlp.outbound) < outbound_strictness(before->dlp.outbound) ||
        inbound_strictness(after->dlp.inbound) < inbound_strictness(before->dlp.inbound) ||
        after->dlp.warns_of_entropy < before->dlp.warns_of_entropy)
        return "dlp";
    return after->log < before->log ? "log" : NULL;
}

struct round {
    struct bt_policy *before, *after, *list;
    unsigned allowed;
    uint64_t seed;
};

static void try_request(struct round *round)
{
    struct bt_http_field fields[2];
    struct bt_policy_request request = {.host = PICK(hosts), .port = PICK(ports), .fields = fields};
    const char *method = PICK(methods), *path = PICK(paths);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        const char *value = PICK(values);
        if (pick(2))
            fields[request.field_count++] =
                (struct bt_http_field){{names[i], strlen(names[i])}, {value, strlen(value)}};
    }
    request.method = (struct bt_http_slice){method, strlen(method)};
    request.path = (struct bt_http_slice){path, strlen(path)};
    request.is_tls = pick(4) > 0;
    request.is_transparent = pick(3) == 0;
    struct bt_verdict before = settle(round->before, &request), after = settle(round->after, &request);
    struct bt_verdict list = settle(round->list, &request);
    if (!after.is_allowed)
        return;
    round->allowed++;
    const char *what = widened(&before, &after);
    /* A passed-through connection is one that the list allows without looking into it. */
    if (what == NULL && after.is_intercepted && !list.is_allowed)
        what = "the list does not allow it";
    if (what == NULL && after.is_intercepted && after.log < list.log)
        what = "less is recorded than the list asks for";
    if (what != NULL)
        fail_msg("seed %" PRIu64 ": %s %s:%u%s: %s (%s, %s)", round->seed, method, request.host, request.port,
                 path, what, before.rule, after.rule);
}

static void run_round(uint64_t seed, unsigned *allowed)
{
    struct bt_plan plan = {0};
    struct bt_allow_list list = {.is_present = true, .label = "list", .source = (char[]){"list"}};
    struct bt_allow_entry entries[4];
    random_state = seed * 0x9e3779b97f4a7c15ULL + 1;
    for (unsigned count = 1 + pick(5); count > 0; count--)
        bt_route_add(&plan.routes, &plan.route_count, PICK(patterns), make_rules(), "bottle", "at");
    list.entries = entries;
    for (list.count = 0;
         list.count < 1 + pick(BT_ARRAY_LENGTH(entries)) && list.count < BT_ARRAY_LENGTH(entries);
         list.count++)
        entries[list.count] = (struct bt_allow_entry){(char *)(uintptr_t)PICK(patterns), make_limits()};
    struct round round = {.before = policy_of_routes(&plan), .list = policy_of_list(&list)};
    bt_allow_apply(&list, &plan);
    round.after = policy_of_routes(&plan);
    round.seed = seed;
    for (unsigned i = 0; i < REQUESTS; i++)
        try_request(&round);
    *allowed += round.allowed;
    for (size_t i = 0; i < list.count; i++)
        json_decref(entries[i].limits);
    bt_policy_free(round.before);
    bt_policy_free(round.after);
    bt_policy_free(round.list);
    bt_plan_free(&plan);
}

static void t_narrowing_never_widens(void **state)
{
    unsigned allowed = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= ROUNDS; seed++)
        run_round(seed, &allowed);
    /* Random does not mean vacuous. */
    assert_true(allowed > ROUNDS);
    print_message("%u of %u requests were allowed after narrowing\n", allowed, ROUNDS * REQUESTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(t_narrowing_never_widens)};
    return cmocka_run_group_tests_name("policy narrow", tests, NULL, NULL);
}
