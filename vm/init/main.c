/* berth-init: the first process of every guest, and the command that the host executes in one.
 *
 *   (PID 1)              boots the guest, see boot.c
 *   berth-init container ROLE
 *                        the first process of a container, see container.c
 *   berth-init relay [terminal]
 *                        executes one request in a container, see relay.c
 *   berth-init address [ROUTER]
 *                        gives a container's interfaces their addresses, see address.c
 *   berth-init run       executes one request from standard input, see run_command.c
 *   berth-init -c "/run/berth/bin/berth-init run"
 *                        the same, as root's login shell is called for it, see login.c
 *   berth-init poweroff  asks PID 1 to switch the machine off
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vm/init/init.h"

#define RUN_COMMAND BT_INIT_RUN_FOLDER "/bin/berth-init run"

int main(int argument_count, char **arguments)
{
    if (getpid() == 1 && argument_count == 3 && strcmp(arguments[1], "container") == 0)
        bt_init_container(arguments[2]);
    if (getpid() == 1)
        bt_init_boot();
    if (argument_count == 2 && strcmp(arguments[1], "relay") == 0)
        return bt_init_relay(false);
    if (argument_count == 3 && strcmp(arguments[1], "relay") == 0 && strcmp(arguments[2], "terminal") == 0)
        return bt_init_relay(true);
    if ((argument_count == 2 || argument_count == 3) && strcmp(arguments[1], "address") == 0)
        return bt_init_address(arguments[2]);
    if (argument_count == 3 && strcmp(arguments[1], "-c") == 0 && strcmp(arguments[2], RUN_COMMAND) == 0)
        return bt_init_run_command();
    if (argument_count == 2 && strcmp(arguments[1], "run") == 0)
        return bt_init_run_command();
    if (argument_count == 2 && strcmp(arguments[1], "poweroff") == 0) {
        if (kill(1, SIGPWR) == 0)
            return 0;
        (void)dprintf(STDERR_FILENO, "berth-init: cannot ask for the end of the machine: %s\n",
                      strerror(errno));
        return 1;
    }
    (void)dprintf(STDERR_FILENO, "usage: berth-init run | poweroff\n");
    return 64;
}
