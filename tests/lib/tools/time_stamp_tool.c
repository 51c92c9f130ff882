/* Prints the frequency of the time stamp counter in kHz, for machines that tests emulate (machine.bash). */
#include <inttypes.h>
#include <stdio.h>

#include "vm/time_stamp.h"

int main(void)
{
    struct bt_time_stamp start;
    bt_time_stamp_start(&start);
    return printf("%" PRIu64 "\n", bt_time_stamp_khz(&start)) < 0;
}
