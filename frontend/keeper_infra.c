/* The keeper of an orchestrator or a gateway. See keeper.h and infra.h.
 *
 * Boots the guest with its configuration, tells the starter when it answers, records it, and ends it when it
 * is asked to or when no agent has lived for infra.idle_stop.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frontend/authority.h"
#include "frontend/keeper.h"

#define BOOT_DEADLINE_MS 120000
#define IDLE_CHECK_MS 5000
#define STOP_GRACE_MS 3000
#define GATEWAY_WORKERS_MAX 4L /* and processors */
#define GATEWAY_MEMORY (384ULL << 20)
#define WORKER_MEMORY (112ULL << 20) /* of each worker but the first: its decoders, and itself */
#define ORCHESTRATOR_MEMORY (192ULL << 20)

/* The smallest block that holds every TAP address: for rules that no answer may lie in it. */
static char *pool_block(uint32_t base, uint32_t addresses)
{
    unsigned prefix = 32;
    char text[BT_IPV4_TEXT_SIZE];
    while ((1UL << (32 - prefix)) < addresses)
        prefix--;
    bt_ipv4_format(base, text);
    return bt_string_format("%s/%u", text, prefix);
}

/* Seen from the gateway: its own slot's host end, or what the starter knows. */
static uint32_t orchestrator_address(const struct bt_keeper *keeper)
{
    return keeper->backend->is_pair_in_turn ? (uint32_t)bt_keeper_number(keeper, "orchestrator_address")
                                            : keeper->gateway_address;
}

static unsigned gateway_workers(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return (unsigned)(processors < 1                     ? 1
                      : processors > GATEWAY_WORKERS_MAX ? GATEWAY_WORKERS_MAX
                                                         : processors);
}

static uint64_t gateway_memory(void)
{
    return GATEWAY_MEMORY + (gateway_workers() - 1) * WORKER_MEMORY;
}

static json_t *gateway_document(const struct bt_keeper *keeper)
{
    char host[BT_IPV4_TEXT_SIZE];
    bt_auto_free char *tap = pool_block(keeper->helper.pool.tap_base, 2U * keeper->helper.pool.slots);
    bt_auto_free char *bridge = pool_block(keeper->helper.pool.bridge_base, 8U * BT_POOL_SLOTS_MAX);
    bt_ipv4_format(orchestrator_address(keeper), host);
    bt_auto_free char *orchestrator = bt_string_format("%s:%u", host, BT_ORCHESTRATOR_PORT);
    return json_pack("{s:s, s:s, s:O, s:O, s:s, s:i, s:I, s:s, s:[s], s:{s:s, s:s}}", "orchestrator",
                     orchestrator, "secret", bt_keeper_text(keeper, "gateway_secret"), "resolvers",
                     json_object_get(keeper->request, "resolvers"), "parent_proxy",
                     json_object_get(keeper->request, "parent_proxy"), "listen", "0.0.0.0", "workers",
                     (int)gateway_workers(), "memory", (json_int_t)gateway_memory(), "authority",
                     BT_GUEST_FOLDER "/config/authority.pem", "trust", BT_GUEST_FOLDER "/config/trust.pem",
                     "pool", "tap", tap, "bridge", bridge);
}

static json_t *orchestrator_document(const struct bt_keeper *keeper)
{
    bt_auto_free char *listen = bt_string_format("0.0.0.0:%u", BT_ORCHESTRATOR_PORT);
    char key[BT_DIGEST_TEXT_SIZE];
    char secret[BT_DIGEST_TEXT_SIZE];
    const char *host_key = bt_keeper_text(keeper, "host_key");
    const char *gateway_secret = bt_keeper_text(keeper, "gateway_secret");
    bt_digest_bytes(host_key, strlen(host_key), key);
    bt_digest_bytes(gateway_secret, strlen(gateway_secret), secret);
    return json_pack("{s:s, s:s, s:s, s:s, s:I}", "listen", listen, "registry", "/var/lib/berth/registry.db",
                     "host_key_sha256", key, "gateway_secret_sha256", secret, "approval_seconds",
                     (json_int_t)bt_keeper_number(keeper, "approval_seconds"));
}

