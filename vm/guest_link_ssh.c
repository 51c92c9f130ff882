/* Connecting to a guest: TCP while it still boots, SSH with the pinned host key, login with the agent's key.
 *
 * Called by the keeper and the owner's commands. It never asks a question, reads no known_hosts and no agent,
 * and trusts no host key but the one that was made for this guest.
 */
#include "vm/guest_link_ssh.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A SYN that nobody hears would be repeated by the kernel only after a second, so a new attempt starts every
 * ATTEMPT_GAP_MS and late answers of older ones are still welcome. After a refusal the guest is up and its
 * SSH server is not: ask again soon. */
#define ATTEMPTS 4
#define ATTEMPT_GAP_MS 50
#define REFUSED_GAP_MS 20

struct attempts {
    int fds[ATTEMPTS]; /* -1 = free */
    int64_t started_ms[ATTEMPTS];
    int64_t next_ms;
    int last_error;
};

int bt_ssh_wait(struct bt_ssh_link *link, int64_t deadline_ms, int wait_fd)
{
    int directions = libssh2_session_block_directions(link->ssh);
    struct pollfd fds[2] = {
        {.fd = link->fd, .events = (directions & LIBSSH2_SESSION_BLOCK_OUTBOUND) ? POLLOUT : 0},
        {.fd = wait_fd, .events = POLLIN},
    };
    if ((directions & LIBSSH2_SESSION_BLOCK_INBOUND) || !fds[0].events)
        fds[0].events |= POLLIN;
    for (;;) {
        int left_ms = bt_link_left_ms(deadline_ms);
        int count = poll(fds, 2, left_ms);
        if (count < 0 && errno != EINTR)
            return -errno;
        if (count > 0)
            return fds[1].revents ? -ECANCELED : 0;
        if (left_ms == 0)
            return -ETIMEDOUT;
    }
}

int bt_ssh_fail(struct bt_ssh_link *link, struct bt_error *error, const char *what)
{
    char *text = NULL;
    int code = libssh2_session_last_error(link->ssh, &text, NULL, 0);
    link->link.is_usable = false;
    if (code == LIBSSH2_ERROR_SOCKET_DISCONNECT || code == LIBSSH2_ERROR_SOCKET_SEND ||
        code == LIBSSH2_ERROR_SOCKET_RECV)
        return bt_fail(error, BT_EXIT_ERROR, ECONNRESET, "berth list shows whether the agent still runs",
                       "%s: the connection to the guest at %s broke", what, link->link.name);
    return bt_fail(error, BT_EXIT_ERROR, EPROTO, NULL, "%s: SSH with the guest at %s failed: %s (%d)", what,
                   link->link.name, text && *text ? text : "no reason given", code);
}

static void attempts_close(struct attempts *attempts)
{
    for (size_t i = 0; i < ATTEMPTS; i++)
        bt_fd_close(&attempts->fds[i]);
}

/* Starts one connection attempt in a free place, or in that of the oldest. Returns a connected socket, or -1.
 */
static int attempt_start(struct attempts *attempts, const struct sockaddr_in *peer, int64_t now_ms)
{
    size_t place = 0;
    for (size_t i = 0; i < ATTEMPTS; i++) {
        if (attempts->fds[i] < 0) {
            place = i;
            break;
        }
        if (attempts->started_ms[i] < attempts->started_ms[place])
            place = i;
    }
    bt_fd_close(&attempts->fds[place]);
    attempts->next_ms = now_ms + ATTEMPT_GAP_MS;
    bt_auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        attempts->last_error = errno;
        return -1;
    }
    if (connect(fd, (const struct sockaddr *)peer, sizeof(*peer)) == 0)
        return bt_fd_take(&fd);
    if (errno == EINPROGRESS) {
        attempts->started_ms[place] = now_ms;
        attempts->fds[place] = bt_fd_take(&fd);
    } else {
        attempts->last_error = errno;
        attempts->next_ms = now_ms + REFUSED_GAP_MS;
    }
    return -1;
}

/* Looks at one attempt that poll(2) reported. Returns its socket when it is connected, else -1. */
static int attempt_result(struct attempts *attempts, size_t place, int64_t now_ms)
{
    int code = 0;
    socklen_t length = sizeof(code);
    if (getsockopt(attempts->fds[place], SOL_SOCKET, SO_ERROR, &code, &length) < 0)
        code = errno;
    if (code == 0)
        return bt_fd_take(&attempts->fds[place]);
    bt_fd_close(&attempts->fds[place]);
    attempts->last_error = code;
    if (now_ms + REFUSED_GAP_MS < attempts->next_ms)
        attempts->next_ms = now_ms + REFUSED_GAP_MS;
    return -1;
}

/* Returns a connected non-blocking socket, -ETIMEDOUT (*last_error says what the last attempt met, 0 =
 * silence), or -ECANCELED. */
