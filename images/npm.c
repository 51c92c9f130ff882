/* Has npm fetch what a recipe pins. See npm.h.
 *
 * Called for images on top of another one. Must run nothing of the packages: they are looked at only inside a
 * sandbox.
 */
#include "images/npm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "images/progress.h"
#include "lib/spawn.h"

#define LOCK_MAX (4UL << 20)
#define INSTALL_TIMEOUT_MS (30 * 60 * 1000)

static const char *const pins[] = {"package.json", "package-lock.json"};

static int read_pin(const struct bt_recipe *recipe, const char *name, struct bt_buffer *ret_text,
                    struct bt_error *error)
{
    char folder[512], path[768];
    int result = bt_recipe_folder(folder, error);
    if (result < 0)
        return result;
    (void)snprintf(path, sizeof path, "%s/%s/%s", folder, recipe->name, name);
    return bt_file_read(path, LOCK_MAX, ret_text, error);
}

int bt_npm_add_digests(const struct bt_recipe *recipe, struct bt_buffer *inputs, struct bt_error *error)
{
    int result = 0;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(pins) && result == 0; i++) {
        bt_auto_buffer text = {0};
        char digest[BT_DIGEST_TEXT_SIZE];
        result = read_pin(recipe, pins[i], &text, error);
        if (result < 0)
            break;
        bt_digest_bytes(text.data, text.length, digest);
        result = bt_buffer_add_format(inputs, "%s %s\n", pins[i], digest);
    }
    return result;
}

static int write_pins(const struct bt_recipe *recipe, const char *folder, struct bt_error *error)
{
    int result = bt_folder_make(folder, 0755, error);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(pins) && result == 0; i++) {
        bt_auto_buffer text = {0};
        bt_auto_free char *path = bt_string_format("%s/%s", folder, pins[i]);
        result = read_pin(recipe, pins[i], &text, error);
        if (result == 0)
            result = bt_file_write(path, text.data, text.length, 0644, error);
    }
    return result;
}

/* What npm is told where it runs: its own variables, proxies, and what to trust. */
static void npm_environment(struct bt_list *environment)
{
    static const char *const kept[] = {"PATH",        "HOME",         "TMPDIR",        "http_proxy",
                                       "https_proxy", "HTTP_PROXY",   "HTTPS_PROXY",   "no_proxy",
                                       "NO_PROXY",    "SSL_CERT_DIR", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"};
    static const char own[] = "npm_config_";
    for (size_t i = 0; i < BT_ARRAY_LENGTH(kept); i++) {
        const char *value = getenv(kept[i]);
        if (value != NULL)
            bt_list_add_format(environment, "%s=%s", kept[i], value);
    }
    for (char **variable = environ; *variable != NULL; variable++) {
        if (strncasecmp(*variable, own, sizeof own - 1) == 0)
            bt_list_add(environment, *variable);
    }
    bt_list_add(environment, "LC_ALL=C.UTF-8");
}

static int run_npm(const char *folder, struct bt_error *error)
{
    static const char *const arguments[] = {
        "npm",        "ci",        "--ignore-scripts", "--omit=dev",       "--prefer-offline",
        "--no-audit", "--no-fund", "--logs-max=0",     "--loglevel=error", NULL};
    bt_auto_list environment = {0};
    struct bt_spawn_result run = {0};
    npm_environment(&environment);
    struct bt_spawn spawn = {.arguments = arguments,
                             .environment = (const char *const *)environment.items,
                             .folder = folder,
                             .timeout_ms = INSTALL_TIMEOUT_MS};
    int result = bt_spawn_check(&spawn, &run, error);
    bt_spawn_result_free(&run);
    if (result == -ENOENT)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, "install the package npm, or Node.js with it",
                       "cannot start npm: it is not installed");
    return result;
}

/* The lock file may lack this machine's architecture, and npm leaves out what it takes for optional. */
static int link_command(const struct bt_recipe *recipe, const char *root, const char *name, const char *path,
                        struct bt_error *error)
{
    bt_auto_free char *target = bt_string_format("/opt/%s/node_modules/%s", recipe->name, path);
    bt_auto_free char *real = bt_string_format("%s%s", root, target);
    bt_auto_free char *link = bt_string_format("%s/usr/local/bin/%s", root, name);
    struct stat status;
    if (stat(real, &status) < 0 || !S_ISREG(status.st_mode) || (status.st_mode & S_IXUSR) == 0)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, "correct the recipe, or its package-lock.json",
                       "npm installed no program node_modules/%s", path);
    if (symlink(target, link) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make %s: %s", link, strerror(errno));
    return 0;
}

int bt_npm_install(const struct bt_recipe *recipe, const char *root, const struct bt_progress *progress,
                   struct bt_error *error)
{
    bt_auto_free char *folder = bt_string_format("%s/opt/%s", root, recipe->name);
    bt_auto_free char *commands = bt_string_format("%s/usr/local/bin", root);
    bt_progress_report(progress, "fetching packages with npm", 0, 0);
    int result = write_pins(recipe, folder, error);
    if (result == 0)
        result = run_npm(folder, error);
    if (result == 0)
        result = bt_folder_make(commands, 0755, error);
    for (size_t i = 0; i + 1 < recipe->commands.count && result == 0; i += 2)
        result = link_command(recipe, root, recipe->commands.items[i], recipe->commands.items[i + 1], error);
    return result;
}
