/* Running other programs: an argument vector, never a shell; a clean environment; bounded output. */
#ifndef BERTH_LIB_SPAWN_H
#define BERTH_LIB_SPAWN_H

#include <sys/types.h>

#include "lib/error.h"
#include "lib/memory.h"

struct bt_spawn {
    const char *const *arguments; /* NULL-terminated; [0] is looked up in PATH when it holds no slash */
    const char *const
        *environment;   /* NULL-terminated "NAME=value" list; NULL = the caller's PATH, HOME, LANG only */
    const char *folder; /* working folder, or NULL */
    const void *input;  /* bytes for standard input, or NULL for /dev/null */
    size_t input_length;
    size_t output_limit; /* per stream; 0 = 1 MiB. More output than that is -EFBIG, the child is killed */
    int timeout_ms;      /* 0 = none; passed: the child is killed, -ETIMEDOUT */
    void (*on_output)(void *context, const char *data,
                      size_t length); /* stdout as it comes; NULL = collect */
    void *context;
};

struct bt_spawn_result {
    int exit_status; /* 0..255; 128 + signal when a signal ended it */
    struct bt_buffer output;
    struct bt_buffer errors;
};

/* Runs a program to its end. Returns 0 when it ran, whatever its exit status; the caller frees the result.
 * -ENOENT: no such program. The child gets no descriptor but 0, 1, 2, default signals, and dies with the
 * caller. */
int bt_spawn_run(const struct bt_spawn *spawn, struct bt_spawn_result *ret_result, struct bt_error *error);
void bt_spawn_result_free(struct bt_spawn_result *result);

/* bt_spawn_run that makes a non-zero exit an error whose message holds the end of what it wrote to stderr. */
int bt_spawn_check(const struct bt_spawn *spawn, struct bt_spawn_result *ret_result, struct bt_error *error);

#endif
