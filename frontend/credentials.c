/* The user's credentials on disk. See credentials.h.
 *
 * Called by `berth credential`, by commands before a launch, and by keepers at each registration. Must put no
 * value into a message.
 */
#include "frontend/credentials.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/state.h"
#include "policy/rules/rules.h"

#define CREDENTIALS_MAX 1000U

int bt_credential_check_name(const char *name, struct bt_error *error)
{
    if (bt_name_is_valid(name))
        return 0;
    return bt_fail(error, BT_EXIT_USAGE, EINVAL, "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                   "'%.64s' cannot be the name of a credential", name);
}

static char *folder_of(const struct bt_paths *paths)
{
    return bt_string_format("%s/credentials", paths->state);
}

static int check_value(const char *value, size_t length, struct bt_error *error)
{
    if (length < BT_CREDENTIAL_VALUE_MIN || length > BT_CREDENTIAL_VALUE_MAX)
        return bt_fail(
            error, BT_EXIT_ERROR, EINVAL, NULL,
            "the value has %zu bytes; %d to %d are possible, as shorter ones could not be taken out "
            "of responses",
            length, BT_CREDENTIAL_VALUE_MIN, BT_CREDENTIAL_VALUE_MAX);
    if (value[0] == ' ' || value[length - 1] == ' ')
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "the value begins or ends with a blank");
    for (size_t i = 0; i < length; i++)
        if (value[i] < ' ' || value[i] > '~')
            return bt_fail(error, BT_EXIT_ERROR, EINVAL,
                           "give one line of printable ASCII; of a user and password: user:password",
                           "byte %zu of the value cannot stand in a header field", i + 1);
    return 0;
}

int bt_credential_set(const struct bt_paths *paths, const char *name, const char *value, size_t length,
                      struct bt_error *error)
{
    bt_auto_free char *folder = folder_of(paths);
    bt_auto_free char *path = bt_string_format("%s/%s", folder, name);
    int result = bt_credential_check_name(name, error);
    if (result == 0)
        result = check_value(value, length, error);
    if (result == 0)
        result = bt_folder_make(paths->state, 0700, error);
    if (result == 0)
        result = bt_folder_make_own(folder, error);
    return result < 0 ? result : bt_file_write(path, value, length, 0600, error);
}

static int missing(const char *name, struct bt_error *error)
{
    return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, "berth credential list shows what there is",
                   "there is no credential '%s'", name);
}

int bt_credential_remove(const struct bt_paths *paths, const char *name, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/credentials/%s", paths->state, name);
    int result = bt_credential_check_name(name, error);
    if (result < 0)
        return result;
    if (unlink(path) == 0)
        return 0;
    return errno == ENOENT
               ? missing(name, error)
               : bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot remove %s: %s", path, strerror(errno));
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct bt_credential *)left)->name, ((const struct bt_credential *)right)->name);
}

int bt_credential_list(const struct bt_paths *paths, struct bt_credential **ret_credentials,
                       size_t *ret_count, struct bt_error *error)
{
    bt_auto_free char *path = folder_of(paths);
    struct bt_credential *credentials = bt_new(CREDENTIALS_MAX, sizeof(*credentials));
    DIR *folder = opendir(path);
    const struct dirent *entry;
    size_t count = 0;
    if (folder == NULL && errno != ENOENT) {
        free(credentials);
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", path, strerror(errno));
    }
    while (folder != NULL && count < CREDENTIALS_MAX && (entry = readdir(folder)) != NULL) {
        struct stat status;
        /* Not the temporary files of an interrupted write. */
        if (!bt_name_is_valid(entry->d_name) ||
            fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(status.st_mode))
            continue;
        memcpy(credentials[count].name, entry->d_name, strlen(entry->d_name) + 1); /* a valid name fits */
        credentials[count++].changed_seconds = status.st_mtime;
    }
    if (folder != NULL)
        (void)closedir(folder);
    qsort(credentials, count, sizeof(*credentials), by_name);
    *ret_credentials = credentials;
    *ret_count = count;
    return 0;
}

/* Adds one value under its name. */
static int collect_one(const struct bt_paths *paths, const char *name, const char *host,
                       const char *granted_by, json_t *credentials, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/credentials/%s", paths->state, name);
    BT_CLEANUP(bt_buffer_wipe) struct bt_buffer value = {0};
    char hint[128];
    int result = bt_credential_check_name(name, error);
    if (result < 0)
        return result;
    result = bt_file_read(path, BT_CREDENTIAL_VALUE_MAX, &value, error);
    if (result == -ENOENT) {
        (void)snprintf(hint, sizeof(hint), "berth credential set %s reads it from the terminal or a pipe",
                       name);
        return bt_fail(error, BT_EXIT_ERROR, ENOKEY, hint,
                       "there is no credential '%s', which the route for %s (%s) needs", name, host,
                       granted_by);
    }
    if (result == 0)
        result = check_value(value.data != NULL ? value.data : "", value.length, error);
    if (result < 0)
        return bt_error_prefix(error, "the credential '%s' cannot be used", name);
    return json_object_set_new(credentials, name, json_stringn(value.data, value.length)) < 0 ? -ENOMEM : 0;
}

static int collect_route(const struct bt_paths *paths, const json_t *route, json_t *credentials,
                         struct bt_error *error)
{
    const char *name = json_string_value(json_object_get(json_object_get(route, "auth"), "from"));
    const char *host = json_string_value(json_object_get(route, "host"));
    const char *granted_by = json_string_value(json_object_get(route, "granted_by"));
    if (name == NULL || json_object_get(credentials, name) != NULL)
        return 0;
    return collect_one(paths, name, host != NULL ? host : "?", granted_by != NULL ? granted_by : "?",
                       credentials, error);
}

int bt_credentials_collect(const struct bt_paths *paths, const json_t *policy, json_t **ret_credentials,
                           struct bt_error *error)
{
    json_t *credentials = json_object();
    const json_t *route;
    size_t index;
    int result = 0;
    json_array_foreach(json_object_get(policy, "routes"), index, route)
    {
        if (result == 0)
            result = collect_route(paths, route, credentials, error);
    }
    if (result < 0)
        json_decref(credentials);
    else
        *ret_credentials = credentials;
    return result;
}

int bt_credentials_collect_present(const struct bt_paths *paths, json_t *policy, json_t **ret_policy,
                                   json_t **ret_credentials, struct bt_error *error)
{
    json_t *credentials = json_object(), *routes = json_array(), *route;
    size_t index;
    int result = 0;
    json_array_foreach(json_object_get(policy, "routes"), index, route)
    {
        int collected = result == 0 ? collect_route(paths, route, credentials, error) : result;
        if (collected == 0)
            json_array_append(routes, route);
        else if (collected != -ENOKEY)
            result = collected;
    }
    if (result < 0) {
        json_decref(credentials);
        json_decref(routes);
        return result;
    }
    json_t *present = json_copy(policy);
    json_object_set_new(present, "routes", routes);
    *ret_policy = present;
    *ret_credentials = credentials;
    return 0;
}

bool bt_credential_is_used(const json_t *policy, const char *name)
{
    const json_t *route;
    size_t index;
    json_array_foreach(json_object_get(policy, "routes"), index, route)
    {
        const char *from = json_string_value(json_object_get(json_object_get(route, "auth"), "from"));
        if (from != NULL && strcmp(from, name) == 0)
            return true;
    }
    return false;
}
