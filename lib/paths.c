/* The user's folders by the XDG base directory specification. See file.h. */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/file.h"

/* HOME, else what the user database says: cron, sudo and some service managers leave HOME out. */
static const char *home_folder(void)
{
    const char *home = getenv("HOME");
    const struct passwd *entry = home != NULL && home[0] != '\0' ? NULL : getpwuid(geteuid());
    return entry != NULL ? entry->pw_dir : home;
}

/* Writes <base>/<suffix>, where base is the variable's value, or <home>/<fallback> when it is unset or empty.
 */
static int folder_from(const char *variable, const char *fallback, const char *suffix, char ret_path[512],
                       struct bt_error *error)
{
    const char *value = getenv(variable);
    int length;
    if (value != NULL && value[0] != '\0') {
        if (value[0] != '/')
            return bt_fail(error, BT_EXIT_ERROR, EINVAL, "set it to an absolute path, or unset it",
                           "the variable %s holds a relative path", variable);
        length = snprintf(ret_path, 512, "%s%s", value, suffix);
    } else {
        const char *home = home_folder();
        if (home == NULL || home[0] != '/')
            return bt_fail(error, BT_EXIT_ERROR, EINVAL, "set HOME to your home folder",
                           home == NULL || home[0] == '\0' ? "the variable HOME is not set"
                                                           : "the variable HOME is not an absolute path");
        length = snprintf(ret_path, 512, "%s/%s%s", home, fallback, suffix);
    }
    if (length < 0 || length >= 512)
        return bt_fail(error, BT_EXIT_ERROR, ENAMETOOLONG, NULL, "the path in %s is too long", variable);
    return 0;
}

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0';
}

int bt_paths_load(struct bt_paths *ret_paths, struct bt_error *error)
{
    struct bt_paths paths;
    int result = is_set("BERTH_CONFIG_HOME")
                     ? folder_from("BERTH_CONFIG_HOME", "", "", paths.config, error)
                     : folder_from("XDG_CONFIG_HOME", ".config", "/berth", paths.config, error);
    if (result == 0)
        result = is_set("BERTH_STATE_HOME")
                     ? folder_from("BERTH_STATE_HOME", "", "", paths.state, error)
                     : folder_from("XDG_STATE_HOME", ".local/state", "/berth", paths.state, error);
    if (result == 0)
        result = folder_from("XDG_DATA_HOME", ".local/share", "/berth/images", paths.images, error);
    if (result == 0)
        result = folder_from("XDG_CACHE_HOME", ".cache", "/berth", paths.cache, error);
    if (result == 0 && is_set("XDG_RUNTIME_DIR"))
        result = folder_from("XDG_RUNTIME_DIR", "", "/berth", paths.runtime, error);
    else if (result == 0 && snprintf(paths.runtime, sizeof paths.runtime, "%s/run", paths.state) >=
                                (int)sizeof paths.runtime)
        result =
            bt_fail(error, BT_EXIT_ERROR, ENAMETOOLONG, NULL, "the path of the state folder is too long");
    if (result == 0)
        *ret_paths = paths;
    return result;
}
