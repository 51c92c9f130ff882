/* Shared by the manifest_*.c files only: what was read from each file, before it is combined.
 */
#ifndef BERTH_FRONTEND_MANIFEST_INTERNAL_H
#define BERTH_FRONTEND_MANIFEST_INTERNAL_H

#include "frontend/manifest.h"
#include "lib/yaml.h"
#include "policy/rules/rules.h"

#define BT_MANIFEST_BYTES_MAX (1024U * 1024U)
/* "*." and ":65535" around a name. */
#define BT_PATTERN_SIZE (BT_HOST_NAME_SIZE + 24)
#define BT_ROUTES_MAX 1024U
#define BT_EXTENDS_MAX 16U
#define BT_BOTTLES_MAX 16U

/* A bottle as written, without its parents. */
struct bt_bottle {
    char name[32];
    bool has_egress;
    struct bt_route *routes;
    size_t route_count;
    uint64_t memory_bytes, disk_bytes; /* 0 = not given */
    unsigned cpus;                     /* 0 = not given */
    struct bt_list environment;        /* "NAME=value" */
    char *image;                       /* NULL = not given */
    char *dockerfile, *overlay;        /* absolute; at most one, and then no image */
    bool is_gvisor;                    /* isolation: gvisor */
};
void bt_bottle_free(struct bt_bottle *bottle);

/* Reads a bottle from text; *ret_extends (owned, NULL = none) with its position in *ret_extends_at (owned).
 */
int bt_bottle_parse(const char *path, const char *text, size_t length, const char *name,
                    struct bt_bottle *ret_bottle, char **ret_extends, char **ret_extends_at,
                    struct bt_error *error);

/* A named bottle and its parents, parents first, none twice; appended to the array. at: the place that names
 * it, for messages, or NULL. */
struct bt_bottles {
    struct bt_bottle *items;
    size_t count;
};
int bt_bottles_add(const struct bt_paths *paths, const char *name, const char *at, struct bt_bottles *bottles,
                   struct bt_error *error);
void bt_bottles_free(struct bt_bottles *bottles);

/* What only berth's own guests boot from. */
bool bt_image_is_berths_own(const char *image);

/* An agent manifest as written. */
struct bt_agent_manifest {
    char *source; /* path, or "built in" */
    bool is_project;
    enum bt_harness harness;
    char *bottle;    /* NULL = none given */
    char *bottle_at; /* file:line:column */
    char *prompt;
};
int bt_agent_manifest_parse(const char *path, const char *text, size_t length,
                            struct bt_agent_manifest *ret_manifest, struct bt_error *error);
/* The user's own, else the built-in one, else the project's. */
int bt_agent_manifest_find(const struct bt_paths *paths, const char *project_folder, const char *name,
                           struct bt_agent_manifest *ret_manifest, struct bt_error *error);
void bt_agent_manifest_free(struct bt_agent_manifest *manifest);

/* A list that narrows routes. */
struct bt_allow_entry {
    char *pattern;
    json_t *limits; /* an object: methods, paths, headers, dlp, log as in a route; tls: intercept; private,
                       auth, preserve_auth, transparent: false */
};
struct bt_allow_list {
    bool is_present;   /* false: narrows nothing */
    char *source;      /* its path */
    const char *label; /* what granted_by calls it: short, as that text is bounded */
    struct bt_allow_entry *entries;
    size_t count;
};
int bt_allow_parse(const char *path, const char *label, const char *text, size_t length,
                   struct bt_allow_list *ret_list, struct bt_error *error);
int bt_allow_load_admin(const char *path, struct bt_allow_list *ret_list, struct bt_error *error);
int bt_allow_load_project(const char *project_folder, struct bt_allow_list *ret_list, struct bt_error *error);
void bt_allow_free(struct bt_allow_list *list);

/* Keeps of the plan's routes what the list allows too; notes say what was taken away. */
void bt_allow_apply(const struct bt_allow_list *list, struct bt_plan *plan);

/* The patterns that match exactly what both match: "" when nothing. Both canonical. */
void bt_pattern_intersect(const char *left, const char *right, char ret_pattern[BT_PATTERN_SIZE]);
/* Canonical form of a checked pattern. */
int bt_pattern_canonical(const char *pattern, char ret_pattern[BT_PATTERN_SIZE]);

/* Takes the reference of rules, copies the rest. */
void bt_route_add(struct bt_route **routes, size_t *count, const char *host, json_t *rules,
                  const char *granted_by, const char *source);
void bt_routes_free(struct bt_route *routes, size_t count);

/* The keys of a route but host, in the form of the policy document and not yet checked; a new reference. */
int bt_rules_read(const struct bt_yaml *mapping, json_t **ret_rules, struct bt_error *error);
/* The key dlp of a mapping alone; *ret_dlp is left alone when there is none. */
int bt_rules_read_dlp(const struct bt_yaml *mapping, json_t **ret_dlp, struct bt_error *error);
/* Holds rules against the one reader that decides by them; what is wrong is told at its place in mapping. */
int bt_rules_check(const struct bt_yaml *mapping, const char *host, const json_t *rules,
                   struct bt_error *error);
/* The keys of an entry of a narrowing list but host, checked; a new reference. */
int bt_limits_read(const struct bt_yaml *mapping, const char *host, json_t **ret_limits,
                   struct bt_error *error);
/* What rules and limits both allow, a new reference; NULL when that is nothing. *ret_is_opened: TLS that was
 * passed through is read now, as the limits cannot be kept otherwise. */
json_t *bt_rules_narrow(const json_t *rules, const json_t *limits, bool *ret_is_opened);

/* "file:line:column" of a node; owned by the caller. */
char *bt_manifest_position(const struct bt_yaml *node);

/* Refuses the keys of unsupported[0..count) with their position. */
int bt_manifest_refuse_unsupported(const struct bt_yaml *mapping, const char *const *unsupported,
                                   size_t count, struct bt_error *error);

/* A project's .berth folder: searched upwards from project_folder. *ret_fd = -1 when there is none. Refused
 * when it is a symbolic link or another user's. */
int bt_project_open(const char *project_folder, int *ret_fd, char ret_path[4096], struct bt_error *error);
/* A file below it, through no symbolic link: what a repository ships must not lead to the user's other files.
 */
int bt_project_read(int folder_fd, const char *folder, const char *name, struct bt_buffer *ret_text,
                    struct bt_error *error);

#endif
