/* Waiting for whatever happens next to a keeper. See keeper.h. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frontend/keeper.h"

static int signal_fd = -1;

int bt_keeper_signals_open(void)
{
    sigset_t taken;
    (void)sigemptyset(&taken);
    (void)sigaddset(&taken, SIGTERM);
    (void)sigaddset(&taken, SIGINT);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &taken, NULL) < 0)
        return -errno;
    signal_fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    return signal_fd < 0 ? -errno : 0;
}

enum { POLL_GUEST, POLL_HELPER, POLL_SIGNAL, POLL_CONTROL, POLL_EXTRA, POLL_COUNT = POLL_EXTRA + BT_KEEPER_WATCH_MAX };

enum bt_keeper_event bt_keeper_wait(struct bt_keeper *keeper, const struct bt_keeper_watch *watch, int *ret_client_fd,
                                    int *ret_index)
{
    for (;;) {
        struct pollfd polls[POLL_COUNT] = {
            [POLL_GUEST] = {keeper->guest == NULL ? -1 : keeper->backend->end_fd(keeper->guest), POLLIN, 0},
            [POLL_HELPER] = {keeper->helper.fd, POLLIN, 0},
            [POLL_SIGNAL] = {signal_fd, POLLIN, 0},
            [POLL_CONTROL] = {watch->control_fd, POLLIN, 0},
        };
        for (int i = 0; i < BT_KEEPER_WATCH_MAX; i++)
            polls[POLL_EXTRA + i] = (struct pollfd){watch->extra_fds[i], POLLIN, 0};
        int ready = poll(polls, POLL_COUNT, watch->timer_ms);
        if (ready < 0)
            continue;
        if (ready == 0)
            return BT_KEEPER_TIMER;
        if (polls[POLL_GUEST].revents != 0)
            return BT_KEEPER_GUEST_ENDED;
        if (polls[POLL_HELPER].revents != 0)
            return BT_KEEPER_HELPER_ENDED;
        if (polls[POLL_SIGNAL].revents != 0) {
            struct signalfd_siginfo information;
            (void)!read(signal_fd, &information, sizeof information);
            return BT_KEEPER_SIGNALLED;
        }
        for (int i = 0; i < BT_KEEPER_WATCH_MAX; i++) {
            if (polls[POLL_EXTRA + i].revents != 0) {
                *ret_index = i;
                return BT_KEEPER_WATCHED;
            }
        }
        if (polls[POLL_CONTROL].revents != 0) {
            *ret_client_fd = accept4(watch->control_fd, NULL, NULL, SOCK_CLOEXEC);
            if (*ret_client_fd >= 0)
                return BT_KEEPER_CONTROL;
        }
    }
}
