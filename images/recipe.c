/* Reads recipes. See recipe.h. Every name in a recipe is checked against the alphabet of its kind, because
 * they become arguments of programs and paths in images. */
#include "images/recipe.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "images/images.h"

#define RECIPE_MAX (64UL * 1024)
#define LIST_MAX 1000
#define LOWER "abcdefghijklmnopqrstuvwxyz0123456789"
#define PATH_ALPHABET LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ._-/+"

static const char *const form_names[] = {
    [BT_RECIPE_KERNEL] = "kernel", [BT_RECIPE_INITRD] = "initrd", [BT_RECIPE_DISK] = "disk"};

void bt_recipe_free(struct bt_recipe *recipe)
{
    bt_buffer_free(&recipe->text);
    bt_list_free(&recipe->modules);
    bt_list_free(&recipe->programs);
    bt_list_free(&recipe->packages);
    bt_list_free(&recipe->exclude);
    bt_list_free(&recipe->folders);
    bt_list_free(&recipe->commands);
    bt_list_free(&recipe->files);
    free(recipe->base);
    free(recipe->package);
    free(recipe->init);
    free(recipe->suite);
    free(recipe->variant);
    free(recipe->user_name);
    free(recipe->user_home);
    free(recipe->user_shell);
    memset(recipe, 0, sizeof *recipe);
}

const char *bt_recipe_architecture(void)
{
    static const struct {
        const char *machine, *debian;
    } names[] = {{"x86_64", "amd64"}, {"aarch64", "arm64"}};
    struct utsname host;
    if (uname(&host) < 0)
        return NULL;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        if (strcmp(host.machine, names[i].machine) == 0)
            return names[i].debian;
    }
    return NULL;
}

static int check_text(const struct bt_yaml *at, const char *text, const char *alphabet, const char *what,
                      struct bt_error *error)
{
    size_t length = strlen(text);
    if (length == 0 || length > 255 || text[0] == '-' || strspn(text, alphabet) != length)
        return bt_yaml_fail(at, error, NULL, "'%.80s' is no valid %s", text, what);
    return 0;
}

/* Appends the scalars of a sequence; items that are there already are skipped. */
static int read_list(const struct bt_yaml *mapping, const char *key, const char *alphabet, const char *what,
                     struct bt_list *list, struct bt_error *error)
{
    const struct bt_yaml *sequence = bt_yaml_get(mapping, key);
    if (sequence == NULL)
        return 0;
    if (sequence->kind != BT_YAML_SEQUENCE || sequence->count > LIST_MAX)
        return bt_yaml_fail(sequence, error, NULL, "'%s' must be a list of at most %d entries", key,
                            LIST_MAX);
    for (size_t i = 0; i < sequence->count; i++) {
        const struct bt_yaml *item = sequence->values[i];
        if (item->kind != BT_YAML_SCALAR)
            return bt_yaml_fail(item, error, NULL, "an entry of '%s' must be a %s", key, what);
        int result = check_text(item, item->text, alphabet, what, error);
        if (result < 0)
            return result;
        if (!bt_list_has(list, item->text))
            bt_list_add(list, item->text);
    }
    return 0;
}

/* A checked string into *text (replacing one of a recipe that is extended); a missing key changes nothing. */
static int read_text(const struct bt_yaml *mapping, const char *key, const char *alphabet, char **text,
                     struct bt_error *error)
{
    const char *value;
    int result = bt_yaml_string(mapping, key, NULL, &value, error);
    if (result < 0 || value == NULL)
        return result;
    result = check_text(bt_yaml_get(mapping, key), value, alphabet, key, error);
    if (result < 0)
        return result;
    free(*text);
    *text = bt_string_copy(value);
    return 0;
}

