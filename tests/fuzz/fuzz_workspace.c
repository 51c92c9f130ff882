/* What a guest sends about its files: the list of find, the name of a file. No name that passes the check may
 * leave a folder or reach into .git.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "frontend/workspace_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_name(const char *path)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    (void)bt_workspace_path_warning(path, 0, BT_MODE_FILE);
    if (strlen(bt_workspace_printable(path, text)) >= sizeof text)
        abort();
    if (bt_workspace_path_refusal(path) != NULL)
        return;
    if (path[0] == '/' || path[0] == '\0')
        abort();
    for (const char *part = path; part != NULL; part = strchr(part, '/')) {
        part += part[0] == '/';
        size_t length = strcspn(part, "/");
        if (length == 0 || (length <= 2 && strspn(part, ".") >= length) ||
            (length == 4 && strncasecmp(part, ".git", 4) == 0))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bt_buffer text = {0};
    struct bt_workspace_stamps stamps;
    struct bt_error error;
    if (bt_buffer_add(&text, data, size) < 0)
        return 0;
    if (bt_workspace_stamps_parse(&text, &stamps, &error) < 0)
        return 0;
    for (size_t i = 0; i < stamps.count; i++) {
        if (i > 0 && strcmp(stamps.items[i - 1].path, stamps.items[i].path) > 0)
            abort();
        check_name(stamps.items[i].path);
    }
    bt_workspace_stamps_free(&stamps);
    return 0;
}
