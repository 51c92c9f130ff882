/* How an agent was started last. See origin.h. Written by its keeper, read by `berth resume`. */
#include "frontend/origin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/file.h"
#include "lib/memory.h"

#define ORIGIN_MAX (4UL * 1024 * 1024) /* a prompt, or the words of a command, and their JSON */

int bt_origin_save(const char *folder, const json_t *origin, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/origin.json", folder);
    bt_auto_free char *text = json_dumps(origin, JSON_COMPACT);
    if (text == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot write %s: out of memory", path);
    return bt_file_write(path, text, strlen(text), 0600, error);
}

int bt_origin_load(const char *folder, const char *name, json_t **ret_origin, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/origin.json", folder);
    bt_auto_buffer text = {0};
    int result = folder[0] == '\0' ? -ENOENT : bt_file_read(path, ORIGIN_MAX, &text, error);
    if (result == -ENOENT)
        return bt_fail(
            error, BT_EXIT_NO_TARGET, ENOENT, "remove it with berth rm, and spawn it anew",
            "nothing of the agent %s is kept that could be resumed: its launch was never finished, or "
            "an older berth made it",
            name);
    if (result < 0)
        return result;
    json_t *origin = json_loadb(text.data == NULL ? "" : text.data, text.length, 0, NULL);
    if (!json_is_object(origin)) {
        json_decref(origin);
        return bt_fail(error, BT_EXIT_ERROR, EBADMSG, "remove it with berth rm, and spawn it anew",
                       "%s is damaged", path);
    }
    *ret_origin = origin;
    return 0;
}
