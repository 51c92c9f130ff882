/* DNS for agents. See dns_server.h. */
#include "policy/gateway/dns_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/memory.h"
#include "policy/gateway/dns.h"

#define TTL_SECONDS 5
#define PENDING_MAX 1024        /* UDP questions that wait for the orchestrator */
#define AGENT_PENDING_MAX 64    /* of one agent, so that the others' are not lost for it */
#define CONNECTIONS_MAX 256     /* TCP */
#define AGENT_CONNECTIONS_MAX 8 /* of one agent */
#define CONNECTION_IDLE_S 10
#define PACKETS_A_TURN 64 /* so that a flood does not keep the loop from the tunnels */

struct bt_dns_server {
    struct bt_gateway *gateway;
    int udp_fd;
    struct event *readable;
    unsigned pending_count, connection_count;
    TAILQ_HEAD(inquiry_list, inquiry) inquiries;
    TAILQ_HEAD(connection_list, connection) connections;
};

/* One question, until it is answered. */
struct inquiry {
    TAILQ_ENTRY(inquiry) link;
    struct bt_dns_server *server;
    struct bt_agent *agent;
    struct bt_agent_waiter waiter;
    struct connection *connection; /* NULL: UDP */
    struct sockaddr_in peer;
    struct in_addr local;
    struct bt_dns_question question;
    uint8_t packet[BT_DNS_QUESTION_MAX];
};

struct connection {
    TAILQ_ENTRY(connection) link;
    struct bt_dns_server *server;
    struct bt_agent *agent;
    struct bufferevent *stream;
    struct inquiry *inquiry; /* one at a time */
};

