/* Waiting for whatever happens next to a keeper. See keeper.h. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frontend/keeper.h"

#define ADOPT_RETRY_MS 50

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

enum {
    POLL_GUEST,
    POLL_HELPER,
    POLL_SIGNAL,
    POLL_CONTROL,
    POLL_EXTRA,
    POLL_COUNT = POLL_EXTRA + BT_KEEPER_WATCH_MAX
};

/* What poll found, but for the guest's end and the helper's. */
static enum bt_keeper_event event_of(const struct pollfd *polls, const struct bt_keeper_watch *watch,
                                     int *ret_client_fd, int *ret_index)
{
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
    return BT_KEEPER_TIMER;
}

/* While the helper is away every timer is short; each of its ticks is an attempt. Returns whether the lease
 * is lost. */
static bool helper_is_lost(struct bt_keeper *keeper, struct bt_error *error)
{
    bt_helper_close(&keeper->helper);
    int result = bt_keeper_adopt(keeper, error);
    return result < 0 && result != -EAGAIN;
}

enum bt_keeper_event bt_keeper_wait(struct bt_keeper *keeper, const struct bt_keeper_watch *watch,
                                    int *ret_client_fd, int *ret_index, struct bt_error *error)
{
    double timer_at = watch->timer_ms < 0 ? 0 : bt_keeper_now_ms() + watch->timer_ms;
    for (;;) {
        bool is_away = keeper->helper.fd < 0;
        int timeout = is_away ? ADOPT_RETRY_MS : watch->timer_ms;
        struct pollfd polls[POLL_COUNT] = {
            [POLL_GUEST] = {keeper->guest == NULL ? -1 : keeper->backend->end_fd(keeper->guest), POLLIN, 0},
            [POLL_HELPER] = {keeper->helper.fd, POLLIN, 0},
            [POLL_SIGNAL] = {signal_fd, POLLIN, 0},
            [POLL_CONTROL] = {watch->control_fd, POLLIN, 0},
        };
        for (int i = 0; i < BT_KEEPER_WATCH_MAX; i++)
            polls[POLL_EXTRA + i] = (struct pollfd){watch->extra_fds[i], POLLIN, 0};
        int ready = poll(polls, POLL_COUNT, timeout);
        if (ready < 0)
            continue;
        if (polls[POLL_GUEST].revents != 0)
            return BT_KEEPER_GUEST_ENDED;
        if ((is_away || polls[POLL_HELPER].revents != 0) && helper_is_lost(keeper, error))
            return BT_KEEPER_LEASE_LOST;
        if (ready > 0) {
            enum bt_keeper_event event = event_of(polls, watch, ret_client_fd, ret_index);
            if (event != BT_KEEPER_TIMER)
                return event;
        }
        if (watch->timer_ms >= 0 && bt_keeper_now_ms() >= timer_at)
            return BT_KEEPER_TIMER;
    }
}