static int read_kernel(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    static const char *const keys[] = {"form", "description", "packages", "modules", "init"};
    int result = bt_yaml_check_keys(root, keys, BT_ARRAY_LENGTH(keys), error);
    if (result < 0)
        return result;
    const char *architecture = bt_recipe_architecture();
    const struct bt_yaml *packages = bt_yaml_get(root, "packages");
    if (packages == NULL || packages->kind != BT_YAML_MAPPING)
        return bt_yaml_fail(root, error, NULL, "'packages' must map architectures to kernel packages");
    if (architecture == NULL || bt_yaml_get(packages, architecture) == NULL)
        return bt_yaml_fail(packages, error, NULL,
                            "there is no kernel package for this machine's architecture");
    result = read_text(packages, architecture, LOWER "+.-", &recipe->package, error);
    if (result == 0)
        result = read_list(root, "modules", LOWER "_", "module name", &recipe->modules, error);
    if (result == 0)
        result = read_text(root, "init", LOWER "-", &recipe->init, error);
    if (result == 0 && recipe->init == NULL)
        result = bt_yaml_fail(root, error, NULL, "'init' must name the program that becomes /init");
    return result;
}

static int read_initrd(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    static const char *const keys[] = {"form", "description", "programs"};
    int result = bt_yaml_check_keys(root, keys, BT_ARRAY_LENGTH(keys), error);
    if (result == 0)
        result = read_list(root, "programs", LOWER "-", "program name", &recipe->programs, error);
    if (result == 0 && recipe->programs.count == 0)
        result = bt_yaml_fail(root, error, NULL, "'programs' must name at least one program");
    return result;
}

static int read_user(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    static const char *const keys[] = {"name", "uid", "gid", "home", "shell", "folders"};
    const struct bt_yaml *user = bt_yaml_get(root, "user");
    if (user == NULL)
        return 0;
    uint64_t uid = 1000, gid = 1000;
    int result = bt_yaml_check_keys(user, keys, BT_ARRAY_LENGTH(keys), error);
    if (result == 0)
        result = read_text(user, "name", LOWER "_-", &recipe->user_name, error);
    if (result == 0)
        result = read_text(user, "home", PATH_ALPHABET, &recipe->user_home, error);
    if (result == 0)
        result = read_text(user, "shell", PATH_ALPHABET, &recipe->user_shell, error);
    if (result == 0)
        result = bt_yaml_number(user, "uid", 1000, 1, 65533, &uid, error);
    if (result == 0)
        result = bt_yaml_number(user, "gid", 1000, 1, 65533, &gid, error);
    if (result == 0)
        result = read_list(user, "folders", PATH_ALPHABET, "absolute path", &recipe->folders, error);
    if (result < 0)
        return result;
    if (recipe->user_name == NULL || recipe->user_home == NULL || recipe->user_shell == NULL)
        return bt_yaml_fail(user, error, NULL, "'user' needs name, home and shell");
    recipe->user_uid = (uint32_t)uid;
    recipe->user_gid = (uint32_t)gid;
    return 0;
}

/* The host's suite: its sources only serve that one. */
static char *host_suite(void)
{
    static const char key[] = "VERSION_CODENAME=";
    bt_auto_buffer release = {0};
    if (bt_file_read("/etc/os-release", RECIPE_MAX, &release, NULL) < 0 || release.data == NULL)
        return NULL;
    char *saved = NULL;
    for (char *line = strtok_r(release.data, "\n", &saved); line != NULL;
         line = strtok_r(NULL, "\n", &saved)) {
        if (strncmp(line, key, sizeof key - 1) != 0)
            continue;
        char *value = line + sizeof key - 1;
        size_t length = strspn(value, LOWER);
        return length > 0 && value[length] == '\0' ? bt_string_copy(value) : NULL;
    }
    return NULL;
}

static int read_suite(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    int result = read_text(root, "suite", LOWER "-", &recipe->suite, error);
    if (result < 0)
        return result;
    if (recipe->suite != NULL && strcmp(recipe->suite, "host") != 0)
        return 0;
    free(recipe->suite);
    recipe->suite = host_suite();
    if (recipe->suite == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, "give the recipe a 'suite'",
                       "/etc/os-release has no usable VERSION_CODENAME");
    return 0;
}

