/* What commands print: one JSON document or tables on stdout; errors, notes and progress on stderr.
 *
 * Text that may come from a guest is printed with its control characters made visible, so that no agent can
 * drive the user's terminal.
 */
#ifndef BERTH_FRONTEND_OUTPUT_H
#define BERTH_FRONTEND_OUTPUT_H

#include <jansson.h>
#include <stdio.h>

#include "images/images.h"
#include "lib/error.h"
#include "lib/memory.h"

struct bt_output {
    bool is_json;       /* stdout carries one document and nothing else */
    bool is_quiet;      /* no progress, no notes */
    bool has_color;     /* stdout is a terminal and NO_COLOR is unset */
    bool has_progress;  /* stderr is a terminal: one line that is rewritten */
    bool has_open_line; /* a progress line is on screen */
    bool has_document;  /* the document was printed */
    int64_t last_ms;    /* of the last progress line */
    char step[256];     /* of the last progress line */
};

void bt_output_init(struct bt_output *output, bool is_json, bool is_quiet);

enum bt_color { BT_COLOR_NONE, BT_COLOR_GREEN, BT_COLOR_YELLOW, BT_COLOR_RED, BT_COLOR_DIM, BT_COLOR_BOLD };

/* Prints to stdout unless --json. The whole result is cleaned: newlines and tabs pass, other control bytes do
 * not. */
void bt_output_print(struct bt_output *output, const char *format, ...) BT_PRINTF(2, 3);
void bt_output_print_color(struct bt_output *output, enum bt_color color, const char *format, ...)
    BT_PRINTF(3, 4);
/* A line to stderr unless --quiet. */
void bt_output_note(struct bt_output *output, const char *format, ...) BT_PRINTF(2, 3);
/* The one document of --json; nothing otherwise. Takes the reference in either case. */
void bt_output_document(struct bt_output *output, json_t *document);
/* An error: "berth COMMAND: what and why" and the hint on stderr; with --json also {"error": ...} as the
 * document, unless one was printed. Returns the exit status. */
int bt_output_error(struct bt_output *output, const char *command, const struct bt_error *error);
/* Rewrites text in place so that it is safe on a terminal: control bytes but newline and tab become '?'; C1
 * controls in UTF-8 too. */
void bt_output_clean(char *text);

/* A JSON string of any bytes: what is not UTF-8 becomes '?'. NULL gives null. A new reference. */
json_t *bt_output_json_text(const char *text);

/* Progress lines on stderr, as images and launch want it, no wider than the terminal. An empty step ends the
 * line: something else is about to write there. Borrows output. */
struct bt_progress bt_output_progress(struct bt_output *output);
/* Ends a progress line that is on screen. */
void bt_output_progress_end(struct bt_output *output);

/* A table: columns as wide as their widest cell; printed at once. On a terminal that is too narrow for a row
 * its last cell goes below it, indented. */
struct bt_table {
    const char *const *titles;
    size_t columns;
    struct bt_list cells;
    enum bt_color *colors; /* one a cell; grows with cells */
    size_t color_capacity;
};
void bt_table_init(struct bt_table *table, const char *const *titles, size_t columns);
void bt_table_add(struct bt_table *table, enum bt_color color, const char *format, ...) BT_PRINTF(3, 4);
void bt_table_print(struct bt_output *output, struct bt_table *table); /* and frees it */

/* "3.4 GiB" and "2h 5m": for people. */
#define BT_OUTPUT_TEXT_SIZE 32
void bt_output_bytes(uint64_t bytes, char ret_text[BT_OUTPUT_TEXT_SIZE]);
void bt_output_age(int64_t seconds, char ret_text[BT_OUTPUT_TEXT_SIZE]);

#endif
