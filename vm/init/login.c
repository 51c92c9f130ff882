/* What dropbear needs to let the host in, and nobody else. Called by the boot of an agent, inside its root
 * image.
 *
 * dropbear hands every command to the login shell of the account. The host sends one command only
 * ("berth-init run"), so berth-init is the shell: no other program stands between, and none has to start.
 */
#include "vm/init/login.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vm/init/init.h"

#define SHELL BT_INIT_RUN_FOLDER "/bin/berth-init"
#define ACCOUNTS_LENGTH_MAX 65536U
#define SHELL_FIELD 6

/* The line of root, from its first byte to its newline or the end. */
static const char *find_root(const char *passwd, size_t *ret_length)
{
    for (const char *line = passwd; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (strncmp(line, "root:", 5) == 0) {
            *ret_length = length;
            return line;
        }
        line += length + (line[length] == '\n' ? 1 : 0);
    }
    return NULL;
}

int bt_login_replace_shell(const char *passwd, const char *shell, char *ret_text, size_t size)
{
    size_t length;
    const char *line = find_root(passwd, &length);
    if (line == NULL)
        return -ENOENT;
    size_t at = 0;
    int field = 0;
    for (; at < length && field < SHELL_FIELD; at++)
        field += line[at] == ':' ? 1 : 0;
    if (field < SHELL_FIELD || memchr(line + at, ':', length - at) != NULL)
        return -ENOENT;
    int written =
        snprintf(ret_text, size, "%.*s%s%s", (int)(line + at - passwd), passwd, shell, line + length);
    return written >= 0 && (size_t)written < size ? 0 : -ENOSPC;
}

static void write_or_die(const char *path, const char *text, mode_t mode)
{
    int result = bt_init_write_file(path, text, mode);
    if (result < 0)
        bt_init_fatal("cannot write %s: %s", path, strerror(-result));
}

static void replace_shell(void)
{
    static char before[ACCOUNTS_LENGTH_MAX];
    static char after[ACCOUNTS_LENGTH_MAX + sizeof(SHELL)];
    size_t length;
    int result = bt_init_read_file("/etc/passwd", before, sizeof(before), &length);
    if (result == 0)
        result = bt_login_replace_shell(before, SHELL, after, sizeof(after));
    if (result < 0)
        bt_init_fatal("the root image has no usable /etc/passwd: %s", strerror(-result));
    write_or_die("/etc/passwd", after, 0644);
    /* dropbear refuses accounts whose shell is not listed (shells(5)). Nobody else here changes shells. */
    write_or_die("/etc/shells", "/bin/sh\n/bin/bash\n" SHELL "\n", 0644);
}

static void install_key(void)
{
    static char keys[BT_SETTINGS_LENGTH_MAX];
    size_t length;
    int result = bt_init_read_file(BT_INIT_RUN_FOLDER "/authorized_keys", keys, sizeof(keys), &length);
    if (result < 0)
        bt_init_fatal("cannot read the host's key: %s", strerror(-result));
    if (bt_init_make_folder("/root", 0700, 0, 0) < 0 || bt_init_make_folder("/root/.ssh", 0700, 0, 0) < 0)
        bt_init_fatal("the root image has no usable /root");
    write_or_die("/root/.ssh/authorized_keys", keys, 0600);
}

void bt_login_prepare(void)
{
    install_key();
    replace_shell();
}