static int tcp_connect(const struct sockaddr_in *peer, int64_t deadline_ms, int wait_fd, int *last_error)
{
    struct attempts attempts = {.fds = {-1, -1, -1, -1}};
    int result = -ETIMEDOUT;
    for (int64_t now_ms = bt_link_now_ms(); result == -ETIMEDOUT && now_ms < deadline_ms;
         now_ms = bt_link_now_ms()) {
        if (now_ms >= attempts.next_ms) {
            int fd = attempt_start(&attempts, peer, now_ms);
            if (fd >= 0) {
                result = fd;
                break;
            }
        }
        struct pollfd fds[ATTEMPTS + 1];
        for (size_t i = 0; i < ATTEMPTS; i++)
            fds[i] = (struct pollfd){.fd = attempts.fds[i], .events = POLLOUT};
        fds[ATTEMPTS] = (struct pollfd){.fd = wait_fd, .events = POLLIN};
        int64_t until_ms = attempts.next_ms < deadline_ms ? attempts.next_ms : deadline_ms;
        int count = poll(fds, ATTEMPTS + 1, (int)(until_ms > now_ms ? until_ms - now_ms : 0));
        if (count > 0 && fds[ATTEMPTS].revents)
            result = -ECANCELED;
        for (size_t i = 0; count > 0 && i < ATTEMPTS && result == -ETIMEDOUT; i++) {
            int fd = fds[i].revents ? attempt_result(&attempts, i, bt_link_now_ms()) : -1;
            if (fd >= 0)
                result = fd;
        }
    }
    attempts_close(&attempts);
    *last_error = attempts.last_error;
    return result;
}

/* So that a guest that vanished without a word is noticed by a command that only waits. */
static void socket_tune(int fd)
{
    const int on = 1, idle_s = 10, interval_s = 5, probes = 4, unanswered_ms = 45000;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof(unanswered_ms));
}

/* Decodes the base64 of an "ssh-ed25519 AAAA..." line. Returns the number of bytes, or -EINVAL. */
static int public_key_decode(const char *line, uint8_t *ret_blob, size_t size)
{
    static const char type[] = "ssh-ed25519 ";
    if (strncmp(line, type, sizeof(type) - 1) != 0)
        return -EINVAL;
    const char *text = line + sizeof(type) - 1;
    size_t length = strcspn(text, " \r\n");
    if (length == 0 || length % 4 != 0 || length / 4 * 3 > size)
        return -EINVAL;
    int decoded = EVP_DecodeBlock(ret_blob, (const unsigned char *)text, (int)length);
    if (decoded < 0)
        return -EINVAL;
    for (size_t i = length; i > length - 2 && text[i - 1] == '='; i--)
        decoded--;
    return decoded;
}

static int host_key_check(struct bt_ssh_link *link, const char *pinned_line, struct bt_error *error)
{
    uint8_t pinned[128];
    int pinned_length = public_key_decode(pinned_line, pinned, sizeof(pinned));
    if (pinned_length < 0)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "make the agent anew",
                       "the pinned host key of %s is damaged", link->link.name);
    size_t length = 0;
    int type = 0;
    const char *offered = libssh2_session_hostkey(link->ssh, &length, &type);
    if (!offered || type != LIBSSH2_HOSTKEY_TYPE_ED25519 || length != (size_t)pinned_length ||
        memcmp(offered, pinned, length) != 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EKEYREJECTED,
                       "something else answers at this address: run berth doctor and berth cleanup bots",
                       "the SSH server at %s does not have the host key that was made for this guest",
                       link->link.name);
    return 0;
}

/* Only what both ends have, the cheapest for a guest whose instructions are emulated first. */
static int algorithms_choose(LIBSSH2_SESSION *ssh)
{
    static const struct {
        int method;
        const char *names;
    } choices[] = {
        {LIBSSH2_METHOD_KEX, "curve25519-sha256,curve25519-sha256@libssh.org"},
        {LIBSSH2_METHOD_HOSTKEY, "ssh-ed25519"},
        {LIBSSH2_METHOD_CRYPT_CS, "aes128-ctr,aes256-ctr"},
        {LIBSSH2_METHOD_CRYPT_SC, "aes128-ctr,aes256-ctr"},
        {LIBSSH2_METHOD_MAC_CS, "hmac-sha2-256,hmac-sha1"},
        {LIBSSH2_METHOD_MAC_SC, "hmac-sha2-256,hmac-sha1"},
        {LIBSSH2_METHOD_COMP_CS, "none"},
        {LIBSSH2_METHOD_COMP_SC, "none"},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(choices); i++) {
        if (libssh2_session_method_pref(ssh, choices[i].method, choices[i].names) != 0)
            return -ENOTSUP;
    }
    return 0;
}

