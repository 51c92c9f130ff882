/* berth-orchestrator: the control plane of one user's environment. `berth-orchestrator CONFIG`, see
 * policy/API.md.
 *
 * Started by berth-init in a VM of its own (or by a container). Stages: configuration and socket as it was
 * started; then it becomes BT_SERVICE_UID, opens its registry, gives up every file but the registry's folder,
 * and only answers.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/memory.h"
#include "policy/orchestrator/api.h"
#include "policy/rules/service.h"

struct settings {
    json_t *document;
    uint32_t address;
    uint16_t port;
    const char *registry_path;
    char *registry_folder;
    const char *host_key_sha256;
    const char *gateway_secret_sha256;
    unsigned approval_seconds;
};

/* How long a request may wait for its owner. */
static int load_approval_seconds(struct settings *settings, struct bt_error *error)
{
    const json_t *value = json_object_get(settings->document, "approval_seconds");
    json_int_t seconds = value != NULL ? json_integer_value(value) : BT_QUEUE_SECONDS_MAX;
    if ((value != NULL && !json_is_integer(value)) || seconds < 1 || seconds > BT_QUEUE_SECONDS_MAX)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL,
                       "configuration: \"approval_seconds\" is not a number of 1 to %d",
                       BT_QUEUE_SECONDS_MAX);
    settings->approval_seconds = (unsigned)seconds;
    return 0;
}

static int load_settings(const char *path, struct settings *settings, struct bt_error *error)
{
    const char *listen_on = NULL;
    int result = bt_service_config_load(path, &settings->document, error);
    if (result == 0)
        result = bt_service_config_text(settings->document, "listen", false, &listen_on, error);
    if (result == 0)
        result = bt_service_endpoint_parse(listen_on, BT_PORT_ORCHESTRATOR, &settings->address,
                                           &settings->port, error);
    if (result == 0)
        result =
            bt_service_config_text(settings->document, "registry", false, &settings->registry_path, error);
    if (result == 0)
        result = bt_service_config_text(settings->document, "host_key_sha256", false,
                                        &settings->host_key_sha256, error);
    if (result == 0)
        result = bt_service_config_text(settings->document, "gateway_secret_sha256", false,
                                        &settings->gateway_secret_sha256, error);
    if (result == 0)
        result = load_approval_seconds(settings, error);
    if (result < 0)
        return result;
    const char *slash = strrchr(settings->registry_path, '/');
    if (slash == NULL || slash == settings->registry_path)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "give it a folder of its own",
                       "configuration: \"registry\" is not an absolute path in a folder");
    settings->registry_folder =
        bt_string_copy_length(settings->registry_path, (size_t)(slash - settings->registry_path));
    return 0;
}

static int open_socket(const struct settings *settings, int *ret_fd, struct bt_error *error)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(settings->port),
        .sin_addr.s_addr = htonl(settings->address),
    };
    int one = 1;
    bt_auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 128) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot listen on port %u: %s", settings->port,
                       strerror(errno));
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

static void stop(evutil_socket_t signal_number, short what, void *context)
{
    (void)signal_number;
    (void)what;
    (void)event_base_loopbreak(context);
}

static int serve(struct bt_api *api, int socket_fd, struct bt_error *error)
{
    struct event_base *base = event_base_new();
    struct evhttp *server = base != NULL ? evhttp_new(base) : NULL;
    struct event *terminate = base != NULL ? evsignal_new(base, SIGTERM, stop, base) : NULL;
    int result = 0;
    if (server == NULL || terminate == NULL || event_add(terminate, NULL) < 0)
        result = bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot make an event loop");
    if (result == 0) {
        bt_api_attach(api, server);
        if (evhttp_accept_socket(server, socket_fd) < 0)
            result = bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "cannot accept connections");
    }
    if (result == 0) {
        (void)fprintf(stderr, "berth-orchestrator: ready\n");
        (void)event_base_dispatch(base);
    }
    if (terminate != NULL)
        event_free(terminate);
    if (server != NULL)
        evhttp_free(server);
    if (base != NULL)
        event_base_free(base);
    libevent_global_shutdown();
    return result;
}

static int start(const char *path, struct bt_error *error)
{
    struct settings settings = {0};
    struct bt_api api = {.gateway_seen_ms = -1};
    int socket_fd = -1;
    /* OpenSSL's own configuration file has no say here. */
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
    int result = load_settings(path, &settings, error);
    if (result == 0)
        result = open_socket(&settings, &socket_fd, error);
    if (result == 0)
        result = bt_service_become_user(settings.registry_folder, error);
    if (result == 0)
        result = bt_registry_open(settings.registry_path, &api.registry, error);
    if (result == 0)
        result = bt_service_confine(settings.registry_folder, error);
    if (result == 0) {
        tzset(); /* reads its file now rather than in a reply's Date */
        (void)bt_service_raise_descriptors(1024);
        api.counters = bt_counters_new();
        api.vault = bt_vault_new();
        api.queue = bt_queue_new(settings.approval_seconds);
        api.host_key_sha256 = settings.host_key_sha256;
        api.gateway_secret_sha256 = settings.gateway_secret_sha256;
        bt_random_bytes(api.jwt_key, sizeof(api.jwt_key));
        result = serve(&api, socket_fd, error);
    }
    bt_counters_free(api.counters);
    bt_vault_free(api.vault);
    bt_queue_free(api.queue);
    bt_registry_close(api.registry);
    free(settings.registry_folder);
    json_decref(settings.document);
    return result;
}

int main(int argument_count, char **arguments)
{
    struct bt_error error = {0};
    (void)signal(SIGPIPE, SIG_IGN);
    if (argument_count != 2) {
        (void)fprintf(stderr, "usage: berth-orchestrator CONFIG\n");
        return BT_EXIT_USAGE;
    }
    if (start(arguments[1], &error) < 0) {
        (void)fprintf(stderr, "berth-orchestrator: %s%s%s\n", error.message,
                      error.hint[0] != '\0' ? "; " : "", error.hint);
        return BT_EXIT_ERROR;
    }
    return BT_EXIT_OK;
}
