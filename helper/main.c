/* berth-helper: the only privileged program of berth.
 *
 * Started by root (a service manager, an administrator, or root of a user namespace). Goes through its
 * stages, each of which can only take rights away, and then serves clients until it is killed. It must not
 * read the environment past stage 1, run another program, or listen before it has been confined as far as
 * listening allows.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "helper/accounts.h"
#include "helper/admin.h"
#include "helper/config.h"
#include "helper/engine.h"
#include "helper/installed.h"
#include "helper/listener.h"
#include "helper/privilege.h"
#include "helper/sanitise.h"
#include "helper/say.h"

#define EXIT_USAGE 64
#define USER_NAME "_berth"
#define GROUP_NAME "berth"

static const char usage[] =
    "usage: berth-helper listen [--socket PATH] [--status-socket PATH] [--config PATH]\n"
    "                           [--user UID] [--group GID]\n"
    "       berth-helper install [--dry-run] [--setuid] | uninstall [--dry-run] | status | check\n"
    "       berth-helper audit [--verify] [--lines N] | firewall [--remove]   (each: [--config PATH])\n"
    "  listen serves " BT_INSTALLED_SOCKET " (or PATH, or the socket that a service manager passes)\n"
    "  --status-socket  a second socket, for everybody, that tells the state and nothing else\n"
    "  --config  numeric configuration, default " BT_CONFIG_PATH_DEFAULT "\n"
    "  --user    run as this uid (and gid) instead of " USER_NAME "\n"
    "  --group   let members of this gid connect instead of " GROUP_NAME "\n";

struct options {
    const char *socket_path, *status_path, *config_path;
    uint32_t user_uid, socket_gid; /* BT_CONFIG_ID_UNSET: from the configuration */
};

/* Constant size, never freed: the engine allocates nothing. */
static struct bt_engine engine;
static struct bt_audit audit;

static int refuse_usage(void)
{
    (void)!write(STDERR_FILENO, usage, sizeof(usage) - 1);
    return EXIT_USAGE;
}

static int parse_id(const char *text, uint32_t *ret_id)
{
    uint64_t number;
    int error = bt_number_parse(text, strnlen(text, 16), 1, UINT32_MAX - 1, &number);
    if (error == 0)
        *ret_id = (uint32_t)number;
    return error;
}

static int parse_options(int count, char **arguments, struct options *ret_options)
{
    struct options options = {BT_INSTALLED_SOCKET, NULL, NULL, BT_CONFIG_ID_UNSET, BT_CONFIG_ID_UNSET};
    for (int i = 0; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        int error = 0;
        if (i + 1 == count)
            return -EINVAL;
        if (strcmp(name, "--socket") == 0)
            options.socket_path = value;
        else if (strcmp(name, "--status-socket") == 0)
            options.status_path = value;
        else if (strcmp(name, "--config") == 0)
            options.config_path = value;
        else if (strcmp(name, "--user") == 0)
            error = parse_id(value, &options.user_uid);
        else if (strcmp(name, "--group") == 0)
            error = parse_id(value, &options.socket_gid);
        else
            error = -EINVAL;
        if (error < 0)
            return error;
    }
    *ret_options = options;
    return 0;
}

/* What an account is for, and what gives its number instead. */
struct account {
    const char *path, *name, *what, *hint;
};

static int resolve(const struct account *account, uint32_t *id, uint32_t *second_id)
{
    uint32_t number = 0, second = 0;
    if (*id != BT_CONFIG_ID_UNSET)
        return 0;
    int error = bt_accounts_read(account->path, account->name, &number, second_id ? &second : NULL);
    if (error < 0) {
        bt_say_error(account->what, error, account->hint);
        return error;
    }
    *id = number;
    if (second_id && *second_id == BT_CONFIG_ID_UNSET)
        *second_id = second;
    return 0;
}

