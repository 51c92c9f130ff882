/* The plan: an agent's manifest, its bottles and what narrows them, put together.
 *
 * Called by `berth spawn`, `run` and `why`. Must grant nothing that no bottle of the user grants.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "frontend/frozen.h"
#include "frontend/manifest_internal.h"
#include "frontend/output.h"
#include "frontend/state.h"

/* The later value of a variable wins, in the place of the earlier one. */
static void bt_plan_set_variable(struct bt_plan *plan, const char *assignment)
{
    size_t name = strcspn(assignment, "=") + 1;

    for (size_t i = 0; i < plan->environment.count; i++) {
        if (strncmp(plan->environment.items[i], assignment, name) == 0) {
            free(plan->environment.items[i]);
            plan->environment.items[i] = bt_string_copy(assignment);
            return;
        }
    }
    bt_list_add(&plan->environment, assignment);
}

static void bt_plan_replace_routes(struct bt_plan *plan, const struct bt_bottle *bottle)
{
    if (plan->route_count > 0)
        bt_list_add_format(&plan->notes, "the egress of bottle %s replaces that of %s", bottle->name,
                           plan->routes[0].granted_by);
    bt_routes_free(plan->routes, plan->route_count);
    plan->routes = NULL;
    plan->route_count = 0;
    for (size_t i = 0; i < bottle->route_count; i++) {
        const struct bt_route *route = &bottle->routes[i];
        bt_route_add(&plan->routes, &plan->route_count, route->host, json_incref(route->rules),
                     route->granted_by, route->source);
    }
}

static void bt_plan_apply_resources(struct bt_resources *resources, const struct bt_bottle *bottle)
{
    if (bottle->memory_bytes)
        resources->memory_bytes = bottle->memory_bytes;
    if (bottle->cpus)
        resources->cpus = bottle->cpus;
    if (bottle->disk_bytes)
        resources->disk_bytes = bottle->disk_bytes;
    resources->is_memory_asked |= bottle->memory_bytes != 0;
    resources->is_cpus_asked |= bottle->cpus != 0;
    resources->is_disk_asked |= bottle->disk_bytes != 0;
}

static void bt_plan_apply_bottle(struct bt_plan *plan, const struct bt_bottle *bottle)
{
    bt_list_add(&plan->bottles, bottle->name);
    if (bottle->has_egress)
        bt_plan_replace_routes(plan, bottle);
    bt_plan_apply_resources(&plan->resources, bottle);
    for (size_t i = 0; i < bottle->environment.count; i++)
        bt_plan_set_variable(plan, bottle->environment.items[i]);
    plan->is_gvisor |= bottle->is_gvisor;
    if (!bottle->image && !bottle->dockerfile && !bottle->overlay)
        return;
    free(BT_TAKE(plan->dockerfile));
    free(BT_TAKE(plan->overlay));
    free(plan->image);
    plan->image = bt_string_copy(bottle->image ? bottle->image : bt_harness_image(plan->harness));
    plan->dockerfile = bottle->dockerfile ? bt_string_copy(bottle->dockerfile) : NULL;
    plan->overlay = bottle->overlay ? bt_string_copy(bottle->overlay) : NULL;
}

static int bt_plan_bottles(const struct bt_plan_request *request, const struct bt_agent_manifest *manifest,
                           struct bt_plan *plan, struct bt_error *error)
{
    struct bt_bottles bottles = {0};
    const char *usual = bt_harness_bottle(manifest->harness);
    int r = 0;

    if (usual == NULL)
        usual = BT_BOTTLE_NONE;
    if (request->bottle_count > BT_BOTTLES_MAX)
        return bt_fail(error, BT_EXIT_USAGE, E2BIG, NULL, "more than %u bottles", BT_BOTTLES_MAX);
    for (size_t i = 0; i < request->bottle_count && r == 0; i++)
        r = bt_bottles_add(request->paths, request->bottles[i], NULL, &bottles, error);
    if (!request->bottles && r == 0)
        r = bt_bottles_add(request->paths, manifest->bottle ? manifest->bottle : usual,
                           manifest->bottle ? manifest->bottle_at : NULL, &bottles, error);
    for (size_t i = 0; i < bottles.count && r == 0; i++)
        bt_plan_apply_bottle(plan, &bottles.items[i]);
    bt_bottles_free(&bottles);
    return r;
}

