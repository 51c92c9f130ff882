/* One line at a time on standard error, without stdio.
 *
 * Called by all stages. It must not block the engine: a full log pipe loses the line, not the helper.
 */
#include "helper/say.h"

#include <errno.h>
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

/* Only what the helper can meet; libc's own texts come with stdio and locales. */
static const char *describe(int error)
{
    static const struct {
        int error;
        const char *text;
    } texts[] = {
        {EPERM, "it is not permitted"},
        {ENOENT, "it is not there"},
        {EINTR, "a signal came in between"},
        {EIO, "reading or writing failed"},
        {EBADF, "a descriptor is not open"},
        {EAGAIN, "it is not possible at this moment"},
        {ENOMEM, "there is not enough memory"},
        {EACCES, "access is denied"},
        {EBUSY, "something else uses it"},
        {EEXIST, "something of that name is there already"},
        {ENODEV, "there is no such device"},
        {ENOTDIR, "a part of its path is no folder"},
        {EINVAL, "it is not of the form that it must have"},
        {ENFILE, "the system has no descriptor left"},
        {EMFILE, "this process may have too few descriptors"},
        {EFBIG, "it is too large"},
        {ENOSPC, "there is no space left for it"},
        {EROFS, "the file system is read-only"},
        {E2BIG, "there are too many of them"},
        {ENAMETOOLONG, "its name is too long"},
        {ENOSYS, "this kernel does not have the system call"},
        {ELOOP, "it is a symbolic link, which is not followed"},
        {EPROTONOSUPPORT, "its version or protocol is not known here"},
        {EOPNOTSUPP, "this kernel does not support it"},
        {EADDRINUSE, "its address is in use"},
        {ENOBUFS, "the kernel has no buffer left"},
        {EALREADY, "another berth-helper has it"},
        {EUCLEAN, "what was read back is not what was written"},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(texts); i++)
        if (texts[i].error == error)
            return texts[i].text;
    return NULL;
}

void bt_say_error(const char *what, int error, const char *hint)
{
    struct bt_text text = {.length = 0};
    int positive = error < 0 ? -error : error;
    const char *reason = describe(positive);
    bt_text_add(&text, what);
    bt_text_add(&text, ": ");
    bt_text_add(&text, reason ? reason : "the kernel reports an error");
    bt_text_add(&text, " (error ");
    bt_text_add_number(&text, (uint64_t)positive);
    bt_text_add(&text, ")");
    if (hint) {
        bt_text_add(&text, "; ");
        bt_text_add(&text, hint);
    }
    bt_say_text(&text);
}

void bt_die(const char *what)
{
    bt_say(what);
    __builtin_trap(); /* unlike abort(3) this needs no system call of the filter */
}
