/* One HTTP exchange. See http.h.
 *
 * One libcurl handle a call: calls are rare, and keepers fork.
 */
#include "lib/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ANSWER_MAX_DEFAULT (16UL * 1024 * 1024)

struct exchange {
    const struct bt_http_request *request;
    struct bt_buffer answer;
    CURL *handle;
    int failure; /* of read_body or take_body, or -EFBIG; 0 = none */
};

static bool is_success(CURL *handle)
{
    long status = 0;
    return curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK && status < 400;
}

static size_t take_answer(char *data, size_t size, size_t count, void *context)
{
    struct exchange *exchange = context;
    const struct bt_http_request *request = exchange->request;
    if (request->take_body != NULL && is_success(exchange->handle))
        exchange->failure = request->take_body(request->context, data, size * count);
    else if (bt_buffer_add(&exchange->answer, data, size * count) < 0)
        exchange->failure = -EFBIG;
    return exchange->failure == 0 ? size * count : 0;
}

static size_t give_body(char *data, size_t size, size_t count, void *context)
{
    struct exchange *exchange = context;
    ssize_t given = exchange->request->read_body(exchange->request->context, data, size * count);
    if (given >= 0)
        return (size_t)given;
    exchange->failure = (int)given;
    return CURL_READFUNC_ABORT;
}

#define SET(option, value) code = code != CURLE_OK ? code : curl_easy_setopt(handle, option, value)

static CURLcode set_options(CURL *handle, struct exchange *exchange, struct curl_slist *headers)
{
    const struct bt_http_request *request = exchange->request;
    bt_auto_free char *url = bt_string_format(
        "%s%s", request->origin != NULL ? request->origin : "http://localhost", request->path);
    CURLcode code = CURLE_OK;
    if (request->origin == NULL)
        SET(CURLOPT_UNIX_SOCKET_PATH, request->socket_path);
    SET(CURLOPT_URL, url);
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_WRITEFUNCTION, take_answer);
    SET(CURLOPT_WRITEDATA, exchange);
    SET(CURLOPT_TIMEOUT_MS, request->timeout_ms);
    SET(CURLOPT_CONNECTTIMEOUT_MS, request->connect_timeout_ms);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PROXY, ""); /* overrides the environment's */
    SET(CURLOPT_NOPROXY, "*");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROTOCOLS_STR, "http");
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    if (request->read_body != NULL) {
        SET(CURLOPT_UPLOAD, 1L);
        SET(CURLOPT_READFUNCTION, give_body);
        SET(CURLOPT_READDATA, exchange);
    } else if (request->body != NULL) {
        SET(CURLOPT_POSTFIELDS, request->body);
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_length);
    } else if (strcmp(request->method, "HEAD") == 0) {
        SET(CURLOPT_NOBODY, 1L);
    }
    SET(CURLOPT_CUSTOMREQUEST, request->method);
    return code;
}

#undef SET

static struct curl_slist *make_headers(const struct bt_http_request *request)
{
    bt_auto_free char *type = bt_string_format(
        "Content-Type: %s", request->content_type != NULL ? request->content_type : "application/json");
    struct curl_slist *headers = curl_slist_append(NULL, type);
    headers = curl_slist_append(headers, "Expect:");
    if (request->read_body != NULL)
        headers = curl_slist_append(headers, "Transfer-Encoding: chunked");
    if (request->authorization != NULL) {
        bt_auto_free char *field = bt_string_format("Authorization: %s", request->authorization);
        headers = curl_slist_append(headers, field);
        explicit_bzero(field, strlen(field));
    }
    return headers;
}

static void free_headers(struct curl_slist *headers)
{
    for (struct curl_slist *item = headers; item != NULL; item = item->next)
        explicit_bzero(item->data, strlen(item->data));
    curl_slist_free_all(headers);
}

/* libcurl says "couldn't connect" for all of these. */
static int connect_code(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    bt_auto_fd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return EIO;
    return errno;
}

static int fail_exchange(const struct exchange *exchange, CURLcode code, struct bt_error *error)
{
    const struct bt_http_request *request = exchange->request;
    int number = EIO;
    if (exchange->failure != 0)
        number = -exchange->failure;
    else if (code == CURLE_OPERATION_TIMEDOUT)
        number = ETIMEDOUT;
    else if (code == CURLE_COULDNT_CONNECT)
        number = request->origin != NULL ? ECONNREFUSED : connect_code(request->socket_path);
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, number, NULL, "%s: %s",
                   request->origin != NULL ? request->origin : request->socket_path,
                   number == EIO ? curl_easy_strerror(code) : strerror(number));
}

int bt_http_call(const struct bt_http_request *request, long *ret_status, struct bt_buffer *ret_answer,
                 struct bt_error *error)
{
    struct exchange exchange = {
        .request = request,
        .answer = {.limit = request->answer_max != 0 ? request->answer_max : ANSWER_MAX_DEFAULT}};
    CURL *handle = exchange.handle = curl_easy_init();
    struct curl_slist *headers = make_headers(request);
    CURLcode code =
        handle != NULL && headers != NULL ? set_options(handle, &exchange, headers) : CURLE_OUT_OF_MEMORY;
    if (code == CURLE_OK)
        code = curl_easy_perform(handle);
    /* A service that refuses a long body answers before it has read it. */
    long status = 0;
    if (code == CURLE_OK || code == CURLE_SEND_ERROR)
        (void)curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_SEND_ERROR && status >= 400)
        code = CURLE_OK;
    free_headers(headers);
    curl_easy_cleanup(handle);
    if (code != CURLE_OK) {
        bt_buffer_free(&exchange.answer);
        return fail_exchange(&exchange, code, error);
    }
    *ret_status = status;
    *ret_answer = exchange.answer;
    return 0;
}
