/* bench_dlp: how fast one core looks through what agents send, against a copy of the same bytes, memchr over
 * them, and grep -F for one string. `tests/bench/run dlp` runs it. Prints figures, judges nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "lib/file.h"
#include "lib/spawn.h"
#include "policy/gateway/filter.h"
#include "policy/gateway/secrets.h"

#define SIZE (32U * 1024 * 1024)
#define PIECE (16U * 1024) /* what a TLS record brings */
#define ROUNDS 3

/* Time of this process on its processor: other processes do not count. */
static double cpu_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void print_rate(const char *name, size_t bytes, double seconds)
{
    (void)printf("  %-58s %8.0f MB/s\n", name, (double)bytes / seconds / 1e6);
    (void)fflush(stdout);
}

/* ---- what is sent ---------------------------------------------------------------------------------------
 */

static unsigned next_random(unsigned *state)
{
    *state = *state * 1103515245U + 12345U;
    return *state >> 8;
}

/* Source code as JSON strings, as agents send it to models. */
static void fill_json(char *text, size_t size)
{
    static const char *const words[] = {"static int ",
                                        "struct bt_filter ",
                                        "return ",
                                        "0x1f",
                                        " = ",
                                        "\\n    ",
                                        "\\\"text\\\": ",
                                        "// ",
                                        "task",
                                        "if (value != NULL)",
                                        "\\n}\\n",
                                        "https://example.com/path?query=1",
                                        " + ",
                                        "sk",
                                        "g",
                                        "README.md",
                                        "the file that was changed",
                                        ", ",
                                        "\",\"",
                                        "\\t"};
    unsigned state = 1;
    for (size_t at = 0; at < size;) {
        const char *word = words[next_random(&state) % BT_ARRAY_LENGTH(words)];
        size_t count = strlen(word) < size - at ? strlen(word) : size - at;
        memcpy(text + at, word, count);
        at += count;
    }
}

static void fill_base64(char *text, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned state = 2;
    for (size_t at = 0; at < size; at++)
        text[at] = digits[next_random(&state) & 63];
}

static void fill_random(char *text, size_t size)
{
    unsigned state = 3;
    for (size_t at = 0; at < size; at++)
        text[at] = (char)next_random(&state);
}

/* ---- filters --------------------------------------------------------------------------------------------
 */

static double time_filter(const struct bt_filter_settings *settings, bool is_request, const char *text)
{
    static const struct bt_http_field type = {{"content-type", 12}, {"application/json", 16}};
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        struct bt_message head = {
            .path = {"/v1/messages", 12}, .status = 200, .field_count = 1, .fields = {type}};
        struct bt_filter *filter =
            is_request ? bt_filter_request_new(settings) : bt_filter_response_new(settings);
        struct evbuffer *out = evbuffer_new();
        double start = cpu_seconds();
        bool passes = bt_filter_head(filter, &head) == BT_FILTER_PASS;
        for (size_t at = 0; at < SIZE && passes; at += PIECE) {
            passes = bt_filter_data(filter, text + at, PIECE, out) == BT_FILTER_PASS;
            (void)evbuffer_drain(out, evbuffer_get_length(out));
        }
        double seconds = cpu_seconds() - start;
        (void)bt_filter_free(filter);
        evbuffer_free(out);
        if (!passes) {
            (void)fprintf(stderr, "bench_dlp: a harmless text was blocked\n");
            exit(1);
        }
        best = seconds < best ? seconds : best;
    }
    return best;
}

static double time_heads(const struct bt_filter_settings *settings, unsigned count)
{
    static const struct bt_http_field fields[] = {
        {{"accept", 6}, {"application/json", 16}},
        {{"accept-encoding", 15}, {"gzip, deflate, br", 17}},
        {{"accept-language", 15}, {"en-GB,en;q=0.5", 14}},
        {{"content-type", 12}, {"application/json", 16}},
        {{"user-agent", 10}, {"node/20.11.1 (linux; x64) undici/6.6.2", 38}},
        {{"x-request-id", 12}, {"0d9ad0a2-7fd5-4c5d-9a38-6b1b40a3f0c2", 36}},
        {{"x-stainless-runtime-version", 27}, {"v20.11.1", 8}},
        {{"x-stainless-retry-count", 23}, {"0", 1}},
    };
    static const char body[] =
        "{\"model\":\"large\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}";
    struct evbuffer *out = evbuffer_new();
    double start = cpu_seconds();
    for (unsigned i = 0; i < count; i++) {
        struct bt_message head = {.path = {"/v1/messages?beta=true", 22},
                                  .field_count = BT_ARRAY_LENGTH(fields)};
        memcpy(head.fields, fields, sizeof(fields));
        struct bt_filter *filter = bt_filter_request_new(settings);
        (void)bt_filter_head(filter, &head);
        (void)bt_filter_data(filter, body, sizeof(body) - 1, out);
        (void)bt_filter_end(filter, NULL, out);
        (void)evbuffer_drain(out, evbuffer_get_length(out));
        (void)bt_filter_free(filter);
    }
    double seconds = cpu_seconds() - start;
    evbuffer_free(out);
    return seconds / count;
}

