/* Printing for people and for programs.
 *
 * Called by commands and main only. Must let no byte of a guest reach the terminal as a control character.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "frontend/output.h"

#define BT_PROGRESS_EVERY_MS 100
#define BT_COLUMNS_MAX 12U
#define BT_COLUMNS_UNKNOWN SIZE_MAX
#define BT_TABLE_INDENT 4U /* of a last cell that got lines of its own */

static const char *const bt_color_codes[] = {
    [BT_COLOR_NONE] = "",        [BT_COLOR_GREEN] = "\033[32m", [BT_COLOR_YELLOW] = "\033[33m",
    [BT_COLOR_RED] = "\033[31m", [BT_COLOR_DIM] = "\033[2m",    [BT_COLOR_BOLD] = "\033[1m",
};

void bt_output_init(struct bt_output *output, bool is_json, bool is_quiet)
{
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");

    *output = (struct bt_output){.is_json = is_json, .is_quiet = is_quiet};
    output->has_color = !is_json && isatty(STDOUT_FILENO) && !(no_color && *no_color) &&
                        !(terminal && strcmp(terminal, "dumb") == 0);
    output->has_progress = isatty(STDERR_FILENO) && !(terminal && strcmp(terminal, "dumb") == 0);
}

/* Of the terminal behind fd; COLUMNS_UNKNOWN where there is none, so that files and pipes get whole lines. */
static size_t bt_output_columns(int fd)
{
    struct winsize size = {0};

    return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                              : BT_COLUMNS_UNKNOWN;
}

/* How many bytes of a text fit into so many columns; UTF-8 continuation bytes take none. */
static size_t bt_output_fit(const char *text, size_t columns)
{
    size_t length = 0;

    for (; text[length]; length++) {
        bool is_start = ((unsigned char)text[length] & 0xc0) != 0x80;
        if (is_start && columns == 0)
            break;
        columns -= is_start;
    }
    return length;
}

/* U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069: they change the order or the lines of what is around
 * them (Unicode TR #36). */
static bool bt_output_reorders(const unsigned char *at)
{
    if (at[0] != 0xe2)
        return false;
    return (at[1] == 0x80 && (at[2] == 0x8e || at[2] == 0x8f || (at[2] >= 0xa8 && at[2] <= 0xae))) ||
           (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9);
}

void bt_output_clean(char *text)
{
    bool is_after_letter = false; /* within a character of several bytes */

    for (unsigned char *at = (unsigned char *)text; *at; at++) {
        /* U+0080 to U+009F: terminals may take them as escape sequences too. A continuation byte alone is the
         * same for an 8-bit terminal. */
        bool is_control = (*at < 0x20 && *at != '\n' && *at != '\t') || *at == 0x7f;
        bool is_c1 = *at == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f;
        bool is_lone = *at >= 0x80 && *at <= 0x9f && !is_after_letter;
        is_after_letter = *at >= 0x80 && !is_c1 && !is_lone;
        if (bt_output_reorders(at))
            memset(at, '?', 3);
        if (is_c1)
            at[1] = '?';
        if (is_control || is_c1 || is_lone)
            *at = '?';
    }
}

json_t *bt_output_json_text(const char *text)
{
    json_t *string;

    if (!text)
        return json_null();
    string = json_string(text);
    if (!string) {
        bt_auto_free char *copy = bt_string_copy(text);
        for (unsigned char *at = (unsigned char *)copy; *at; at++) {
            if (*at >= 0x80)
                *at = '?';
        }
        string = json_string(copy);
    }
    return string;
}

BT_PRINTF(3, 0)
static void bt_output_text(FILE *stream, const char *before, const char *format, va_list arguments,
                           const char *after)
{
    char *text = NULL;

    if (vasprintf(&text, format, arguments) < 0)
        return;
    bt_output_clean(text);
    fprintf(stream, "%s%s%s", before, text, after);
    free(text);
}

void bt_output_print(struct bt_output *output, const char *format, ...)
{
    va_list arguments;

    if (output->is_json)
        return;
    bt_output_progress_end(output);
    va_start(arguments, format);
    bt_output_text(stdout, "", format, arguments, "");
    va_end(arguments);
}

void bt_output_print_color(struct bt_output *output, enum bt_color color, const char *format, ...)
{
    bool has_color = output->has_color && color != BT_COLOR_NONE;
    va_list arguments;

    if (output->is_json)
        return;
    bt_output_progress_end(output);
    va_start(arguments, format);
    bt_output_text(stdout, has_color ? bt_color_codes[color] : "", format, arguments,
                   has_color ? "\033[0m" : "");
    va_end(arguments);
}