static void send_datagram(const struct inquiry *inquiry, const uint8_t *answer, size_t length)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)answer, length};
    struct sockaddr_in peer = inquiry->peer;
    struct msghdr message = {
        .msg_name = &peer,
        .msg_namelen = sizeof(peer),
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control.bytes),
    };
    /* From the address that was asked, whichever the route would choose (ip(7), IP_PKTINFO). */
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_IP;
    header->cmsg_type = IP_PKTINFO;
    header->cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo));
    struct in_pktinfo info = {.ipi_spec_dst = inquiry->local};
    memcpy(CMSG_DATA(header), &info, sizeof(info));
    (void)sendmsg(inquiry->server->udp_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void free_inquiry(struct inquiry *inquiry)
{
    bt_agent_waiter_cancel(&inquiry->waiter);
    TAILQ_REMOVE(&inquiry->server->inquiries, inquiry, link);
    if (inquiry->connection == NULL) {
        inquiry->server->pending_count--;
        inquiry->agent->dns_pending_count--;
    } else {
        inquiry->connection->inquiry = NULL;
    }
    free(inquiry);
}

static void reply(struct inquiry *inquiry, enum bt_dns_code code, uint32_t address)
{
    uint8_t answer[2 + BT_DNS_ANSWER_MAX];
    size_t length =
        bt_dns_answer_write(inquiry->packet, &inquiry->question, code, address, TTL_SECONDS, answer + 2);
    struct connection *connection = inquiry->connection;
    if (connection == NULL) {
        send_datagram(inquiry, answer + 2, length);
        free_inquiry(inquiry);
        return;
    }
    answer[0] = (uint8_t)(length >> 8);
    answer[1] = (uint8_t)(length & 0xff);
    (void)bufferevent_write(connection->stream, answer, length + 2);
    free_inquiry(inquiry);
    /* The next question of the same connection, from the loop: many in one segment must not nest. */
    bufferevent_trigger(connection->stream, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

static void record(const struct inquiry *inquiry, const struct bt_verdict *verdict)
{
    struct bt_decision decision = {
        .kind = "dns",
        .host = inquiry->question.host,
        .method = inquiry->question.type == BT_DNS_TYPE_A ? "A" : "",
        .is_allowed = verdict->is_allowed,
        .rule = verdict->rule,
        .reason = verdict->reason,
        .granted_by = verdict->granted_by,
    };
    bt_report_decision(inquiry->server->gateway->report, inquiry->agent, &decision);
}

static void decide(struct inquiry *inquiry)
{
    const struct bt_dns_question *question = &inquiry->question;
    const struct bt_agent *agent = inquiry->agent;
    struct bt_verdict verdict;
    bt_policy_decide_name(agent->policy, question->has_host ? question->host : "", &verdict);
    bool is_address_question = question->type == BT_DNS_TYPE_A && question->class == BT_DNS_CLASS_IN;
    record(inquiry, &verdict);
    if (!verdict.is_allowed)
        reply(inquiry, BT_DNS_REFUSED, 0);
    else
        reply(inquiry, BT_DNS_OK, is_address_question ? agent->gateway_address : 0);
}

/* After the agent is known, since its counters begin anew with its lease: the probe waits for this very
 * question. */
static void count(struct inquiry *inquiry)
{
    inquiry->agent->counters.dns_questions++;
    bt_report_counters(inquiry->server->gateway->report, inquiry->agent);
}

static void on_identified(void *context, enum bt_identity identity)
{
    struct inquiry *inquiry = context;
    count(inquiry);
    struct bt_verdict verdict = {.rule = "unknown-agent", .reason = "no agent is registered at this address"};
    switch (identity) {
    case BT_IDENTITY_OK:
        decide(inquiry);
        return;
    case BT_IDENTITY_UNREACHABLE:
        verdict = (struct bt_verdict){.rule = "orchestrator-unreachable",
                                      .reason = "the orchestrator cannot be asked who this is"};
        break;
    case BT_IDENTITY_BUSY:
        verdict = (struct bt_verdict){.rule = "too-many",
                                      .reason = "too many questions of this agent wait at once"};
        break;
    case BT_IDENTITY_UNKNOWN:
    case BT_IDENTITY_WRONG_TOKEN:
        break;
    }
    record(inquiry, &verdict);
    reply(inquiry, BT_DNS_REFUSED, 0);
}

/* Takes one message. The inquiry may be answered before this returns. */
static void take_message(struct inquiry *inquiry, size_t length)
{
    int result = bt_dns_question_parse(inquiry->packet, length, &inquiry->question);
    if (result == -EBADMSG) {
        free_inquiry(inquiry);
        return;
    }
    if (result < 0) {
        count(inquiry);
        reply(inquiry, (enum bt_dns_code)(-result - 100), 0);
    } else {
        bt_agents_identify(inquiry->server->gateway->agents, inquiry->agent, NULL, &inquiry->waiter,
                           on_identified, inquiry);
    }
}

static struct inquiry *new_inquiry(struct bt_dns_server *server, struct bt_agent *agent,
                                   struct connection *connection)
{
    struct inquiry *inquiry = bt_new(1, sizeof(*inquiry));
    inquiry->server = server;
    inquiry->agent = agent;
    inquiry->connection = connection;
    TAILQ_INSERT_TAIL(&server->inquiries, inquiry, link);
    if (connection == NULL) {
        server->pending_count++;
        agent->dns_pending_count++;
    } else {
        connection->inquiry = inquiry;
    }
    return inquiry;
}

/* ---- UDP
 * ------------------------------------------------------------------------------------------------------ */

static bool find_local(struct msghdr *message, struct in_addr *ret_local)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        struct in_pktinfo info;
        if (header->cmsg_level != IPPROTO_IP || header->cmsg_type != IP_PKTINFO)
            continue;
        memcpy(&info, CMSG_DATA(header), sizeof(info));
        *ret_local = info.ipi_spec_dst;
        return true;
    }
    return false;
}

/* Takes one datagram. Returns false when there is none. */
static bool take_datagram(struct bt_dns_server *server)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(struct in_pktinfo)) + 64];
    } control;
    uint8_t packet[BT_DNS_QUESTION_MAX + 1]; /* one more, to see that it was longer */
    struct sockaddr_in peer;
    struct in_addr local;
    struct iovec part = {packet, sizeof(packet)};
    struct msghdr message = {
        .msg_name = &peer,
        .msg_namelen = sizeof(peer),
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control.bytes),
    };
    ssize_t length = recvmsg(server->udp_fd, &message, MSG_DONTWAIT);
    if (length < 0)
        return false;
    struct bt_agent *agent = bt_agents_get(server->gateway->agents, ntohl(peer.sin_addr.s_addr));
    /* A question that cannot be kept is dropped, as UDP permits: the client asks again. */
    if (agent == NULL || server->pending_count >= PENDING_MAX ||
        agent->dns_pending_count >= AGENT_PENDING_MAX || (size_t)length > BT_DNS_QUESTION_MAX ||
        !find_local(&message, &local))
        return true;
    struct inquiry *inquiry = new_inquiry(server, agent, NULL);
    inquiry->peer = peer;
    inquiry->local = local;
    memcpy(inquiry->packet, packet, (size_t)length);
    take_message(inquiry, (size_t)length);
    return true;
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    for (int i = 0; i < PACKETS_A_TURN; i++)
        if (!take_datagram(context))
            return;
}