/* The guest's configuration; all of it is secret. */
struct configuration {
    char *text;
    struct bt_buffer authority, trust; /* a gateway's */
};

static void configuration_wipe(struct configuration *configuration)
{
    if (configuration->text != NULL)
        explicit_bzero(configuration->text, strlen(configuration->text));
    free(configuration->text);
    bt_buffer_wipe(&configuration->authority);
    bt_buffer_free(&configuration->trust);
}

static int configure(const struct bt_keeper *keeper, struct configuration *configuration,
                     struct bt_error *error)
{
    bool is_gateway = keeper->role == BT_ROLE_GATEWAY;
    json_t *document = is_gateway ? gateway_document(keeper) : orchestrator_document(keeper);
    configuration->text = document == NULL ? NULL : json_dumps(document, JSON_INDENT(1));
    json_decref(document);
    if (configuration->text == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot write the guest's configuration");
    int result = is_gateway ? bt_authority_get(&keeper->paths, &configuration->authority, error) : 0;
    return result == 0 && is_gateway ? bt_keeper_trust(keeper, false, &configuration->trust, error) : result;
}

static int start_guest(struct bt_keeper *keeper, int tap_fd, struct bt_error *error)
{
    bool is_gateway = keeper->role == BT_ROLE_GATEWAY;
    struct bt_image programs = {0};
    BT_CLEANUP(configuration_wipe) struct configuration configuration = {0};
    int result = configure(keeper, &configuration, error);
    if (result == 0)
        result = bt_image_get(&keeper->paths, "infra", false, NULL, &programs, error);
    if (result < 0)
        return result;
    struct bt_guest_file files[] = {
        {is_gateway ? "config/gateway.json" : "config/orchestrator.json", configuration.text,
         strlen(configuration.text), 0400},
        {"config/authority.pem", configuration.authority.data, configuration.authority.length, 0400},
        {"config/trust.pem", configuration.trust.data, configuration.trust.length, 0400},
    };
    enum bt_guest_role role = is_gateway ? BT_GUEST_GATEWAY : BT_GUEST_ORCHESTRATOR;
    struct bt_guest_plan plan = {
        .role = role,
        .identity = bt_keeper_identity(keeper, NULL),
        .paths = &keeper->paths,
        .orchestrator_address = orchestrator_address(keeper),
        .host_name = bt_guest_role_name(role),
        .folder = keeper->folder,
        .root = &programs,
        .memory_bytes = is_gateway ? gateway_memory() : ORCHESTRATOR_MEMORY,
        .cpus = is_gateway ? gateway_workers() : 1,
        .lease = &keeper->lease,
        .tap_fd = tap_fd,
        .files = files,
        .file_count = is_gateway ? BT_ARRAY_LENGTH(files) : 1,
        .console_fd = keeper->console.write_fd,
    };
    result = keeper->backend->prepare(&plan, error);
    if (result == 0)
        result = keeper->backend->launch(&plan, &keeper->guest, error);
    bt_fd_close(&keeper->console.write_fd);
    return result;
}

/* One attempt to connect, short: a booting guest answers nothing at first. */
static bool answers(uint32_t address, uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(address)}};
    bt_auto_fd fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return true;
    struct pollfd writable = {fd, POLLOUT, 0};
    int failure = 0;
    socklen_t size = sizeof failure;
    return errno == EINPROGRESS && poll(&writable, 1, 100) == 1 &&
           getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) == 0 && failure == 0;
}

static int wait_ready(struct bt_keeper *keeper, struct bt_error *error)
{
    uint16_t port = keeper->role == BT_ROLE_GATEWAY ? BT_GATEWAY_PORT_PROXY : BT_ORCHESTRATOR_PORT;
    double deadline = bt_keeper_now_ms() + BOOT_DEADLINE_MS;
    while (!answers(keeper->lease.guest_address, port)) {
        struct pollfd ended = {keeper->backend->end_fd(keeper->guest), POLLIN, 0};
        if (poll(&ended, 1, 20) > 0)
            return bt_keeper_guest_ended(keeper, "starting", error);
        if (bt_keeper_now_ms() > deadline)
            return bt_fail(
                error, BT_EXIT_INFRASTRUCTURE, ETIMEDOUT, "its console is in console.log in its folder",
                "the %s did not answer within %d seconds",
                keeper->role == BT_ROLE_GATEWAY ? "gateway" : "orchestrator", BOOT_DEADLINE_MS / 1000);
    }
    return 0;
}