void bt_output_note(struct bt_output *output, const char *format, ...)
{
    va_list arguments;

    if (output->is_quiet)
        return;
    bt_output_progress_end(output);
    fflush(stdout);
    va_start(arguments, format);
    bt_output_text(stderr, "", format, arguments, "\n");
    va_end(arguments);
}

void bt_output_document(struct bt_output *output, json_t *document)
{
    if (output->is_json && !output->has_document) {
        bt_output_progress_end(output);
        /* Text that is not UTF-8 where only names can be: still a document. */
        if (!document)
            document =
                json_pack("{s:{s:s, s:i}}", "error", "message", "the result is not UTF-8 text", "status", 1);
        /* In ASCII: a terminal may be what reads it, and names are an agent's. */
        json_dumpf(document, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        fputc('\n', stdout);
        output->has_document = true;
    }
    json_decref(document);
}

int bt_output_error(struct bt_output *output, const char *command, const struct bt_error *error)
{
    struct bt_error shown = *error;

    bt_output_progress_end(output);
    fflush(stdout);
    bt_output_document(output,
                       json_pack("{s:{s:s, s:o, s:o, s:i, s:i}}", "error", "command", command ? command : "",
                                 "message", bt_output_json_text(error->message), "hint",
                                 bt_output_json_text(*error->hint ? error->hint : NULL), "code", error->code,
                                 "status", (int)error->status));
    bt_output_clean(shown.message);
    bt_output_clean(shown.hint);
    fprintf(stderr, "berth%s%s: %s\n", command ? " " : "", command ? command : "",
            *shown.message ? shown.message : strerror(error->code));
    if (*shown.hint)
        fprintf(stderr, "  what to do: %s\n", shown.hint);
    return (int)error->status;
}

/* ---- progress ---------------------------------------------------------------------------------------------
 */

static int64_t bt_output_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void bt_output_report(void *context, const char *step, uint64_t done, uint64_t total)
{
    struct bt_output *output = context;
    bool is_new = strncmp(step, output->step, sizeof(output->step) - 1) != 0;
    bool is_whole = total > 0 && done >= total;
    char text[sizeof(output->step)], amount[2 * BT_OUTPUT_TEXT_SIZE + 8] = "";
    int64_t now = bt_output_now_ms();

    if (!*step) {
        bt_output_progress_end(output);
        return;
    }
    if (output->is_quiet || (!is_new && !is_whole && now - output->last_ms < BT_PROGRESS_EVERY_MS))
        return;
    /* In a log, a line a step; its end is of no interest there. */
    if (!output->has_progress && !is_new)
        return;
    output->last_ms = now;
    snprintf(output->step, sizeof(output->step), "%s", step);
    memcpy(text, output->step, sizeof(text));
    bt_output_clean(text);
    if (!output->has_progress) {
        fprintf(stderr, "%s\n", text);
        return;
    }
    if (done > 0 && total > 0) {
        snprintf(amount, sizeof(amount), "  %u%%", (unsigned)(done >= total ? 100 : done * 100 / total));
    } else if (done > 0) {
        char bytes[BT_OUTPUT_TEXT_SIZE];
        bt_output_bytes(done, bytes);
        snprintf(amount, sizeof(amount), "  %s", bytes);
    }
    /* A line that wrapped could not be rewritten. */
    size_t columns = bt_output_columns(STDERR_FILENO), wanted = strlen(amount) + 1;
    text[bt_output_fit(text, columns > wanted ? columns - wanted : 0)] = '\0';
    fprintf(stderr, "\r\033[K%s%s", text, amount);
    fflush(stderr);
    output->has_open_line = true;
}

struct bt_progress bt_output_progress(struct bt_output *output)
{
    return (struct bt_progress){.report = bt_output_report, .context = output};
}

void bt_output_progress_end(struct bt_output *output)
{
    if (output->has_open_line)
        fputs("\r\033[K", stderr);
    output->has_open_line = false;
    output->step[0] = '\0';
}

/* ---- tables -----------------------------------------------------------------------------------------------
 */

void bt_table_init(struct bt_table *table, const char *const *titles, size_t columns)
{
    *table = (struct bt_table){.titles = titles, .columns = columns};
}

void bt_table_add(struct bt_table *table, enum bt_color color, const char *format, ...)
{
    char *text = NULL;
    va_list arguments;

    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        abort();
    va_end(arguments);
    bt_output_clean(text);
    /* A cell is one line. */
    for (char *at = text; *at; at++) {
        if (*at == '\n' || *at == '\t')
            *at = ' ';
    }
    if (table->cells.count == table->color_capacity) {
        size_t capacity = table->color_capacity ? 2 * table->color_capacity : 64;
        enum bt_color *grown = bt_new(capacity, sizeof(*grown));
        if (table->color_capacity)
            memcpy(grown, table->colors, table->color_capacity * sizeof(*grown));
        free(table->colors);
        table->colors = grown;
        table->color_capacity = capacity;
    }
    table->colors[table->cells.count] = color;
    bt_list_add(&table->cells, text);
    free(text);
}

/* Characters, not bytes: UTF-8 continuation bytes take no column. */
static size_t bt_table_width(const char *text)
{
    size_t width = 0;

    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

/* Below the row, indented, broken at blanks: what a terminal would break anywhere. */
static void bt_table_hang(const char *text, size_t columns)
{
    size_t room = columns > 2 * BT_TABLE_INDENT ? columns - BT_TABLE_INDENT : BT_TABLE_INDENT;

    while (*text) {
        size_t length = bt_output_fit(text, room), at = length;
        while (text[length] && at > 0 && text[at] != ' ')
            at--;
        if (text[length] && at > 0)
            length = at;
        fprintf(stdout, "\n%*s%.*s", (int)BT_TABLE_INDENT, "", (int)length, text);
        text += length;
        text += strspn(text, " ");
    }
}

/* How many columns there is room for on one line. */
static size_t bt_table_fit(const size_t *widths, size_t columns, size_t room)
{
    size_t used = widths[0], fitting = 1;

    while (fitting < columns && (used += 2 + widths[fitting]) <= room)
        fitting++;
    return fitting;
}

/* What has no room hangs below the row: a last cell that is long, in a narrow terminal other cells before it.
 */
static void bt_table_row(const struct bt_output *output, const size_t *widths, size_t columns,
                         const char *const *cells, const enum bt_color *colors)
{
    size_t room = bt_output_columns(STDOUT_FILENO), lined = bt_table_fit(widths, columns - 1, room), used = 0;

    for (size_t i = 0; i + 1 < columns; i++)
        used += widths[i] + 2;
    if (used + bt_table_width(cells[columns - 1]) <= room)
        lined = columns;
    for (size_t i = 0; i < columns; i++) {
        bool has_color = output->has_color && colors[i] != BT_COLOR_NONE;
        bool has_pad = i + 1 < lined;
        fputs(has_color ? bt_color_codes[colors[i]] : "", stdout);
        if (i >= lined)
            bt_table_hang(cells[i], room);
        else
            fputs(cells[i], stdout);
        fprintf(stdout, "%s%*s", has_color ? "\033[0m" : "",
                (int)(has_pad ? widths[i] - bt_table_width(cells[i]) + 2 : 0), "");
    }
    fputc('\n', stdout);
}

void bt_table_print(struct bt_output *output, struct bt_table *table)
{
    enum bt_color title_colors[BT_COLUMNS_MAX];
    size_t widths[BT_COLUMNS_MAX];

    assert(table->columns > 0 && table->columns <= BT_COLUMNS_MAX);
    bt_output_progress_end(output);
    for (size_t i = 0; i < table->columns; i++) {
        widths[i] = bt_table_width(table->titles[i]);
        title_colors[i] = BT_COLOR_BOLD;
    }
    for (size_t i = 0; i < table->cells.count; i++) {
        size_t width = bt_table_width(table->cells.items[i]);
        if (width > widths[i % table->columns])
            widths[i % table->columns] = width;
    }
    if (!output->is_json) {
        bt_table_row(output, widths, table->columns, table->titles, title_colors);
        for (size_t i = 0; i + table->columns <= table->cells.count; i += table->columns)
            bt_table_row(output, widths, table->columns, (const char *const *)table->cells.items + i,
                         table->colors + i);
    }
    bt_list_free(&table->cells);
    free(table->colors);
    *table = (struct bt_table){0};
}

void bt_output_bytes(uint64_t bytes, char ret_text[BT_OUTPUT_TEXT_SIZE])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < BT_ARRAY_LENGTH(units)) {
        value /= 1024;
        unit++;
    }
    snprintf(ret_text, BT_OUTPUT_TEXT_SIZE, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value,
             units[unit]);
}

void bt_output_age(int64_t seconds, char ret_text[BT_OUTPUT_TEXT_SIZE])
{
    long long s = seconds < 0 ? 0 : (long long)seconds;

    if (s < 60)
        snprintf(ret_text, BT_OUTPUT_TEXT_SIZE, "%llds", s);
    else if (s < 3600)
        snprintf(ret_text, BT_OUTPUT_TEXT_SIZE, "%lldm %llds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(ret_text, BT_OUTPUT_TEXT_SIZE, "%lldh %lldm", s / 3600, s % 3600 / 60);
    else
        snprintf(ret_text, BT_OUTPUT_TEXT_SIZE, "%lldd %lldh", s / 86400, s % 86400 / 3600);
}
