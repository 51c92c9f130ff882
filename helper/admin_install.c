/* `berth-helper install`: accounts, configuration and units, each only if it is not as it should be.
 *
 * Run by root, by hand or from a package, as often as one likes. It refuses before it changes anything when
 * the address blocks are taken or the program lies where others can write. It must not change a configuration
 * that is there, nor use a shell.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "helper/accounts.h"
#include "helper/admin.h"

#define GROUPADD "/usr/sbin/groupadd"
#define USERADD "/usr/sbin/useradd"
#define TMPFILES "/usr/bin/systemd-tmpfiles"
#define FILE_SIZE_MAX 16384

static const char configuration[] =
    "# berth-helper's configuration; see berth-helper(8). Everything is optional.\n"
    "#slots: 256\n"
    "#slots_per_uid: 64\n"
    "#tap_base: 10.243.0.0\n"
    "#bridge_base: 10.242.0.0\n"
    "#uplink_private: allow\n"
    "#audit_folder: /var/log/berth\n";

/* ---- before anything is changed ----------------------------------------------------------------------- */

static int check_program(void)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (length < 0) {
        bt_admin_complain("/proc/self/exe: %s; is /proc mounted?", strerror(errno));
        return 1;
    }
    path[length] = '\0';
    if (strcmp(path, BT_ADMIN_HELPER) != 0) {
        bt_admin_complain(
            "this program is %s, and the units start %s: run `make install` first, then %s install", path,
            BT_ADMIN_HELPER, BT_ADMIN_HELPER);
        return 1;
    }
    return bt_admin_walk(path) > 0 ? 1 : 0;
}

/* ---- accounts ----------------------------------------------------------------------------------------- */

static int make_account(const struct bt_admin *admin, const char *what, const char *file, const char *name,
                        const char *const *command)
{
    uint32_t number, second;
    bool is_user = strcmp(what, "user") == 0;
    if (bt_accounts_read(file, name, &number, is_user ? &second : NULL) == 0) {
        bt_admin_tell("found: %s %s (%u)", what, name, number);
        return 0;
    }
    if (admin->is_dry_run) {
        bt_admin_tell("would make: %s %s", what, name);
        return 0;
    }
    int status = bt_admin_spawn(command, false);
    if (status != 0 || bt_accounts_read(file, name, &number, is_user ? &second : NULL) < 0) {
        bt_admin_complain("%s did not make the %s %s (%d); make it by hand", command[0], what, name, status);
        return 1;
    }
    bt_admin_tell("made: %s %s (%u)", what, name, number);
    return 0;
}

static int make_accounts(const struct bt_admin *admin)
{
    static const char *const group[] = {GROUPADD, "--system", "berth", NULL};
    static const char *const user[] = {
        USERADD,        "--system", "--user-group",      "--no-create-home", "--home-dir",
        "/nonexistent", "--shell",  "/usr/sbin/nologin", "_berth",           NULL};
    int bad = make_account(admin, "group", "/etc/group", "berth", group);
    return bad + make_account(admin, "user", "/etc/passwd", "_berth", user);
}

/* ---- files -------------------------------------------------------------------------------------------- */

static int make_folder_of(const char *path)
{
    char folder[PATH_MAX];
    (void)snprintf(folder, sizeof(folder), "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0755) < 0 && errno != EEXIST)
            return -errno;
        *slash = '/';
    }
    return 0;
}

static int read_file(const char *path, char ret_text[FILE_SIZE_MAX], size_t *ret_length)
{
    bt_auto_fd fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd < 0 ? -1 : read(fd, ret_text, FILE_SIZE_MAX);
    if (got < 0)
        return -errno;
    *ret_length = (size_t)got;
    return 0;
}

/* Beside its place, then renamed: a reader sees the old one or the new one. */
static int write_file(const char *path, const char *content)
{
    char fresh[PATH_MAX];
    size_t length = strlen(content);
    (void)snprintf(fresh, sizeof(fresh), "%s.new", path);
    int error = make_folder_of(path);
    if (error < 0)
        return error;
    if (unlink(fresh) < 0 && errno != ENOENT)
        return -errno;
    bt_auto_fd fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    if (write(fd, content, length) != (ssize_t)length)
        error = errno != 0 ? -errno : -EIO;
    else if (fchmod(fd, 0644) < 0 || fsync(fd) < 0 || rename(fresh, path) < 0)
        error = -errno;
    if (error < 0)
        (void)unlink(fresh);
    return error;
}