static int record(struct bt_keeper *keeper, struct bt_error *error)
{
    struct bt_infra row = {.slot = keeper->lease.slot,
                           .generation = keeper->lease.generation,
                           .address = keeper->lease.guest_address};
    (void)snprintf(row.environment, sizeof row.environment, "%s", bt_keeper_text(keeper, "environment"));
    (void)snprintf(row.role, sizeof row.role, "%s", bt_keeper_text(keeper, "kind"));
    (void)snprintf(row.folder, sizeof row.folder, "%s", keeper->folder);
    int result = bt_process_identify(getpid(), &row.keeper);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot identify the keeper's own process");
    return bt_state_infra_put(keeper->state, &row, error);
}

static bool has_live_agent(struct bt_keeper *keeper)
{
    struct bt_agent *agents = NULL;
    size_t count = 0;
    bool is_busy = false;
    if (bt_state_list(keeper->state, bt_keeper_text(keeper, "environment"), &agents, &count, NULL) < 0)
        return true; /* unknown: stay */
    for (size_t i = 0; i < count; i++)
        is_busy = is_busy || bt_agent_is_live(&agents[i]);
    free(agents);
    return is_busy;
}

/* Until the guest ends, someone asks for the end, or nobody needs it any more. */
static int serve(struct bt_keeper *keeper, struct bt_error *error)
{
    struct bt_keeper_watch watch = {
        .control_fd = -1, .extra_fds = {-1, -1, -1, -1}, .timer_ms = IDLE_CHECK_MS};
    double idle_stop_ms = (double)bt_keeper_number(keeper, "idle_stop_seconds") * 1000.0;
    double busy_ms = bt_keeper_now_ms();
    for (;;) {
        int client_fd, index;
        switch (bt_keeper_wait(keeper, &watch, &client_fd, &index, error)) {
        case BT_KEEPER_GUEST_ENDED:
            return bt_keeper_guest_ended(keeper, "working", error);
        case BT_KEEPER_LEASE_LOST:
            return -error->code;
        case BT_KEEPER_SIGNALLED:
            return 0;
        case BT_KEEPER_TIMER:
            if (has_live_agent(keeper))
                busy_ms = bt_keeper_now_ms();
            else if (idle_stop_ms > 0 && bt_keeper_now_ms() - busy_ms > idle_stop_ms)
                return 0;
            break;
        case BT_KEEPER_CONTROL:
        case BT_KEEPER_WATCHED:
            break;
        }
    }
}

int bt_keeper_infra_run(struct bt_keeper *keeper, struct bt_error *error)
{
    bt_auto_fd tap_fd = -1;
    struct bt_process self;
    double started = bt_keeper_now_ms();
    int result = bt_keeper_lease(keeper, &tap_fd, error);
    if (result == 0)
        result = bt_keeper_console_open(keeper, error);
    if (result == 0)
        result = start_guest(keeper, tap_fd, error);
    bt_fd_close(&tap_fd); /* the VMM's end must be the last one, so that its death removes the device */
    if (result == 0)
        result = wait_ready(keeper, error);
    if (result == 0)
        result = record(keeper, error);
    if (result == 0) {
        bt_fd_close(&keeper->lock_fd);
        bt_keeper_step(keeper, bt_keeper_text(keeper, "kind"), started);
        bt_keeper_ready(keeper, json_object());
        result = serve(keeper, error);
    }
    bt_keeper_teardown(keeper, STOP_GRACE_MS);
    if (bt_process_identify(getpid(), &self) == 0)
        (void)bt_state_infra_delete(keeper->state, bt_keeper_text(keeper, "environment"),
                                    bt_keeper_text(keeper, "kind"), &self, NULL);
    return result;
}