static int login(struct bt_ssh_link *link, const struct bt_guest_address *address, int64_t deadline_ms,
                 int wait_fd, struct bt_error *error)
{
    static const char user[] = "root";
    int code;
    while ((code = libssh2_userauth_publickey_frommemory(link->ssh, user, sizeof(user) - 1, NULL, 0,
                                                         address->private_key, strlen(address->private_key),
                                                         NULL)) == LIBSSH2_ERROR_EAGAIN) {
        int result = bt_ssh_wait(link, deadline_ms, wait_fd);
        if (result < 0)
            return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "no answer to the login at %s",
                           link->link.name);
    }
    if (code == LIBSSH2_ERROR_AUTHENTICATION_FAILED || code == LIBSSH2_ERROR_PUBLICKEY_UNVERIFIED)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EACCES,
                       "its authorized_keys is not the one made for this agent",
                       "the guest at %s refused the agent's key", link->link.name);
    return code == 0 ? 0 : bt_ssh_fail(link, error, "login");
}

static void close_link(struct bt_guest_link *closing)
{
    struct bt_ssh_link *link = (struct bt_ssh_link *)closing;
    if (link->ssh) {
        if (closing->is_usable)
            (void)libssh2_session_disconnect(link->ssh, "done");
        /* With a closed socket libssh2 frees its memory without waiting for the peer. */
        (void)shutdown(link->fd, SHUT_RDWR);
        for (int tries = 0; tries < 100 && libssh2_session_free(link->ssh) == LIBSSH2_ERROR_EAGAIN; tries++) {
        }
    }
    bt_fd_close(&link->fd);
    free(link);
}

/* Handshake, host key, login over a connected socket that is taken over. -ECONNRESET: worth another try. */
static int ssh_connect(int fd, const struct bt_guest_address *address, int64_t deadline_ms, int wait_fd,
                       struct bt_guest_link **ret_link, struct bt_error *error)
{
    static const struct bt_guest_transport transport = {
        .start = bt_ssh_start,
        .step = bt_ssh_step,
        .watch = bt_ssh_watch,
        .status = bt_ssh_status,
        .end = bt_ssh_end,
        .close = close_link,
    };
    struct bt_ssh_link *link = bt_new(1, sizeof(*link));
    char text[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(address->address, text);
    (void)snprintf(link->link.name, sizeof(link->link.name), "%s:%u", text, address->port);
    link->link.transport = &transport;
    link->fd = fd;
    link->link.is_usable = true;
    socket_tune(fd);
    link->ssh = libssh2_session_init();
    int result = link->ssh ? algorithms_choose(link->ssh) : -ENOMEM;
    if (result < 0)
        result = bt_fail(error, BT_EXIT_ERROR, -result, "install Debian's libssh2-1 1.10 or later",
                         "cannot set up SSH");
    if (result == 0) {
        libssh2_session_set_blocking(link->ssh, 0);
        int code;
        while (result == 0 && (code = libssh2_session_handshake(link->ssh, fd)) != 0) {
            result = code == LIBSSH2_ERROR_EAGAIN ? bt_ssh_wait(link, deadline_ms, wait_fd) : -ECONNRESET;
            if (result == -ECONNRESET)
                (void)bt_ssh_fail(link, error, "handshake");
            else if (result < 0)
                (void)bt_fail(error, BT_EXIT_ERROR, -result, NULL, "no SSH handshake with %s in time",
                              link->link.name);
        }
    }
    if (result == 0)
        result = host_key_check(link, address->host_public_key, error);
    if (result == 0)
        result = login(link, address, deadline_ms, wait_fd, error);
    if (result == 0)
        *ret_link = &link->link;
    else
        close_link(&link->link);
    return result;
}

static int connect_fail(const struct bt_guest_address *address, int result, int last_error,
                        struct bt_error *error)
{
    char text[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(address->address, text);
    if (result == -ECANCELED)
        return bt_fail(error, BT_EXIT_ERROR, ECANCELED, "its console log says why",
                       "the virtual machine of %s ended before it could be reached", text);
    return bt_fail(error, BT_EXIT_ERROR, ETIMEDOUT, "its console log says how far it came",
                   "the guest at %s did not answer on port %u in time (%s)", text, address->port,
                   last_error ? strerror(last_error) : "silence");
}

int bt_guest_connect(const struct bt_guest_address *address, int deadline_ms, int wait_fd,
                     struct bt_guest_link **ret_link, struct bt_error *error)
{
    if (libssh2_init(0) != 0)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot start the SSH library");
    const struct sockaddr_in peer = {
        .sin_family = AF_INET, .sin_port = htons(address->port), .sin_addr.s_addr = htonl(address->address)};
    const int64_t until_ms = bt_link_now_ms() + deadline_ms;
    int last_error = 0;
    for (;;) {
        int fd = tcp_connect(&peer, until_ms, wait_fd, &last_error);
        if (fd < 0)
            return connect_fail(address, fd, last_error, error);
        int result = ssh_connect(fd, address, until_ms, wait_fd, ret_link, error);
        if (result == -ECANCELED)
            return connect_fail(address, result, 0, error);
        if (result != -ECONNRESET)
            return result;
        last_error = ECONNRESET;
        const struct timespec pause = {.tv_nsec = REFUSED_GAP_MS * 1000000L};
        (void)nanosleep(&pause, NULL);
    }
}
