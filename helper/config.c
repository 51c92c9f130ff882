/* Parses /etc/berth/helper.conf: `name: value` lines, comments from `#`, values that are numbers or
 * addresses.
 *
 * Called by main before the privilege drop. It must not follow a symbolic link, believe a file that somebody
 * other than root can change, or read more than a bounded size.
 */
#include "helper/config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "helper/say.h"

#define FILE_SIZE_MAX 16384
#define RESOLVERS_MAX BT_ARRAY_LENGTH(((struct bt_kernel_config *)NULL)->resolvers)

struct span {
    const char *text;
    size_t length;
};

void bt_config_init(struct bt_config *ret_config)
{
    *ret_config = (struct bt_config){
        .kernel = {.pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT,
                            .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT,
                            .slots = BT_POOL_SLOTS_DEFAULT},
                   .agent_flows = 512,
                   .gateway_flows = 16384},
        .admission = {.rate = 50, .burst = 200, .uid_max = 65533},
        .quota = 64,
        .audit_folder = BT_AUDIT_FOLDER_DEFAULT,
        .audit_lines = BT_AUDIT_LINES_DEFAULT,
        .user_uid = BT_CONFIG_ID_UNSET,
        .user_gid = BT_CONFIG_ID_UNSET,
        .socket_gid = BT_CONFIG_ID_UNSET,
    };
}

static bool is_blank(char byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r';
}

static struct span trim(struct span span)
{
    while (span.length > 0 && is_blank(span.text[0])) {
        span.text++;
        span.length--;
    }
    while (span.length > 0 && is_blank(span.text[span.length - 1]))
        span.length--;
    return span;
}

static bool is_word(struct span span, const char *word)
{
    return strlen(word) == span.length && memcmp(span.text, word, span.length) == 0;
}

static int parse_number(struct span value, uint64_t minimum, uint64_t maximum, uint32_t *ret_number)
{
    uint64_t number;
    int error = bt_number_parse(value.text, value.length, minimum, maximum, &number);
    if (error == 0)
        *ret_number = (uint32_t)number;
    return error;
}

static int parse_u16(struct span value, uint64_t minimum, uint64_t maximum, uint16_t *ret_number)
{
    uint32_t number;
    int error = parse_number(value, minimum, maximum < UINT16_MAX ? maximum : UINT16_MAX, &number);
    if (error == 0)
        *ret_number = (uint16_t)number;
    return error;
}

static int parse_address(struct span value, uint32_t *ret_address)
{
    char text[BT_IPV4_TEXT_SIZE] = {0};
    if (value.length >= sizeof(text))
        return -EINVAL;
    memcpy(text, value.text, value.length);
    return bt_ipv4_parse(text, ret_address);
}

static int parse_resolvers(struct span value, struct bt_kernel_config *config)
{
    size_t count = 0;
    for (struct span rest = trim(value); rest.length > 0; rest = trim(rest)) {
        struct span word = {.text = rest.text, .length = 0};
        while (word.length < rest.length && !is_blank(rest.text[word.length]))
            word.length++;
        if (count == RESOLVERS_MAX || parse_address(word, &config->resolvers[count]) < 0)
            return -EINVAL;
        count++;
        rest.text += word.length;
        rest.length -= word.length;
    }
    config->resolver_count = count;
    return 0;
}

static int parse_uplink(struct span value, bool *ret_deny_private)
{
    if (!is_word(value, "allow") && !is_word(value, "deny"))
        return -EINVAL;
    *ret_deny_private = is_word(value, "deny");
    return 0;
}

/* An absolute path, or `none`. */
static int parse_folder(struct span value, char ret_folder[BT_CONFIG_PATH_SIZE])
{
    bool is_none = is_word(value, "none");
    if (!is_none && (value.length < 2 || value.length >= BT_CONFIG_PATH_SIZE || value.text[0] != '/' ||
                     memchr(value.text, '\0', value.length)))
        return -EINVAL;
    memset(ret_folder, 0, BT_CONFIG_PATH_SIZE);
    if (!is_none)
        memcpy(ret_folder, value.text, value.length);
    return 0;
}

