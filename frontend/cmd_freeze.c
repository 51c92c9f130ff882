/* berth freeze: what an agent has at home becomes an image of the user's, which other agents may begin with.
 *
 * Must put nothing secret of the agent into the image, and must not call half a home an image.
 */
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

#include "backends/backend.h"
#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/frozen.h"
#include "frontend/keeper.h"
#include "frontend/origin.h"

#define BT_FREEZE_TOKEN_MAX 128U

/* The token as the agent's programs know it, and as they send it ("agent:" is six bytes, so what follows is
 * encoded by itself). */
struct bt_freeze_secrets {
    char token[BT_FREEZE_TOKEN_MAX + 1];
    char encoded[2 * BT_FREEZE_TOKEN_MAX];
    const char *list[3];
};

static int bt_freeze_read_secrets(const struct bt_agent *agent, struct bt_freeze_secrets *ret_secrets,
                                  struct bt_error *error)
{
    struct bt_agent_secrets secrets = {0};
    int r = bt_agent_secrets_load(agent->folder, &secrets, error);
    size_t length = r == 0 ? strlen(secrets.token) : 0;

    if (r == 0 && (length < 16 || length > BT_FREEZE_TOKEN_MAX))
        r = bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL, "the token of %s is damaged", agent->name);
    if (r == 0) {
        memcpy(ret_secrets->token, secrets.token, length + 1);
        /* Whole groups of three bytes: what follows them is not the same in every encoding. */
        int encoded = EVP_EncodeBlock((unsigned char *)ret_secrets->encoded,
                                      (const unsigned char *)ret_secrets->token, (int)(length / 3 * 3));
        ret_secrets->encoded[encoded] = '\0';
        ret_secrets->list[0] = ret_secrets->token;
        ret_secrets->list[1] = ret_secrets->encoded;
        ret_secrets->list[2] = NULL;
    }
    bt_agent_secrets_free(&secrets);
    return r;
}

/* What is to be frozen must be the same agent in the same life from beginning to end: a disk that is copied
 * while it is started again would be half of each. */
static int bt_freeze_check_unchanged(struct bt_state *state, const struct bt_agent *before,
                                     struct bt_error *error)
{
    struct bt_agent now;
    int r = bt_state_get(state, before->id, &now, error);

    if (r < 0)
        return r;
    if (bt_agent_is_live(&now) == bt_agent_is_live(before) && now.ended_seconds == before->ended_seconds &&
        now.keeper.pid == before->keeper.pid && now.keeper.start_ticks == before->keeper.start_ticks)
        return 0;
    return bt_fail(error, BT_EXIT_ERROR, EBUSY, "try again",
                   "%s was started or ended while it was being frozen", before->name);
}

static int bt_freeze_copy(struct bt_context *context, struct bt_state *state, const struct bt_agent *agent,
                          const json_t *origin, struct bt_freezing *freezing, struct bt_error *error)
{
    struct bt_progress progress = bt_output_progress(&context->output);
    struct bt_freeze_secrets secrets;
    const struct bt_backend *backend;
    const char *why;
    struct bt_freeze request = {
        .identity = {context->paths.state, agent->environment, BT_GUEST_AGENT, agent->name},
        .paths = &context->paths,
        .agent_folder = agent->folder,
        .recipe = freezing->frozen.recipe,
        .is_live = bt_agent_is_live(agent),
        .bytes_max = (uint64_t)json_integer_value(json_object_get(origin, "disk_bytes")),
        .secrets = secrets.list,
        .folder = freezing->folder,
        .progress = &progress,
    };
    int r = bt_backend_select(agent->backend, &backend, &why, error);

    if (r < 0)
        return r;
    if (!backend->freeze)
        return bt_fail(error, BT_EXIT_ERROR, EOPNOTSUPP, "berth cp brings files out of an agent",
                       "the backend %s cannot freeze agents", agent->backend);
    r = bt_freeze_read_secrets(agent, &secrets, error);
    if (r == 0)
        r = backend->provide(&context->paths, request.recipe, &progress, error);
    if (r == 0)
        r = backend->freeze(&request, error);
    if (r == 0)
        r = bt_freeze_check_unchanged(state, agent, error);
    explicit_bzero(&secrets, sizeof(secrets));
    bt_output_progress_end(&context->output);
    return r;
}

