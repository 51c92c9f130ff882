/* Guests without a VMM. See fake_guest.h. */
#include "tests/lib/fake_guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/base.h"

/* ---- namespaces ------------------------------------------------------------------------------------- */

#define MARKER "--inside"

/* Returns only as root of them, else -errno. */
static int namespaces_make(char **argv)
{
    if (argv[1] && strcmp(argv[1], MARKER) == 0)
        return 0;
    if (geteuid() == 0) {
        if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0)
            return -errno;
        return bt_test_interface_up(-1, "lo");
    }
    char marker[] = MARKER;
    char *again[] = {(char[]){"unshare"},
                     (char[]){"--user"},
                     (char[]){"--map-auto"},
                     (char[]){"--map-root-user"},
                     (char[]){"--net"},
                     (char[]){"--mount"},
                     argv[0],
                     marker,
                     NULL};
    execvp(again[0], again);
    return -errno;
}

bool bt_test_enter_namespaces(char **argv)
{
    int error = namespaces_make(argv);
    if (error < 0)
        printf("1..0 # SKIP namespaces cannot be made here: %s\n", strerror(-error));
    return error == 0;
}

static int namespace_enter(int namespace_fd, int *ret_old_fd)
{
    *ret_old_fd = -1;
    if (namespace_fd < 0)
        return 0;
    int old_fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (old_fd < 0)
        return -errno;
    if (setns(namespace_fd, CLONE_NEWNET) < 0) {
        int error = -errno;
        close(old_fd);
        return error;
    }
    *ret_old_fd = old_fd;
    return 0;
}

static void namespace_leave(int old_fd)
{
    if (old_fd < 0)
        return;
    if (setns(old_fd, CLONE_NEWNET) < 0)
        abort(); /* everything after this would happen in the wrong place */
    close(old_fd);
}

int bt_test_namespace_create(void)
{
    int old_fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (old_fd < 0)
        return -errno;
    if (unshare(CLONE_NEWNET) < 0) {
        int error = -errno;
        close(old_fd);
        return error;
    }
    int new_fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    int error = new_fd < 0 ? -errno : 0;
    namespace_leave(old_fd);
    if (error < 0)
        return error;
    error = bt_test_interface_up(new_fd, "lo");
    return error < 0 ? error : new_fd;
}

int bt_test_socket(int namespace_fd, uint32_t uid, int type)
{
    int old_fd;
    int error = namespace_enter(namespace_fd, &old_fd);
    if (error < 0)
        return error;
    int old_uid = setfsuid(uid);
    int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    error = fd < 0 ? -errno : 0;
    (void)setfsuid((uid_t)old_uid);
    namespace_leave(old_fd);
    return error < 0 ? error : fd;
}

int bt_test_run(int namespace_fd, const char *const argv[])
{
    pid_t child = fork();
    if (child < 0)
        return -errno;
    if (child == 0) {
        int null_fd = open("/dev/null", O_RDWR);
        if (null_fd < 0 || (namespace_fd >= 0 && setns(namespace_fd, CLONE_NEWNET) < 0) ||
            dup2(null_fd, 1) < 0 || dup2(null_fd, 2) < 0)
            _exit(126);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -EINTR;
}

/* ---- interfaces ------------------------------------------------------------------------------------- */

static struct sockaddr_in socket_address(uint32_t address, uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(address), .sin_port = htons(port)};
}

static void request_name(struct ifreq *request, const char *name)
{
    memset(request, 0, sizeof(*request));
    memcpy(request->ifr_name, name, strnlen(name, IFNAMSIZ - 1));
}

int bt_test_interface_address(int namespace_fd, const char *name, uint32_t address, unsigned prefix)
{
    struct ifreq request;
    struct sockaddr_in value = socket_address(address, 0);
    bt_auto_fd fd = bt_test_socket(namespace_fd, 0, SOCK_DGRAM);
    if (fd < 0)
        return fd;
    request_name(&request, name);
    memcpy(&request.ifr_addr, &value, sizeof(value));
    if (ioctl(fd, SIOCSIFADDR, &request) < 0)
        return -errno;
    value = socket_address(~0U << (32 - prefix), 0);
    memcpy(&request.ifr_netmask, &value, sizeof(value));
    return ioctl(fd, SIOCSIFNETMASK, &request) < 0 ? -errno : 0;
}

