/* The stream to a container's first process. See docker_internal.h and vm/container_protocol.h.
 *
 * Its end is the container's end, but for an engine that is started again and leaves its containers alone:
 * then the lifeline waits for it, makes sure that it is the same container on the same bridge, and holds on
 * again. The container waits longer than the lifeline does, so that one that nobody can hold ends by itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "vm/container_protocol.h"
#include "vm/guest_link_internal.h"

#define READY_MS 60000
#define RESTORE_MS 100000 /* for the engine to come again: less than BT_CONTAINER_SILENCE_MS and a beat */
#define RESTORE_PAUSE_NS 250000000L
#define STACK_SIZE (512UL * 1024) /* for calls of the API */
#define LINE_SIZE 256U

struct bt_docker_lifeline {
    const struct bt_docker *docker;
    char container[BT_DOCKER_NAME_SIZE];
    char bridge[32];
    bool is_restored;    /* see bt_docker_lifeline_open */
    char started_at[64]; /* the container's own, as the engine spells it */
    pthread_mutex_t lock;
    int fd; /* blocking; only the thread replaces it, with the lock held */
    int console_fd;
    int end_read_fd, end_write_fd; /* a pipe that is readable once the container has ended */
    bool has_thread;
    pthread_t thread;
    atomic_bool is_closing;
    atomic_bool has_lost_engine; /* it did not answer for a while */
    struct bt_docker_demux demux;
    char line[LINE_SIZE];
    size_t line_length;
    bool is_ready;
};

/* What the console says: on to the log, and looked at until the line that says that all is in place. */
static void take_console(struct bt_docker_lifeline *lifeline, const char *data, size_t length)
{
    if (lifeline->console_fd >= 0 && bt_write_all(lifeline->console_fd, data, length) < 0)
        bt_fd_close(&lifeline->console_fd);
    for (size_t i = 0; i < length && !lifeline->is_ready; i++) {
        if (data[i] != '\n' && lifeline->line_length + 1 < sizeof(lifeline->line)) {
            lifeline->line[lifeline->line_length++] = data[i];
            continue;
        }
        lifeline->line[lifeline->line_length] = '\0';
        lifeline->is_ready = strcmp(lifeline->line, BT_CONTAINER_READY) == 0;
        lifeline->line_length = 0;
    }
}

/* Reads once. Returns false at the end. */
static bool pump(struct bt_docker_lifeline *lifeline)
{
    char chunk[8192];
    ssize_t count = read(lifeline->fd, chunk, sizeof(chunk));
    if (count < 0 && errno == EINTR)
        return true;
    if (count <= 0)
        return false;
    for (ssize_t at = 0; at < count;) {
        const char *data;
        size_t length;
        int stream;
        ssize_t used =
            bt_docker_demux(&lifeline->demux, chunk + at, (size_t)(count - at), &stream, &data, &length);
        if (used < 0)
            return false;
        at += used;
        take_console(lifeline, data, length);
    }
    return true;
}

/* ---- before the thread ---- */

static int attach(const struct bt_docker_lifeline *lifeline, int *ret_fd, struct bt_error *error)
{
    bt_auto_free char *path =
        bt_string_format("/containers/%s/attach?stream=1&stdin=1&stdout=1&stderr=1", lifeline->container);
    bt_auto_fd fd = -1;
    int result = bt_docker_stream(lifeline->docker, path, NULL, &fd, error);
    if (result == 0 && fcntl(fd, F_SETFL, 0) < 0)
        result = bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot use the container's stream: %s",
                         strerror(errno));
    if (result == 0)
        *ret_fd = bt_fd_take(&fd);
    return result;
}

int bt_docker_lifeline_open(const struct bt_docker *docker, const char *container,
                            const struct bt_guest_plan *plan, bool is_restored,
                            struct bt_docker_lifeline **ret_lifeline, struct bt_error *error)
{
    struct bt_docker_lifeline *lifeline = bt_new(1, sizeof(*lifeline));
    lifeline->docker = docker;
    lifeline->is_restored = is_restored;
    lifeline->fd = lifeline->end_read_fd = lifeline->end_write_fd = -1;
    lifeline->console_fd = fcntl(plan->console_fd, F_DUPFD_CLOEXEC, 3);
    (void)pthread_mutex_init(&lifeline->lock, NULL);
    (void)snprintf(lifeline->container, sizeof(lifeline->container), "%s", container);
    (void)snprintf(lifeline->bridge, sizeof(lifeline->bridge), "%s", plan->lease->interface_name);
    int result = attach(lifeline, &lifeline->fd, error);
    if (result < 0)
        (void)bt_docker_lifeline_close(lifeline);
    else
        *ret_lifeline = lifeline;
    return result;
}

