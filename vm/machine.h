/* A virtual machine monitor process: started in its jail with its disks and its TAP by descriptor, watched,
 * ended.
 *
 * Drivers: qemu (KVM when usable, else TCG). The VMM is a child of the caller (the keeper) and dies with it:
 * with the thread that called bt_machine_start, to be exact (prctl(2), PR_SET_PDEATHSIG).
 */
#ifndef BERTH_VM_MACHINE_H
#define BERTH_VM_MACHINE_H

#include <sys/types.h>

#include "lib/error.h"
#include "lib/memory.h"

#define BT_MACHINE_DISKS_MAX 4

struct bt_machine_disk {
    const char *path;  /* absolute */
    bool is_read_only; /* may then be shared by many machines */
};

struct bt_machine_config {
    const char *kernel_path; /* bzImage or uncompressed vmlinux; absolute */
    const char *initrd_path; /* base initrd of the kernel: modules and berth-init */
    const void
        *initrd_extra; /* cpio to append (bt_guest_config_write): holds secrets, never touches a disk */
    size_t initrd_extra_length;
    /* The guest finds a disk by its serial number, "disk" and its place here (berth-init does). */
    struct bt_machine_disk disks[BT_MACHINE_DISKS_MAX];
    size_t disk_count;
    int tap_fd;            /* taken over by the VMM; the caller still closes its own copy. -1: no network */
    uint8_t mac[6];        /* of the guest */
    uint64_t memory_bytes; /* at least 96 MiB */
    unsigned cpus;         /* 1..64 */
    int console_fd;        /* the guest's serial console is written here; the caller bounds it (a pipe) */
    const char *folder;    /* private folder (0700); not needed by the qemu driver, may be NULL */
};

struct bt_machine {
    pid_t pid;
    int pid_fd;     /* readable when the VMM ended */
    int control_fd; /* QMP, after qmp_capabilities */
    int power_fd;   /* input of the guest's console: berth-init there takes the line "poweroff" */
    bool uses_kvm;
    char jail[128]; /* what holds it, for doctor and list: "empty network namespace, Landlock ABI 3, seccomp"
                     */
};

/* Whether this machine can run it: programs, accelerator; says what is missing. *ret_uses_kvm may be NULL. */
int bt_machine_check(bool *ret_uses_kvm, struct bt_error *error);

/* Returns once the VMM runs the guest (some 100 ms); when it does not, with the VMM's own words in the error,
 * and nothing left behind. */
int bt_machine_start(const struct bt_machine_config *config, struct bt_machine *ret_machine,
                     struct bt_error *error);
/* Asks the guest to power off (as berth-init understands it), waits grace_ms, then kills. Reaps, closes the
 * descriptors. Accepts a machine that has ended already, and a zeroed one. grace_ms = 0: kills at once. */
void bt_machine_stop(struct bt_machine *machine, int grace_ms);

#endif