static int install_file(const struct bt_admin *admin, const struct bt_admin_file *file, bool is_kept,
                        bool *has_changed)
{
    char text[FILE_SIZE_MAX];
    size_t length = 0;
    int error = read_file(file->path, text, &length);
    bool is_there = error == 0;
    if (is_there &&
        (is_kept || (length == strlen(file->content) && memcmp(text, file->content, length) == 0))) {
        bt_admin_tell("found: %s", file->path);
        return 0;
    }
    *has_changed = true;
    if (admin->is_dry_run) {
        bt_admin_tell("would %s: %s", is_there ? "replace" : "write", file->path);
        return 0;
    }
    error = is_there || error == -ENOENT ? write_file(file->path, file->content) : error;
    if (error < 0) {
        bt_admin_complain("%s cannot be written: %s", file->path, strerror(-error));
        return 1;
    }
    bt_admin_tell("%s: %s", is_there ? "replaced" : "wrote", file->path);
    return 0;
}

static int install_files(const struct bt_admin *admin, bool *has_changed)
{
    static const struct bt_admin_file config = {BT_CONFIG_PATH_DEFAULT, configuration, NULL};
    int bad = install_file(admin, &config, true, has_changed);
    for (size_t i = 0; i < bt_admin_unit_count; i++)
        if (!bt_admin_units[i].folder || access(bt_admin_units[i].folder, F_OK) == 0)
            bad += install_file(admin, &bt_admin_units[i], false, has_changed);
    return bad;
}

/* ---- starting ----------------------------------------------------------------------------------------- */

#define UNIT_SOCKETS "berth-helper.socket", "berth-helper-status.socket"
#define UNIT_SERVICES "berth-helper.service", "berth-firewall.service"

static bool are_units_enabled(void)
{
    static const char *const units[] = {UNIT_SOCKETS, UNIT_SERVICES};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(units); i++) {
        const char *const query[] = {BT_ADMIN_SYSTEMCTL, "is-enabled", "--quiet", units[i], NULL};
        if (bt_admin_spawn(query, true) != 0)
            return false;
    }
    return true;
}

/* The number behind `NAME=` in what systemctl shows; 0: there is none. */
static uint64_t number_of(const char *text, const char *name)
{
    uint64_t number = 0;
    const char *at = strstr(text, name);
    if (!at)
        return 0;
    at += strlen(name);
    return bt_number_parse(at, strcspn(at, "\n"), 1, INT64_MAX, &number) < 0 ? 0 : number;
}

#define MICROSECONDS 1000000 /* a second */
#define TICK 10000

/* Of the six digits behind the point, zeros in front of them included; -1: they are none. */
static int64_t fraction_of(const char *digits)
{
    int64_t fraction = 0;
    for (int i = 0; i < 6; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return -1;
        fraction = fraction * 10 + (digits[i] - '0');
    }
    return fraction;
}

/* The moment behind `NAME=` in microseconds, `Mon 2025-01-13 10:00:00.123456 UTC`; 0: there is none. */
static int64_t moment_of(const char *text, const char *name)
{
    struct tm moment = {.tm_isdst = 0};
    const char *at = strstr(text, name);
    at = at ? strptime(at + strlen(name), "%a %Y-%m-%d %H:%M:%S", &moment) : NULL;
    int64_t fraction = at && *at == '.' ? fraction_of(at + 1) : -1;
    return fraction < 0 ? 0 : (int64_t)timegm(&moment) * MICROSECONDS + fraction;
}

/* Is the helper that runs the program as it is installed, and younger than its configuration? The link of a
 * program that was exchanged ends in " (deleted)". A file's time is that of the kernel's last tick, up to 10
 * ms ago: in doubt the helper is restarted. */
