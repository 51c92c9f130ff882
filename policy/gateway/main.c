/* berth-gateway: the agents' only way out. `berth-gateway CONFIG`, see policy/gateway/README.md.
 *
 * Started by berth-init in a VM of its own (or by a container). Stages: configuration and listening sockets
 * as it was started; then it becomes BT_SERVICE_UID, starts its workers, gives up every file, and serves. It
 * must not touch a disk after that.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "policy/gateway/allocate.h"
#include "policy/gateway/approvals.h"
#include "policy/gateway/budget.h"
#include "policy/gateway/dns_server.h"
#include "policy/gateway/filter.h"
#include "policy/gateway/held.h"
#include "policy/gateway/session.h"
#include "policy/gateway/tls.h"
#include "policy/gateway/upstream.h"
#include "policy/gateway/workers.h"
#include "policy/rules/ports.h"
#include "policy/rules/service.h"

#define REVALIDATE_MS 2000
#define SWEEP_MS 1000
#define DRAIN_STEP_MS 50U
#define DRAIN_MS 1000U /* of the 1.5 s that a guest's init grants */
#define SESSIONS_MAX 4096
#define SESSION_DESCRIPTORS 3 /* the agent's, its host's when it is passed through, one in upstream.c */
#define DESCRIPTORS_SPARE 320 /* resolver, orchestrator, listeners, DNS over TCP */

enum listener { LISTENER_PROXY, LISTENER_HTTP, LISTENER_TLS, LISTENER_DNS, LISTENERS };
static const uint16_t listener_ports[LISTENERS] = {BT_PORT_PROXY, BT_PORT_HTTP, BT_PORT_HTTPS, BT_PORT_DNS};

struct program {
    struct bt_gateway gateway;
    struct bt_peers peers;
    int tcp_fds[LISTENERS];
    int udp_fd;
    struct evconnlistener *listeners[LISTENERS];
    struct bt_dns_server *dns;
    struct event *terminate;
    struct event *revalidate;
    struct event *sweep;
    struct event *drain;
    unsigned drained_ms;
};

static int open_socket(const struct program *program, int type, uint16_t port, int *ret_fd,
                       struct bt_error *error)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(port),
        .sin_addr.s_addr = htonl(program->gateway.settings.listen_address),
    };
    int one = 1;
    bt_auto_fd fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_open = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0;
    if (is_open && type == SOCK_DGRAM)
        is_open = setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof(one)) == 0;
    if (!is_open || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
        (type == SOCK_STREAM && listen(fd, 256) < 0))
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot listen on port %u: %s", port,
                       strerror(errno));
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

static int open_sockets(struct program *program, struct bt_error *error)
{
    int result = open_socket(program, SOCK_DGRAM, BT_PORT_DNS, &program->udp_fd, error);
    for (size_t i = 0; i < LISTENERS && result == 0; i++)
        result = open_socket(program, SOCK_STREAM, listener_ports[i], &program->tcp_fds[i], error);
    return result;
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int length, void *context)
{
    struct program *program = context;
    struct sockaddr_in peer;
    if (length < (int)sizeof(peer)) {
        (void)evutil_closesocket(fd);
        return;
    }
    memcpy(&peer, address, sizeof(peer));
    uint32_t source = ntohl(peer.sin_addr.s_addr);
    if (listener == program->listeners[LISTENER_DNS])
        bt_dns_server_accept(program->dns, fd, source);
    else if (listener == program->listeners[LISTENER_HTTP])
        bt_session_start(&program->gateway, fd, source, BT_ENTRANCE_HTTP);
    else if (listener == program->listeners[LISTENER_TLS])
        bt_session_start(&program->gateway, fd, source, BT_ENTRANCE_TLS);
    else
        bt_session_start(&program->gateway, fd, source, BT_ENTRANCE_PROXY);
}

/* Out of descriptors: who waits goes on waiting, for a second at most, instead of waking the loop all the
 * time. */
static void on_accept_error(struct evconnlistener *listener, void *context)
{
    (void)context;
    (void)evconnlistener_disable(listener);
}

/* Until what is under way is done, or DRAIN_MS passed. */
static void on_drain(evutil_socket_t fd, short what, void *context)
{
    struct program *program = context;
    (void)fd;
    (void)what;
    program->drained_ms += DRAIN_STEP_MS;
    if (program->gateway.session_count == 0 || program->drained_ms >= DRAIN_MS)
        (void)event_base_loopbreak(program->gateway.base);
}

static void on_terminate(evutil_socket_t signal_number, short what, void *context)
{
    static const struct timeval step = {DRAIN_STEP_MS / 1000, (DRAIN_STEP_MS % 1000) * 1000};
    struct program *program = context;
    (void)signal_number;
    (void)what;
    for (size_t i = 0; i < LISTENERS; i++) {
        if (program->listeners[i] != NULL)
            evconnlistener_free(BT_TAKE(program->listeners[i]));
    }
    bt_session_drain(&program->gateway);
    (void)event_add(program->drain, &step);
    if (program->gateway.session_count == 0)
        (void)event_base_loopbreak(program->gateway.base);
}

