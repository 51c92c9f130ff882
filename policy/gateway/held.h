/* How many bytes of memory this process holds: what budget.c compares with what it may.
 *
 * Counted as it is taken and given back where agents can push bytes: libevent's buffers, OpenSSL, jansson
 * (allocate.c), HTTP/2, decoders, kept heads, streams of detectors. The rest (a few KiB a connection and
 * request, what policies need) is measured once a second. One thread; pure.
 */
#ifndef BERTH_POLICY_GATEWAY_HELD_H
#define BERTH_POLICY_GATEWAY_HELD_H

#include "ipc/base/base.h"

/* Something that took before bytes takes after bytes now; 0: nothing. */
void bt_held_change(size_t before, size_t after);
/* malloc(3) and free(3) that count. */
void *bt_held_take(size_t size);
void bt_held_give(void *memory);
/* Measures what is not counted. */
void bt_held_measure(void);
size_t bt_held(void);

#endif
