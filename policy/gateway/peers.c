/* What workers tell each other. See peers.h. */
#include "policy/gateway/peers.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/memory.h"

#define WORDS_A_TURN 64 /* then what waits in the loop has its turn */

struct word {
    uint32_t address;
    char digest[BT_DIGEST_TEXT_SIZE];
};

int bt_peers_make(struct bt_peers *peers, unsigned count, struct bt_error *error)
{
    *peers = (struct bt_peers){.count = count};
    for (unsigned i = 0; i < BT_SERVICE_WORKERS_MAX; i++)
        peers->tell_fds[i] = peers->hear_fds[i] = -1;
    for (unsigned i = 0; count > 1 && i < count; i++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
            return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make the workers' sockets: %s",
                           strerror(errno));
        peers->hear_fds[i] = ends[0];
        peers->tell_fds[i] = ends[1];
    }
    return 0;
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    const struct bt_peers *peers = context;
    struct word word;
    (void)what;
    for (int i = 0; i < WORDS_A_TURN; i++) {
        if (recv(fd, &word, sizeof(word), 0) != (ssize_t)sizeof(word))
            return;
        word.digest[sizeof(word.digest) - 1] = '\0';
        peers->on_word(peers->context, word.address, word.digest);
    }
}

int bt_peers_join(struct bt_peers *peers, unsigned own, struct event_base *base,
                  void (*on_word)(void *context, uint32_t address, const char *digest), void *context,
                  struct bt_error *error)
{
    if (peers->count < 2)
        return 0;
    peers->on_word = on_word;
    peers->context = context;
    bt_fd_close(&peers->tell_fds[own]);
    for (unsigned i = 0; i < peers->count; i++) {
        if (i != own)
            bt_fd_close(&peers->hear_fds[i]);
    }
    peers->event = event_new(base, peers->hear_fds[own], EV_READ | EV_PERSIST, on_readable, peers);
    return peers->event != NULL && event_add(peers->event, NULL) == 0
               ? 0
               : bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot hear the other workers");
}

void bt_peers_tell(const struct bt_peers *peers, uint32_t address, const char *digest)
{
    struct word word = {.address = address};
    memcpy(word.digest, digest, strnlen(digest, sizeof(word.digest) - 1));
    for (unsigned i = 0; i < peers->count; i++) {
        if (peers->tell_fds[i] >= 0)
            (void)send(peers->tell_fds[i], &word, sizeof(word), MSG_NOSIGNAL);
    }
}

void bt_peers_end(struct bt_peers *peers)
{
    if (peers->event != NULL)
        event_free(BT_TAKE(peers->event));
    for (unsigned i = 0; i < peers->count; i++) {
        bt_fd_close(&peers->tell_fds[i]);
        bt_fd_close(&peers->hear_fds[i]);
    }
}
