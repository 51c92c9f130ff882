/* Lines on the guest's console, and the end of the machine. Called by every part of berth-init. Must not
 * print anything that came out of a file of the host's configuration but names and numbers: the console is a
 * log.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/reboot.h>
#include <time.h>
#include <unistd.h>

#include "vm/init/init.h"

uint64_t bt_init_now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

__attribute__((format(printf, 2, 0))) static void say(const char *prefix, const char *format,
                                                      va_list arguments)
{
    char line[512];
    int length = snprintf(line, sizeof(line), "berth-init: %s", prefix);
    int text = vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, arguments);
    length += text < 0 ? 0 : text;
    if ((size_t)length > sizeof(line) - 2)
        length = (int)sizeof(line) - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)length) < 0) {
        /* No console: there is nobody to tell. */
    }
}

void bt_init_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say("", format, arguments);
    va_end(arguments);
}

void bt_init_power_off(void)
{
    sync();
    (void)reboot(RB_POWER_OFF);
    /* No way to switch this machine off: a reset ends the monitor as well (it is started so). */
    (void)reboot(RB_AUTOBOOT);
    if (errno == EPERM) /* in a container, which ends with this process */
        _exit(1);
    for (;;)
        pause();
}

void bt_init_fatal(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say("fatal: ", format, arguments);
    va_end(arguments);
    bt_init_power_off();
}