int bt_test_interface_up(int namespace_fd, const char *name)
{
    struct ifreq request;
    bt_auto_fd fd = bt_test_socket(namespace_fd, 0, SOCK_DGRAM);
    if (fd < 0)
        return fd;
    request_name(&request, name);
    request.ifr_flags = IFF_UP;
    return ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

int bt_test_route_default(int namespace_fd, uint32_t gateway)
{
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    struct sockaddr_in via = socket_address(gateway, 0), any = socket_address(0, 0);
    bt_auto_fd fd = bt_test_socket(namespace_fd, 0, SOCK_DGRAM);
    if (fd < 0)
        return fd;
    memcpy(&route.rt_gateway, &via, sizeof(via));
    memcpy(&route.rt_dst, &any, sizeof(any));
    memcpy(&route.rt_genmask, &any, sizeof(any));
    return ioctl(fd, SIOCADDRT, &route) < 0 ? -errno : 0;
}

/* ---- the pump: frames from TAP to TAP, one thread for all guests ------------------------------------ */

static struct {
    pthread_mutex_t lock;
    pthread_t thread;
    int wake_fd;
    bool is_running;
    struct {
        int host_fd, guest_fd;
    } pairs[BT_TEST_GUESTS_MAX];
    size_t count;
    unsigned rounds; /* how often the pairs were looked at; under the lock */
    atomic_ullong frames;
} pump = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake_fd = -1};

static void copy_frames(int from_fd, int to_fd, bool is_from_guest)
{
    uint8_t frame[70000];
    for (int i = 0; i < 64; i++) {
        ssize_t length = read(from_fd, frame, sizeof(frame));
        if (length <= 0)
            return;
        /* An interface that is down refuses: then the frame is lost, as on a wire. */
        ssize_t written = write(to_fd, frame, (size_t)length);
        if (is_from_guest && written == length)
            atomic_fetch_add(&pump.frames, 1);
    }
}

static void *pump_main(void *argument)
{
    (void)argument;
    for (;;) {
        struct pollfd polled[2 * BT_TEST_GUESTS_MAX + 1];
        pthread_mutex_lock(&pump.lock);
        size_t count = pump.count;
        pump.rounds++;
        for (size_t i = 0; i < count; i++) {
            polled[2 * i] = (struct pollfd){.fd = pump.pairs[i].host_fd, .events = POLLIN};
            polled[2 * i + 1] = (struct pollfd){.fd = pump.pairs[i].guest_fd, .events = POLLIN};
        }
        pthread_mutex_unlock(&pump.lock);
        polled[2 * count] = (struct pollfd){.fd = pump.wake_fd, .events = POLLIN};
        if (poll(polled, 2 * count + 1, -1) < 0)
            continue;
        uint64_t wakes;
        if (polled[2 * count].revents && read(pump.wake_fd, &wakes, sizeof(wakes)) < 0)
            continue;
        bool is_broken = false;
        pthread_mutex_lock(&pump.lock);
        for (size_t i = 0; i < pump.count; i++) {
            copy_frames(pump.pairs[i].host_fd, pump.pairs[i].guest_fd, false);
            copy_frames(pump.pairs[i].guest_fd, pump.pairs[i].host_fd, true);
        }
        pthread_mutex_unlock(&pump.lock);
        for (size_t i = 0; i < 2 * count; i++)
            is_broken = is_broken || (polled[i].revents & (POLLERR | POLLHUP | POLLNVAL));
        if (is_broken) /* a TAP that is down stays so until somebody acts: no busy loop meanwhile */
            poll(NULL, 0, 2);
    }
    return NULL;
}

static void pump_wake(void)
{
    uint64_t one = 1;
    if (write(pump.wake_fd, &one, sizeof(one)) < 0)
        abort();
}

static int pump_add(int host_fd, int guest_fd)
{
    pthread_mutex_lock(&pump.lock);
    int error = pump.count < BT_TEST_GUESTS_MAX ? 0 : -ENOSPC;
    if (error == 0 && !pump.is_running) {
        pump.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        pump.is_running = true;
        error = -pthread_create(&pump.thread, NULL, pump_main, NULL);
    }
    if (error == 0) {
        pump.pairs[pump.count].host_fd = host_fd;
        pump.pairs[pump.count++].guest_fd = guest_fd;
    }
    pthread_mutex_unlock(&pump.lock);
    if (error == 0)
        pump_wake();
    return error;
}

static int guest_device(const uint8_t mac[6])
{
    struct ifreq request;
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    request_name(&request, "eth0");
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    int error = ioctl(fd, TUNSETIFF, &request) < 0 ? -errno : 0;
    if (error == 0) {
        request_name(&request, "eth0");
        request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
        memcpy(request.ifr_hwaddr.sa_data, mac, 6);
        error = ioctl(fd, SIOCSIFHWADDR, &request) < 0 ? -errno : 0;
    }
    if (error < 0) {
        close(fd);
        return error;
    }
    return fd;
}

int bt_test_guest_start(int tap_fd, const uint8_t mac[6], uint32_t guest, uint32_t host)
{
    int old_fd;
    int namespace_fd = bt_test_namespace_create();
    if (namespace_fd < 0)
        return namespace_fd;
    int error = namespace_enter(namespace_fd, &old_fd);
    int guest_fd = error < 0 ? error : guest_device(mac);
    namespace_leave(old_fd);
    if (guest_fd < 0)
        return guest_fd;
    error = bt_test_interface_address(namespace_fd, "eth0", guest, 31);
    if (error == 0)
        error = bt_test_interface_up(namespace_fd, "eth0");
    if (error == 0)
        error = bt_test_route_default(namespace_fd, host);
    if (error == 0)
        error = pump_add(tap_fd, guest_fd);
    return error < 0 ? error : namespace_fd;
}

