/* Which backend runs the next guest. See backend.h. */
#include <errno.h>
#include <string.h>

#include "backends/backend.h"

/* In the order of preference. Known names that this version cannot run are refused by name. */
static const struct bt_backend *const backends[] = {&bt_backend_qemu};
static const char *const not_supported[] = {"firecracker", "docker", "macos-container"};

int bt_backend_select(const char *name, const struct bt_backend **ret_backend, const char **ret_why,
                      struct bt_error *error)
{
    if (name == NULL) {
        *ret_backend = backends[0];
        *ret_why = "the only backend of this version";
        return 0;
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(backends); i++) {
        if (strcmp(backends[i]->name, name) == 0) {
            *ret_backend = backends[i];
            *ret_why = "asked for";
            return 0;
        }
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(not_supported); i++) {
        if (strcmp(not_supported[i], name) == 0)
            return bt_fail(error, BT_EXIT_USAGE, EOPNOTSUPP, "use --backend qemu",
                           "the backend %s is not supported by this version", name);
    }
    return bt_fail(error, BT_EXIT_USAGE, EINVAL, "use --backend qemu", "there is no backend named %s", name);
}
