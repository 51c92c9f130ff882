/* Calls to the engine: paths with the version in front, JSON both ways, errors in the user's words. See
 * docker_internal.h. What an engine answers is bounded and parsed by jansson; it is trusted as much as root
 * is, and still its words are cleaned before a terminal sees them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/docker_internal.h"
#include "lib/http.h"

#define ANSWER_MAX (32UL * 1024 * 1024)
#define LIBPOD_VERSION "4.0.0"
#define CALL_TIMEOUT_MS                                                                                      \
    120000L /* an engine under load takes its time; a stuck one is not waited for for ever */

/* podman's own API has versions of its own. */
static char *full_path(const struct bt_docker *docker, const char *path)
{
    bool is_podmans = strncmp(path, "/libpod/", 8) == 0;
    return bt_string_format("/v%s%s", is_podmans ? LIBPOD_VERSION : docker->version, path);
}

static void clean(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = ' ';
}

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* What to do about the failures that people meet. */
static const char *hint_of(const char *message, int *code)
{
    if (has(message, "no space left")) {
        *code = ENOSPC;
        return "free some space below the engine's data folder: docker system df, docker image prune";
    }
    if (has(message, "overlaps with other") || has(message, "Pool overlaps") ||
        has(message, "could not find an available")) {
        *code = ENOSPC;
        return "another network of the engine uses addresses of berth's pool: docker network ls, docker "
               "network rm; "
               "or have an administrator move the pool (bridge_base in /etc/berth/helper.conf)";
    }
    if (has(message, "toomanyrequests") || has(message, "too many open files"))
        return "the engine is out of descriptors: stop some containers, or raise its LimitNOFILE";
    if (has(message, "iptables") || has(message, "chain/target/match"))
        return "the engine's own firewall rules are gone or were changed, as by nft flush ruleset: have an "
               "administrator restart it (systemctl restart docker), which makes them again";
    if (has(message, "OCI runtime"))
        return "the program that starts the engine's containers failed (runc, or runsc where a bottle says "
               "isolation: gvisor): docker info says where it is, docker run --runtime tries it alone";
    return "see the engine's log (journalctl -u docker, or -u podman), and berth doctor";
}

int bt_docker_fail(long status, const char *answer, size_t length, struct bt_error *error)
{
    json_t *document = json_loadb(answer == NULL ? "" : answer, answer == NULL ? 0 : length, 0, NULL);
    const char *said = json_string_value(json_object_get(document, "message"));
    char message[512];
    int code = status == 404   ? ENOENT
               : status == 409 ? EEXIST
               : status == 403 ? EACCES
               : status == 400 ? EINVAL
                               : EIO;
    (void)snprintf(message, sizeof(message), "%s", said == NULL ? "no reason given" : said);
    clean(message);
    json_decref(document);
    const char *hint = hint_of(message, &code);
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, code, hint, "the engine refused (%ld): %s", status,
                   message);
}

int bt_docker_call(const struct bt_docker *docker, const char *method, const char *path, json_t *body,
                   json_t **ret_answer, struct bt_error *error)
{
    bt_auto_free char *full = full_path(docker, path);
    bt_auto_free char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    bt_auto_buffer answer = {0};
    long status = 0;
    const struct bt_http_request request = {
        .socket_path = docker->socket_path,
        .method = method,
        .path = full,
        .body = text != NULL                  ? text
                : strcmp(method, "POST") == 0 ? ""
                                              : NULL,
        .body_length = text == NULL ? 0 : strlen(text),
        .answer_max = ANSWER_MAX,
        .timeout_ms = CALL_TIMEOUT_MS,
    };
    json_decref(body);
    int result = bt_http_call(&request, &status, &answer, error);
    if (result < 0) {
        (void)bt_error_prefix(error, "cannot reach the container engine");
        return result;
    }
    if (status >= 400)
        return bt_docker_fail(status, answer.data, answer.length, error);
    if (ret_answer != NULL) {
        *ret_answer = json_loadb(answer.data == NULL ? "" : answer.data, answer.length, 0, NULL);
        if (*ret_answer == NULL && answer.length > 0)
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EBADMSG, NULL,
                           "the container engine answered %s with something that is not JSON", path);
    }
    return 0;
}

int bt_docker_transfer(const struct bt_docker *docker, const struct bt_http_request *request,
                       struct bt_buffer *ret_answer, struct bt_error *error)
{
    bt_auto_free char *full = full_path(docker, request->path);
    bt_auto_buffer own = {0};
    struct bt_buffer *answer = ret_answer != NULL ? ret_answer : &own;
    struct bt_http_request whole = *request;
    long status = 0;
    whole.socket_path = docker->socket_path;
    whole.path = full;
    int result = bt_http_call(&whole, &status, answer, error);
    return result == 0 && status >= 400 ? bt_docker_fail(status, answer->data, answer->length, error)
                                        : result;
}

int bt_docker_stream(const struct bt_docker *docker, const char *path, const json_t *body, int *ret_fd,
                     struct bt_error *error)
{
    bt_auto_free char *full = full_path(docker, path);
    bt_auto_free char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    bt_auto_buffer answer = {0};
    long status = 0;
    int result = bt_http_upgrade(docker->socket_path, full, text, (int)CALL_TIMEOUT_MS, ret_fd, &status,
                                 &answer, error);
    if (result < 0) {
        (void)bt_error_prefix(error, "cannot reach the container engine");
        return result;
    }
    return *ret_fd >= 0 ? 0 : bt_docker_fail(status, answer.data, answer.length, error);
}

ssize_t bt_docker_demux(struct bt_docker_demux *demux, const char *data, size_t length, int *ret_stream,
                        const char **ret_data, size_t *ret_length)
{
    size_t used = 0;
    *ret_length = 0;
    while (demux->left == 0 && used < length) {
        demux->header[demux->header_length++] = (uint8_t)data[used++];
        if (demux->header_length < sizeof(demux->header))
            continue;
        demux->header_length = 0;
        if (demux->header[0] > 2)
            return -EBADMSG;
        demux->left = (size_t)demux->header[4] << 24 | (size_t)demux->header[5] << 16 |
                      (size_t)demux->header[6] << 8 | demux->header[7];
    }
    *ret_stream = demux->header[0] == 2 ? 2 : 1;
    *ret_data = data + used;
    *ret_length = demux->left < length - used ? demux->left : length - used;
    demux->left -= *ret_length;
    return (ssize_t)(used + *ret_length);
}
