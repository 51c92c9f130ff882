/* Names of files that came from an agent: which may be written into a user's folder, which deserve a look
 * first.
 *
 * Called by collect and apply. Only looks at text. The spellings of .git are those that git itself refuses on
 * some file system (git's CVE-2014-9390): an agent's patch may be applied on any.
 */
#include "frontend/workspace_internal.h"

#include <fnmatch.h>
#include <string.h>
#include <strings.h>

/* Code points that HFS+ ignores in names, in UTF-8: U+200C..U+200F, U+202A..U+202E, U+206A..U+206F, U+FEFF.
 * Returns the length of one at text, or 0. */
static size_t ignored_length(const char *text, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)text;
    if (length < 3)
        return 0;
    bool is_ignored = bytes[0] == 0xef   ? bytes[1] == 0xbb && bytes[2] == 0xbf
                      : bytes[0] != 0xe2 ? false
                                         : (bytes[1] == 0x80 && ((bytes[2] >= 0x8c && bytes[2] <= 0x8f) ||
                                                                 (bytes[2] >= 0xaa && bytes[2] <= 0xae))) ||
                                               (bytes[1] == 0x81 && bytes[2] >= 0xaa && bytes[2] <= 0xaf);
    return is_ignored ? 3 : 0;
}

/* Whether one component, as some file system reads it, is .git: case, characters that HFS+ ignores, and for
 * NTFS trailing dots and blanks, stream names, and the short name. */
static bool is_git_component(const char *part, size_t length)
{
    char plain[16];
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        size_t ignored = ignored_length(part + i, length - i);
        if (ignored > 0) {
            i += ignored;
            continue;
        }
        if (part[i] == ':')
            break;
        if (used == sizeof plain - 1)
            return false; /* a longer name, unless the rest is dots and blanks: */
        plain[used++] = part[i++];
        if (used > 5 && (plain[used - 1] == '.' || plain[used - 1] == ' '))
            used--;
    }
    while (used > 0 && (plain[used - 1] == '.' || plain[used - 1] == ' '))
        used--;
    plain[used] = '\0';
    return strcasecmp(plain, ".git") == 0 || strcasecmp(plain, "git~1") == 0;
}

