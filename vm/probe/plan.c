/* Parsing the plan of berth-probe. See plan.h. Called by main.c and by tests; touches nothing but its
 * arguments. */
#include "vm/probe/plan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#define FIELDS_MAX 8

struct field {
    const char *text;
    size_t length;
};

static bool is_word(const struct field *field, const char *also, size_t size)
{
    if (field->length == 0 || field->length >= size)
        return false;
    for (size_t i = 0; i < field->length; i++) {
        char c = field->text[i];
        bool is_plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z');
        if (!is_plain && !strchr(also, c))
            return false;
    }
    return true;
}

static void copy_text(const struct field *field, char *ret_text)
{
    memcpy(ret_text, field->text, field->length);
    ret_text[field->length] = '\0';
}

static int parse_address(const struct field *field, bool may_be_ipv6, uint16_t port,
                         struct bt_probe_entry *entry)
{
    char text[INET6_ADDRSTRLEN];
    if (field->length >= sizeof(text))
        return -EINVAL;
    copy_text(field, text);
    if (inet_pton(AF_INET, text, &entry->to.v4.sin_addr) == 1) {
        entry->to.v4.sin_family = AF_INET;
        entry->to.v4.sin_port = htons(port);
        return 0;
    }
    if (!may_be_ipv6 || inet_pton(AF_INET6, text, &entry->to.v6.sin6_addr) != 1)
        return -EINVAL;
    entry->to.v6.sin6_family = AF_INET6;
    entry->to.v6.sin6_port = htons(port);
    return 0;
}

/* ADDRESS PORT, and NONCE unless there are only two fields */
static int parse_target(const struct field *fields, size_t count, bool may_be_ipv6,
                        struct bt_probe_entry *entry)
{
    uint64_t port;
    if (bt_number_parse(fields[1].text, fields[1].length, 1, UINT16_MAX, &port) < 0)
        return -EINVAL;
    if (count == 3) {
        if (!is_word(&fields[2], "", 64))
            return -EINVAL;
        copy_text(&fields[2], entry->text);
    }
    return parse_address(&fields[0], may_be_ipv6, (uint16_t)port, entry);
}

static int parse_kind(const struct field *fields, size_t count, struct bt_probe_entry *entry)
{
    char kind[10] = "";
    if (fields[0].length < sizeof(kind))
        copy_text(&fields[0], kind);
    if ((strcmp(kind, "tcp") == 0 && count == 6) || (strcmp(kind, "connect") == 0 && count == 5)) {
        entry->kind = BT_PROBE_TCP;
        return parse_target(fields + 3, count - 3, true, entry);
    }
    if (strcmp(kind, "udp") == 0 && count == 6) {
        entry->kind = BT_PROBE_UDP;
        return parse_target(fields + 3, 3, true, entry);
    }
    if (strcmp(kind, "dns") == 0 && count == 5) {
        entry->kind = BT_PROBE_DNS;
        if (!is_word(&fields[4], "-.", sizeof(entry->text)))
            return -EINVAL;
        copy_text(&fields[4], entry->text);
        return parse_address(&fields[3], false, 53, entry);
    }
    if (strcmp(kind, "spoof") == 0 && count == 7) {
        char source[INET_ADDRSTRLEN];
        entry->kind = BT_PROBE_SPOOF;
        if (fields[3].length >= sizeof(source))
            return -EINVAL;
        copy_text(&fields[3], source);
        if (bt_ipv4_parse(source, &entry->source) < 0)
            return -EINVAL;
        return parse_target(fields + 4, 3, false, entry);
    }
    return -EINVAL;
}

static int parse_line(const char *line, size_t length, struct bt_probe_entry *ret_entry)
{
    struct field fields[FIELDS_MAX];
    size_t count = 0;
    struct bt_probe_entry entry = {0};
    uint64_t deadline_ms;
    for (size_t at = 0; at <= length; count++) {
        if (count == FIELDS_MAX)
            return -EINVAL;
        const char *blank = memchr(line + at, ' ', length - at);
        size_t end = blank ? (size_t)(blank - line) : length;
        fields[count] = (struct field){line + at, end - at};
        at = end + 1;
    }
    if (count < 5 || !is_word(&fields[1], "-", BT_PROBE_NAME_SIZE) ||
        bt_number_parse(fields[2].text, fields[2].length, 1, BT_PROBE_DEADLINE_MAX_MS, &deadline_ms) < 0 ||
        parse_kind(fields, count, &entry) < 0)
        return -EINVAL;
    copy_text(&fields[1], entry.name);
    entry.deadline_ms = (int)deadline_ms;
    *ret_entry = entry;
    return 0;
}

int bt_probe_plan_parse(const char *text, size_t length, struct bt_probe_plan *ret_plan, unsigned *ret_line)
{
    size_t at = 0;
    ret_plan->count = 0;
    for (unsigned line = 1; at < length; line++) {
        const char *end = memchr(text + at, '\n', length - at);
        if (!end || ret_plan->count == BT_PROBE_CHECKS_MAX ||
            parse_line(text + at, (size_t)(end - text) - at, &ret_plan->entries[ret_plan->count]) < 0) {
            *ret_line = line;
            return -EINVAL;
        }
        ret_plan->count++;
        at = (size_t)(end - text) + 1;
    }
    return 0;
}