static int bt_freeze_agent(struct bt_context *context, struct bt_state *state, const struct bt_agent *agent,
                           const char *name, struct bt_error *error)
{
    struct bt_freezing freezing = {.lock_fd = -1};
    json_t *origin = NULL;
    char size[BT_OUTPUT_TEXT_SIZE];
    int r = bt_origin_load(agent->folder, agent->name, &origin, error);
    const char *recipe = json_string_value(json_object_get(origin, "recipe"));

    if (r == 0 && !recipe)
        r = bt_fail(error, BT_EXIT_ERROR, EBADMSG, "stop and resume it with this one, then freeze it",
                    "an older berth started %s", agent->name);
    if (r == 0) {
        snprintf(freezing.frozen.name, sizeof(freezing.frozen.name), "%s", name);
        snprintf(freezing.frozen.agent, sizeof(freezing.frozen.agent), "%s", agent->name);
        snprintf(freezing.frozen.recipe, sizeof(freezing.frozen.recipe), "%s", recipe);
        snprintf(freezing.frozen.backend, sizeof(freezing.frozen.backend), "%s", agent->backend);
        r = bt_frozen_begin(&context->paths, &freezing, bt_option_is_set(&context->arguments, "force"),
                            error);
    }
    if (r == 0)
        r = bt_freeze_copy(context, state, agent, origin, &freezing, error);
    if (r == 0)
        r = bt_frozen_commit(&freezing, error);
    bt_frozen_discard(&freezing);
    json_decref(origin);
    if (r == 0)
        r = bt_audit_write(&context->paths, "freeze", agent->environment, agent->name,
                           json_pack("{s:s}", "image", name), error);
    if (r < 0)
        return bt_error_prefix(error, "cannot freeze %s", agent->name);
    bt_output_bytes(freezing.frozen.disk_bytes, size);
    bt_output_print(&context->output,
                    "%s is an image now (%s): berth spawn AGENT --image %s begins with it\n", name, size,
                    name);
    bt_output_document(&context->output,
                       json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "image", name, "agent", agent->name,
                                 "recipe", freezing.frozen.recipe, "backend", freezing.frozen.backend,
                                 "size_bytes", (json_int_t)freezing.frozen.size_bytes, "disk_bytes",
                                 (json_int_t)freezing.frozen.disk_bytes));
    return 0;
}

static int bt_freeze_run(struct bt_context *context, struct bt_error *error)
{
    const struct bt_arguments *arguments = &context->arguments;
    bool is_latest = bt_option_is_set(arguments, "latest");
    size_t at = is_latest ? 0 : 1; /* of the image's name */
    struct bt_state *state = NULL;
    struct bt_agent agent;
    int r;

    if (arguments->operands.count > at + 1)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "one agent at a time: berth freeze N [NAME]");
    r = bt_state_open(&context->paths, &state, error);
    if (r == 0 && is_latest)
        r = bt_state_find_latest(state, context->environment, &agent, error);
    else if (r == 0)
        r = bt_command_target(context, state, 0, &agent, error);
    if (r == 0) {
        const char *name = arguments->operands.count > at ? arguments->operands.items[at] : agent.name;
        r = bt_freeze_agent(context, state, &agent, name, error);
    }
    bt_state_close(state);
    return r;
}

static const struct bt_option bt_freeze_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
    {.name = "force", .letter = 'f', .help = "replace an image of this name"},
};

const struct bt_command bt_command_freeze = {
    .name = "freeze",
    .operands = "N [IMAGE]",
    .summary = "Make an image of what an agent has at home, for others to begin with",
    .details = "The image is yours alone, and has the agent's name unless another is given. Nothing of its "
               "workspace is in it.\n"
               "Agents begin with it by --image, or by 'image' in a bottle. A virtual machine has to be "
               "stopped before.",
    .options = bt_freeze_options,
    .option_count = BT_ARRAY_LENGTH(bt_freeze_options),
    .maximum = 2,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_freeze_run,
};