static int read_commands(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    const struct bt_yaml *npm = bt_yaml_get(root, "npm");
    const char *architecture = bt_recipe_architecture();
    const struct bt_yaml *commands;
    int result = 0;
    if (npm == NULL || npm->kind != BT_YAML_MAPPING)
        return bt_yaml_fail(npm == NULL ? root : npm, error, NULL,
                            "'npm' must map architectures to commands and their paths in node_modules");
    commands = architecture == NULL ? NULL : bt_yaml_get(npm, architecture);
    if (commands == NULL || commands->kind != BT_YAML_MAPPING || commands->count == 0)
        return bt_yaml_fail(npm, error, NULL, "there are no commands for this machine's architecture");
    for (size_t i = 0; i < commands->count && result == 0; i++) {
        const struct bt_yaml *key = commands->keys[i];
        const char *path = "";
        result = check_text(key, key->text, LOWER "-", "name of a command", error);
        if (result == 0)
            result = bt_yaml_string(commands, key->text, NULL, &path, error);
        if (result == 0)
            result = check_text(commands->values[i], path, PATH_ALPHABET "@", "path in node_modules", error);
        if (result < 0)
            break;
        bt_list_add(&recipe->commands, key->text);
        bt_list_add(&recipe->commands, path);
    }
    return result;
}

static int read_files(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    const struct bt_yaml *files = bt_yaml_get(root, "files");
    int result = 0;
    if (files == NULL)
        return 0;
    if (files->kind != BT_YAML_MAPPING)
        return bt_yaml_fail(files, error, NULL, "'files' must map paths to texts");
    for (size_t i = 0; i < files->count && result == 0; i++) {
        const struct bt_yaml *key = files->keys[i];
        const char *text = "";
        result = check_text(key, key->text, PATH_ALPHABET, "path", error);
        if (result == 0)
            result = bt_yaml_string(files, key->text, NULL, &text, error);
        if (result < 0)
            break;
        bt_list_add(&recipe->files, key->text);
        bt_list_add(&recipe->files, text);
    }
    return result;
}

static int read_layer(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    static const char *const keys[] = {"form", "description", "base", "npm", "files", "exclude"};
    int result = bt_yaml_check_keys(root, keys, BT_ARRAY_LENGTH(keys), error);
    if (result == 0)
        result = read_text(root, "base", LOWER "-", &recipe->base, error);
    if (result == 0)
        result = read_commands(root, recipe, error);
    if (result == 0)
        result = read_files(root, recipe, error);
    if (result == 0)
        result = read_list(root, "exclude", PATH_ALPHABET "*?@", "path pattern", &recipe->exclude, error);
    return result;
}

static int read_disk(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    static const char *const keys[] = {"form",     "description", "extends", "suite", "variant",
                                       "packages", "exclude",     "size",    "user",  "keep_privilege"};
    int result = bt_yaml_check_keys(root, keys, BT_ARRAY_LENGTH(keys), error);
    if (result == 0)
        result = read_suite(root, recipe, error);
    if (result == 0)
        result = read_text(root, "variant", LOWER "-", &recipe->variant, error);
    if (result == 0)
        result = read_list(root, "packages", LOWER "+.-", "package name", &recipe->packages, error);
    if (result == 0)
        result = read_list(root, "exclude", PATH_ALPHABET "*?", "path pattern", &recipe->exclude, error);
    uint64_t size = recipe->size_bytes == 0 ? 2ULL << 30 : recipe->size_bytes;
    if (result == 0)
        result = bt_yaml_size(root, "size", size, 64ULL << 20, 64ULL << 30, &recipe->size_bytes, error);
    if (result == 0)
        result =
            bt_yaml_bool(root, "keep_privilege", recipe->keeps_privilege, &recipe->keeps_privilege, error);
    if (result == 0)
        result = read_user(root, recipe, error);
    if (result == 0 && recipe->variant == NULL)
        recipe->variant = bt_string_copy("minbase");
    return result;
}

static int read_form(const struct bt_yaml *root, struct bt_recipe *recipe, struct bt_error *error)
{
    const char *form;
    int result = bt_yaml_string(root, "form", NULL, &form, error);
    if (result < 0)
        return result;
    if (form == NULL)
        return bt_yaml_fail(root, error, NULL, "'form' is missing: kernel, initrd or disk");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(form_names); i++) {
        if (strcmp(form, form_names[i]) == 0) {
            recipe->form = (enum bt_recipe_form)i;
            return 0;
        }
    }
    return bt_yaml_fail(bt_yaml_get(root, "form"), error, "kernel, initrd and disk are known",
                        "no image has the form '%.80s'", form);
}

