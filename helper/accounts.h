/* Numbers of accounts by name, from /etc/passwd and /etc/group alone: no name service, which would load code.
 */
#ifndef BERTH_HELPER_ACCOUNTS_H
#define BERTH_HELPER_ACCOUNTS_H

#include "ipc/base/base.h"

/* Finds the line "name:password:number:second:..." in text[0..length). ret_second may be NULL (group(5) has
 * no second number). -ENOENT: no such line; -EINVAL: its numbers are none. */
int bt_accounts_find(const char *text, size_t length, const char *name, uint32_t *ret_number,
                     uint32_t *ret_second) BT_MUST_CHECK;

/* The same in a file. -EFBIG: too large to be searched here; set the number in the configuration. */
int bt_accounts_read(const char *path, const char *name, uint32_t *ret_number,
                     uint32_t *ret_second) BT_MUST_CHECK;

#endif
