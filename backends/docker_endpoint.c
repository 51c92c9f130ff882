/* Where the engine listens: DOCKER_HOST, DOCKER_CONTEXT, the current context of the docker command's
 * configuration, else the usual sockets. See docker_internal.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker_internal.h"

#define CONFIG_MAX (1024UL * 1024)
#define LOCAL_ONLY                                                                                           \
    "berth needs an engine on this machine that it reaches by a unix socket, since agents use bridges of "   \
    "this "                                                                                                  \
    "machine: unset it, or use --backend qemu"

/* "unix:///run/docker.sock" to its path. from: what said so. */
static int take_address(const char *address, const char *from, char ret_path[256], struct bt_error *error)
{
    static const char scheme[] = "unix://";
    const char *end = strstr(address, "://");
    if (strncmp(address, scheme, sizeof(scheme) - 1) != 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP, LOCAL_ONLY,
                       "%s names an engine by %.*s, which the docker backend does not use", from,
                       end != NULL ? (int)(end - address) : (int)strnlen(address, 40), address);
    const char *path = address + sizeof(scheme) - 1;
    if (path[0] != '/' || strlen(path) >= 100) /* sun_path of unix(7) holds 108 */
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EINVAL, "name an absolute path of at most 99 bytes",
                       "%s names a socket without a usable path", from);
    (void)snprintf(ret_path, 256, "%s", path);
    return 0;
}

static json_t *read_json(const char *path)
{
    bt_auto_buffer text = {0};
    if (bt_file_read(path, CONFIG_MAX, &text, NULL) < 0)
        return NULL;
    return json_loadb(text.data == NULL ? "" : text.data, text.length, 0, NULL);
}

static char *config_folder(void)
{
    const char *folder = getenv("DOCKER_CONFIG");
    const char *home = getenv("HOME");
    if (folder != NULL && *folder != '\0')
        return bt_string_copy(folder);
    return bt_string_format("%s/.docker", home == NULL ? "" : home);
}

/* The context in use, or NULL for the default one. */
static char *current_context(const char *folder)
{
    bt_auto_free char *path = bt_string_format("%s/config.json", folder);
    const char *name = getenv("DOCKER_CONTEXT");
    json_t *config = read_json(path);
    if (name == NULL || *name == '\0')
        name = json_string_value(json_object_get(config, "currentContext"));
    char *copy = name == NULL || *name == '\0' || strcmp(name, "default") == 0 ? NULL : bt_string_copy(name);
    json_decref(config);
    return copy;
}

static int take_context(const char *folder, const char *name, char ret_path[256], struct bt_error *error)
{
    char digest[BT_DIGEST_TEXT_SIZE];
    bt_digest_bytes(name, strlen(name), digest);
    bt_auto_free char *path = bt_string_format("%s/contexts/meta/%s/meta.json", folder, digest);
    bt_auto_free char *from = bt_string_format("the docker context '%.60s'", name);
    json_t *meta = read_json(path);
    const json_t *endpoint = json_object_get(json_object_get(meta, "Endpoints"), "docker");
    const char *host = json_string_value(json_object_get(endpoint, "Host"));
    int result = host != NULL ? take_address(host, from, ret_path, error)
                              : bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOENT,
                                        "choose another: docker context use default",
                                        "%s is in use, but %s does not say where its engine is", from, path);
    json_decref(meta);
    return result;
}

int bt_docker_endpoint(char ret_path[256], struct bt_error *error)
{
    static const char *const usual[] = {"/var/run/docker.sock", "/run/docker.sock",
                                        "/run/podman/podman.sock"};
    const char *host = getenv("DOCKER_HOST");
    if (host != NULL && *host != '\0')
        return take_address(host, "DOCKER_HOST", ret_path, error);
    bt_auto_free char *folder = config_folder();
    bt_auto_free char *context = current_context(folder);
    if (context != NULL)
        return take_context(folder, context, ret_path, error);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(usual); i++) {
        (void)snprintf(ret_path, 256, "%s", usual[i]);
        if (access(usual[i], F_OK) == 0)
            return 0;
    }
    (void)snprintf(ret_path, 256, "%s", usual[0]);
    return 0;
}
