/* The file part of the jail; used by jail.c only. */
#ifndef BERTH_VM_JAIL_LANDLOCK_H
#define BERTH_VM_JAIL_LANDLOCK_H

#include "vm/jail.h"

/* Restricts this process to the jail's paths. *ret_abi: the kernel's Landlock version, 0 = it has none and
 * nothing was restricted. Needs no_new_privs. Returns 0 or -errno. */
int bt_jail_landlock(const struct bt_jail *jail, int *ret_abi);

#endif
