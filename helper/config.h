/* The helper's configuration: numbers and IPv4 addresses from a root-owned file, /etc/berth/helper.conf.
 *
 * Read once, before the privilege drop. README.md lists the names. Everything has a default, so the file may
 * be absent.
 */
#ifndef BERTH_HELPER_CONFIG_H
#define BERTH_HELPER_CONFIG_H

#include "helper/admission.h"
#include "helper/audit.h"
#include "helper/kernel.h"

#define BT_CONFIG_PATH_DEFAULT "/etc/berth/helper.conf"
#define BT_CONFIG_PATH_SIZE 128
#define BT_CONFIG_ID_UNSET UINT32_MAX

struct bt_config {
    struct bt_kernel_config kernel;
    struct bt_admission_limits admission;
    uint16_t quota;
    uint32_t user_uid, user_gid;            /* whom the engine runs as; never 0; UNSET: look up "_berth" */
    char audit_folder[BT_CONFIG_PATH_SIZE]; /* empty: no log */
    uint32_t audit_lines;                   /* of one segment, 8..1048576 */
    uint32_t socket_gid;                    /* who may connect; UNSET: look up group "berth" */
};

void bt_config_init(struct bt_config *ret_config);

/* Reads the file over the values that are there. -ENOENT: absent. -EPERM: not a regular file of root that
 * nobody else can write. -EINVAL: a line is wrong; it has been said which. */
int bt_config_read(const char *path, struct bt_config *config) BT_MUST_CHECK;

/* The addresses that a pool takes: of its TAPs (twice the slots, rounded up to a power of two) and of its
 * bridges. Values are used only while the two do not overlap; reading does not look at that, so that
 * `install` can say what to do. */
struct bt_block {
    uint32_t base, size;
};

struct bt_block bt_config_tap_block(const struct bt_pool *pool);
struct bt_block bt_config_bridge_block(const struct bt_pool *pool);
bool bt_config_blocks_overlap(struct bt_block one, struct bt_block other);

/* Where a name or value starts that cannot be used; both count from 1. line 0: values do not go together. */
struct bt_config_place {
    unsigned line, column;
};

/* Parses text[0..length) over the values that are there; *ret_place is set on -EINVAL. */
int bt_config_parse(const char *text, size_t length, struct bt_config *config,
                    struct bt_config_place *ret_place) BT_MUST_CHECK;

#endif