/* What a project has that is not used must be said, not passed over. */
static int bt_plan_note_project(const struct bt_plan_request *request, struct bt_plan *plan,
                                struct bt_error *error)
{
    bt_auto_fd fd = -1;
    char folder[4096];
    struct stat status;
    int r;

    if (!request->project_folder)
        return 0;
    r = bt_project_open(request->project_folder, &fd, folder, error);
    if (r < 0 || fd < 0)
        return r;
    if (fstatat(fd, "bottles", &status, AT_SYMLINK_NOFOLLOW) == 0)
        bt_list_add_format(&plan->notes, "%s/bottles is not used: a project cannot grant anything", folder);
    bt_auto_free char *relative = bt_string_format("agents/%s.md", request->agent);
    if (!plan->is_project_agent && fstatat(fd, relative, &status, AT_SYMLINK_NOFOLLOW) == 0)
        bt_list_add_format(&plan->notes, "%s/%s is not used: %s comes first", folder, relative,
                           strcmp(plan->agent_source, "built in") == 0 ? "the built-in agent"
                                                                       : plan->agent_source);
    return 0;
}

static int bt_plan_narrow(const struct bt_plan_request *request, struct bt_plan *plan, struct bt_error *error)
{
    struct bt_allow_list project = {0}, admin = {0};
    size_t before = plan->route_count;
    int r = bt_allow_load_project(request->project_folder, &project, error);

    if (r == 0)
        r = bt_allow_load_admin(
            request->admin_policy_path ? request->admin_policy_path : BT_ADMIN_POLICY_PATH, &admin, error);
    if (r == 0) {
        bt_allow_apply(&project, plan);
        bt_allow_apply(&admin, plan);
        if (plan->route_count == 0)
            bt_list_add_format(&plan->notes, "nothing is allowed: the agent reaches no host at all (%s)",
                               before ? "what its bottles grant is not allowed by the policies above them"
                                      : "its bottles list no routes");
        if (plan->route_count > BT_ROUTES_MAX)
            r = bt_fail(error, BT_EXIT_ERROR, E2BIG, "use wildcards, or split the agent's work",
                        "bottles and policies together give %zu routes; %u are the most", plan->route_count,
                        BT_ROUTES_MAX);
    }
    bt_allow_free(&project);
    bt_allow_free(&admin);
    return r;
}

static json_t *bt_plan_policy(const struct bt_plan *plan)
{
    json_t *routes = json_array();

    for (size_t i = 0; i < plan->route_count; i++) {
        const struct bt_route *route = &plan->routes[i];
        json_t *document = json_pack("{s:s, s:s}", "host", route->host, "granted_by", route->granted_by);
        json_object_update(document, route->rules);
        json_array_append_new(routes, document);
    }
    return json_pack("{s:i, s:o}", "version", 1, "routes", routes);
}

/* What the last bottle or the user names: one of the user's own images, or a recipe. */
static int bt_plan_image(const struct bt_plan_request *request, struct bt_plan *plan, struct bt_error *error)
{
    struct bt_frozen frozen;
    int r;

    if (request->image) {
        if (!bt_name_is_valid(request->image) || bt_image_is_berths_own(request->image))
            return bt_fail(error, BT_EXIT_USAGE, EINVAL, "berth image list shows what there is",
                           "'%.64s' is no image for agents", request->image);
        free(plan->image);
        plan->image = bt_string_copy(request->image);
        free(BT_TAKE(plan->dockerfile));
        free(BT_TAKE(plan->overlay));
    }
    r = bt_frozen_load(request->paths, plan->image, &frozen, error);
    if (r == -ENOENT) {
        bool is_gone = request->kept_recipe && !bt_frozen_is_recipe(plan->image);
        plan->recipe = bt_string_copy(is_gone ? request->kept_recipe : plan->image);
        return 0;
    }
    if (r < 0)
        return r;
    plan->recipe = bt_string_copy(frozen.recipe);
    plan->home_folder = bt_string_copy(frozen.folder);
    return 0;
}

