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
#include <sys/socket.h>
#include <unistd.h>

#include "lib/file.h"
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
    struct event *start;      /* when there is nothing to resolve */
    struct event *connecting; /* a socket that is being connected: connecting_fd */
    evutil_socket_t connecting_fd;
    struct bt_channel *channel; /* to the parent proxy */
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

static void stop_connecting(struct bt_dial *dial)
{
    if (dial->connecting != NULL)
        event_free(BT_TAKE(dial->connecting));
}

struct bt_dial *bt_dial_cancel(struct bt_dial *dial)
{
    if (dial == NULL)
        return NULL;
    if (dial->resolve != NULL)
        bt_resolve_cancel(dial->resolve);
    if (dial->start != NULL)
        event_free(dial->start);
    stop_connecting(dial);
    if (dial->connecting_fd >= 0)
        (void)evutil_closesocket(dial->connecting_fd);
    bt_channel_free(dial->channel);
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
    stop_connecting(dial);
    bt_channel_set_events(dial->channel, NULL, NULL);
    result.channel = BT_TAKE(dial->channel);
    bt_dial_cancel(dial);
    done(context, &result);
}

static void try_next(struct bt_dial *dial);

static void attempt_failed(struct bt_dial *dial, const char *why)
{
    (void)snprintf(dial->last_error, sizeof(dial->last_error), "%s", why);
    stop_connecting(dial);
    if (dial->connecting_fd >= 0)
        (void)evutil_closesocket(dial->connecting_fd);
    dial->connecting_fd = -1;
    dial->channel = bt_channel_free(dial->channel);
    dial->attempt++;
    try_next(dial);
}

static void ask_parent(struct bt_dial *dial)
{
    const struct bt_parent_proxy *parent = &dial->gateway->settings.parent;
    struct evbuffer *output = bt_channel_output(dial->channel);
    (void)evbuffer_add_printf(output, "CONNECT %s:%u HTTP/1.1\r\nHost: %s:%u\r\n", dial->host, dial->port,
                              dial->host, dial->port);
    if (parent->authorization[0] != '\0')
        (void)evbuffer_add_printf(output, "Proxy-Authorization: Basic %s\r\n", parent->authorization);
    (void)evbuffer_add(output, "\r\n", 2);
    bt_channel_touch(dial->channel);
}

/* The parent proxy's answer to CONNECT. */
static void on_parent_read(void *context)
{
    struct bt_dial *dial = context;
    struct evbuffer *input = bt_channel_input(dial->channel);
    size_t length = evbuffer_get_length(input);
    struct bt_http_head head;
    int result = bt_http_response_parse((const char *)evbuffer_pullup(input, -1), length, &head);
    if (result == -EAGAIN && bt_channel_end_of(dial->channel) == BT_CHANNEL_OPEN)
        return;
    if (result == -EAGAIN) {
        attempt_failed(dial, "it closed the connection");
        return;
    }
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

/* The time limit stays armed while a parent proxy is asked. */
static void on_connected(evutil_socket_t fd, short what, void *context)
{
    static const struct bt_channel_events parent_events = {.on_read = on_parent_read};
    static const struct timeval limit = {CONNECT_TIMEOUT_S, 0};
    struct bt_dial *dial = context;
    int failure = 0;
    socklen_t size = sizeof(failure);
    bool is_tunnel = uses_parent(dial) && dial->is_tunnel;
    if ((what & EV_TIMEOUT) != 0) {
        attempt_failed(dial, "no answer in 10 seconds");
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) < 0 || failure != 0) {
        attempt_failed(dial, strerror(failure));
        return;
    }
    stop_connecting(dial);
    bt_dial_tune_socket(fd);
    dial->connecting_fd = -1;
    dial->channel = bt_channel_new(dial->gateway->channels, fd, is_tunnel ? &parent_events : NULL, dial);
    if (!is_tunnel) {
        succeed(dial);
        return;
    }
    dial->connecting = evtimer_new(dial->gateway->base, on_connected, dial);
    if (dial->connecting == NULL)
        abort(); /* out of memory, as in bt_new */
    (void)event_add(dial->connecting, &limit);
    ask_parent(dial);
}

/* Begins to connect. Returns 0 or a negative errno. */
static int begin_attempt(struct bt_dial *dial, uint32_t to)
{
    static const struct timeval limit = {CONNECT_TIMEOUT_S, 0};
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(uses_parent(dial) ? dial->gateway->settings.parent.port : dial->port),
        .sin_addr.s_addr = htonl(to),
    };
    bt_auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 && errno != EINPROGRESS)
        return -errno;
    dial->connecting = event_new(dial->gateway->base, fd, EV_WRITE, on_connected, dial);
    if (dial->connecting == NULL || event_add(dial->connecting, &limit) < 0)
        abort(); /* out of memory, as in bt_new */
    dial->connecting_fd = bt_fd_take(&fd);
    return 0;
}

static void try_next(struct bt_dial *dial)
{
    while (dial->attempt < dial->address_count) {
        int result = begin_attempt(dial, dial->addresses[dial->attempt]);
        if (result == 0)
            return;
        (void)snprintf(dial->last_error, sizeof(dial->last_error), "%s", strerror(-result));
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
    dial->connecting_fd = -1;
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
