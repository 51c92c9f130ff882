/* See accounts.h. */
#include "images/accounts.h"

#include <stdio.h>
#include <string.h>

/* One line without its end. A group's fourth field is a list of names, and no name is a number. */
static int add_line(struct bt_buffer *out, const char *line, size_t length, const char *from, const char *to)
{
    int result = 0;
    size_t at = 0;
    for (int field = 0; at <= length && result == 0; field++) {
        const char *colon = memchr(line + at, ':', length - at);
        size_t end = colon == NULL ? length : (size_t)(colon - line);
        bool is_number = (field == 2 || field == 3) && end - at == strlen(from) &&
                         memcmp(line + at, from, strlen(from)) == 0;
        result = is_number ? bt_buffer_add(out, to, strlen(to)) : bt_buffer_add(out, line + at, end - at);
        if (result == 0 && colon != NULL)
            result = bt_buffer_add(out, ":", 1);
        at = end + 1;
    }
    return result;
}

int bt_accounts_renumber(const char *text, unsigned from, unsigned to, struct bt_buffer *ret_text)
{
    char from_text[16], to_text[16];
    struct bt_buffer out = {0};
    int result = 0;
    (void)snprintf(from_text, sizeof(from_text), "%u", from);
    (void)snprintf(to_text, sizeof(to_text), "%u", to);
    while (*text != '\0' && result == 0) {
        size_t length = strcspn(text, "\n");
        result = add_line(&out, text, length, from_text, to_text);
        text += length;
        if (result == 0 && *text == '\n')
            result = bt_buffer_add(&out, text++, 1);
    }
    if (result < 0) {
        bt_buffer_free(&out);
        return result;
    }
    *ret_text = out;
    return 0;
}
