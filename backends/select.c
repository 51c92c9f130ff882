/* Which backend runs the next guest. See backend.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/backend.h"

/* In the order of preference. Known names that this version cannot run are refused by name. */
const struct bt_backend *const bt_backends[] = {&bt_backend_qemu, &bt_backend_docker};
const size_t bt_backend_count = BT_ARRAY_LENGTH(bt_backends);
static const char *const not_supported[] = {"firecracker", "macos-container"};

/* The first one that has what it needs here. When none has, the first one's reason is told. */
static int select_best(const struct bt_backend **ret_backend, const char **ret_why, struct bt_error *error)
{
    static char why[256];
    struct bt_error first = {0};
    for (size_t i = 0; i < bt_backend_count; i++) {
        struct bt_error own = {0};
        if (bt_backends[i]->check(&own) == 0) {
            (void)snprintf(why, sizeof(why), "%s%.200s", i == 0 ? "the best one of this machine" : "",
                           first.message);
            *ret_backend = bt_backends[i];
            *ret_why = why;
            return 0;
        }
        if (i == 0)
            first = own;
    }
    if (error != NULL)
        *error = first;
    return -first.code;
}

int bt_backend_select(const char *name, const struct bt_backend **ret_backend, const char **ret_why,
                      struct bt_error *error)
{
    if (name == NULL)
        return select_best(ret_backend, ret_why, error);
    for (size_t i = 0; i < bt_backend_count; i++) {
        if (strcmp(bt_backends[i]->name, name) == 0) {
            *ret_backend = bt_backends[i];
            *ret_why = "asked for";
            return 0;
        }
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(not_supported); i++) {
        if (strcmp(not_supported[i], name) == 0)
            return bt_fail(error, BT_EXIT_USAGE, EOPNOTSUPP, "use --backend qemu or docker",
                           "the backend %s is not supported by this version", name);
    }
    return bt_fail(error, BT_EXIT_USAGE, EINVAL, "use --backend qemu or docker",
                   "there is no backend named %s", name);
}
