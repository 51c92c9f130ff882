/* Time in the gateway: monotonic milliseconds for deadlines, the wall clock for records. */
#ifndef BERTH_POLICY_GATEWAY_CLOCK_H
#define BERTH_POLICY_GATEWAY_CLOCK_H

#include "ipc/base/base.h"

int64_t bt_clock_ms(void);      /* CLOCK_MONOTONIC */
int64_t bt_clock_wall_ms(void); /* since 1970, UTC */

#endif
