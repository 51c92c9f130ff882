/* What stage 2 asks of files: whose are they, and what is in them. */
#ifndef BERTH_HELPER_TRUSTED_H
#define BERTH_HELPER_TRUSTED_H

#include <sys/stat.h>

#include "ipc/base/base.h"

/* Of that type (S_IFREG, S_IFDIR), root's, and writable by nobody else. */
bool bt_trusted_is_roots(const struct stat *status, mode_t type);

/* All of fd (borrowed), at most size bytes (-EFBIG). No NUL is added. */
int bt_trusted_read(int fd, char *ret_text, size_t size, size_t *ret_length) BT_MUST_CHECK;

#endif
