/* berth-probe: tries to leave a guest in every way it should not, and says what came back.
 *
 * Static, run in the guest by the host (frontend/probe_run.c), as root and as the agent's user. Reads a plan
 * (plan.h) on standard input, runs all checks at once, prints one JSON document:
 * {"checks": [{"name", "outcome", "from", "detail", "packets", "took_ms"}]}. Exit status 0 with a document,
 * 64 for a wrong plan. It judges nothing and trusts nothing of the guest's image.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "vm/probe/check.h"

#define EXIT_WRONG_PLAN 64

static struct bt_probe_plan plan;
static struct bt_probe_check checks[BT_PROBE_CHECKS_MAX];

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static ssize_t read_plan(char *text, size_t size)
{
    size_t length = 0;
    while (length < size) {
        ssize_t count = read(STDIN_FILENO, text + length, size - length);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -errno;
        if (count == 0)
            return (ssize_t)length;
        length += (size_t)count;
    }
    return -E2BIG;
}

/* Ends what is over its deadline. Returns the milliseconds until the next deadline, -1 when all are done. */
static int expire(void)
{
    int64_t now = now_ms(), next = INT64_MAX;
    for (size_t i = 0; i < plan.count; i++) {
        int64_t until = checks[i].started_ms + checks[i].entry->deadline_ms;
        if (checks[i].outcome != BT_PROBE_OUTCOME_NONE)
            continue;
        if (until <= now)
            bt_probe_check_expire(&checks[i], now);
        else if (until < next)
            next = until;
    }
    return next == INT64_MAX ? -1 : (int)(next - now);
}

static void run_checks(void)
{
    struct pollfd fds[BT_PROBE_CHECKS_MAX];
    int wait_ms;
    for (size_t i = 0; i < plan.count; i++)
        bt_probe_check_start(&checks[i], &plan.entries[i], now_ms());
    while ((wait_ms = expire()) >= 0) {
        for (size_t i = 0; i < plan.count; i++)
            fds[i] = (struct pollfd){.fd = checks[i].fd, .events = bt_probe_check_events(&checks[i])};
        if (poll(fds, plan.count, wait_ms) <= 0)
            continue;
        for (size_t i = 0; i < plan.count; i++) {
            if (fds[i].revents && checks[i].outcome == BT_PROBE_OUTCOME_NONE)
                bt_probe_check_ready(&checks[i], now_ms());
        }
    }
}

static void print_document(void)
{
    (void)printf("{\"checks\": [");
    for (size_t i = 0; i < plan.count; i++) {
        const struct bt_probe_check *check = &checks[i];
        (void)printf("%s\n {\"name\": \"%s\", \"outcome\": \"%s\", \"from\": \"%s\", ", i ? "," : "",
                     check->entry->name, bt_probe_outcome_name(check->outcome), check->from);
        (void)printf("\"detail\": \"%s\", \"packets\": %u, \"took_ms\": %lld}", check->detail, check->packets,
                     (long long)check->took_ms);
    }
    (void)printf("]}\n");
}

int main(void)
{
    static char text[BT_PROBE_PLAN_MAX];
    unsigned line = 0;
    ssize_t length = read_plan(text, sizeof(text));
    if (length < 0 || bt_probe_plan_parse(text, (size_t)length, &plan, &line) < 0) {
        (void)fprintf(stderr, "berth-probe: the plan cannot be read, or its line %u is wrong\n", line);
        return EXIT_WRONG_PLAN;
    }
    run_checks();
    print_document();
    return fflush(stdout) == 0 ? 0 : 1;
}