/* After this there are only numbers. */
static int resolve_accounts(struct bt_config *config)
{
    static const struct account user = {"/etc/passwd", USER_NAME,
                                        "the user " USER_NAME " in /etc/passwd, whom it runs as",
                                        "run `berth-helper install`, or set user_uid in the configuration"};
    static const struct account group = {
        "/etc/group", GROUP_NAME, "the group " GROUP_NAME " in /etc/group, who may connect",
        "run `berth-helper install`, or set socket_group in the configuration"};
    int error = resolve(&user, &config->user_uid, &config->user_gid);
    if (error == 0 && config->user_gid == BT_CONFIG_ID_UNSET)
        config->user_gid = config->user_uid;
    return error < 0 ? error : resolve(&group, &config->socket_gid, NULL);
}

static const char *advise_config(int error)
{
    switch (error) {
    case -ENOENT:
        return "make this file, or leave out --config for the defaults";
    case -EPERM:
        return "it must be a regular file that root owns and nobody else can write: chown root, chmod 644";
    case -EINVAL:
        return "correct it; nothing was started";
    default:
        return "it is the configuration, without which nothing is started";
    }
}

static int read_config(const struct options *options, struct bt_config *config)
{
    const char *path = options->config_path ? options->config_path : BT_CONFIG_PATH_DEFAULT;
    bt_config_init(config);
    int error = bt_config_read(path, config);
    if (error == -ENOENT && !options->config_path)
        error = 0;
    if (error < 0) {
        bt_say_error(path, error, advise_config(error));
        return error;
    }
    if (bt_config_blocks_overlap(bt_config_tap_block(&config->kernel.pool),
                                 bt_config_bridge_block(&config->kernel.pool))) {
        bt_say("the blocks of tap_base and bridge_base overlap; set one of them to another block in the "
               "configuration: `berth-helper install --dry-run` proposes a free one");
        return -EINVAL;
    }
    if (options->user_uid != BT_CONFIG_ID_UNSET)
        config->user_uid = config->user_gid = options->user_uid;
    if (options->socket_gid != BT_CONFIG_ID_UNSET)
        config->socket_gid = options->socket_gid;
    return resolve_accounts(config);
}

/* What stage 2 opens: everything that needs root. Held until the end of the process. */
struct opened {
    int listen_fd, status_fd, lock_fd, status_lock_fd;
    struct bt_kernel *kernel;
    struct bt_audit *audit; /* NULL: switched off */
};

static int check_passed(int fd)
{
    int error = fd < 0 ? 0 : bt_listener_check_passed(fd);
    if (error < 0)
        bt_say_error("a passed socket is not a listening SOCK_SEQPACKET of AF_UNIX", error,
                     "correct the socket units, or run `berth-helper install` to write them anew");
    return error;
}

static int open_sockets(const struct options *options, const struct bt_config *config, struct opened *opened)
{
    int error = check_passed(opened->listen_fd);
    if (error == 0)
        error = check_passed(opened->status_fd);
    if (error == 0 && opened->listen_fd < 0)
        error = bt_listener_open(options->socket_path, config->socket_gid, false, &opened->listen_fd,
                                 &opened->lock_fd);
    if (error == 0 && opened->status_fd < 0 && options->status_path)
        error = bt_listener_open(options->status_path, config->socket_gid, true, &opened->status_fd,
                                 &opened->status_lock_fd);
    return error;
}

static const char *advise_audit(int error)
{
    switch (error) {
    case -EALREADY:
        return "another berth-helper writes it; stop that one first";
    case -EPERM:
        return "audit_folder and its files must be root's, and writable by root alone";
    case -EUCLEAN:
        return "its files have another size; move them away, or set audit_lines back";
    case -ENOSPC:
        return "it needs all its space at the start; see audit_lines";
    default:
        return "see audit_folder in the configuration; `none` switches it off";
    }
}

static int open_audit(const struct bt_config *config, struct opened *opened)
{
    if (config->audit_folder[0] == '\0') {
        bt_say("no audit log is written (audit_folder: none)");
        return 0;
    }
    int error = bt_audit_open(config->audit_folder, config->audit_lines, &audit);
    if (error < 0)
        bt_say_error("the audit log cannot be opened", error, advise_audit(error));
    else
        opened->audit = &audit;
    return error;
}

