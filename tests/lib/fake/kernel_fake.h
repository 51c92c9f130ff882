/* An in-memory kernel with the functions of helper/kernel.h, and the strings a test pulls on it.
 *
 * A test includes kernel_fake.c: the functions then win over helper/kernel_linux*.c in the archive. It
 * survives a "crash" of the engine, as the real one does, until bt_fake_reset.
 */
#ifndef BERTH_TESTS_KERNEL_FAKE_H
#define BERTH_TESTS_KERNEL_FAKE_H

#include "helper/kernel.h"

enum bt_fake_rules { BT_FAKE_NONE = 0, BT_FAKE_LIVE, BT_FAKE_SEALED, BT_FAKE_RESERVED };

struct bt_fake_slot {
    bool has_device;  /* exists, alive or dead */
    bool is_squatted; /* somebody else's device has the name: a lease of this slot is -EBUSY */
    bool is_changed;  /* the lessee changed the device: adoption is -EPERM */
    bool is_down;
    enum bt_fake_rules rules;
    struct bt_lease lease; /* of the rules */
};

struct bt_fake {
    struct bt_fake_slot slots[BT_POOL_SLOTS_MAX];
    uint64_t deadline_ms;
    uint32_t generation; /* the highest it has seen */
    unsigned calls;      /* fallible calls so far */
    unsigned fail_at;    /* the number of the call that fails; 0: none */
    unsigned fail_count; /* and how many from there on */
    int fail_error;      /* negative */
    unsigned repairs, collects, releases, tap_fds;
    bool is_table_lost; /* somebody flushed it: verify fails until repaired */
    bool is_stuck;      /* collect gets rid of nothing */
    int event_fds[2];   /* pipes: reader, writer */
};

extern struct bt_fake bt_fake;

void bt_fake_reset(void);
/* From now on the n-th fallible call (1: the next) and count - 1 more fail with error. */
void bt_fake_fail(unsigned n, unsigned count, int error);
/* The table is flushed and the event arrives. */
void bt_fake_flush_table(void);
/* How many slots have rules that authorise (LIVE). */
unsigned bt_fake_count(enum bt_fake_rules rules);

#endif
