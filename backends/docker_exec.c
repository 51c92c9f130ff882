/* One command in a container, as the engine calls it: made, started, its stream taken over, its exit status.
 * See docker_internal.h.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backends/docker_internal.h"

#define STATUS_ATTEMPTS 100 /* the stream ends a moment before the engine knows the status */
#define STATUS_PAUSE_NS 5000000L

int bt_docker_exec_create(const struct bt_docker *docker, const char *container, json_t *body,
                          char ret_exec[BT_DOCKER_EXEC_SIZE], struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/containers/%s/exec", container);
    json_t *answer = NULL;
    int result = bt_docker_call(docker, "POST", path, body, &answer, error);
    const char *id = json_string_value(json_object_get(answer, "Id"));
    if (result == 0 &&
        (id == NULL || strlen(id) >= BT_DOCKER_EXEC_SIZE || strspn(id, "0123456789abcdef") != strlen(id)))
        result = bt_fail(error, BT_EXIT_INFRASTRUCTURE, EBADMSG, NULL, "the container engine gave no exec");
    if (result == 0)
        (void)snprintf(ret_exec, BT_DOCKER_EXEC_SIZE, "%s", id);
    json_decref(answer);
    return result;
}

int bt_docker_exec_start(const struct bt_docker *docker, const char *exec, int *ret_fd,
                         struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/exec/%s/start", exec);
    json_t *body = json_pack("{s:b, s:b}", "Detach", false, "Tty", false);
    int result = bt_docker_stream(docker, path, body, ret_fd, error);
    json_decref(body);
    return result;
}

int bt_docker_exec_status(const struct bt_docker *docker, const char *exec)
{
    const struct timespec pause = {.tv_nsec = STATUS_PAUSE_NS};
    bt_auto_free char *path = bt_string_format("/exec/%s/json", exec);
    for (int attempt = 0; attempt < STATUS_ATTEMPTS; attempt++) {
        json_t *document = NULL;
        if (bt_docker_call(docker, "GET", path, NULL, &document, NULL) < 0)
            break;
        const json_t *code = json_object_get(document, "ExitCode");
        bool is_known = json_is_false(json_object_get(document, "Running")) && json_is_integer(code);
        int value = (int)json_integer_value(code) & 0xff;
        json_decref(document);
        if (is_known)
            return value;
        (void)nanosleep(&pause, NULL);
    }
    return -ESRCH;
}