static int set_value(struct bt_config *config, struct span name, struct span value)
{
    struct bt_kernel_config *kernel = &config->kernel;
    const uint64_t id_max = UINT32_MAX - 1;
    if (is_word(name, "slots"))
        return parse_u16(value, 1, BT_POOL_SLOTS_MAX, &kernel->pool.slots);
    if (is_word(name, "slots_per_uid"))
        return parse_u16(value, 1, BT_POOL_SLOTS_MAX, &config->quota);
    if (is_word(name, "tap_base"))
        return parse_address(value, &kernel->pool.tap_base);
    if (is_word(name, "bridge_base"))
        return parse_address(value, &kernel->pool.bridge_base);
    if (is_word(name, "uplink_private"))
        return parse_uplink(value, &kernel->deny_private_uplink);
    if (is_word(name, "resolvers"))
        return parse_resolvers(value, kernel);
    if (is_word(name, "agent_flows"))
        return parse_number(value, 1, 1000000, &kernel->agent_flows);
    if (is_word(name, "gateway_flows"))
        return parse_number(value, 1, 1000000, &kernel->gateway_flows);
    if (is_word(name, "requests_per_second"))
        return parse_number(value, 1, 1000000, &config->admission.rate);
    if (is_word(name, "requests_burst"))
        return parse_number(value, 1, 1000000, &config->admission.burst);
    if (is_word(name, "audit_folder"))
        return parse_folder(value, config->audit_folder);
    if (is_word(name, "audit_lines"))
        return parse_number(value, 8, 1048576, &config->audit_lines);
    if (is_word(name, "uid_max"))
        return parse_number(value, 0, id_max, &config->admission.uid_max);
    if (is_word(name, "user_uid"))
        return parse_number(value, 1, id_max, &config->user_uid);
    if (is_word(name, "user_gid"))
        return parse_number(value, 1, id_max, &config->user_gid);
    if (is_word(name, "socket_group"))
        return parse_number(value, 0, id_max, &config->socket_gid);
    return -EINVAL;
}

static int parse_line(struct span line, struct bt_config *config)
{
    const char *comment = memchr(line.text, '#', line.length);
    if (comment)
        line.length = (size_t)(comment - line.text);
    line = trim(line);
    if (line.length == 0)
        return 0;
    const char *colon = memchr(line.text, ':', line.length);
    if (!colon)
        return -EINVAL;
    struct span name = {.text = line.text, .length = (size_t)(colon - line.text)};
    struct span value = {.text = colon + 1, .length = line.length - name.length - 1};
    return set_value(config, trim(name), trim(value));
}

/* What single values cannot show. */
static bool is_consistent(const struct bt_config *config)
{
    const struct bt_pool *pool = &config->kernel.pool;
    uint32_t size = 1;
    while (size < 2U * pool->slots)
        size *= 2;
    return pool->tap_base % size == 0 && pool->tap_base <= UINT32_MAX - size && pool->tap_base != 0 &&
           pool->bridge_base % BT_POOL_BRIDGE_BLOCK == 0 && pool->bridge_base != 0;
}

int bt_config_parse(const char *text, size_t length, struct bt_config *config, unsigned *ret_line)
{
    struct bt_config parsed = *config;
    struct span rest = {.text = text, .length = length};
    unsigned number = 0;
    while (rest.length > 0) {
        const char *end = memchr(rest.text, '\n', rest.length);
        struct span line = {.text = rest.text, .length = end ? (size_t)(end - rest.text) : rest.length};
        number++;
        if (parse_line(line, &parsed) < 0) {
            *ret_line = number;
            return -EINVAL;
        }
        size_t used = line.length + (end ? 1 : 0);
        rest.text += used;
        rest.length -= used;
    }
    if (!is_consistent(&parsed)) {
        *ret_line = 0;
        return -EINVAL;
    }
    *config = parsed;
    return 0;
}

static int check_owner(int fd)
{
    struct stat status;
    if (fstat(fd, &status) < 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || status.st_uid != 0 || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return -EPERM;
    return status.st_size > FILE_SIZE_MAX ? -EFBIG : 0;
}

static int read_all(int fd, char *ret_text, size_t *ret_length)
{
    size_t length = 0;
    while (length < FILE_SIZE_MAX) {
        ssize_t got = read(fd, ret_text + length, FILE_SIZE_MAX - length);
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        length += (size_t)got;
    }
    *ret_length = length;
    return 0;
}

int bt_config_read(const char *path, struct bt_config *config)
{
    char text[FILE_SIZE_MAX];
    size_t length = 0;
    unsigned line = 0;
    bt_auto_fd fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -errno;
    int error = check_owner(fd);
    if (error == 0)
        error = read_all(fd, text, &length);
    if (error == 0)
        error = bt_config_parse(text, length, config, &line);
    if (error == -EINVAL && line > 0)
        bt_say_number("configuration line ", line, ": not `name: value` with a known name and a valid value");
    else if (error == -EINVAL)
        bt_say("configuration: tap_base must be a multiple of twice the slots, rounded up to a power of two, "
               "and bridge_base one of 8192 (a /19)");
    return error;
}
