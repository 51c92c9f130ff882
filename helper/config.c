/* Parses /etc/berth/helper.conf: `name: value` lines, comments from `#`, values that are numbers or
 * addresses.
 *
 * Called by main before the privilege drop. It must not follow a symbolic link, believe a file that somebody
 * other than root can change, or read more than a bounded size.
 */
#include "helper/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>

#include "helper/say.h"
#include "helper/trusted.h"

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

/* ---- names -------------------------------------------------------------------------------------------- */

enum form { FORM_U16, FORM_U32, FORM_ADDRESS, FORM_ADDRESSES, FORM_POLICY, FORM_FOLDER };
#define ID_MAX (UINT32_MAX - 1)
#define AT(member) offsetof(struct bt_config, member)

static const struct setting {
    const char *name;
    enum form form;
    size_t offset;
    uint32_t minimum, maximum; /* of numbers */
} settings[] = {
    {"slots", FORM_U16, AT(kernel.pool.slots), 1, BT_POOL_SLOTS_MAX},
    {"slots_per_uid", FORM_U16, AT(quota), 1, BT_POOL_SLOTS_MAX},
    {"tap_base", FORM_ADDRESS, AT(kernel.pool.tap_base), 0, 0},
    {"bridge_base", FORM_ADDRESS, AT(kernel.pool.bridge_base), 0, 0},
    {"uplink_private", FORM_POLICY, AT(kernel.deny_private_uplink), 0, 0},
    {"resolvers", FORM_ADDRESSES, AT(kernel), 0, 0},
    {"agent_flows", FORM_U32, AT(kernel.agent_flows), 1, 1000000},
    {"gateway_flows", FORM_U32, AT(kernel.gateway_flows), 1, 1000000},
    {"requests_per_second", FORM_U32, AT(admission.rate), 1, 1000000},
    {"requests_burst", FORM_U32, AT(admission.burst), 1, 1000000},
    {"audit_folder", FORM_FOLDER, AT(audit_folder), 0, 0},
    {"audit_lines", FORM_U32, AT(audit_lines), 8, 1048576},
    {"uid_max", FORM_U32, AT(admission.uid_max), 0, ID_MAX},
    {"user_uid", FORM_U32, AT(user_uid), 1, ID_MAX},
    {"user_gid", FORM_U32, AT(user_gid), 1, ID_MAX},
    {"socket_group", FORM_U32, AT(socket_gid), 0, ID_MAX},
};

static int parse_number(const struct setting *setting, struct span value, void *ret_number)
{
    uint64_t number;
    int error = bt_number_parse(value.text, value.length, setting->minimum, setting->maximum, &number);
    if (error < 0)
        return error;
    if (setting->form == FORM_U16)
        *(uint16_t *)ret_number = (uint16_t)number;
    else
        *(uint32_t *)ret_number = (uint32_t)number;
    return 0;
}

static int set_value(struct bt_config *config, const struct setting *setting, struct span value)
{
    void *member = (uint8_t *)config + setting->offset;
    switch (setting->form) {
    case FORM_U16:
    case FORM_U32:
        return parse_number(setting, value, member);
    case FORM_ADDRESS:
        return parse_address(value, member);
    case FORM_ADDRESSES:
        return parse_resolvers(value, member);
    case FORM_POLICY:
        *(bool *)member = is_word(value, "deny");
        return is_word(value, "allow") || is_word(value, "deny") ? 0 : -EINVAL;
    case FORM_FOLDER:
        return parse_folder(value, member);
    }
    return -EINVAL;
}

/* ---- lines -------------------------------------------------------------------------------------------- */

