/* Measures the time stamp counter against CLOCK_MONOTONIC_RAW. Called by the qemu driver. See time_stamp.h.
 */
#include "vm/time_stamp.h"

#include <time.h>

#define MEASURE_NS 10000000U
#define TRIES 5

#if defined(__x86_64__)
#include <x86intrin.h>

static uint64_t clock_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

/* Counter and clock at one moment: the closest pair of a few, as this process may be interrupted between the
 * two. */
static void sample(struct bt_time_stamp *ret_sample)
{
    uint64_t closest = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = __rdtsc();
        uint64_t clock_ns = clock_now_ns();
        uint64_t after = __rdtsc();
        if (after - before >= closest)
            continue;
        closest = after - before;
        ret_sample->counter = before + closest / 2;
        ret_sample->clock_ns = clock_ns;
    }
}

void bt_time_stamp_start(struct bt_time_stamp *ret_start)
{
    sample(ret_start);
}

uint64_t bt_time_stamp_khz(const struct bt_time_stamp *start)
{
    struct bt_time_stamp end;
    uint64_t elapsed_ns = clock_now_ns() - start->clock_ns;
    if (elapsed_ns < MEASURE_NS)
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)(MEASURE_NS - elapsed_ns)}, NULL);
    sample(&end);
    uint64_t khz =
        (uint64_t)((double)(end.counter - start->counter) * 1e6 / (double)(end.clock_ns - start->clock_ns));
    return khz >= 100000 && khz <= 20000000 ? khz : 0;
}
#else
void bt_time_stamp_start(struct bt_time_stamp *ret_start)
{
    *ret_start = (struct bt_time_stamp){0};
}

uint64_t bt_time_stamp_khz(const struct bt_time_stamp *start)
{
    (void)start;
    return 0;
}
#endif