static int add_number(struct bt_buffer *buffer, size_t value)
{
    uint8_t bytes[4];
    bt_store_u32(bytes, (uint32_t)value);
    return bt_buffer_add(buffer, bytes, sizeof(bytes));
}

static int add_file(struct bt_buffer *files, const struct bt_guest_file *file)
{
    int result = add_number(files, file->mode);
    result = result < 0 ? result : add_number(files, strlen(file->name));
    result = result < 0 ? result : add_number(files, file->length);
    result = result < 0 ? result : bt_buffer_add(files, file->name, strlen(file->name));
    return result < 0 || file->length == 0 ? result : bt_buffer_add(files, file->data, file->length);
}

static int send_configuration(struct bt_docker_lifeline *lifeline, const struct bt_guest_plan *plan,
                              struct bt_error *error)
{
    struct bt_buffer files = {.limit = BT_CONTAINER_LENGTH_MAX};
    struct bt_buffer header = {0};
    int result = 0;
    for (size_t i = 0; result == 0 && i < plan->file_count; i++)
        result = add_file(&files, &plan->files[i]);
    if (result == 0)
        result = add_number(&header, BT_CONTAINER_MAGIC);
    if (result == 0)
        result = add_number(&header, files.length);
    if (result == 0)
        result = bt_write_all(lifeline->fd, header.data, header.length);
    if (result == 0)
        result = bt_write_all(lifeline->fd, files.data, files.length);
    bt_buffer_wipe(&files);
    bt_buffer_free(&header);
    return result < 0 ? bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, NULL,
                                "cannot send the container its configuration: %s", strerror(-result))
                      : 0;
}

static int wait_ready(struct bt_docker_lifeline *lifeline, struct bt_error *error)
{
    while (!lifeline->is_ready) {
        struct pollfd readable = {lifeline->fd, POLLIN, 0};
        int count = poll(&readable, 1, READY_MS);
        if (count < 0 && errno == EINTR)
            continue;
        if (count == 0)
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ETIMEDOUT,
                           "its console is in console.log in its folder",
                           "the container did not start within %d seconds", READY_MS / 1000);
        if (count < 0 || !pump(lifeline))
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ECANCELED,
                           "its console is in console.log in its folder",
                           "the container ended while starting");
    }
    return 0;
}

/* When the container was started, as the engine spells it. -ESRCH: it does not run. */
static int ask_start(const struct bt_docker_lifeline *lifeline, char ret_started_at[64],
                     struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/containers/%s/json", lifeline->container);
    json_t *document = NULL;
    int result = bt_docker_call(lifeline->docker, "GET", path, NULL, &document, error);
    const json_t *state = json_object_get(document, "State");
    const char *started_at = json_string_value(json_object_get(state, "StartedAt"));
    if (result == 0 && (started_at == NULL || !json_is_true(json_object_get(state, "Running"))))
        result =
            bt_fail(error, BT_EXIT_INFRASTRUCTURE, ESRCH, NULL, "the container ended when it had started");
    if (result == 0)
        (void)snprintf(ret_started_at, 64, "%s", started_at);
    json_decref(document);
    return result;
}

/* ---- the thread ---- */

/* The engine answers again. Returns 1 when the lifeline holds the container again, 0 when it should be tried
 * once more, or an error: there is nothing to hold. */
static int hold_again(struct bt_docker_lifeline *lifeline)
{
    static const char restored[] = BT_CONTAINER_RESTORE "\n";
    char started_at[64];
    bt_auto_fd fd = -1;
    int result = ask_start(lifeline, started_at, NULL);
    if (result == -ESRCH || result == -ENOENT)
        return result;
    if (result < 0)
        return 0;
    if (strcmp(started_at, lifeline->started_at) != 0 || !bt_docker_bridge_has_port(lifeline->bridge))
        return -ENOENT;
    if (attach(lifeline, &fd, NULL) < 0)
        return 0;
    lifeline->demux = (struct bt_docker_demux){0};
    atomic_store(&lifeline->has_lost_engine, false);
    (void)pthread_mutex_lock(&lifeline->lock);
    bt_fd_close(&lifeline->fd);
    lifeline->fd = bt_fd_take(&fd);
    (void)pthread_mutex_unlock(&lifeline->lock);
    return bt_write_all(lifeline->fd, restored, sizeof(restored) - 1) < 0 ? 0 : 1;
}