static bool is_running_current(void)
{
    static const char *const show[] = {BT_ADMIN_SYSTEMCTL,     "show",
                                       "--timestamp=us+utc",   "--property=MainPID,ExecMainStartTimestamp",
                                       "berth-helper.service", NULL};
    char text[256], process[64], program[PATH_MAX];
    struct stat config;
    if (bt_admin_read_output(show, text, sizeof(text)) != 0)
        return false;
    (void)snprintf(process, sizeof(process), "/proc/%u/exe", (unsigned)number_of(text, "MainPID="));
    ssize_t length = readlink(process, program, sizeof(program) - 1);
    if (length < 0 || stat(BT_CONFIG_PATH_DEFAULT, &config) < 0)
        return false;
    program[length] = '\0';
    int64_t edited = (int64_t)config.st_mtim.tv_sec * MICROSECONDS + config.st_mtim.tv_nsec / 1000;
    return strcmp(program, BT_ADMIN_HELPER) == 0 &&
           edited + TICK < moment_of(text, "ExecMainStartTimestamp=");
}

/* Each must end with 0; one that does not is named. */
static int run_all(const char *const *const *commands, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int status = bt_admin_spawn(commands[i], false);
        if (status != 0) {
            bt_admin_complain("%s %s failed (%d); what it said is above, and in the journal; install can be "
                              "run again",
                              commands[i][0], commands[i][1], status);
            return 1;
        }
    }
    return 0;
}

/* The service is restarted: an upgrade is one, and those who hold leases adopt them again. */
static int start(const struct bt_admin *admin, bool has_changed)
{
    static const char *const folders[] = {TMPFILES, "--create", "/etc/tmpfiles.d/berth.conf", NULL};
    static const char *const reload[] = {BT_ADMIN_SYSTEMCTL, "daemon-reload", NULL};
    static const char *const sockets[] = {BT_ADMIN_SYSTEMCTL, "enable", "--now", UNIT_SOCKETS, NULL};
    static const char *const services[] = {BT_ADMIN_SYSTEMCTL, "enable", UNIT_SERVICES, NULL};
    static const char *const restart[] = {BT_ADMIN_SYSTEMCTL, "restart", "berth-helper.service", NULL};
    const char *const *const commands[] = {folders, reload, sockets, services, restart};
    if (access(BT_ADMIN_SYSTEMCTL, X_OK) < 0 || access("/run/systemd/system", F_OK) < 0) {
        bt_admin_tell("no systemd runs here: start `%s listen --status-socket " BT_INSTALLED_STATUS_SOCKET
                      "` as root, and `%s firewall` after each start of another firewall",
                      BT_ADMIN_HELPER, BT_ADMIN_HELPER);
        return 0;
    }
    if (!has_changed && are_units_enabled() && is_running_current()) {
        bt_admin_tell("found: enabled units, and the installed helper running with this configuration");
        return 0;
    }
    if (!admin->is_dry_run && run_all(commands, BT_ARRAY_LENGTH(commands)) > 0)
        return 1;
    bt_admin_tell("%s: the units of berth; agents keep their slots",
                  admin->is_dry_run ? "would enable and restart" : "enabled and restarted");
    return admin->is_dry_run ? 0 : bt_admin_tell_engine();
}

int bt_admin_install(const struct bt_admin *admin)
{
    struct bt_config config;
    bool has_changed = false;
    if (geteuid() != 0) {
        bt_admin_complain("install must be run by root");
        return 1;
    }
    if (bt_admin_read_config(admin, &config) < 0 || check_program() > 0 ||
        bt_admin_check_blocks(&config) > 0) {
        bt_admin_complain("nothing was changed");
        return 1;
    }
    if (make_accounts(admin) > 0 || install_files(admin, &has_changed) > 0 ||
        (admin->is_setuid && bt_admin_give_setuid(admin) > 0) || bt_admin_firewall(admin) > 0 ||
        start(admin, has_changed) > 0)
        return 1;
    if (!admin->is_dry_run && bt_admin_find_blocking_chains() > 0)
        bt_admin_complain("agents reach nothing before those chains accept the interfaces of berth");
    bt_admin_tell("%s; users that may run agents: usermod -a -G berth USER",
                  admin->is_dry_run ? "nothing was changed" : "installed");
    return 0;
}
