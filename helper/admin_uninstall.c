/* `berth-helper uninstall`: takes out of the host what install and the engine have put there.
 *
 * Run by root. The devices go before the rules, so that nothing is let through on the way. It must not remove
 * what others may have written: an edited configuration and the audit log stay, and it says so.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "helper/accounts.h"
#include "helper/admin.h"
#include "helper/kernel_linux.h"

#define GROUPDEL "/usr/sbin/groupdel"
#define USERDEL "/usr/sbin/userdel"

static int fail(const char *what, int error, const char *hint)
{
    bt_admin_complain("%s: %s%s%s", what, strerror(-error), hint ? "; " : "", hint ? hint : "");
    return 1;
}

/* ---- the engine --------------------------------------------------------------------------------------- */

static int stop_units(const struct bt_admin *admin)
{
    static const char *const disable[] = {BT_ADMIN_SYSTEMCTL,
                                          "disable",
                                          "--now",
                                          "berth-helper.socket",
                                          "berth-helper-status.socket",
                                          "berth-helper.service",
                                          "berth-firewall.service",
                                          NULL};
    if (access(BT_ADMIN_SYSTEMCTL, X_OK) < 0 || access("/run/systemd/system", F_OK) < 0)
        return 0;
    if (access(bt_admin_units[1].path, F_OK) < 0)
        return 0;
    if (admin->is_dry_run) {
        bt_admin_tell("would stop and disable: the units of berth");
        return 0;
    }
    int status = bt_admin_spawn(disable, false);
    if (status != 0) {
        bt_admin_complain("%s disable --now failed (%d)", BT_ADMIN_SYSTEMCTL, status);
        return 1;
    }
    bt_admin_tell("stopped and disabled: the units of berth");
    return 0;
}

/* An engine holds the lock of its own socket, and that of its audit log: what is taken from under it, it
 * would put back. */
static int check_lock(const char *path)
{
    bt_auto_fd fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    bt_admin_complain("a berth-helper runs: end it first (its pid: fuser %s)", path);
    return 1;
}

static int check_no_engine(const struct bt_config *config)
{
    char path[BT_CONFIG_PATH_SIZE + BT_AUDIT_NAME_SIZE];
    (void)snprintf(path, sizeof(path), "%s/audit.0", config->audit_folder);
    return check_lock(BT_INSTALLED_LOCK) + check_lock(path) > 0 ? 1 : 0;
}

/* ---- the kernel --------------------------------------------------------------------------------------- */

struct borrowed {
    int ifindexes[BT_UPLINKS_MAX];
    size_t count;
};

static void note_borrowed(void *context, const struct bt_element *element)
{
    struct borrowed *borrowed = context;
    if (element->key_length == sizeof(borrowed->ifindexes[0]) && borrowed->count < BT_UPLINKS_MAX)
        memcpy(&borrowed->ifindexes[borrowed->count++], element->key, sizeof(borrowed->ifindexes[0]));
}

/* Interfaces forward only since we asked for it: that ends first, as long as the rules still stand. */
static int return_uplinks(struct bt_kernel *kernel)
{
    struct borrowed borrowed = {.count = 0};
    int error = bt_set_dump(kernel, BT_SET_BORROWED, note_borrowed, &borrowed);
    for (size_t i = 0; error == 0 && i < borrowed.count; i++) {
        error = bt_uplink_set_forwarding(kernel, borrowed.ifindexes[i], false);
        if (error == -ENODEV)
            error = 0;
    }
    return error;
}

static int remove_table(struct bt_kernel *kernel)
{
    struct bt_batch batch;
    bt_transaction_start(kernel, &batch);
    bt_table_encode_removal(&batch);
    return bt_transaction_commit(kernel, &batch);
}

/* No slot is known here, so every device of ours is a stranger. */
static int remove_devices(struct bt_kernel *kernel)
{
    int count = bt_link_disown_strangers(kernel);
    int error = count < 0 ? count : bt_link_delete_dead(kernel);
    if (error == 0)
        bt_admin_tell("removed: %d interfaces", count);
    return error;
}

static int clean_kernel(const struct bt_admin *admin, const struct bt_config *config)
{
    struct bt_kernel *kernel;
    struct bt_element state;
    uint32_t ignored;
    int error = bt_kernel_open(&config->kernel, &kernel);
    if (error < 0)
        return fail("the kernel's netlink sockets cannot be opened", error, NULL);
    bt_state_element(0, &state);
    int state_error = bt_element_get(kernel, &state);
    if (state_error == 0)
        state_error = bt_state_read(&state, &ignored);
    bool has_table = state_error == 0 || state_error == -EPROTONOSUPPORT; /* ours, of whichever version */
    if (admin->is_dry_run) {
        bt_admin_tell("would remove: all interfaces of berth%s", has_table ? ", table inet berth" : "");
    } else {
        error = remove_devices(kernel);
        if (error == 0 && has_table)
            error = return_uplinks(kernel);
        if (error == 0 && has_table)
            error = remove_table(kernel);
        if (error == 0 && has_table)
            bt_admin_tell("removed: table inet berth");
    }
    bt_kernel_close(kernel);
    return error < 0 ? fail("the kernel did not let go of berth's interfaces or table", error,
                            "look at `ip link` and `nft list table inet berth`")
                     : 0;
}

