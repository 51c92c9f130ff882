/* Dialling. See dial.h. */
#include "policy/gateway/dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/http.h"

#define CONNECT_TIMEOUT_S 10
#define ATTEMPTS_MAX 4

struct bt_dial {
    struct bt_gateway *gateway;
    char host[BT_HOST_NAME_SIZE]; /* the target's */
    uint16_t port;
    bool may_be_private;
    bool is_tunnel;
    bt_dial_done *done;
    void *context;
    struct bt_resolve *resolve;
    struct event *start; /* when there is nothing to resolve */
    struct bufferevent *upstream;
    uint32_t addresses[ATTEMPTS_MAX];
    size_t address_count, attempt;
    char last_error[96];
};

static bool uses_parent(const struct bt_dial *dial)
{
    return dial->gateway->settings.parent.is_set;
}

void bt_dial_tune_socket(evutil_socket_t fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},    {SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 60},
        {IPPROTO_TCP, TCP_KEEPINTVL, 15}, {IPPROTO_TCP, TCP_KEEPCNT, 4},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(options[i].value));
}

struct bt_dial *bt_dial_cancel(struct bt_dial *dial)
{
    if (dial == NULL)
        return NULL;
    if (dial->resolve != NULL)
        bt_resolve_cancel(dial->resolve);
    if (dial->start != NULL)
        event_free(dial->start);
    if (dial->upstream != NULL)
        bufferevent_free(dial->upstream);
    free(dial);
    return NULL;
}

static void fail(struct bt_dial *dial, uint32_t address, const char *rule, const char *what, const char *why)
{
    struct bt_dial_result result = {.address = address, .rule = rule};
    bt_dial_done *done = dial->done;
    void *context = dial->context;
    (void)snprintf(result.reason, sizeof(result.reason), "%s%s%s", what, why[0] != '\0' ? ": " : "", why);
    bt_dial_cancel(dial);
    done(context, &result);
}

static void succeed(struct bt_dial *dial)
{
    struct bt_dial_result result = {.address = dial->addresses[dial->attempt]};
    bt_dial_done *done = dial->done;
    void *context = dial->context;
    (void)bufferevent_disable(dial->upstream, EV_READ);
    bufferevent_setcb(dial->upstream, NULL, NULL, NULL, NULL);
    bufferevent_set_timeouts(dial->upstream, NULL, NULL);
    result.upstream = BT_TAKE(dial->upstream);
    bt_dial_cancel(dial);
    done(context, &result);
}

static void try_next(struct bt_dial *dial);

static void attempt_failed(struct bt_dial *dial, const char *why)
{
    (void)snprintf(dial->last_error, sizeof(dial->last_error), "%s", why);
    bufferevent_free(BT_TAKE(dial->upstream));
    dial->attempt++;
    try_next(dial);
}

static void ask_parent(struct bt_dial *dial)
{
    const struct bt_parent_proxy *parent = &dial->gateway->settings.parent;
    struct evbuffer *output = bufferevent_get_output(dial->upstream);
    (void)evbuffer_add_printf(output, "CONNECT %s:%u HTTP/1.1\r\nHost: %s:%u\r\n", dial->host, dial->port,
                              dial->host, dial->port);
    if (parent->authorization[0] != '\0')
        (void)evbuffer_add_printf(output, "Proxy-Authorization: Basic %s\r\n", parent->authorization);
    (void)evbuffer_add(output, "\r\n", 2);
    (void)bufferevent_enable(dial->upstream, EV_READ | EV_WRITE);
}

/* The parent proxy's answer to CONNECT. */
static void on_read(struct bufferevent *upstream, void *context)
{
    struct bt_dial *dial = context;
    struct evbuffer *input = bufferevent_get_input(upstream);
    size_t length = evbuffer_get_length(input);
    struct bt_http_head head;
    int result = bt_http_response_parse((const char *)evbuffer_pullup(input, -1), length, &head);
    if (result == -EAGAIN)
        return;
    if (result < 0) {
        fail(dial, dial->addresses[dial->attempt], "connect-failed",
             "the parent proxy's answer cannot be read", "");
        return;
    }
    if (head.status != 200) {
        char why[40];
        (void)snprintf(why, sizeof(why), "status %u", head.status);
        fail(dial, dial->addresses[dial->attempt], "connect-failed", "the parent proxy refused", why);
        return;
    }
    (void)evbuffer_drain(input, head.length);
    succeed(dial);
}

