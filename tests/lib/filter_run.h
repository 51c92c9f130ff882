/* Runs a filter over one message, in pieces, the way exchange.c does. */
#ifndef BERTH_TESTS_LIB_FILTER_RUN_H
#define BERTH_TESTS_LIB_FILTER_RUN_H

#include "policy/gateway/filter.h"

enum filter_run_cut {
    CUT_NONE,   /* one piece */
    CUT_BYTES,  /* one byte a piece */
    CUT_RANDOM, /* pieces of 1 to 2000 bytes, by seed */
};

struct filter_run {
    bool is_response;
    struct bt_filter_settings settings;
    const char *path; /* of the request; NULL: "/" */
    const struct bt_http_field *fields;
    size_t field_count;
    unsigned status;      /* of a response; 0: 200 */
    const char *protocol; /* of the request, or NULL */
    enum filter_run_cut cut;
    unsigned seed;
    bool answer; /* to questions */

    /* What came of it; free with filter_run_clear. */
    enum bt_filter_verdict verdict;
    bool is_head; /* the verdict was about the head */
    unsigned questions;
    char *output; /* NUL-terminated */
    size_t output_length;
    char *head; /* "path\nname: value\n..." as it would be sent */
    size_t held_most;
    struct bt_filter_finding findings[16];
    size_t finding_count;
};

void filter_run(struct filter_run *run, const void *body, size_t length);
bool filter_run_found(const struct filter_run *run, const char *rule);
void filter_run_clear(struct filter_run *run);

#endif
