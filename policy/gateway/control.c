/* Calls to the orchestrator. See control.h.
 *
 * The agents' waiting calls hang on this one, so it gives up early (CALL_TIMEOUT_MS) and, once the
 * orchestrator was found unreachable, fails calls at once for a moment instead of queueing them behind
 * another timeout.
 */
#include "policy/gateway/control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "lib/memory.h"
#include "policy/gateway/clock.h"
#include "policy/gateway/http.h"

#define CALL_TIMEOUT_MS 3000
#define DOWN_MS 300         /* after a refusal: it may be starting */
#define DOWN_SILENT_MS 2000 /* after a timeout, which cost every caller CALL_TIMEOUT_MS */
#define ANSWER_MAX (4U * 1024 * 1024)
#define RENEW_BEFORE_MS (120 * 1000)

struct call {
    TAILQ_ENTRY(call) link;
    const char *path;
    char *body;
    bool is_urgent, is_token_call, was_retried;
    bt_control_done *done;
    void *context;
};
TAILQ_HEAD(call_list, call);

struct bt_control {
    struct event_base *base;
    struct sockaddr_in address;
    const char *secret;
    struct bufferevent *connection;
    struct event *timer; /* of the call in flight, and of starting the next one */
    struct call_list queue;
    struct call *in_flight;
    char *token;
    bool is_refused; /* the secret was refused last time, which was said once */
    int64_t renew_at_ms;
    int64_t down_until_ms;
};

static void schedule(struct bt_control *control, int delay_ms)
{
    struct timeval delay = {delay_ms / 1000, (delay_ms % 1000) * 1000};
    (void)event_add(control->timer, &delay);
}

static void free_call(struct call *call)
{
    if (call->body != NULL)
        explicit_bzero(call->body, strlen(call->body));
    free(call->body);
    free(call);
}

static void finish(struct call *call, unsigned status, const json_t *answer)
{
    if (call->done != NULL)
        call->done(call->context, status, answer);
    free_call(call);
}

static void drop_token(struct bt_control *control)
{
    if (control->token != NULL)
        explicit_bzero(control->token, strlen(control->token));
    free(control->token);
    control->token = NULL;
}

static void disconnect(struct bt_control *control)
{
    if (control->connection != NULL)
        bufferevent_free(control->connection);
    control->connection = NULL;
}

/* Every call that waits fails. New ones that the callbacks make wait in the queue until the timer fails them
 * too. */
static void fail_waiting(struct bt_control *control)
{
    struct call_list failed = TAILQ_HEAD_INITIALIZER(failed);
    struct call *in_flight = BT_TAKE(control->in_flight);
    if (in_flight != NULL)
        TAILQ_INSERT_TAIL(&failed, in_flight, link);
    TAILQ_CONCAT(&failed, &control->queue, link);
    (void)event_del(control->timer);
    while (!TAILQ_EMPTY(&failed)) {
        struct call *call = TAILQ_FIRST(&failed);
        TAILQ_REMOVE(&failed, call, link);
        finish(call, 0, NULL);
    }
    if (!TAILQ_EMPTY(&control->queue))
        schedule(control, DOWN_MS / 3);
}

/* The orchestrator is out of reach: for a while calls fail at once. */
static void give_up(struct bt_control *control, int down_ms)
{
    disconnect(control);
    control->down_until_ms = bt_clock_ms() + down_ms;
    fail_waiting(control);
}

static struct call *make_token_call(struct bt_control *control)
{
    struct call *call = bt_new(1, sizeof(*call));
    json_t *body = json_pack("{s:s}", "secret", control->secret);
    call->path = "/v1/token";
    call->is_token_call = true;
    call->body = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return call;
}