/* ---- baselines ------------------------------------------------------------------------------------------
 */

static void run_baselines(const char *text)
{
    struct evbuffer *out = evbuffer_new();
    double start = cpu_seconds();
    for (size_t at = 0; at < SIZE; at += PIECE) {
        (void)evbuffer_add(out, text + at, PIECE);
        (void)evbuffer_drain(out, PIECE);
    }
    print_rate("baseline: the same bytes through an evbuffer, unread", SIZE, cpu_seconds() - start);
    evbuffer_free(out);
    size_t found = 0;
    start = cpu_seconds();
    for (const char *at = text; (at = memchr(at, '%', SIZE - (size_t)(at - text))) != NULL; at++)
        found++;
    print_rate("baseline: memchr for one byte", SIZE, cpu_seconds() - start);
    if (found > SIZE)
        exit(1);
}

/* User time of grep -F -c over the same bytes in a file; it is what people would use for one fixed string. */
static void run_grep(const char *folder, const char *text)
{
    bt_auto_free char *path = bt_string_format("%s/text", folder);
    const char *const arguments[] = {"grep", "-F", "-c", "-e", "R7dkW2mQ9xLc4TnVb8sYf3Hj", path, NULL};
    struct bt_error error = {0};
    struct rusage before, after;
    if (bt_file_write(path, text, SIZE, 0600, &error) < 0) {
        (void)fprintf(stderr, "bench_dlp: %s\n", error.message);
        exit(1);
    }
    (void)getrusage(RUSAGE_CHILDREN, &before);
    const struct bt_spawn grep = {.arguments = arguments, .timeout_ms = 30000};
    struct bt_spawn_result result = {0};
    if (bt_spawn_run(&grep, &result, &error) == 0)
        bt_spawn_result_free(&result);
    (void)getrusage(RUSAGE_CHILDREN, &after);
    double seconds = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                     (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e6;
    print_rate("baseline: grep -F, one fixed string, its processor time", SIZE, seconds > 0 ? seconds : 1e-6);
    (void)unlink(path);
}

int main(int argument_count, char **arguments)
{
    static const char key[] = "q7ZpL4mw-K2xVn8Lr5TbQ9sYf3HjGpZa1eUo",
                      token[] = "0123456789abcdef0123456789abcdef";
    const struct bt_secret list[] = {
        {BT_SECRET_CREDENTIAL, key, sizeof(key) - 1},
        {BT_SECRET_IDENTITY, token, sizeof(token) - 1},
        {BT_SECRET_CANARY, token + 3, sizeof(token) - 4},
    };
    static const struct {
        const char *name;
        void (*fill)(char *text, size_t size);
    } texts[] = {{"source code in JSON", fill_json}, {"base64", fill_base64}, {"random bytes", fill_random}};
    struct bt_secrets *secrets = NULL;
    struct bt_error error = {0};
    char *text = bt_new(SIZE, 1);
    if (argument_count != 2) {
        (void)fprintf(stderr, "usage: bench_dlp FOLDER\n");
        return BT_EXIT_USAGE;
    }
    if (bt_filters_start(&error) < 0 || bt_secrets_new(list, BT_ARRAY_LENGTH(list), &secrets, &error) < 0) {
        (void)fprintf(stderr, "bench_dlp: %s\n", error.message);
        return BT_EXIT_ERROR;
    }
    const struct bt_filter_settings block = {.secrets = secrets};
    const struct bt_filter_settings redact = {.secrets = secrets, .dlp.outbound = BT_DLP_OUTBOUND_REDACT};
    const struct bt_filter_settings scrub = {.secrets = secrets, .dlp.inbound = BT_DLP_INBOUND_OFF};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(texts); i++) {
        texts[i].fill(text, SIZE);
        (void)printf("%s, %u MiB in pieces of %u KiB, a core:\n", texts[i].name, SIZE >> 20, PIECE >> 10);
        run_baselines(text);
        run_grep(arguments[1], text);
        print_rate("request, block (goal: 200 MB/s or more)", SIZE, time_filter(&block, true, text));
        print_rate("request, redact", SIZE, time_filter(&redact, true, text));
        print_rate("response, secrets overwritten, phrases looked for", SIZE,
                   time_filter(&block, false, text));
        print_rate("response, secrets overwritten", SIZE, time_filter(&scrub, false, text));
    }
    (void)printf("a request with 8 fields and a small body, all told: %.1f us\n",
                 time_heads(&block, 20000) * 1e6);
    free(text);
    (void)bt_secrets_free(secrets);
    bt_filters_stop();
    return BT_EXIT_OK;
}
