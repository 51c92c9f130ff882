/* The frequency of the processor's time stamp counter, for guests that are emulated. */
#ifndef BERTH_VM_TIME_STAMP_H
#define BERTH_VM_TIME_STAMP_H

#include <stdint.h>

/* Call start, do something else, then ask: the rest of a measuring time of 10 ms is slept. */
struct bt_time_stamp {
    uint64_t counter;
    uint64_t clock_ns;
};
void bt_time_stamp_start(struct bt_time_stamp *ret_start);
/* In kHz; 0 where there is no such counter or the measurement makes no sense. */
uint64_t bt_time_stamp_khz(const struct bt_time_stamp *start);

#endif