void bt_test_guest_stop(int tap_fd, int namespace_fd)
{
    pthread_mutex_lock(&pump.lock);
    for (size_t i = 0; i < pump.count; i++) {
        if (pump.pairs[i].host_fd != tap_fd)
            continue;
        close(pump.pairs[i].guest_fd);
        pump.pairs[i] = pump.pairs[--pump.count];
        break;
    }
    unsigned round = pump.rounds;
    bool is_past = false;
    pthread_mutex_unlock(&pump.lock);
    /* poll(2) keeps the TAP, and so the device, until it returns. */
    for (int i = 0; i < 1000 && !is_past; i++) {
        pump_wake();
        usleep(500);
        pthread_mutex_lock(&pump.lock);
        is_past = pump.rounds != round;
        pthread_mutex_unlock(&pump.lock);
    }
    close(namespace_fd);
}

uint64_t bt_test_guest_frames(void)
{
    return atomic_load(&pump.frames);
}

/* ---- talking ---------------------------------------------------------------------------------------- */

bool bt_test_is_readable(int fd, int wait_ms)
{
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    int count;
    do {
        count = poll(&polled, 1, wait_ms);
    } while (count < 0 && errno == EINTR);
    return count > 0 && (polled.revents & POLLIN);
}

int bt_test_serve(int namespace_fd, int type, uint32_t address, uint16_t port)
{
    int on = 1;
    struct sockaddr_in here = socket_address(address, port);
    int fd = bt_test_socket(namespace_fd, 0, type);
    if (fd < 0)
        return fd;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, (const struct sockaddr *)&here, sizeof(here)) < 0 ||
        (type == SOCK_STREAM && listen(fd, 64) < 0)) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

int bt_test_dial(int namespace_fd, uint32_t uid, uint32_t address, uint16_t port, int wait_ms)
{
    struct sockaddr_in there = socket_address(address, port);
    bt_auto_fd fd = bt_test_socket(namespace_fd, uid, SOCK_STREAM);
    if (fd < 0)
        return fd;
    if (connect(fd, (const struct sockaddr *)&there, sizeof(there)) < 0 && errno != EINPROGRESS)
        return -errno;
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    if (poll(&polled, 1, wait_ms) <= 0)
        return -ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
        return -errno;
    if (error != 0)
        return -error;
    /* An error that came while connect(2) held the socket is reported to nobody: then it is just not
     * connected. */
    length = sizeof(there);
    return getpeername(fd, (struct sockaddr *)&there, &length) < 0 ? -EHOSTUNREACH : bt_fd_take(&fd);
}

int bt_test_dial_udp(int namespace_fd, uint32_t uid, uint16_t source_port, uint32_t address, uint16_t port)
{
    struct sockaddr_in here = socket_address(INADDR_ANY, source_port), there = socket_address(address, port);
    bt_auto_fd fd = bt_test_socket(namespace_fd, uid, SOCK_DGRAM);
    if (fd < 0)
        return fd;
    if (bind(fd, (const struct sockaddr *)&here, sizeof(here)) < 0 ||
        connect(fd, (const struct sockaddr *)&there, sizeof(there)) < 0)
        return -errno;
    return bt_fd_take(&fd);
}

int bt_test_accept(int listener_fd, struct sockaddr_in *ret_peer, int wait_ms)
{
    socklen_t length = sizeof(*ret_peer);
    if (!bt_test_is_readable(listener_fd, wait_ms))
        return -ETIMEDOUT;
    int fd = accept4(listener_fd, (struct sockaddr *)ret_peer, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

bool bt_test_passes(int sender_fd, int receiver_fd, const char *text, struct sockaddr_in *ret_peer,
                    int wait_ms)
{
    char received[256];
    struct sockaddr_in peer;
    socklen_t peer_length = sizeof(peer);
    size_t length = strlen(text);
    /* An ICMP error of an earlier datagram is reported instead of sending: then once more. */
    if (send(sender_fd, text, length, MSG_NOSIGNAL) < 0)
        (void)send(sender_fd, text, length, MSG_NOSIGNAL);
    if (!bt_test_is_readable(receiver_fd, wait_ms))
        return false;
    ssize_t got =
        recvfrom(receiver_fd, received, sizeof(received), 0, (struct sockaddr *)&peer, &peer_length);
    if (got < 0 || (size_t)got != length || memcmp(received, text, length) != 0)
        return false;
    if (ret_peer)
        *ret_peer = peer;
    return true;
}

void bt_test_drain(int fd)
{
    char received[2048];
    for (int i = 0; i < 100000 && recv(fd, received, sizeof(received), MSG_DONTWAIT) > 0; i++) {
    }
}