static void on_revalidate(evutil_socket_t fd, short what, void *context)
{
    struct program *program = context;
    (void)fd;
    (void)what;
    bt_agents_revalidate(program->gateway.agents);
}

static void on_agent_change(void *context, struct bt_agent *agent)
{
    bt_session_recheck(context, agent);
}

static void on_sweep(evutil_socket_t fd, short what, void *context)
{
    struct program *program = context;
    (void)fd;
    (void)what;
    bt_held_measure();
    bt_session_sweep(&program->gateway);
    bt_upstreams_sweep(program->gateway.upstreams);
    for (size_t i = 0; i < LISTENERS; i++)
        if (program->listeners[i] != NULL)
            (void)evconnlistener_enable(program->listeners[i]);
}

static struct event_base *make_loop(void)
{
    struct event_config *config = event_config_new();
    if (config == NULL)
        return NULL;
    /* One thread, and no descriptor is watched twice: no locks, and changes of what is watched go out
     * together. */
    (void)event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

/* Before the workers, so that they have the keys of leaves and of tickets in common. */
static int make_tls(struct bt_gateway *gateway, struct bt_error *error)
{
    struct bt_gateway_settings *settings = &gateway->settings;
    struct bt_tls_settings tls = {
        .authority = settings->authority.data,
        .anchors = &settings->anchors,
        .anchor_count = 1,
    };
    int result = bt_tls_new(&tls, &gateway->tls, error);
    bt_buffer_wipe(&settings->authority);
    return result;
}

static void on_turn(void *context)
{
    bt_budget_enforce(context);
}

static int make_outward(struct bt_gateway *gateway, struct bt_error *error)
{
    int result = bt_resolver_new(gateway->base, gateway->settings.resolvers, &gateway->resolver, error);
    if (result < 0)
        return result;
    gateway->channels = bt_channel_loop_new(gateway->base);
    bt_channel_loop_watch(gateway->channels, on_turn, gateway);
    gateway->upstreams = bt_upstreams_new(gateway);
    return 0;
}

static int make_parts(struct program *program, struct bt_error *error)
{
    struct bt_gateway *gateway = &program->gateway;
    static const struct timeval revalidate = {REVALIDATE_MS / 1000, (REVALIDATE_MS % 1000) * 1000};
    static const struct timeval sweep = {SWEEP_MS / 1000, (SWEEP_MS % 1000) * 1000};
    gateway->base = make_loop();
    if (gateway->base == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot make an event loop");
    int result = make_outward(gateway, error);
    if (result < 0)
        return result;
    gateway->control = bt_control_new(gateway->base, gateway->settings.orchestrator_address,
                                      gateway->settings.orchestrator_port, gateway->settings.secret);
    gateway->agents = bt_agents_new(gateway->base, gateway->control, on_agent_change, gateway);
    gateway->report = bt_report_new(gateway->base, gateway->control, gateway->agents, gateway->worker);
    gateway->approvals = bt_approvals_new(gateway->base, gateway->control);
    result = bt_agents_share(gateway->agents, &program->peers, gateway->worker, error);
    if (result < 0)
        return result;
    program->dns = bt_dns_server_new(gateway, bt_fd_take(&program->udp_fd));
    program->terminate = evsignal_new(gateway->base, SIGTERM, on_terminate, program);
    program->revalidate = event_new(gateway->base, -1, EV_PERSIST, on_revalidate, program);
    program->sweep = event_new(gateway->base, -1, EV_PERSIST, on_sweep, program);
    program->drain = event_new(gateway->base, -1, EV_PERSIST, on_drain, program);
    bool is_made = gateway->control != NULL && gateway->report != NULL && gateway->approvals != NULL &&
                   program->dns != NULL && program->terminate != NULL && program->revalidate != NULL &&
                   program->sweep != NULL && program->drain != NULL &&
                   event_add(program->terminate, NULL) == 0 &&
                   event_add(program->revalidate, &revalidate) == 0 && event_add(program->sweep, &sweep) == 0;
    for (size_t i = 0; i < LISTENERS && is_made; i++) {
        program->listeners[i] = evconnlistener_new(gateway->base, on_accept, program,
                                                   LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, -1,
                                                   bt_fd_take(&program->tcp_fds[i]));
        is_made = program->listeners[i] != NULL;
        if (is_made)
            evconnlistener_set_error_cb(program->listeners[i], on_accept_error);
    }
    return is_made ? 0 : bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot make the parts of the gateway");
}

/* In the order in which nothing refers to what is gone. */
static void free_parts(struct program *program)
{
    struct bt_gateway *gateway = &program->gateway;
    for (size_t i = 0; i < LISTENERS; i++) {
        if (program->listeners[i] != NULL)
            evconnlistener_free(program->listeners[i]);
        bt_fd_close(&program->tcp_fds[i]);
    }
    bt_fd_close(&program->udp_fd);
    while (!TAILQ_EMPTY(&gateway->sessions))
        bt_session_end(TAILQ_FIRST(&gateway->sessions));
    gateway->upstreams = bt_upstreams_free(gateway->upstreams);
    gateway->channels = bt_channel_loop_free(gateway->channels);
    gateway->tls = bt_tls_free(gateway->tls);
    program->dns = bt_dns_server_free(program->dns);
    if (program->revalidate != NULL)
        event_free(program->revalidate);
    if (program->sweep != NULL)
        event_free(program->sweep);
    if (program->drain != NULL)
        event_free(program->drain);
    if (program->terminate != NULL)
        event_free(program->terminate);
    gateway->control = bt_control_free(gateway->control);
    gateway->report = bt_report_free(gateway->report);
    gateway->approvals = bt_approvals_free(gateway->approvals);
    bt_peers_end(&program->peers);
    gateway->agents = bt_agents_free(gateway->agents);
    gateway->resolver = bt_resolver_free(gateway->resolver);
    if (gateway->base != NULL)
        event_base_free(gateway->base);
    bt_filters_stop();
    bt_gateway_settings_clear(&gateway->settings);
    libevent_global_shutdown();
}

static void limit_sessions(struct bt_gateway *gateway)
{
    size_t sessions_max = SESSIONS_MAX / gateway->settings.workers;
    size_t descriptors = bt_service_raise_descriptors(SESSION_DESCRIPTORS * sessions_max + DESCRIPTORS_SPARE);
    size_t free_ones =
        descriptors > 2 * DESCRIPTORS_SPARE ? descriptors - DESCRIPTORS_SPARE : DESCRIPTORS_SPARE;
    gateway->session_limit = free_ones / SESSION_DESCRIPTORS;
    if (gateway->session_limit > sessions_max)
        gateway->session_limit = sessions_max;
}

static int work(struct program *program, struct bt_error *error)
{
    int result = make_parts(program, error);
    if (result == 0)
        result = bt_service_confine(NULL, error);
    if (result < 0)
        return result;
    limit_sessions(&program->gateway);
    program->gateway.budget = program->gateway.settings.budget;
    bt_held_measure();
    if (program->gateway.worker == 0)
        (void)fprintf(stderr, "berth-gateway: ready\n");
    (void)event_base_dispatch(program->gateway.base);
    return 0;
}

/* What listens must end with the workers, not with their watcher. */
static int watch(struct program *program, struct bt_workers *workers, struct bt_error *error)
{
    for (size_t i = 0; i < LISTENERS; i++)
        bt_fd_close(&program->tcp_fds[i]);
    bt_fd_close(&program->udp_fd);
    bt_peers_end(&program->peers);
    int result = bt_service_confine(NULL, error);
    return result < 0 ? result : bt_workers_watch(workers, error);
}

static int start(struct program *program, const char *path, struct bt_error *error)
{
    struct bt_gateway *gateway = &program->gateway;
    struct bt_workers workers;
    /* OpenSSL's own configuration file has no say here. */
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
    int result = bt_gateway_settings_load(path, &gateway->settings, error);
    if (result == 0)
        result = bt_filters_start(error);
    if (result == 0)
        result = open_sockets(program, error);
    if (result == 0)
        result = bt_service_become_user(NULL, error);
    if (result == 0)
        result = make_tls(gateway, error);
    if (result == 0)
        result = bt_peers_make(&program->peers, gateway->settings.workers, error);
    if (result == 0 && gateway->settings.workers > 1)
        result = bt_workers_start(&workers, gateway->settings.workers, error);
    if (result < 0)
        return result;
    gateway->worker = (unsigned)result;
    return gateway->settings.workers > 1 && gateway->worker == gateway->settings.workers
               ? watch(program, &workers, error)
               : work(program, error);
}

int main(int argument_count, char **arguments)
{
    struct program program = {.udp_fd = -1};
    struct bt_error error = {0};
    (void)signal(SIGPIPE, SIG_IGN);
    bt_allocate_start();
    TAILQ_INIT(&program.gateway.sessions);
    for (size_t i = 0; i < LISTENERS; i++)
        program.tcp_fds[i] = -1;
    if (argument_count != 2) {
        (void)fprintf(stderr, "usage: berth-gateway CONFIG\n");
        return BT_EXIT_USAGE;
    }
    int result = start(&program, arguments[1], &error);
    free_parts(&program);
    if (result == 0)
        return BT_EXIT_OK;
    (void)fprintf(stderr, "berth-gateway: %s%s%s\n", error.message, error.hint[0] != '\0' ? "; " : "",
                  error.hint);
    return BT_EXIT_ERROR;
}