static void send_call(struct bt_control *control, struct call *call)
{
    struct evbuffer *output = bufferevent_get_output(control->connection);
    size_t length = call->body != NULL ? strlen(call->body) : 0;
    control->in_flight = call;
    (void)evbuffer_add_printf(output,
                              "POST %s HTTP/1.1\r\nHost: orchestrator\r\nContent-Type: application/json\r\n"
                              "Content-Length: %zu\r\n",
                              call->path, length);
    if (!call->is_token_call)
        (void)evbuffer_add_printf(output, "Authorization: Bearer %s\r\n", control->token);
    (void)evbuffer_add(output, "\r\n", 2);
    if (length > 0)
        (void)evbuffer_add(output, call->body, length);
    schedule(control, CALL_TIMEOUT_MS);
}

static void on_read(struct bufferevent *connection, void *context);
static void on_event(struct bufferevent *connection, short events, void *context);

static int reconnect(struct bt_control *control)
{
    control->connection = bufferevent_socket_new(control->base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (control->connection == NULL)
        return -1;
    /* Callbacks only afterwards: libevent may report a failure from inside the call. */
    if (bufferevent_socket_connect(control->connection, (struct sockaddr *)&control->address,
                                   (int)sizeof(control->address)) < 0)
        return -1;
    bufferevent_setcb(control->connection, on_read, NULL, on_event, control);
    return bufferevent_enable(control->connection, EV_READ | EV_WRITE);
}

/* Starts the next call, unless one is in flight. Runs from the event loop only. */
static void advance(struct bt_control *control)
{
    if (control->in_flight != NULL || TAILQ_EMPTY(&control->queue))
        return;
    if (bt_clock_ms() < control->down_until_ms) {
        fail_waiting(control);
        return;
    }
    if (control->connection == NULL && reconnect(control) < 0) {
        give_up(control, DOWN_MS);
        return;
    }
    if (control->token == NULL || bt_clock_ms() >= control->renew_at_ms) {
        send_call(control, make_token_call(control));
        return;
    }
    struct call *call = TAILQ_FIRST(&control->queue);
    TAILQ_REMOVE(&control->queue, call, link);
    send_call(control, call);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct bt_control *control = context;
    (void)fd;
    (void)what;
    if (control->in_flight != NULL)
        give_up(control, DOWN_SILENT_MS);
    else
        advance(control);
}

static void take_token(struct bt_control *control, unsigned status, const json_t *answer)
{
    const char *token = json_string_value(json_object_get(answer, "token"));
    json_int_t expires_s = json_integer_value(json_object_get(answer, "expires_in"));
    bool is_refused = status != 200 || token == NULL || expires_s <= 0 || strlen(token) > 1024;
    bool was_refused = control->is_refused;
    control->is_refused = is_refused;
    if (is_refused) {
        if (!was_refused)
            (void)fprintf(stderr, "berth-gateway: the orchestrator refuses this gateway's secret (%u)\n",
                          status);
        give_up(control, DOWN_MS);
        return;
    }
    drop_token(control);
    control->token = bt_string_copy(token);
    int64_t lifetime_ms = (int64_t)expires_s * 1000;
    control->renew_at_ms =
        bt_clock_ms() + (lifetime_ms > 2 * RENEW_BEFORE_MS ? lifetime_ms - RENEW_BEFORE_MS : lifetime_ms / 2);
}

static void take_answer(struct bt_control *control, unsigned status, const json_t *answer)
{
    struct call *call = BT_TAKE(control->in_flight);
    (void)event_del(control->timer);
    if (call->is_token_call) {
        free_call(call);
        take_token(control, status, answer);
    } else if (status == 401 && !call->was_retried) {
        /* The orchestrator started anew, with another signing key. */
        drop_token(control);
        call->was_retried = true;
        TAILQ_INSERT_HEAD(&control->queue, call, link);
    } else {
        finish(call, status, answer);
    }
    if (control->in_flight == NULL && !TAILQ_EMPTY(&control->queue))
        schedule(control, bt_clock_ms() < control->down_until_ms ? DOWN_MS / 3 : 0);
}

static void on_read(struct bufferevent *connection, void *context)
{
    struct bt_control *control = context;
    struct evbuffer *input = bufferevent_get_input(connection);
    size_t length = evbuffer_get_length(input);
    struct bt_http_head head;
    const char *data = (const char *)evbuffer_pullup(input, (ev_ssize_t)length);
    int result = data != NULL ? bt_http_response_parse(data, length, &head) : -EAGAIN;
    if (result == -EAGAIN)
        return;
    if (result < 0 || control->in_flight == NULL ||
        (head.body != BT_HTTP_BODY_LENGTH && head.body != BT_HTTP_BODY_NONE) ||
        head.body_length > ANSWER_MAX) {
        (void)fprintf(stderr, "berth-gateway: an answer of the orchestrator cannot be read\n");
        give_up(control, DOWN_MS);
        return;
    }
    if (length - head.length < head.body_length)
        return;
    json_t *answer = json_loadb(data + head.length, (size_t)head.body_length, JSON_REJECT_DUPLICATES, NULL);
    const struct bt_http_field *option = bt_http_find(&head, "connection", NULL);
    bool is_last = option != NULL && bt_http_slice_is_nocase(option->value, "close");
    unsigned status = head.status;
    (void)evbuffer_drain(input, head.length + (size_t)head.body_length);
    if (is_last)
        disconnect(control);
    take_answer(control, status, answer);
    json_decref(answer);
}

static void on_event(struct bufferevent *connection, short events, void *context)
{
    struct bt_control *control = context;
    (void)connection;
    if ((events & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT)) == 0)
        return;
    disconnect(control);
    if (control->in_flight == NULL)
        return;
    /* An idle connection may be closed by the other side just as a call leaves: worth one more try. */
    struct call *call = BT_TAKE(control->in_flight);
    bool is_retry = call->was_retried || call->is_token_call || (events & BEV_EVENT_ERROR) != 0;
    call->was_retried = true;
    if (call->is_token_call)
        free_call(call);
    else
        TAILQ_INSERT_HEAD(&control->queue, call, link);
    if (is_retry)
        give_up(control, DOWN_MS);
    else
        schedule(control, 0);
}

