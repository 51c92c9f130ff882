/* The administrator's commands: arguments, and what they share.
 *
 * Called by main. It must not run as part of the engine.
 */
#include "helper/admin.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINES_DEFAULT 20
#define EXIT_USAGE 64

static const struct command {
    const char *name;
    int (*run)(const struct bt_admin *admin);
    const char *options; /* what is permitted besides --config */
} commands[] = {
    {"install", bt_admin_install, "--dry-run --setuid"},
    {"uninstall", bt_admin_uninstall, "--dry-run"},
    {"status", bt_admin_status, ""},
    {"audit", bt_admin_audit, "--verify --lines"},
    {"check", bt_admin_check, ""},
    {"firewall", bt_admin_firewall, "--remove"},
};

void bt_admin_tell(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    (void)putchar('\n');
}

void bt_admin_complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fputs("berth-helper: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
}

int bt_admin_read_config(const struct bt_admin *admin, struct bt_config *ret_config)
{
    struct bt_config config;
    const char *path = admin->config_path ? admin->config_path : BT_CONFIG_PATH_DEFAULT;
    bt_config_init(&config);
    int error = bt_config_read(path, &config);
    if (error == -ENOENT && !admin->config_path)
        error = 0;
    if (error == -EINVAL) /* where it is wrong has been said */
        bt_admin_complain("%s cannot be used before that is corrected; see berth-helper(8), CONFIGURATION",
                          path);
    else if (error < 0)
        bt_admin_complain("%s: %s; it must be a regular file of root that only root can write", path,
                          strerror(-error));
    if (error == 0)
        *ret_config = config;
    return error;
}

/* output_fd: standard output; -1: as ours. */
static int spawn(const char *const *arguments, int output_fd, bool is_quiet)
{
    static char path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin", locale[] = "LC_ALL=C";
    char *environment[] = {path, locale, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status;
    int error = posix_spawn_file_actions_init(&actions);
    if (error == 0 && is_quiet)
        error = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (error == 0 && is_quiet)
        error = posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    if (error == 0 && output_fd >= 0)
        error = posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
    (void)fflush(NULL);
    if (error == 0) /* posix_spawn does not write to the vector, though its type says it may */
        error = posix_spawn(&child, arguments[0], &actions, NULL, (char *const *)(uintptr_t)arguments,
                            environment);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        return -error;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int bt_admin_spawn(const char *const *arguments, bool is_quiet)
{
    return spawn(arguments, -1, is_quiet);
}

int bt_admin_read_output(const char *const *arguments, char *ret_text, size_t size)
{
    bt_auto_fd fd = memfd_create("output", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int status = spawn(arguments, fd, true);
    ssize_t got = status < 0 ? 0 : pread(fd, ret_text, size - 1, 0);
    if (got < 0)
        return -errno;
    ret_text[got] = '\0';
    return status;
}

static int parse_option(const struct command *command, const char *name, const char *value,
                        struct bt_admin *admin, bool *ret_has_value)
{
    uint64_t number;
    *ret_has_value = false;
    if (strcmp(name, "--config") == 0 && value) {
        *ret_has_value = true;
        admin->config_path = value;
        return 0;
    }
    if (!strstr(command->options, name))
        return -EINVAL;
    if (strcmp(name, "--dry-run") == 0)
        admin->is_dry_run = true;
    else if (strcmp(name, "--verify") == 0)
        admin->is_verify = true;
    else if (strcmp(name, "--remove") == 0)
        admin->is_remove = true;
    else if (strcmp(name, "--setuid") == 0)
        admin->is_setuid = true;
    else if (strcmp(name, "--lines") == 0 && value &&
             bt_number_parse(value, strnlen(value, 16), 1, UINT32_MAX, &number) == 0)
        admin->lines = (uint32_t)number;
    else
        return -EINVAL;
    *ret_has_value = strcmp(name, "--lines") == 0;
    return 0;
}

static int run(const struct command *command, int count, char **arguments)
{
    struct bt_admin admin = {.lines = LINES_DEFAULT};
    for (int i = 0; i < count; i++) {
        bool has_value;
        const char *value = i + 1 < count ? arguments[i + 1] : NULL;
        if (parse_option(command, arguments[i], value, &admin, &has_value) < 0) {
            bt_admin_complain("%s: unknown option or missing value: %s; permitted are --config FILE %s",
                              command->name, arguments[i], command->options);
            return EXIT_USAGE;
        }
        i += has_value ? 1 : 0;
    }
    int status = command->run(&admin);
    if (fflush(stdout) != 0 && status == 0) {
        bt_admin_complain("standard output cannot be written: %s", strerror(errno));
        status = 1;
    }
    return status;
}

bool bt_admin_run(int count, char **arguments, int *ret_status)
{
    for (size_t i = 0; count > 0 && i < BT_ARRAY_LENGTH(commands); i++) {
        if (strcmp(arguments[0], commands[i].name) != 0)
            continue;
        *ret_status = run(&commands[i], count - 1, arguments + 1);
        return true;
    }
    return false;
}