/* *ret_wrong: where the name or value starts that cannot be used. */
static int parse_line(struct span line, struct bt_config *config, const char **ret_wrong)
{
    const char *comment = memchr(line.text, '#', line.length);
    if (comment)
        line.length = (size_t)(comment - line.text);
    line = trim(line);
    if (line.length == 0)
        return 0;
    *ret_wrong = line.text;
    const char *colon = memchr(line.text, ':', line.length);
    if (!colon)
        return -EINVAL;
    struct span name = {.text = line.text, .length = (size_t)(colon - line.text)};
    struct span value = trim((struct span){.text = colon + 1, .length = line.length - name.length - 1});
    name = trim(name);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(settings); i++) {
        if (!is_word(name, settings[i].name))
            continue;
        *ret_wrong = value.text;
        return set_value(config, &settings[i], value);
    }
    return -EINVAL;
}

/* ---- blocks ------------------------------------------------------------------------------------------- */

struct bt_block bt_config_tap_block(const struct bt_pool *pool)
{
    struct bt_block block = {.base = pool->tap_base, .size = 1};
    while (block.size < 2U * pool->slots)
        block.size *= 2;
    return block;
}

struct bt_block bt_config_bridge_block(const struct bt_pool *pool)
{
    return (struct bt_block){.base = pool->bridge_base, .size = BT_POOL_BRIDGE_BLOCK};
}

bool bt_config_blocks_overlap(struct bt_block one, struct bt_block other)
{
    return one.base <= other.base + (other.size - 1) && other.base <= one.base + (one.size - 1);
}

/* Neither is at 0.0.0.0, nor a part of a block of its size; the last of all TAP blocks would wrap around. */
static bool is_consistent(const struct bt_config *config)
{
    struct bt_block taps = bt_config_tap_block(&config->kernel.pool);
    struct bt_block bridges = bt_config_bridge_block(&config->kernel.pool);
    return taps.base % taps.size == 0 && taps.base <= UINT32_MAX - taps.size && taps.base != 0 &&
           bridges.base % bridges.size == 0 && bridges.base != 0;
}

int bt_config_parse(const char *text, size_t length, struct bt_config *config,
                    struct bt_config_place *ret_place)
{
    struct bt_config parsed = *config;
    struct span rest = {.text = text, .length = length};
    unsigned number = 0;
    while (rest.length > 0) {
        const char *end = memchr(rest.text, '\n', rest.length);
        struct span line = {.text = rest.text, .length = end ? (size_t)(end - rest.text) : rest.length};
        const char *wrong = line.text;
        number++;
        if (parse_line(line, &parsed, &wrong) < 0) {
            *ret_place = (struct bt_config_place){number, (unsigned)(wrong - line.text) + 1};
            return -EINVAL;
        }
        size_t used = line.length + (end ? 1 : 0);
        rest.text += used;
        rest.length -= used;
    }
    if (!is_consistent(&parsed)) {
        *ret_place = (struct bt_config_place){.line = 0};
        return -EINVAL;
    }
    *config = parsed;
    return 0;
}

static void say_place(const struct bt_config_place *place)
{
    struct bt_text text = {.length = 0};
    bt_text_add(&text, "configuration line ");
    bt_text_add_number(&text, place->line);
    bt_text_add(&text, ", column ");
    bt_text_add_number(&text, place->column);
    bt_text_add(&text, ": not `name: value` with a known name and a valid value; "
                       "berth-helper(8) lists them");
    bt_say_text(&text);
}

int bt_config_read(const char *path, struct bt_config *config)
{
    char text[FILE_SIZE_MAX];
    struct stat status;
    size_t length = 0;
    struct bt_config_place place = {.line = 0};
    bt_auto_fd fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &status) < 0)
        return -errno;
    int error =
        bt_trusted_is_roots(&status, S_IFREG) ? bt_trusted_read(fd, text, sizeof(text), &length) : -EPERM;
    if (error == 0)
        error = bt_config_parse(text, length, config, &place);
    if (error == -EINVAL && place.line > 0)
        say_place(&place);
    else if (error == -EINVAL)
        bt_say("configuration: tap_base must be a multiple of twice the slots, rounded up to a power of two, "
               "and bridge_base one of 8192 (a /19)");
    return error;
}