void bt_control_post(struct bt_control *control, const char *path, json_t *body, bool is_urgent,
                     bt_control_done *done, void *context)
{
    struct call *call = bt_new(1, sizeof(*call));
    call->path = path;
    call->body = json_dumps(body, JSON_COMPACT);
    call->is_urgent = is_urgent;
    call->done = done;
    call->context = context;
    json_decref(body);
    struct call *before = NULL;
    if (is_urgent) {
        TAILQ_FOREACH(before, &control->queue, link)
        if (!before->is_urgent)
            break;
    }
    if (before != NULL)
        TAILQ_INSERT_BEFORE(before, call, link);
    else
        TAILQ_INSERT_TAIL(&control->queue, call, link);
    if (control->in_flight == NULL && !evtimer_pending(control->timer, NULL))
        schedule(control, 0);
}

struct bt_control *bt_control_new(struct event_base *base, uint32_t address, uint16_t port,
                                  const char *secret)
{
    struct bt_control *control = bt_new(1, sizeof(*control));
    control->base = base;
    control->secret = secret;
    control->address.sin_family = AF_INET;
    control->address.sin_port = htons(port);
    control->address.sin_addr.s_addr = htonl(address);
    TAILQ_INIT(&control->queue);
    control->timer = evtimer_new(base, on_timer, control);
    return control->timer != NULL ? control : bt_control_free(control);
}

struct bt_control *bt_control_free(struct bt_control *control)
{
    if (control == NULL)
        return NULL;
    /* Callers free what their calls carry when these end. */
    disconnect(control);
    if (control->timer != NULL)
        fail_waiting(control);
    while (!TAILQ_EMPTY(&control->queue)) {
        struct call *call = TAILQ_FIRST(&control->queue);
        TAILQ_REMOVE(&control->queue, call, link);
        free_call(call);
    }
    if (control->timer != NULL)
        event_free(control->timer);
    drop_token(control);
    free(control);
    return NULL;
}
