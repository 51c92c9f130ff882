/* One client for every proxy: HTTPS through CONNECT, with blocking sockets and a thread a connection.
 *
 *   bench_proxy MODE SECONDS CONNECTIONS CA.PEM PROXY TOKEN HOST PORT PATH
 *
 * MODE: keep (requests on kept connections), new (a connection, a tunnel and a handshake for each request),
 * bulk (the same as keep, for bytes), hold (opens the connections, prints "held", keeps them for SECONDS).
 * PROXY: address:port, or "-" for no proxy. TOKEN: of Proxy-Authorization, or "-". Prints lines "name value":
 * requests_per_second, bytes_per_second, p50_us, p99_us, failures.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/base.h"

#define SAMPLES_MAX 200000
#define THREADS_MAX 1024

enum mode { MODE_KEEP, MODE_NEW, MODE_BULK, MODE_HOLD };

static struct {
    enum mode mode;
    double seconds;
    const char *proxy, *token, *host, *path;
    uint16_t port;
    SSL_CTX *context;
    char authorization[256];
} options;

struct worker {
    pthread_t thread;
    uint64_t requests, bytes, failures;
    uint32_t *samples; /* microseconds */
    size_t sample_count;
};

static double now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int dial(void)
{
    char address[64];
    uint16_t port = options.port;
    const char *colon = strrchr(options.proxy, ':');
    bool is_direct = strcmp(options.proxy, "-") == 0;
    (void)snprintf(address, sizeof(address), "%.*s", is_direct ? 63 : (int)(colon - options.proxy),
                   is_direct ? options.host : options.proxy);
    if (!is_direct)
        port = (uint16_t)strtoul(colon + 1, NULL, 10);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, is_direct ? getenv("BENCH_ADDRESS") : address, &to.sin_addr) != 1 || fd < 0 ||
        connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
        close(fd);
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (is_direct)
        return fd;
    char text[1024];
    int length = snprintf(text, sizeof(text), "CONNECT %s:%u HTTP/1.1\r\nHost: %s:%u\r\n%s\r\n", options.host,
                          options.port, options.host, options.port, options.authorization);
    size_t got = 0;
    bool is_sent = write(fd, text, (size_t)length) == length;
    while (is_sent && got < sizeof(text) - 1) {
        ssize_t part = read(fd, text + got, 1);
        if (part != 1)
            break;
        got++;
        if (got >= 4 && memcmp(text + got - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    text[got] = '\0';
    if (got >= 12 && strncmp(text + 8, " 200", 4) == 0)
        return fd;
    close(fd);
    return -1;
}

static SSL *open_connection(void)
{
    int fd = dial();
    if (fd < 0)
        return NULL;
    SSL *ssl = SSL_new(options.context);
    if (ssl != NULL && SSL_set_fd(ssl, fd) == 1 && SSL_set_tlsext_host_name(ssl, options.host) == 1 &&
        SSL_set1_host(ssl, options.host) == 1 && SSL_connect(ssl) == 1)
        return ssl;
    SSL_free(ssl);
    close(fd);
    return NULL;
}

static void close_connection(SSL *ssl)
{
    if (ssl == NULL)
        return;
    int fd = SSL_get_fd(ssl);
    (void)SSL_shutdown(ssl);
    SSL_free(ssl);
    close(fd);
}

/* One request and its whole answer, which has a content-length. Returns the bytes of its body, or -1. */
static long ask(SSL *ssl, char *buffer, size_t size)
{
    int length =
        snprintf(buffer, size, "GET %s HTTP/1.1\r\nHost: %s:%u\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n",
                 options.path, options.host, options.port);
    if (SSL_write(ssl, buffer, length) != length)
        return -1;
    size_t got = 0;
    char *end = NULL;
    while (end == NULL && got < size - 1) {
        int part = SSL_read(ssl, buffer + got, (int)(size - 1 - got));
        if (part <= 0)
            return -1;
        got += (size_t)part;
        buffer[got] = '\0';
        end = strstr(buffer, "\r\n\r\n");
    }
    if (end == NULL || strncmp(buffer + 8, " 200", 4) != 0)
        return -1;
    const char *field = strcasestr(buffer, "\r\ncontent-length:");
    if (field == NULL || field > end)
        return -1;
    long body = strtol(field + 17, NULL, 10);
    long left = body - (long)(got - (size_t)(end + 4 - buffer));
    while (left > 0) {
        int part = SSL_read(ssl, buffer, (int)size);
        if (part <= 0)
            return -1;
        left -= part;
    }
    return body;
}

static void *work(void *context)
{
    struct worker *worker = context;
    size_t size = 256UL * 1024;
    char *buffer = malloc(size);
    double end = now() + options.seconds;
    SSL *ssl = options.mode == MODE_NEW ? NULL : open_connection();
    if (options.mode != MODE_NEW && (ssl == NULL || ask(ssl, buffer, size) < 0))
        worker->failures++;
    while (buffer != NULL && options.mode != MODE_HOLD && worker->failures < 100 && now() < end) {
        double started = now();
        if (options.mode == MODE_NEW || ssl == NULL)
            ssl = open_connection();
        long body = ssl != NULL ? ask(ssl, buffer, size) : -1;
        if (body < 0)
            worker->failures++;
        if (options.mode == MODE_NEW || body < 0) {
            close_connection(ssl);
            ssl = NULL;
        }
        if (body < 0)
            continue;
        worker->requests++;
        worker->bytes += (uint64_t)body;
        if (worker->sample_count < SAMPLES_MAX)
            worker->samples[worker->sample_count++] = (uint32_t)((now() - started) * 1e6);
    }
    if (options.mode == MODE_HOLD) {
        struct timespec rest = {(time_t)options.seconds, 0};
        (void)nanosleep(&rest, NULL);
    }
    close_connection(ssl);
    free(buffer);
    return NULL;
}

static int compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static void report(const struct worker *workers, size_t count, double elapsed)
{
    uint64_t requests = 0, bytes = 0, failures = 0;
    size_t samples = 0;
    for (size_t i = 0; i < count; i++) {
        requests += workers[i].requests;
        bytes += workers[i].bytes;
        failures += workers[i].failures;
        samples += workers[i].sample_count;
    }
    uint32_t *all = malloc((samples + 1) * sizeof(*all));
    size_t at = 0;
    for (size_t i = 0; all != NULL && i < count; i++) {
        memcpy(all + at, workers[i].samples, workers[i].sample_count * sizeof(*all));
        at += workers[i].sample_count;
    }
    if (all != NULL)
        qsort(all, samples, sizeof(*all), compare);
    (void)printf("requests_per_second %.0f\nbytes_per_second %.0f\np50_us %u\np99_us %u\nfailures %llu\n",
                 (double)requests / elapsed, (double)bytes / elapsed,
                 all != NULL && samples > 0 ? all[samples / 2] : 0,
                 all != NULL && samples > 0 ? all[samples * 99 / 100] : 0, (unsigned long long)failures);
    free(all);
}

static bool take_options(char **arguments)
{
    static const char *const modes[] = {"keep", "new", "bulk", "hold"};
    size_t mode = 0;
    while (mode < BT_ARRAY_LENGTH(modes) && strcmp(arguments[1], modes[mode]) != 0)
        mode++;
    options.mode = (enum mode)mode;
    options.seconds = strtod(arguments[2], NULL);
    options.proxy = arguments[5];
    options.token = arguments[6];
    options.host = arguments[7];
    options.port = (uint16_t)strtoul(arguments[8], NULL, 10);
    options.path = arguments[9];
    options.context = SSL_CTX_new(TLS_client_method());
    if (strcmp(options.token, "-") != 0) {
        char plain[128], encoded[192];
        int length = snprintf(plain, sizeof(plain), "agent:%s", options.token);
        (void)EVP_EncodeBlock((unsigned char *)encoded, (const unsigned char *)plain, length);
        (void)snprintf(options.authorization, sizeof(options.authorization),
                       "Proxy-Authorization: Basic %s\r\n", encoded);
    }
    SSL_CTX_set_verify(options.context, SSL_VERIFY_PEER, NULL);
    return mode < BT_ARRAY_LENGTH(modes) &&
           SSL_CTX_load_verify_locations(options.context, arguments[4], NULL) == 1;
}

int main(int argument_count, char **arguments)
{
    static struct worker workers[THREADS_MAX];
    if (argument_count != 10 || !take_options(arguments)) {
        (void)fprintf(stderr, "usage: bench_proxy MODE SECONDS CONNECTIONS CA PROXY TOKEN HOST PORT PATH\n");
        return 64;
    }
    size_t count = strtoul(arguments[3], NULL, 10);
    count = count < THREADS_MAX ? count : THREADS_MAX;
    (void)signal(SIGPIPE, SIG_IGN);
    double started = now();
    for (size_t i = 0; i < count; i++) {
        workers[i].samples = malloc(SAMPLES_MAX * sizeof(*workers[i].samples));
        if (workers[i].samples == NULL || pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            return 1;
    }
    for (size_t i = 0; i < count; i++)
        (void)pthread_join(workers[i].thread, NULL);
    report(workers, count, now() - started);
    return 0;
}
