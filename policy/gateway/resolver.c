/* c-ares on libevent. See resolver.h. */
#include "policy/gateway/resolver.h"

#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "lib/memory.h"

#define TRY_TIMEOUT_MS 2500
#define TRIES 3

struct watch {
    LIST_ENTRY(watch) link;
    struct bt_resolver *resolver;
    ares_socket_t fd;
    struct event *event;
};

struct bt_resolver {
    struct event_base *base;
    ares_channel channel;
    struct event *timer;
    LIST_HEAD(watch_list, watch) watches;
};

/* The answer is handed over from a timer: c-ares may answer from inside the question or from its own
 * clean-up. */
struct bt_resolve {
    struct bt_resolver *resolver;
    bt_resolve_done *done; /* NULL: cancelled */
    void *context;
    struct event *deliver;
    uint32_t addresses[BT_RESOLVER_ADDRESSES_MAX];
    size_t count;
    const char *reason;
};

static void plan_timeout(struct bt_resolver *resolver)
{
    struct timeval delay;
    if (ares_timeout(resolver->channel, NULL, &delay) != NULL)
        (void)event_add(resolver->timer, &delay);
    else
        (void)event_del(resolver->timer);
}

static void on_socket(evutil_socket_t fd, short what, void *context)
{
    struct bt_resolver *resolver = context;
    ares_process_fd(resolver->channel, (what & EV_READ) != 0 ? fd : ARES_SOCKET_BAD,
                    (what & EV_WRITE) != 0 ? fd : ARES_SOCKET_BAD);
    plan_timeout(resolver);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct bt_resolver *resolver = context;
    (void)fd;
    (void)what;
    ares_process_fd(resolver->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    plan_timeout(resolver);
}

static void free_watch(struct watch *watch)
{
    LIST_REMOVE(watch, link);
    if (watch->event != NULL)
        event_free(watch->event);
    free(watch);
}

static struct watch *find_watch(struct bt_resolver *resolver, ares_socket_t fd)
{
    struct watch *watch;
    LIST_FOREACH(watch, &resolver->watches, link)
    if (watch->fd == fd)
        return watch;
    return NULL;
}

static void on_socket_state(void *context, ares_socket_t fd, int is_readable, int is_writable)
{
    struct bt_resolver *resolver = context;
    struct watch *watch = find_watch(resolver, fd);
    if (watch != NULL)
        free_watch(watch);
    if (!is_readable && !is_writable)
        return;
    watch = bt_new(1, sizeof(*watch));
    watch->fd = fd;
    watch->event = event_new(resolver->base, fd,
                             (short)(EV_PERSIST | (is_readable ? EV_READ : 0) | (is_writable ? EV_WRITE : 0)),
                             on_socket, resolver);
    LIST_INSERT_HEAD(&resolver->watches, watch, link);
    if (watch->event != NULL)
        (void)event_add(watch->event, NULL);
}

int bt_resolver_new(struct event_base *base, const char *servers, struct bt_resolver **ret_resolver,
                    struct bt_error *error)
{
    static char files_not_used[] = "b";
    struct bt_resolver *resolver = bt_new(1, sizeof(*resolver));
    struct ares_options options = {
        .flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES,
        .timeout = TRY_TIMEOUT_MS,
        .tries = TRIES,
        .sock_state_cb = on_socket_state,
        .sock_state_cb_data = resolver,
        .lookups = files_not_used,
    };
    LIST_INIT(&resolver->watches);
    resolver->base = base;
    resolver->timer = evtimer_new(base, on_timer, resolver);
    int status = ares_library_init(ARES_LIB_INIT_ALL);
    if (status == ARES_SUCCESS)
        status = ares_init_options(&resolver->channel, &options,
                                   ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES |
                                       ARES_OPT_SOCK_STATE_CB | ARES_OPT_LOOKUPS);
    if (status == ARES_SUCCESS)
        status = ares_set_servers_ports_csv(resolver->channel, servers);
    if (status != ARES_SUCCESS || resolver->timer == NULL) {
        bt_resolver_free(resolver);
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "list resolvers as 203.0.113.53 or 203.0.113.53:5353",
                       "cannot use the resolvers \"%.200s\": %s", servers, ares_strerror(status));
    }
    *ret_resolver = resolver;
    return 0;
}

struct bt_resolver *bt_resolver_free(struct bt_resolver *resolver)
{
    if (resolver == NULL)
        return NULL;
    if (resolver->channel != NULL)
        ares_destroy(resolver->channel);
    struct watch *next;
    for (struct watch *watch = LIST_FIRST(&resolver->watches); watch != NULL; watch = next) {
        next = LIST_NEXT(watch, link);
        free_watch(watch);
    }
    if (resolver->timer != NULL)
        event_free(resolver->timer);
    ares_library_cleanup();
    free(resolver);
    return NULL;
}

static void free_resolve(struct bt_resolve *resolve)
{
    if (resolve->deliver != NULL)
        event_free(resolve->deliver);
    free(resolve);
}

static void on_deliver(evutil_socket_t fd, short what, void *context)
{
    struct bt_resolve *resolve = context;
    (void)fd;
    (void)what;
    if (resolve->done != NULL)
        resolve->done(resolve->context, resolve->addresses, resolve->count, resolve->reason);
    free_resolve(resolve);
}

static void on_addresses(void *context, int status, int timeouts, struct ares_addrinfo *info)
{
    static const struct timeval at_once = {0, 0};
    struct bt_resolve *resolve = context;
    (void)timeouts;
    if (status == ARES_EDESTRUCTION) {
        if (info != NULL)
            ares_freeaddrinfo(info);
        free_resolve(resolve);
        return;
    }
    for (struct ares_addrinfo_node *node = info != NULL ? info->nodes : NULL; node != NULL;
         node = node->ai_next) {
        if (node->ai_family != AF_INET || resolve->count == BT_RESOLVER_ADDRESSES_MAX)
            continue;
        const struct sockaddr_in *address = (const struct sockaddr_in *)(const void *)node->ai_addr;
        resolve->addresses[resolve->count++] = ntohl(address->sin_addr.s_addr);
    }
    if (info != NULL)
        ares_freeaddrinfo(info);
    if (status != ARES_SUCCESS)
        resolve->reason = ares_strerror(status);
    else if (resolve->count == 0)
        resolve->reason = "it has no IPv4 address";
    (void)event_add(resolve->deliver, &at_once);
}

struct bt_resolve *bt_resolver_ask(struct bt_resolver *resolver, const char *host, bt_resolve_done *done,
                                   void *context)
{
    static const struct ares_addrinfo_hints hints = {
        .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = ARES_AI_NOSORT};
    struct bt_resolve *resolve = bt_new(1, sizeof(*resolve));
    resolve->resolver = resolver;
    resolve->done = done;
    resolve->context = context;
    resolve->deliver = evtimer_new(resolver->base, on_deliver, resolve);
    if (resolve->deliver == NULL)
        abort(); /* out of memory, as in bt_new */
    ares_getaddrinfo(resolver->channel, host, NULL, &hints, on_addresses, resolve);
    plan_timeout(resolver);
    return resolve;
}

void bt_resolve_cancel(struct bt_resolve *resolve)
{
    resolve->done = NULL;
}
