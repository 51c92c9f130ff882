/* From manifests to a plan: what an agent is, and what it may reach by whose leave. Touches nothing but the
 * files it reads.
 *
 * Built in, unless the user has one of that name: an agent for each harness (claude, codex, pi, shell), and
 * what comes with berth as their bottles (frontend/bottles).
 *
 *   <config>/agents/<name>.md       the user's agents: front matter {harness, bottle, skills}, the body is
 * the prompt <config>/bottles/<name>.yaml    the user's bottles: {egress, resources, env, image, isolation,
 * extends} <project>/.berth/agents/        more agents; never replaces one of the user's
 *   <project>/.berth/policy.yaml    {egress: {allow: [patterns and limits]}}: only narrows
 *   /etc/berth/policy.yaml          the same, the administrator's; narrows what is left
 *
 * Bottles combine left to right, a parent before its child: env by variable, resources by key, egress and
 * image whole.
 */
#ifndef BERTH_FRONTEND_MANIFEST_H
#define BERTH_FRONTEND_MANIFEST_H

#include <jansson.h>

#include "frontend/harness.h"
#include "lib/error.h"
#include "lib/file.h"
#include "lib/memory.h"

#define BT_ADMIN_POLICY_PATH "/etc/berth/policy.yaml"
#define BT_BOTTLE_NONE "none"  /* built in: no egress */
#define BT_AGENT_SHELL "shell" /* built in: what runs where no agent is named */

#define BT_MEMORY_DEFAULT (2ULL << 30)
#define BT_MEMORY_MINIMUM (128ULL << 20)
#define BT_MEMORY_MAXIMUM (64ULL << 30)
#define BT_CPUS_DEFAULT 2U
#define BT_CPUS_MAXIMUM 32U
#define BT_DISK_DEFAULT (16ULL << 30)
#define BT_DISK_MINIMUM (64ULL << 20)
#define BT_DISK_MAXIMUM (1024ULL << 30)

struct bt_resources {
    uint64_t memory_bytes;
    unsigned cpus;
    uint64_t disk_bytes; /* of each of the agent's disks, sparse */
    /* A bottle says so, be it the default: not to hold it is an error then. */
    bool is_memory_asked, is_cpus_asked, is_disk_asked;
};

struct bt_route {
    char *host;       /* canonical pattern: lower case, "*.example.com:8443" */
    json_t *rules;    /* the keys of policy/POLICY.md's route but host and granted_by */
    char *granted_by; /* "bottle dev", "bottle dev, within /etc/berth/policy.yaml" */
    char *source;     /* file:line:column it was written at */
};

struct bt_plan {
    char *agent;           /* name of the agent manifest */
    char *agent_source;    /* its path, or "built in" */
    bool is_project_agent; /* came from the project's .berth/agents */
    enum bt_harness harness;
    char *prompt;           /* may be empty, never NULL */
    struct bt_list bottles; /* in the order in which they were applied, parents included */
    struct bt_route *routes;
    size_t route_count;
    json_t *policy; /* policy/POLICY.md, made from routes: owned by the plan */
    struct bt_resources resources;
    struct bt_list environment; /* "NAME=value" */
    char *image;                /* a recipe's name, or one of the user's (frontend/frozen.h) */
    char *recipe;               /* of its root: image, unless that is the user's */
    char *home_folder;          /* what its home begins with; NULL: nothing */
    /* The image is built on that of the recipe: from a Dockerfile with its folder, or of a folder that is
     * laid over it. At most one; see frontend/build.h. */
    char *dockerfile, *overlay;
    bool is_gvisor;       /* isolation: gvisor; once a bottle has said so, no other takes it back */
    struct bt_list notes; /* what the user should know: routes that were taken away and by whom, ... */
};

struct bt_plan_request {
    const struct bt_paths *paths;
    const char *agent;          /* manifest name */
    const char *const *bottles; /* instead of the manifest's own; NULL = the manifest's */
    size_t bottle_count;
    const char *image;             /* instead of the bottles'; NULL = theirs */
    const char *kept_recipe;       /* of an agent that is resumed: where its image was removed */
    const char *project_folder;    /* where the search for .berth begins, upwards; NULL = no project */
    const char *admin_policy_path; /* NULL = BT_ADMIN_POLICY_PATH */
};

/* Makes the plan, or says at which file:line:column it cannot. BT_EXIT_NO_TARGET: no such agent or bottle
 * (the nearest one is suggested). The caller frees with bt_plan_free. */
int bt_plan_make(const struct bt_plan_request *request, struct bt_plan *ret_plan, struct bt_error *error);
void bt_plan_free(struct bt_plan *plan);
#define bt_auto_plan BT_CLEANUP(bt_plan_free) struct bt_plan

/* The plan as the user reads it: --dry-run --json. A new reference. */
json_t *bt_plan_to_json(const struct bt_plan *plan);

/* Names of all agents that could be spawned, or of all bottles (built-in ones first). For help and
 * completion. */
int bt_agent_names(const struct bt_paths *paths, const char *project_folder, struct bt_list *ret_names,
                   struct bt_error *error);
int bt_bottle_names(const struct bt_paths *paths, struct bt_list *ret_names, struct bt_error *error);

#endif