static int open_all(const struct options *options, const struct bt_config *config, struct opened *opened)
{
    int error = open_sockets(options, config, opened);
    if (error == 0)
        error = open_audit(config, opened);
    if (error < 0)
        return error;
    error = bt_kernel_open(&config->kernel, &opened->kernel);
    if (error < 0)
        bt_say_error("the kernel's netlink sockets cannot be opened", error,
                     "load the modules nf_tables and nf_conntrack_netlink; nothing was started");
    return error;
}

/* Stages 3 to 5. */
static int give_up_rights(const struct bt_config *config)
{
    bool is_confined = false;
    int error = bt_privilege_drop(config->user_uid, config->user_gid);
    if (error < 0) {
        bt_say_error("giving up root failed", error,
                     "nothing was started; it must be started by root with CAP_SETUID, CAP_SETGID, "
                     "CAP_SETPCAP and CAP_NET_ADMIN");
        return error;
    }
    error = bt_privilege_confine_files(&is_confined);
    if (error < 0) {
        bt_say_error("/dev/net/tun cannot be used", error, "load the module tun: modprobe tun");
        return error;
    }
    if (!is_confined)
        bt_say("this kernel has no Landlock: what files the account " USER_NAME
               " may open is the limit then");
    error = bt_privilege_confine_calls();
    if (error < 0)
        bt_say_error("the system call filter cannot be set", error,
                     "nothing was started; the kernel needs CONFIG_SECCOMP_FILTER");
    return error;
}

static int serve(const struct bt_config *config, const struct opened *opened)
{
    struct bt_engine_options options = {
        .pool = config->kernel.pool,
        .quota = config->quota < config->kernel.pool.slots ? config->quota : config->kernel.pool.slots,
        .admission = config->admission,
        .now_ms = bt_boottime_ms,
        .audit = opened->audit,
    };
    int error = bt_engine_start(&engine, &options, opened->kernel);
    if (error == 0)
        error = bt_engine_listen(&engine, opened->listen_fd, false);
    if (error == 0 && opened->status_fd >= 0)
        error = bt_engine_listen(&engine, opened->status_fd, true);
    if (error == 0)
        bt_say("ready");
    while (error == 0)
        error = bt_engine_step(&engine, -1);
    bt_say_error("the engine stops", error, "the rules in the kernel stay as they are");
    return error;
}

static const char *advise_state(int error)
{
    switch (error) {
    case -EMFILE:
        return "allow at least 128 descriptors: ulimit -n";
    case -EPERM:
        return "start it without a limit on CPU time and file size: ulimit -t, ulimit -f";
    default:
        return "nothing was started; /dev/null must be there";
    }
}

static int run_listen(const struct options *options, char *const *environment)
{
    struct bt_config config;
    struct bt_passed_sockets passed;

    if (geteuid() != 0) {
        bt_say(
            "listen must be started by root (it gives root up itself): use sudo, or the units of `install`");
        return 1;
    }
    int error = bt_sanitise_find_passed_sockets(environment, &passed);
    if (error < 0) {
        bt_say_error("LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES do not name the helper's sockets", error,
                     "correct the socket units, or run `berth-helper install` to write them anew");
        return 1;
    }
    error = bt_sanitise(passed.count, environment);
    if (error < 0) {
        bt_say_error("what the starter left behind cannot be made safe", error, advise_state(error));
        return 1;
    }
    struct opened opened = {
        .listen_fd = passed.main_fd, .status_fd = passed.status_fd, .lock_fd = -1, .status_lock_fd = -1};
    if (read_config(options, &config) < 0 || open_all(options, &config, &opened) < 0 ||
        give_up_rights(&config) < 0)
        return 1;
    return serve(&config, &opened) < 0 ? 1 : 0; /* exit closes the rest */
}

int main(int argc, char **argv, char **environment)
{
    struct options options;
    int status;
    if (argc < 1)
        return 127; /* an empty argument vector: everything below would read past it */
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0))
        return write(STDOUT_FILENO, usage, sizeof(usage) - 1) < 0 ? 1 : 0;
    if (argc >= 2 && bt_admin_run(argc - 1, argv + 1, &status))
        return status;
    if (argc < 2 || strcmp(argv[1], "listen") != 0 || parse_options(argc - 2, argv + 2, &options) < 0)
        return refuse_usage();
    return run_listen(&options, environment);
}
