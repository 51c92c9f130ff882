/* Where berth's own programs and recipes are: in a build tree (build/ beside images/recipes) or installed
 * (<prefix>/libexec/berth and <prefix>/share/berth/recipes). Found from the running executable, so that a
 * tree can be moved, and nothing of the environment can point elsewhere.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "images/images.h"
#include "images/recipe.h"

#define NO_INSTALLATION "build berth with make, or install it with make install"

/* The folder of the running executable, and who owns that. */
static int executable_folder(char ret_path[512], uid_t *ret_owner_uid, struct bt_error *error)
{
    char path[PATH_MAX];
    struct stat status;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0 || stat("/proc/self/exe", &status) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, "berth needs /proc mounted",
                       "cannot read /proc/self/exe: %s", strerror(errno));
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        *slash = '\0';
    if (strlen(path) >= 400)
        return bt_fail(error, BT_EXIT_ERROR, ENAMETOOLONG, NULL, "berth's own folder has too long a name");
    memcpy(ret_path, path, strlen(path) + 1);
    *ret_owner_uid = status.st_uid;
    return 0;
}

static bool is_plain_name(const char *name)
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t length = strlen(name);
    return length > 0 && length < 64 && name[0] != '-' && strspn(name, alphabet) == length;
}

/* Looks for either name beside the executable and in its parents (tests run from build/tests/unit). Only what
 * belongs to the executable's owner or root counts: a parent may be a folder such as /tmp, where anybody can
 * put things. */
static bool find_upwards(const char *start, uid_t owner_uid, const char *built, const char *installed,
                         char ret_path[512])
{
    char folder[512], candidate[1024];
    struct stat status;
    const char *const names[] = {built, installed};
    memcpy(folder, start, strlen(start) + 1);
    for (int depth = 0; depth < 5; depth++) {
        for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
            (void)snprintf(candidate, sizeof candidate, "%s/%s", folder, names[i]);
            if (strlen(candidate) < 512 && stat(candidate, &status) == 0 &&
                (status.st_uid == owner_uid || status.st_uid == 0)) {
                memcpy(ret_path, candidate, strlen(candidate) + 1);
                return true;
            }
        }
        char *slash = strrchr(folder, '/');
        if (slash == NULL || slash == folder)
            return false;
        *slash = '\0';
    }
    return false;
}

int bt_program_path(const char *program, char ret_path[512], struct bt_error *error)
{
    char folder[512], installed[128];
    uid_t owner_uid;
    if (!is_plain_name(program))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "no program of berth has the name '%.80s'",
                       program);
    int result = executable_folder(folder, &owner_uid, error);
    if (result < 0)
        return result;
    (void)snprintf(installed, sizeof installed, "libexec/berth/%s", program);
    if (find_upwards(folder, owner_uid, program, installed, ret_path))
        return 0;
    return bt_fail(error, BT_EXIT_ERROR, ENOENT, NO_INSTALLATION,
                   "cannot find berth's program %s beside %s or in libexec/berth", program, folder);
}

int bt_recipe_folder(char ret_path[512], struct bt_error *error)
{
    char folder[512];
    uid_t owner_uid;
    int result = executable_folder(folder, &owner_uid, error);
    if (result < 0)
        return result;
    if (find_upwards(folder, owner_uid, "images/recipes", "share/berth/recipes", ret_path))
        return 0;
    return bt_fail(error, BT_EXIT_ERROR, ENOENT, NO_INSTALLATION, "cannot find berth's recipes near %s",
                   folder);
}

int bt_data_path(const char *built, const char *installed, char ret_path[512], struct bt_error *error)
{
    char folder[512];
    uid_t owner_uid;
    int result = executable_folder(folder, &owner_uid, error);
    if (result < 0 || find_upwards(folder, owner_uid, built, installed, ret_path))
        return result;
    return bt_fail(error, BT_EXIT_ERROR, ENOENT, NO_INSTALLATION, "cannot find %s near %s", installed,
                   folder);
}

int bt_recipe_path(const char *recipe, char ret_path[512], struct bt_error *error)
{
    char folder[512], path[640];
    if (!is_plain_name(recipe))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "names are lower-case letters, digits and dashes",
                       "'%.80s' is no name of a recipe", recipe);
    int result = bt_recipe_folder(folder, error);
    if (result < 0)
        return result;
    (void)snprintf(path, sizeof path, "%s/%s.yaml", folder, recipe);
    if (strlen(path) >= 512)
        return bt_fail(error, BT_EXIT_ERROR, ENAMETOOLONG, NULL, "the path of recipe %s is too long", recipe);
    memcpy(ret_path, path, strlen(path) + 1);
    return 0;
}
