/* The gateway's clock as a test sets it; in place of policy/gateway/clock.c, for one file of a program. */
#ifndef BERTH_TESTS_LIB_FAKE_GATEWAY_CLOCK_H
#define BERTH_TESTS_LIB_FAKE_GATEWAY_CLOCK_H

#include "policy/gateway/clock.h"

static int64_t now_ms = 1000000;

int64_t bt_clock_ms(void)
{
    return now_ms;
}

int64_t bt_clock_wall_ms(void)
{
    return now_ms;
}

#endif