/* ---- TCP
 * ------------------------------------------------------------------------------------------------------ */

static void free_connection(struct connection *connection)
{
    if (connection->inquiry != NULL)
        free_inquiry(connection->inquiry);
    TAILQ_REMOVE(&connection->server->connections, connection, link);
    connection->server->connection_count--;
    connection->agent->dns_connection_count--;
    connection->agent->session_count--;
    bufferevent_free(connection->stream);
    free(connection);
}

static void read_more(struct connection *connection)
{
    struct evbuffer *input = bufferevent_get_input(connection->stream);
    uint8_t prefix[2];
    if (connection->inquiry != NULL ||
        evbuffer_get_length(bufferevent_get_output(connection->stream)) > BT_DNS_ANSWER_MAX * 16 ||
        evbuffer_copyout(input, prefix, sizeof(prefix)) < (ev_ssize_t)sizeof(prefix))
        return;
    size_t length = (size_t)prefix[0] << 8 | prefix[1];
    if (length == 0 || length > BT_DNS_QUESTION_MAX) {
        free_connection(connection);
        return;
    }
    if (evbuffer_get_length(input) < length + sizeof(prefix))
        return;
    (void)evbuffer_drain(input, sizeof(prefix));
    struct inquiry *inquiry = new_inquiry(connection->server, connection->agent, connection);
    (void)evbuffer_remove(input, inquiry->packet, length);
    take_message(inquiry, length);
}

static void on_stream_read(struct bufferevent *stream, void *context)
{
    (void)stream;
    read_more(context);
}

static void on_stream_event(struct bufferevent *stream, short events, void *context)
{
    (void)stream;
    if ((events & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT)) != 0)
        free_connection(context);
}

void bt_dns_server_accept(struct bt_dns_server *server, evutil_socket_t fd, uint32_t address)
{
    static const struct timeval idle = {CONNECTION_IDLE_S, 0};
    struct bt_agent *agent = bt_agents_get(server->gateway->agents, address);
    if (agent == NULL || server->connection_count >= CONNECTIONS_MAX ||
        agent->dns_connection_count >= AGENT_CONNECTIONS_MAX ||
        agent->session_count >= BT_AGENT_SESSIONS_MAX) {
        (void)evutil_closesocket(fd);
        return;
    }
    struct connection *connection = bt_new(1, sizeof(*connection));
    connection->server = server;
    connection->agent = agent;
    connection->stream = bufferevent_socket_new(server->gateway->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (connection->stream == NULL)
        abort(); /* out of memory, as in bt_new */
    TAILQ_INSERT_TAIL(&server->connections, connection, link);
    server->connection_count++;
    agent->dns_connection_count++;
    agent->session_count++;
    bufferevent_setcb(connection->stream, on_stream_read, NULL, on_stream_event, connection);
    bufferevent_setwatermark(connection->stream, EV_READ, 0, 4 * BT_DNS_QUESTION_MAX);
    bufferevent_set_timeouts(connection->stream, &idle, &idle);
    (void)bufferevent_enable(connection->stream, EV_READ | EV_WRITE);
}

struct bt_dns_server *bt_dns_server_new(struct bt_gateway *gateway, int udp_fd)
{
    struct bt_dns_server *server = bt_new(1, sizeof(*server));
    server->gateway = gateway;
    server->udp_fd = udp_fd;
    TAILQ_INIT(&server->inquiries);
    TAILQ_INIT(&server->connections);
    server->readable = event_new(gateway->base, udp_fd, EV_READ | EV_PERSIST, on_readable, server);
    if (server->readable == NULL || event_add(server->readable, NULL) < 0)
        return bt_dns_server_free(server);
    return server;
}

struct bt_dns_server *bt_dns_server_free(struct bt_dns_server *server)
{
    if (server == NULL)
        return NULL;
    struct connection *next_connection;
    for (struct connection *at = TAILQ_FIRST(&server->connections); at != NULL; at = next_connection) {
        next_connection = TAILQ_NEXT(at, link);
        free_connection(at);
    }
    struct inquiry *next_inquiry;
    for (struct inquiry *at = TAILQ_FIRST(&server->inquiries); at != NULL; at = next_inquiry) {
        next_inquiry = TAILQ_NEXT(at, link);
        free_inquiry(at);
    }
    if (server->readable != NULL)
        event_free(server->readable);
    bt_fd_close(&server->udp_fd);
    free(server);
    return NULL;
}
