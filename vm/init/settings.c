/* The parser of guest.conf. Called by berth-init at its start and by tests; must not touch a file. See
 * settings.h. */
#include "vm/init/settings.h"

#include <errno.h>
#include <string.h>

enum key {
    KEY_ROLE,
    KEY_HOST_NAME,
    KEY_TIME,
    KEY_ADDRESS,
    KEY_PREFIX,
    KEY_GATEWAY,
    KEY_ROOT,
    KEY_SCRATCH,
    KEY_HOME,
    KEY_WORKSPACE,
    KEY_REGISTRY,
    KEY_COUNT
};

static const char *const key_names[KEY_COUNT] = {"role",   "hostname",  "time",    "address",
                                                 "prefix", "gateway",   "root",    "scratch",
                                                 "home",   "workspace", "registry"};

static int find_name(const char *const *names, int count, const char *text, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(names[i], text, length) == 0)
            return i;
    return -EINVAL;
}

static int parse_address(const char *text, size_t length, uint32_t *ret_address)
{
    char copy[BT_IPV4_TEXT_SIZE];
    if (length >= sizeof(copy))
        return -EINVAL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return bt_ipv4_parse(copy, ret_address);
}

static int parse_disk(const char *text, size_t length, int *ret_disk)
{
    uint64_t place;
    int result = bt_number_parse(text, length, 0, 15, &place);
    if (result == 0)
        *ret_disk = (int)place;
    return result;
}

static int parse_prefix(const char *text, size_t length, uint8_t *ret_prefix)
{
    uint64_t prefix;
    int result = bt_number_parse(text, length, 1, 32, &prefix);
    if (result == 0)
        *ret_prefix = (uint8_t)prefix;
    return result;
}

static int parse_role(const char *text, size_t length, enum bt_settings_role *ret_role)
{
    static const char *const roles[] = {"agent", "gateway", "orchestrator"};
    int role = find_name(roles, (int)BT_ARRAY_LENGTH(roles), text, length);
    if (role >= 0)
        *ret_role = (enum bt_settings_role)role;
    return role < 0 ? role : 0;
}

static int parse_host_name(const char *text, size_t length, char ret_name[64])
{
    if (length == 0 || length > 63)
        return -EINVAL;
    for (size_t i = 0; i < length; i++)
        if (strchr("abcdefghijklmnopqrstuvwxyz0123456789-", text[i]) == NULL || text[i] == '\0')
            return -EINVAL;
    memcpy(ret_name, text, length);
    ret_name[length] = '\0';
    return 0;
}

static int parse_value(struct bt_settings *settings, enum key key, const char *text, size_t length)
{
    switch (key) {
    case KEY_ROLE:
        return parse_role(text, length, &settings->role);
    case KEY_HOST_NAME:
        return parse_host_name(text, length, settings->host_name);
    case KEY_TIME:
        return bt_number_parse(text, length, 0, INT64_MAX, &settings->time_seconds);
    case KEY_ADDRESS:
        return parse_address(text, length, &settings->address);
    case KEY_PREFIX:
        return parse_prefix(text, length, &settings->prefix_length);
    case KEY_GATEWAY:
        return parse_address(text, length, &settings->gateway);
    case KEY_ROOT:
        return parse_disk(text, length, &settings->root_disk);
    case KEY_SCRATCH:
        return parse_disk(text, length, &settings->scratch_disk);
    case KEY_HOME:
        return parse_disk(text, length, &settings->home_disk);
    case KEY_WORKSPACE:
        return parse_disk(text, length, &settings->workspace_disk);
    case KEY_REGISTRY:
        return parse_disk(text, length, &settings->registry_disk);
    case KEY_COUNT:
        break;
    }
    return -EINVAL;
}

/* One line without its newline: key, one blank, value. *seen has a bit for each key that was there. */
static int parse_line(struct bt_settings *settings, const char *line, size_t length, unsigned *seen)
{
    const char *blank = memchr(line, ' ', length);
    if (blank == NULL)
        return -EINVAL;
    size_t key_length = (size_t)(blank - line);
    int key = find_name(key_names, KEY_COUNT, line, key_length);
    if (key < 0 || (*seen & 1U << key) != 0)
        return -EINVAL;
    *seen |= 1U << key;
    return parse_value(settings, (enum key)key, blank + 1, length - key_length - 1);
}

static bool is_complete(const struct bt_settings *settings, unsigned seen)
{
    unsigned network = 1U << KEY_ADDRESS | 1U << KEY_PREFIX | 1U << KEY_GATEWAY;
    unsigned needed = 1U << KEY_ROLE | 1U << KEY_HOST_NAME;
    if ((seen & network) != 0)
        needed |= network;
    if ((seen & needed) != needed)
        return false;
    return settings->role != BT_SETTINGS_AGENT || settings->root_disk != BT_SETTINGS_NO_DISK;
}

int bt_settings_parse(const char *text, size_t length, struct bt_settings *ret_settings, unsigned *ret_line)
{
    struct bt_settings settings = {.root_disk = BT_SETTINGS_NO_DISK,
                                   .scratch_disk = BT_SETTINGS_NO_DISK,
                                   .home_disk = BT_SETTINGS_NO_DISK,
                                   .workspace_disk = BT_SETTINGS_NO_DISK,
                                   .registry_disk = BT_SETTINGS_NO_DISK};
    unsigned seen = 0;
    unsigned line_number = 1;
    size_t at = 0;
    for (; at < length; line_number++) {
        const char *newline = memchr(text + at, '\n', length - at);
        size_t line_length = newline != NULL ? (size_t)(newline - (text + at)) : length - at;
        if (newline == NULL || parse_line(&settings, text + at, line_length, &seen) < 0) {
            *ret_line = line_number;
            return -EINVAL;
        }
        at += line_length + 1;
    }
    if (!is_complete(&settings, seen)) {
        *ret_line = 0;
        return -EINVAL;
    }
    *ret_settings = settings;
    return 0;
}