static bool wait_for_engine(struct bt_docker_lifeline *lifeline)
{
    const struct timespec pause = {.tv_nsec = RESTORE_PAUSE_NS};
    int64_t deadline_ms = bt_link_now_ms() + RESTORE_MS;
    while (lifeline->is_restored && !atomic_load(&lifeline->is_closing) && bt_link_now_ms() < deadline_ms) {
        struct bt_docker answering;
        bool is_there = bt_docker_connect(&answering, NULL) == 0;
        int result = is_there ? hold_again(lifeline) : 0;
        if (!is_there)
            atomic_store(&lifeline->has_lost_engine, true);
        if (result != 0)
            return result > 0;
        (void)nanosleep(&pause, NULL);
    }
    return false;
}

/* Says that the keeper lives; an engine that takes nothing at the moment is asked again later. */
static void beat(const struct bt_docker_lifeline *lifeline)
{
    (void)!send(lifeline->fd, "\n", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void *keep(void *argument)
{
    struct bt_docker_lifeline *lifeline = argument;
    int64_t beaten_ms = 0;
    bool is_held = true;
    while (is_held) {
        struct pollfd readable = {lifeline->fd, POLLIN, 0};
        if (bt_link_now_ms() - beaten_ms >= BT_CONTAINER_BEAT_MS) {
            beat(lifeline);
            beaten_ms = bt_link_now_ms();
        }
        int count = poll(&readable, 1, BT_CONTAINER_BEAT_MS);
        if (count > 0)
            is_held = pump(lifeline) || wait_for_engine(lifeline);
    }
    bt_fd_close(&lifeline->end_write_fd);
    bt_fd_close(&lifeline->console_fd);
    return NULL;
}

int bt_docker_lifeline_start(struct bt_docker_lifeline *lifeline, const struct bt_guest_plan *plan,
                             struct bt_error *error)
{
    pthread_attr_t attributes;
    int ends[2];
    int result = send_configuration(lifeline, plan, error);
    if (result == 0)
        result = wait_ready(lifeline, error);
    if (result == 0 && lifeline->is_restored)
        result = ask_start(lifeline, lifeline->started_at, error);
    if (result < 0)
        return result;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make a pipe: %s", strerror(errno));
    lifeline->end_read_fd = ends[0];
    lifeline->end_write_fd = ends[1];
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    int code = pthread_create(&lifeline->thread, &attributes, keep, lifeline);
    (void)pthread_attr_destroy(&attributes);
    lifeline->has_thread = code == 0;
    return code == 0 ? 0
                     : bt_fail(error, BT_EXIT_ERROR, code, NULL, "cannot start a thread: %s", strerror(code));
}

/* ---- the end ---- */

int bt_docker_lifeline_end_fd(const struct bt_docker_lifeline *lifeline)
{
    return lifeline->end_read_fd;
}

bool bt_docker_lifeline_has_lost_engine(const struct bt_docker_lifeline *lifeline)
{
    return atomic_load(&lifeline->has_lost_engine);
}

void bt_docker_lifeline_ask_end(struct bt_docker_lifeline *lifeline, int grace_ms)
{
    static const char power_off[] = BT_CONTAINER_POWER_OFF "\n";
    struct pollfd ended = {lifeline->end_read_fd, POLLIN, 0};
    atomic_store(&lifeline->is_closing, true);
    (void)pthread_mutex_lock(&lifeline->lock);
    int result = bt_write_all(lifeline->fd, power_off, sizeof(power_off) - 1);
    (void)pthread_mutex_unlock(&lifeline->lock);
    if (result == 0 && lifeline->has_thread)
        (void)poll(&ended, 1, grace_ms);
}

/* A container that ended before it was ready says why on its console. */
static void take_last_words(struct bt_docker_lifeline *lifeline)
{
    struct pollfd said = {lifeline->fd, POLLIN, 0};
    while (lifeline->fd >= 0 && poll(&said, 1, 0) > 0 && pump(lifeline))
        continue;
}

struct bt_docker_lifeline *bt_docker_lifeline_close(struct bt_docker_lifeline *lifeline)
{
    if (lifeline == NULL)
        return NULL;
    if (!lifeline->has_thread)
        take_last_words(lifeline);
    atomic_store(&lifeline->is_closing, true);
    (void)pthread_mutex_lock(&lifeline->lock);
    if (lifeline->fd >= 0)
        (void)shutdown(lifeline->fd, SHUT_RDWR);
    (void)pthread_mutex_unlock(&lifeline->lock);
    if (lifeline->has_thread)
        (void)pthread_join(lifeline->thread, NULL);
    bt_fd_close(&lifeline->fd);
    bt_fd_close(&lifeline->console_fd);
    bt_fd_close(&lifeline->end_read_fd);
    bt_fd_close(&lifeline->end_write_fd);
    (void)pthread_mutex_destroy(&lifeline->lock);
    free(lifeline);
    return NULL;
}
