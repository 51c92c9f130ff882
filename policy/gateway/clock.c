/* Clocks. See clock.h. */
#include "policy/gateway/clock.h"

#include <time.h>

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t bt_clock_ms(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t bt_clock_wall_ms(void)
{
    return read_clock(CLOCK_REALTIME);
}
