/* Start of the two programs of policy/. See service.h.
 *
 * Must not run after the event loop began, but for the comparisons.
 */
#include "policy/rules/service.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/landlock.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int bt_service_config_load(const char *path, json_t **ret_document, struct bt_error *error)
{
    BT_CLEANUP(bt_buffer_wipe) struct bt_buffer text = {0};
    int result = bt_file_read(path, 256 * 1024, &text, error);
    if (result < 0)
        return result;
    json_error_t parse_error;
    json_t *document = json_loadb(text.data, text.length, JSON_REJECT_DUPLICATES, &parse_error);
    if (!json_is_object(document)) {
        json_decref(document);
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "%s: not a JSON object (line %d)", path,
                       parse_error.line);
    }
    *ret_document = document;
    return 0;
}

int bt_service_config_text(const json_t *document, const char *key, bool may_be_absent, const char **ret_text,
                           struct bt_error *error)
{
    const json_t *value = json_object_get(document, key);
    if (may_be_absent && (value == NULL || json_is_null(value))) {
        *ret_text = NULL;
        return 0;
    }
    if (!json_is_string(value) || json_string_length(value) == 0 ||
        strlen(json_string_value(value)) != json_string_length(value))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "configuration: \"%s\" is missing or not a string",
                       key);
    *ret_text = json_string_value(value);
    return 0;
}

int bt_service_endpoint_parse(const char *text, uint16_t fallback_port, uint32_t *ret_address,
                              uint16_t *ret_port, struct bt_error *error)
{
    char host[BT_IPV4_TEXT_SIZE];
    uint64_t port = fallback_port;
    uint32_t address;
    size_t length = strcspn(text, ":");
    int result = length < sizeof(host) ? 0 : -EINVAL;
    if (result == 0) {
        memcpy(host, text, length);
        host[length] = '\0';
        result = bt_ipv4_parse(host, &address);
    }
    if (result == 0 && text[length] == ':')
        result = bt_number_parse(text + length + 1, strlen(text + length + 1), 1, UINT16_MAX, &port);
    if (result < 0 || port == 0)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "write it as 203.0.113.53:53",
                       "configuration: \"%.64s\" is not an IPv4 address and port", text);
    *ret_address = address;
    *ret_port = (uint16_t)port;
    return 0;
}

int bt_service_become_user(const char *owned_folder, struct bt_error *error)
{
    if (geteuid() != 0)
        return 0;
    if (owned_folder != NULL && chown(owned_folder, BT_SERVICE_UID, BT_SERVICE_UID) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot give %s to uid %d: %s", owned_folder,
                       BT_SERVICE_UID, strerror(errno));
    /* Leaving uid 0 by all three ids clears the capability sets (capabilities(7)). */
    if (setgroups(0, NULL) < 0 || setresgid(BT_SERVICE_UID, BT_SERVICE_UID, BT_SERVICE_UID) < 0 ||
        setresuid(BT_SERVICE_UID, BT_SERVICE_UID, BT_SERVICE_UID) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno,
                       "start it as an unprivileged user, or where that uid is mapped",
                       "cannot become uid %d: %s", BT_SERVICE_UID, strerror(errno));
    if (setresuid(0, 0, 0) == 0)
        return bt_fail(error, BT_EXIT_ERROR, EPERM, NULL, "root was not given up");
    return 0;
}

#ifndef BERTH_TEST_BUILD
static int landlock(const char *folder, struct bt_error *error)
{
    /* Rights of Landlock ABI 1 (kernel 5.13): every kernel that has Landlock knows them. */
    struct landlock_ruleset_attr rules = {.handled_access_fs = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1};
    bt_auto_fd rules_fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);
    if (rules_fd < 0 && (errno == ENOSYS || errno == EOPNOTSUPP))
        return 0;
    if (rules_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make a Landlock ruleset: %s",
                       strerror(errno));
    if (folder != NULL) {
        bt_auto_fd folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct landlock_path_beneath_attr beneath = {
            .parent_fd = folder_fd,
            .allowed_access = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                              LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                              LANDLOCK_ACCESS_FS_REMOVE_FILE,
        };
        if (folder_fd < 0 ||
            syscall(SYS_landlock_add_rule, rules_fd, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) < 0)
            return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot keep %s in Landlock: %s", folder,
                           strerror(errno));
    }
    if (syscall(SYS_landlock_restrict_self, rules_fd, 0) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot enter Landlock: %s", strerror(errno));
    return 0;
}

int bt_service_confine(const char *folder, struct bt_error *error)
{
    static const struct rlimit no_core = {0, 0};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ||
        setrlimit(RLIMIT_CORE, &no_core) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot give up privileges: %s", strerror(errno));
    return landlock(folder, error);
}
#else
int bt_service_confine(const char *folder, struct bt_error *error)
{
    /* The leak checker of the sanitised build reads /proc and traces its own process when it ends. */
    (void)folder;
    (void)error;
    return 0;
}
#endif

size_t bt_service_raise_descriptors(size_t maximum)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 256;
    rlim_t wanted = limit.rlim_max < maximum ? limit.rlim_max : (rlim_t)maximum;
    struct rlimit raised = {wanted, limit.rlim_max};
    if (wanted > limit.rlim_cur && setrlimit(RLIMIT_NOFILE, &raised) == 0)
        return (size_t)wanted;
    return (size_t)limit.rlim_cur;
}

bool bt_service_digest_equal(const char *left, const char *right)
{
    size_t length = BT_DIGEST_TEXT_SIZE - 1;
    if (strlen(left) != length || strlen(right) != length)
        return false;
    return CRYPTO_memcmp(left, right, length) == 0;
}

void bt_service_secret_digest(const char *secret, size_t length, char ret_digest[BT_DIGEST_TEXT_SIZE])
{
    bt_digest_bytes(secret, length, ret_digest);
}
