/* Orders that a program of the tests takes on standard input: lines, of which some or a part may be there. */
#ifndef BERTH_TESTS_LIB_TOOLS_ORDERS_H
#define BERTH_TESTS_LIB_TOOLS_ORDERS_H

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* Reads what there is and passes on each line that is complete. False at the end of the input, or when obey
 * says so. */
static inline bool orders_read(bool (*obey)(void *context, char *line), void *context)
{
    static char buffer[4096];
    static size_t length;
    ssize_t got = read(STDIN_FILENO, buffer + length, sizeof(buffer) - 1 - length);
    if (got <= 0)
        return false;
    length += (size_t)got;
    buffer[length] = '\0';
    char *line = buffer;
    for (char *end = strchr(line, '\n'); end; end = strchr(line, '\n')) {
        *end = '\0';
        if (!obey(context, line))
            return false;
        line = end + 1;
    }
    length -= (size_t)(line - buffer);
    memmove(buffer, line, length);
    return true;
}

#endif
