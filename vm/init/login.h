/* Root's login in an agent's guest: the host's key, and berth-init itself as the login shell. */
#ifndef BERTH_VM_INIT_LOGIN_H
#define BERTH_VM_INIT_LOGIN_H

#include "ipc/base/base.h"

/* Copies the text of /etc/passwd (passwd(5)) with another shell for root. Returns 0, -ENOENT when root has no
 * entry of seven fields, -ENOSPC when ret_text is too small. */
int bt_login_replace_shell(const char *passwd, const char *shell, char *ret_text, size_t size);

/* Prepares the guest's root for dropbear; fatal when its image makes that impossible. */
void bt_login_prepare(void);

#endif