/* Names what there is, for somebody who mistyped a recipe. */
static int no_such_recipe(const char *name, struct bt_error *error)
{
    char folder[512];
    bt_auto_list names = {0};
    int result = bt_recipe_folder(folder, error);
    if (result < 0)
        return result;
    DIR *stream = opendir(folder);
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        const char *suffix = strstr(entry->d_name, ".yaml");
        if (suffix != NULL && suffix[5] == '\0') {
            bt_auto_free char *found = bt_string_copy_length(entry->d_name, (size_t)(suffix - entry->d_name));
            bt_list_add(&names, found);
        }
    }
    if (stream != NULL)
        (void)closedir(stream);
    const char *nearest = bt_nearest(name, (const char *const *)names.items, names.count);
    bt_auto_free char *hint = nearest == NULL ? bt_string_format("recipes are in %s", folder)
                                              : bt_string_format("did you mean %s?", nearest);
    return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, hint, "there is no image recipe '%.80s'", name);
}

static int load(const char *name, bool is_extended, struct bt_recipe *recipe, struct bt_error *error);

static int load_extended(const struct bt_yaml *root, bool is_extended, struct bt_recipe *recipe,
                         struct bt_error *error)
{
    const char *parent;
    int result = bt_yaml_string(root, "extends", NULL, &parent, error);
    if (result < 0 || parent == NULL)
        return result;
    if (is_extended)
        return bt_yaml_fail(bt_yaml_get(root, "extends"), error, NULL,
                            "a recipe that is extended cannot extend");
    result = load(parent, true, recipe, error);
    if (result < 0)
        return result;
    return recipe->form == BT_RECIPE_DISK && recipe->base == NULL
               ? 0
               : bt_yaml_fail(bt_yaml_get(root, "extends"), error, NULL,
                              "only disk recipes without 'base' can be extended");
}

static int read_recipe(const struct bt_yaml *root, bool is_extended, struct bt_recipe *recipe,
                       struct bt_error *error)
{
    int result = load_extended(root, is_extended, recipe, error);
    if (result == 0)
        result = read_form(root, recipe, error);
    if (result < 0)
        return result;
    switch (recipe->form) {
    case BT_RECIPE_KERNEL:
        return read_kernel(root, recipe, error);
    case BT_RECIPE_INITRD:
        return read_initrd(root, recipe, error);
    case BT_RECIPE_DISK:
        return bt_yaml_get(root, "base") != NULL ? read_layer(root, recipe, error)
                                                 : read_disk(root, recipe, error);
    }
    return -EINVAL;
}

static int load(const char *name, bool is_extended, struct bt_recipe *recipe, struct bt_error *error)
{
    char path[512];
    int result = bt_recipe_path(name, path, error);
    if (result < 0)
        return result;
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return no_such_recipe(name, error);
    bt_auto_buffer text = {0};
    result = bt_file_read(path, RECIPE_MAX, &text, error);
    if (result < 0)
        return result;
    struct bt_yaml *root = NULL;
    result = bt_yaml_parse(path, text.data == NULL ? "" : text.data, text.length, 1, &root, error);
    if (result < 0)
        return result;
    result = read_recipe(root, is_extended, recipe, error);
    (void)bt_yaml_free(root);
    if (result == 0)
        result = bt_buffer_add(&recipe->text, text.data, text.length);
    return result;
}

int bt_recipe_load(const char *name, struct bt_recipe *ret_recipe, struct bt_error *error)
{
    bt_auto_recipe recipe = {0};
    int result = load(name, false, &recipe, error);
    if (result < 0)
        return result;
    memcpy(recipe.name, name, strlen(name) + 1); /* bt_recipe_path has checked its length */
    *ret_recipe = recipe;
    memset(&recipe, 0, sizeof recipe);
    return 0;
}