static void on_event(struct bufferevent *upstream, short events, void *context)
{
    struct bt_dial *dial = context;
    if ((events & BEV_EVENT_CONNECTED) != 0) {
        bt_dial_tune_socket(bufferevent_getfd(upstream));
        if (uses_parent(dial) && dial->is_tunnel)
            ask_parent(dial);
        else
            succeed(dial);
        return;
    }
    if ((events & BEV_EVENT_TIMEOUT) != 0)
        attempt_failed(dial, "no answer in 10 seconds");
    else if ((events & BEV_EVENT_ERROR) != 0)
        attempt_failed(dial, strerror(EVUTIL_SOCKET_ERROR()));
    else
        attempt_failed(dial, "it closed the connection");
}

static void try_next(struct bt_dial *dial)
{
    static const struct timeval limit = {CONNECT_TIMEOUT_S, 0};
    while (dial->attempt < dial->address_count) {
        struct sockaddr_in address = {
            .sin_family = AF_INET,
            .sin_port = htons(uses_parent(dial) ? dial->gateway->settings.parent.port : dial->port),
            .sin_addr.s_addr = htonl(dial->addresses[dial->attempt]),
        };
        dial->upstream = bufferevent_socket_new(dial->gateway->base, -1, BEV_OPT_CLOSE_ON_FREE);
        if (dial->upstream == NULL)
            break;
        /* Callbacks only afterwards: libevent may report a failure from inside the call. */
        if (bufferevent_socket_connect(dial->upstream, (struct sockaddr *)&address, (int)sizeof(address)) ==
            0) {
            bufferevent_setcb(dial->upstream, on_read, NULL, on_event, dial);
            bufferevent_setwatermark(dial->upstream, EV_READ, 0, BT_HTTP_HEAD_MAX);
            bufferevent_set_timeouts(dial->upstream, &limit, &limit);
            return;
        }
        (void)snprintf(dial->last_error, sizeof(dial->last_error), "%s", strerror(errno));
        bufferevent_free(BT_TAKE(dial->upstream));
        dial->attempt++;
    }
    fail(dial, dial->addresses[dial->address_count > 0 ? dial->address_count - 1 : 0], "connect-failed",
         uses_parent(dial) ? "the parent proxy cannot be reached" : "the host cannot be reached",
         dial->last_error);
}

static void on_resolved(void *context, const uint32_t *addresses, size_t count, const char *reason)
{
    struct bt_dial *dial = context;
    dial->resolve = NULL;
    if (reason != NULL) {
        fail(dial, 0, "resolve-failed", "the name does not resolve", reason);
        return;
    }
    for (size_t i = 0; i < count && !uses_parent(dial); i++) {
        const char *why_not = bt_gateway_check_address(dial->gateway, addresses[i], dial->may_be_private);
        char text[BT_IPV4_TEXT_SIZE];
        if (why_not == NULL)
            continue;
        bt_ipv4_format(addresses[i], text);
        char what[64];
        (void)snprintf(what, sizeof(what), "the name leads to %s", text);
        fail(dial, 0, "private-answer", what, why_not);
        return;
    }
    for (size_t i = 0; i < count && i < ATTEMPTS_MAX; i++)
        dial->addresses[dial->address_count++] = addresses[i];
    try_next(dial);
}

static void on_start(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    try_next(context);
}

struct bt_dial *bt_dial_start(struct bt_gateway *gateway, struct bt_agent *agent, const char *host,
                              uint16_t port, bool may_be_private, bool is_tunnel, bt_dial_done *done,
                              void *context)
{
    static const struct timeval at_once = {0, 0};
    struct bt_dial *dial = bt_new(1, sizeof(*dial));
    dial->gateway = gateway;
    dial->port = port;
    dial->may_be_private = may_be_private;
    dial->is_tunnel = is_tunnel;
    dial->done = done;
    dial->context = context;
    memcpy(dial->host, host, strlen(host) + 1);
    const struct bt_parent_proxy *parent = &gateway->settings.parent;
    if (parent->is_set && bt_ipv4_parse(parent->host, &dial->addresses[0]) == 0) {
        dial->address_count = 1;
        dial->start = evtimer_new(gateway->base, on_start, dial);
        if (dial->start == NULL)
            abort(); /* out of memory, as in bt_new */
        (void)event_add(dial->start, &at_once);
        return dial;
    }
    agent->counters.upstream_questions++;
    bt_report_counters(gateway->report, agent);
    dial->resolve =
        bt_resolver_ask(gateway->resolver, parent->is_set ? parent->host : host, on_resolved, dial);
    return dial;
}
