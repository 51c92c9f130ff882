/* Comparisons of borrowed text, and its digits. See slice.h. */
#include "policy/rules/slice.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

bool bt_http_slice_is(struct bt_http_slice slice, const char *text)
{
    return slice.length == strlen(text) && memcmp(slice.data, text, slice.length) == 0;
}

bool bt_http_slice_is_nocase(struct bt_http_slice slice, const char *text)
{
    return slice.length == strlen(text) && strncasecmp(slice.data, text, slice.length) == 0;
}

static char fold(char byte)
{
    if (byte == '_')
        return '-';
    return (char)tolower((unsigned char)byte);
}

bool bt_http_name_is_like(struct bt_http_slice name, const char *text)
{
    if (name.length != strlen(text))
        return false;
    for (size_t i = 0; i < name.length; i++)
        if (fold(name.data[i]) != fold(text[i]))
            return false;
    return true;
}

int bt_hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}
