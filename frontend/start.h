/* What `berth spawn`, `berth run` and `berth resume` share: from options to a plan, from a plan to a launch
 * or to --dry-run's answer.
 */
#ifndef BERTH_FRONTEND_START_H
#define BERTH_FRONTEND_START_H

#include "frontend/command.h"

#define BT_REPOSITORIES_MAX 16U

struct bt_start {
    const char *manifest;        /* agent manifest */
    const char *workspace;       /* host folder, or NULL */
    const char *prompt;          /* or NULL */
    struct bt_list repositories; /* https URLs */
    const char *const *command;  /* NULL-terminated, or NULL */
    const char *backend;         /* asked for, or NULL */
    const char *name;            /* asked for, or NULL */
    const char *project;         /* folder whose .berth counts, or NULL */
    struct bt_list bottles;      /* instead of the manifest's own; of no member: the manifest's */
    const char *image;           /* instead of the bottles', or NULL */
    bool is_ignored_included;
    bool is_dry_run;
    /* Of a resume: the agent's row, and what frontend/origin.h says of it; else NULL. */
    const struct bt_agent *resumed;
    const json_t *origin;
};

/* Options of both commands, in the order of their tables. */
#define BT_START_OPTIONS                                                                                     \
    {.name = "backend",                                                                                      \
     .letter = 'b',                                                                                          \
     .value_name = "BACKEND",                                                                                \
     .help = "how to run it (also BERTH_BACKEND)"},                                                          \
        {.name = "bottles", .value_name = "A,B", .help = "sandbox policies, instead of the manifest's own"}, \
        {.name = "image",                                                                                    \
         .value_name = "IMAGE",                                                                              \
         .help = "what it begins with, instead of the bottles' image"},                                      \
        {.name = "name", .letter = 'n', .value_name = "NAME", .help = "its name; made up when not given"},   \
        {.name = "background", .letter = 'd', .help = "return once it works"},                               \
        {.name = "include-ignored", .help = "also copy what git ignores"},                                   \
        {.name = "yes", .letter = 'y', .help = "confirm what would be asked"},                               \
        {.name = "build", .value_name = "DIGEST", .help = "agree to building the image of this digest"},     \
    {                                                                                                        \
        .name = "dry-run", .help = "show what would be allowed and by whom; touch nothing"                   \
    }

/* Reads BT_START_OPTIONS into *start, whose other members are set; then as bt_start_go. */
int bt_start_run(struct bt_context *context, struct bt_start *start, struct bt_error *error);

/* Plans, asks what must be asked, launches, reports; context->exit_status is 3 when the agent failed. The
 * command's options have "background" and "yes". */
int bt_start_go(struct bt_context *context, const struct bt_start *start, struct bt_error *error);

/* The folder whose project counts when none was named: the one the user stands in, "."; NULL when that cannot
 * be looked at by its path (a shell whose folder was removed, or closed to this user). */
const char *bt_start_own_folder(void);

/* Splits "a,b" into names. BT_EXIT_USAGE on an empty one. */
int bt_start_split(const char *text, const char *option, struct bt_list *ret_names, struct bt_error *error);

/* Checks a repository address: https, no user or password in it, bounded, plain characters. */
int bt_start_check_repository(const char *url, struct bt_error *error);

/* The host and port of a checked repository address. */
int bt_start_repository_host(const char *url, char *ret_host, size_t size, uint16_t *ret_port);

#endif