static int bt_plan_build(const struct bt_plan_request *request, struct bt_plan *plan, struct bt_error *error)
{
    struct bt_agent_manifest manifest = {0};
    int r = bt_agent_manifest_find(request->paths, request->project_folder, request->agent, &manifest, error);

    if (r < 0)
        return r;
    plan->agent = bt_string_copy(request->agent);
    plan->agent_source = BT_TAKE(manifest.source);
    plan->is_project_agent = manifest.is_project;
    plan->harness = manifest.harness;
    plan->prompt = BT_TAKE(manifest.prompt);
    plan->resources = (struct bt_resources){
        .memory_bytes = BT_MEMORY_DEFAULT, .cpus = BT_CPUS_DEFAULT, .disk_bytes = BT_DISK_DEFAULT};
    plan->image = bt_string_copy(bt_harness_image(plan->harness));
    bt_harness_environment(plan->harness, &plan->environment);
    r = bt_plan_bottles(request, &manifest, plan, error);
    bt_agent_manifest_free(&manifest);
    if (r == 0)
        r = bt_plan_image(request, plan, error);
    if (r == 0)
        r = bt_plan_note_project(request, plan, error);
    if (r == 0)
        r = bt_plan_narrow(request, plan, error);
    if (r == 0)
        plan->policy = bt_plan_policy(plan);
    return r;
}

int bt_plan_make(const struct bt_plan_request *request, struct bt_plan *ret_plan, struct bt_error *error)
{
    struct bt_plan plan = {0};
    struct bt_policy *policy = NULL;
    int r = bt_plan_build(request, &plan, error);

    /* The document must pass the one reader that decides by it. */
    if (r == 0)
        r = bt_policy_parse(plan.policy, &policy, error);
    bt_policy_free(policy);
    if (r < 0) {
        bt_plan_free(&plan);
        return r;
    }
    *ret_plan = plan;
    return 0;
}

void bt_plan_free(struct bt_plan *plan)
{
    free(plan->agent);
    free(plan->agent_source);
    free(plan->prompt);
    bt_list_free(&plan->bottles);
    bt_routes_free(plan->routes, plan->route_count);
    json_decref(plan->policy);
    bt_list_free(&plan->environment);
    free(plan->image);
    free(plan->recipe);
    free(plan->home_folder);
    free(plan->dockerfile);
    free(plan->overlay);
    bt_list_free(&plan->notes);
    *plan = (struct bt_plan){0};
}

static json_t *bt_plan_routes_json(const struct bt_plan *plan)
{
    json_t *routes = json_array();

    for (size_t i = 0; i < plan->route_count; i++) {
        const struct bt_route *route = &plan->routes[i];
        const char *colon = strchr(route->host, ':');
        uint64_t port = 0;
        json_t *ports;
        if (colon && bt_number_parse(colon + 1, strlen(colon + 1), 1, 65535, &port) == 0)
            ports = json_pack("[I]", (json_int_t)port);
        else
            ports = json_pack("[i, i]", 80, 443);
        json_t *document = json_pack("{s:s, s:o, s:s, s:b, s:s, s:o}", "host", route->host, "ports", ports,
                                     "tls", "intercept", "private", 0, "granted_by", route->granted_by,
                                     "source", bt_output_json_text(route->source));
        json_object_update(document, route->rules);
        json_array_append_new(routes, document);
    }
    return routes;
}

static json_t *bt_plan_list_json(const struct bt_list *list)
{
    json_t *array = json_array();

    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(array, bt_output_json_text(list->items[i]));
    return array;
}

json_t *bt_plan_to_json(const struct bt_plan *plan)
{
    json_t *names = json_array();

    /* Names only: values may be secrets, and this is what --dry-run prints. */
    for (size_t i = 0; i < plan->environment.count; i++) {
        const char *assignment = plan->environment.items[i];
        json_array_append_new(names, json_stringn(assignment, strcspn(assignment, "=")));
    }
    return json_pack("{s:s, s:o, s:b, s:s, s:o, s:s, s:o, s:o, s:{s:I, s:i, s:I}, s:o, s:I, s:o, s:O, s:o}",
                     "agent", plan->agent, "source", bt_output_json_text(plan->agent_source),
                     "is_project_agent", plan->is_project_agent, "harness", bt_harness_name(plan->harness),
                     "bottles", bt_plan_list_json(&plan->bottles), "image", plan->image, "dockerfile",
                     bt_output_json_text(plan->dockerfile), "overlay", bt_output_json_text(plan->overlay),
                     "resources", "memory_bytes", (json_int_t)plan->resources.memory_bytes, "cpus",
                     (int)plan->resources.cpus, "disk_bytes", (json_int_t)plan->resources.disk_bytes,
                     "environment", names, "prompt_bytes", (json_int_t)strlen(plan->prompt), "routes",
                     bt_plan_routes_json(plan), "policy", plan->policy, "notes",
                     bt_plan_list_json(&plan->notes));
}
