/* Errors as users read them. See error.h. */
#include "lib/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int bt_fail(struct bt_error *error, enum bt_exit status, int code, const char *hint, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        error->status = status;
        error->code = code;
        va_start(arguments, format);
        (void)vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        (void)snprintf(error->hint, sizeof error->hint, "%s", hint == NULL ? "" : hint);
    }
    return -code;
}

int bt_error_prefix(struct bt_error *error, const char *format, ...)
{
    char context[sizeof error->message];
    char whole[2 * sizeof error->message + 3];
    va_list arguments;
    if (error == NULL)
        return -EIO;
    va_start(arguments, format);
    (void)vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
    (void)snprintf(whole, sizeof whole, "%s: %s", context, error->message);
    memcpy(error->message, whole, sizeof error->message - 1);
    error->message[sizeof error->message - 1] = '\0';
    return -error->code;
}
