/* How little memory the machine had left so far: a line on the console when it became clearly less than the
 * last line says. Of a gateway, whose memory is what hostile agents are after: when they got the better of
 * its budget (policy/gateway/budget.h), the log shows how that went.
 *
 * Called by services.c, again and again. A dozen lines at most between all of the memory and none.
 */
#include <stdlib.h>
#include <string.h>

#include "vm/init/init.h"

/* Of a line "NAME:   123 kB" of /proc/meminfo, in KiB; 0: there is none. */
static unsigned long find_figure(const char *text, const char *name)
{
    const char *line = strstr(text, name);
    return line != NULL ? strtoul(line + strlen(name), NULL, 10) : 0;
}

void bt_init_watch_memory(void)
{
    static unsigned long least;
    char text[8192];
    size_t length;
    if (bt_init_read_file("/proc/meminfo", text, sizeof(text), &length) < 0)
        return;
    unsigned long available = find_figure(text, "\nMemAvailable:");
    if (available == 0 || (least != 0 && available > least / 8 * 7))
        return;
    bt_init_say("%lu of %lu KiB of memory are left%s", available, find_figure(text, "MemTotal:"),
                least != 0 ? ", less than ever before" : "");
    least = available;
}