static const char *component_refusal(const char *part, size_t length)
{
    if (length == 0)
        return "it has an empty part";
    if (length > 255)
        return "a part of its name is longer than 255 bytes";
    if ((length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.'))
        return "it leaves the folder";
    /* A backslash is a separator elsewhere: what it separates must be as harmless. */
    for (size_t from = 0; from <= length;) {
        const char *backslash = memchr(part + from, '\\', length - from);
        size_t end = backslash == NULL ? length : (size_t)(backslash - part);
        if (is_git_component(part + from, end - from))
            return "it is a repository's .git";
        if (backslash != NULL && end - from == 2 && memcmp(part + from, "..", 2) == 0)
            return "it leaves the folder";
        from = end + 1;
    }
    return NULL;
}

const char *bt_workspace_path_refusal(const char *path)
{
    if (path[0] == '/')
        return "it is absolute";
    if (strlen(path) >= BT_WORKSPACE_PATH_MAX)
        return "its name is too long";
    for (const char *part = path;;) {
        size_t length = strcspn(part, "/");
        const char *reason = component_refusal(part, length);
        if (reason != NULL)
            return reason;
        if (part[length] == '\0')
            return NULL;
        part += length + 1;
    }
}

struct warned {
    const char *pattern; /* fnmatch(3), case folded */
    const char *reason;
};

/* Matched against each component: a folder of this name has something run or obey what is in it. */
static const struct warned warned_folders[] = {
    {".githooks", "git may run it"},
    {".husky", "git may run it"},
    {".vscode", "an editor obeys it"},
    {".idea", "an editor obeys it"},
    {".devcontainer", "an editor obeys it"},
    {".claude", "an agent obeys it"},
    {".codex", "an agent obeys it"},
    {".pi", "an agent obeys it"},
    {".cursor", "an agent obeys it"},
    {".berth", "berth obeys it"},
    {".github", "it may run in continuous integration"},
    {".gitlab", "it may run in continuous integration"},
    {".circleci", "it may run in continuous integration"},
    {".cargo", "a build obeys it"},
    {".mvn", "a build obeys it"},
};

/* Matched against the last component. */
static const struct warned warned_files[] = {
    {".gitattributes", "it can name programs for git to run"},
    {".gitmodules", "it names repositories to fetch"},
    {".lfsconfig", "it names a server"},
    {".envrc", "direnv runs it"},
    {".env*", "programs take settings from it"},
    {".pre-commit-config.y*ml", "git may run what it names"},
    {"lefthook.y*ml", "git may run what it names"},
    {".gitlab-ci.yml", "it runs in continuous integration"},
    {"jenkinsfile", "it runs in continuous integration"},
    {".mcp.json", "an agent obeys it"},
    {"claude.md", "an agent obeys it"},
    {"agents.md", "an agent obeys it"},
    {".cursorrules", "an agent obeys it"},
    {"makefile*", "a build runs it"},
    {"gnumakefile", "a build runs it"},
    {"*.mk", "a build runs it"},
    {"cmakelists.txt", "a build runs it"},
    {"*.cmake", "a build runs it"},
    {"meson.build", "a build runs it"},
    {"configure*", "a build runs it"},
    {"justfile", "a build runs it"},
    {"rakefile", "a build runs it"},
    {"gemfile", "a build runs it"},
    {"build.rs", "a build runs it"},
    {"build.gradle*", "a build runs it"},
    {"settings.gradle*", "a build runs it"},
    {"gradlew*", "a build runs it"},
    {"mvnw*", "a build runs it"},
    {"package.json", "an installation runs its scripts"},
    {".npmrc", "an installation obeys it"},
    {".yarnrc*", "an installation obeys it"},
    {"setup.py", "an installation runs it"},
    {"setup.cfg", "an installation obeys it"},
    {"pyproject.toml", "an installation obeys it"},
    {"conftest.py", "tests run it"},
    {"sitecustomize.py", "Python runs it"},
    {"*.pth", "Python runs it"},
    {"dockerfile*", "a build runs it"},
    {"*compose*.y*ml", "Docker obeys it"},
    {"vagrantfile", "a build runs it"},
    {"flake.nix", "a build runs it"},
    {"shell.nix", "a shell runs it"},
    {".bashrc", "a shell runs it"},
    {".profile", "a shell runs it"},
    {".zshrc", "a shell runs it"},
    {".vimrc", "an editor runs it"},
    {".exrc", "an editor runs it"},
    {".nvim.lua", "an editor runs it"},
    {".dir-locals.el", "an editor obeys it"},
    {".gdbinit", "a debugger runs it"},
    {".lldbinit", "a debugger runs it"},
};

static const char *match(const struct warned *table, size_t count, const char *text)
{
    for (size_t i = 0; i < count; i++) {
        if (fnmatch(table[i].pattern, text, FNM_CASEFOLD) == 0)
            return table[i].reason;
    }
    return NULL;
}

const char *bt_workspace_path_warning(const char *path, unsigned old_mode, unsigned new_mode)
{
    bt_auto_free char *text = bt_string_copy(path);
    char *part = text;
    if (new_mode == 0)
        return NULL;
    for (char *slash; (slash = strchr(part, '/')) != NULL; part = slash + 1) {
        *slash = '\0';
        const char *reason = match(warned_folders, BT_ARRAY_LENGTH(warned_folders), part);
        if (reason != NULL)
            return reason;
    }
    const char *reason = match(warned_files, BT_ARRAY_LENGTH(warned_files), part);
    if (reason == NULL && new_mode == BT_MODE_EXECUTABLE && old_mode != BT_MODE_EXECUTABLE)
        reason = "it is a new program";
    return reason;
}

bool bt_workspace_is_control(const unsigned char *bytes, size_t length)
{
    if (length == 2)
        return bytes[0] == 0xc2 && bytes[1] >= 0x80 && bytes[1] <= 0x9f;
    return length == 3 && bytes[0] == 0xe2 &&
           ((bytes[1] == 0x80 &&
             (bytes[2] == 0x8e || bytes[2] == 0x8f || (bytes[2] >= 0xa8 && bytes[2] <= 0xae))) ||
            (bytes[1] == 0x81 && bytes[2] >= 0xa6 && bytes[2] <= 0xa9));
}

const char *bt_workspace_printable(const char *path, char ret_text[BT_WORKSPACE_TEXT_SIZE])
{
    size_t length = strlen(path);
    size_t used = length < BT_WORKSPACE_TEXT_SIZE ? length : BT_WORKSPACE_TEXT_SIZE - 4;
    memcpy(ret_text, path, used);
    for (size_t i = 0; i < used; i++) {
        const unsigned char *at = (const unsigned char *)path + i;
        size_t size = *at == 0xc2 ? 2 : 3;
        if (*at < ' ' || *at == 0x7f)
            ret_text[i] = '?';
        else if (size <= length - i && bt_workspace_is_control(at, size))
            memset(ret_text + i, '?', size < used - i ? size : used - i);
    }
    (void)memcpy(ret_text + used, used < length ? "..." : "", used < length ? 4 : 1);
    return ret_text;
}

void bt_workspace_list_text(const struct bt_list *list, char *ret_text, size_t size)
{
    size_t used = 0;
    ret_text[0] = '\0';
    for (size_t i = 0; i < list->count && used < size; i++) {
        char text[BT_WORKSPACE_TEXT_SIZE];
        if (i == 5) {
            (void)snprintf(ret_text + used, size - used, " and %zu more", list->count - i);
            return;
        }
        int added = snprintf(ret_text + used, size - used, "%s%s", i == 0 ? "" : ", ",
                             bt_workspace_printable(list->items[i], text));
        used += added > 0 ? (size_t)added : 0;
    }
}
