/* The text of /etc/passwd or /etc/group with another number for a user and its group. */
#ifndef BERTH_IMAGES_ACCOUNTS_H
#define BERTH_IMAGES_ACCOUNTS_H

#include "lib/memory.h"

/* In each line the third field (a user's or group's number) and, of users, the fourth (its group). The caller
 * frees ret_text. */
int bt_accounts_renumber(const char *text, unsigned from, unsigned to, struct bt_buffer *ret_text);

#endif
