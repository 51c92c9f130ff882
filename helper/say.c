/* One line at a time on standard error, without stdio.
 *
 * Called by all stages. It must not block the engine: a full log pipe loses the line, not the helper.
 */
#include "helper/say.h"

#include <poll.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

void bt_text_add(struct bt_text *text, const char *addition)
{
    size_t length = strlen(addition);
    size_t room = sizeof(text->bytes) - text->length;
    if (length > room)
        length = room;
    memcpy(text->bytes + text->length, addition, length);
    text->length += length;
}

void bt_text_add_number(struct bt_text *text, uint64_t number)
{
    char digits[21];
    size_t at = sizeof(digits) - 1;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    bt_text_add(text, digits + at);
}

void bt_say_text(const struct bt_text *text)
{
    static const char prefix[] = "berth-helper: ";
    char line[sizeof(prefix) + BT_TEXT_SIZE];
    struct pollfd item = {.fd = STDERR_FILENO, .events = POLLOUT};
    size_t length = sizeof(prefix) - 1;
    memcpy(line, prefix, length);
    memcpy(line + length, text->bytes, text->length);
    length += text->length;
    line[length++] = '\n';
    if (poll(&item, 1, 0) != 1 || (item.revents & POLLOUT) == 0)
        return;
    if (write(STDERR_FILENO, line, length) < 0)
        return; /* there is nowhere left to complain to */
}

void bt_say(const char *message)
{
    struct bt_text text = {.length = 0};
    bt_text_add(&text, message);
    bt_say_text(&text);
}

void bt_say_number(const char *before, uint64_t number, const char *after)
{
    struct bt_text text = {.length = 0};
    bt_text_add(&text, before);
    bt_text_add_number(&text, number);
    bt_text_add(&text, after);
    bt_say_text(&text);
}

void bt_say_error(const char *what, int error, const char *hint)
{
    struct bt_text text = {.length = 0};
    const char *reason = strerrordesc_np(error < 0 ? -error : error);
    bt_text_add(&text, what);
    bt_text_add(&text, ": ");
    if (reason)
        bt_text_add(&text, reason);
    else
        bt_text_add_number(&text, (uint64_t)(error < 0 ? -error : error));
    if (hint) {
        bt_text_add(&text, "; ");
        bt_text_add(&text, hint);
    }
    bt_say_text(&text);
}