/* ---- files and accounts ------------------------------------------------------------------------------- */

static int remove_path(const struct bt_admin *admin, const char *path, bool is_folder)
{
    if (admin->is_dry_run) {
        if (access(path, F_OK) == 0)
            bt_admin_tell("would remove: %s", path);
        return 0;
    }
    if ((is_folder ? rmdir(path) : unlink(path)) == 0) {
        bt_admin_tell("removed: %s", path);
        return 0;
    }
    if (errno == ENOENT)
        return 0;
    if (is_folder && (errno == ENOTEMPTY || errno == EEXIST)) {
        bt_admin_tell("kept: %s, which holds files that are not ours", path);
        return 0;
    }
    return fail(path, -errno, NULL);
}

/* A configuration in which nothing but comments stands says nothing that would be missed. */
static bool is_only_comments(const char *path)
{
    char text[16384];
    bool is_line_start = true, is_comment = false;
    bt_auto_fd fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof(text));
    for (ssize_t i = 0; i < length; i++) {
        is_comment = (is_comment || (is_line_start && text[i] == '#')) && text[i] != '\n';
        is_line_start = text[i] == '\n';
        if (!is_comment && text[i] != '\n')
            return false;
    }
    return length >= 0 && length < (ssize_t)sizeof(text);
}

static int remove_files(const struct bt_admin *admin, const struct bt_config *config)
{
    static const char *const run_files[] = {BT_INSTALLED_SOCKET, BT_INSTALLED_LOCK,
                                            BT_INSTALLED_STATUS_SOCKET, BT_INSTALLED_STATUS_LOCK};
    int bad = 0;
    for (size_t i = 0; i < bt_admin_unit_count; i++)
        bad += remove_path(admin, bt_admin_units[i].path, false);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(run_files); i++)
        bad += remove_path(admin, run_files[i], false);
    bad += remove_path(admin, BT_INSTALLED_RUN, true);
    bad += remove_path(admin, BT_INSTALLED_STATUS_RUN, true);
    if (is_only_comments(BT_CONFIG_PATH_DEFAULT))
        bad += remove_path(admin, BT_CONFIG_PATH_DEFAULT, false);
    else if (access(BT_CONFIG_PATH_DEFAULT, F_OK) == 0)
        bt_admin_tell("kept: %s, which was edited", BT_CONFIG_PATH_DEFAULT);
    bad += remove_path(admin, "/etc/berth", true);
    if (config->audit_folder[0] != '\0' && access(config->audit_folder, F_OK) == 0)
        bt_admin_tell("kept: the audit log in %s", config->audit_folder);
    return bad;
}

static int remove_account(const struct bt_admin *admin, const char *what, const char *file, const char *name,
                          const char *const *command)
{
    uint32_t number;
    if (bt_accounts_read(file, name, &number, NULL) == -ENOENT)
        return 0;
    int status = admin->is_dry_run ? 0 : bt_admin_spawn(command, false);
    if (status != 0) {
        bt_admin_complain("%s did not remove the %s %s (%d)", command[0], what, name, status);
        return 1;
    }
    bt_admin_tell("%s: %s %s", admin->is_dry_run ? "would remove" : "removed", what, name);
    return 0;
}

static int remove_accounts(const struct bt_admin *admin)
{
    static const char *const user[] = {USERDEL, "_berth", NULL};
    static const char *const own_group[] = {GROUPDEL, "_berth", NULL};
    static const char *const group[] = {GROUPDEL, "berth", NULL};
    int bad = remove_account(admin, "user", "/etc/passwd", "_berth", user);
    bad += remove_account(admin, "group", "/etc/group", "_berth", own_group); /* userdel may have done it */
    return bad + remove_account(admin, "group", "/etc/group", "berth", group);
}

int bt_admin_uninstall(const struct bt_admin *admin)
{
    static const char *const reload[] = {BT_ADMIN_SYSTEMCTL, "daemon-reload", NULL};
    struct bt_config config;
    struct bt_admin firewall = *admin;
    firewall.is_remove = true;
    if (geteuid() != 0) {
        bt_admin_complain("uninstall must be run by root");
        return 1;
    }
    if (bt_admin_read_config(admin, &config) < 0 || stop_units(admin) > 0 ||
        (!admin->is_dry_run && check_no_engine(&config) > 0))
        return 1;
    int bad = clean_kernel(admin, &config);
    if (bad > 0)
        return 1;
    bad += bt_admin_firewall(&firewall);
    bad += bt_admin_take_setuid(admin);
    bad += remove_files(admin, &config);
    bad += remove_accounts(admin);
    if (!admin->is_dry_run && access(BT_ADMIN_SYSTEMCTL, X_OK) == 0 &&
        access("/run/systemd/system", F_OK) == 0 && bt_admin_spawn(reload, false) != 0)
        bt_admin_complain("systemctl daemon-reload failed");
    if (bad == 0)
        bt_admin_tell("%s; the programs themselves: make uninstall",
                      admin->is_dry_run ? "nothing was changed" : "uninstalled");
    return bad == 0 ? 0 : 1;
}
