/* The host's client, against a server that the test plays: one answer a connection, what was asked is kept.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/client/orchestrator_client.h"

static char *asked; /* shared with the server process: the last request */
#define ASKED_SIZE 4096

struct server {
    pid_t pid;
    struct bt_orchestrator orchestrator;
};

static size_t read_request(int fd, char *text)
{
    size_t length = 0;
    const char *body;
    for (;;) {
        ssize_t got = read(fd, text + length, ASKED_SIZE - 1 - length);
        if (got <= 0)
            return length;
        length += (size_t)got;
        text[length] = '\0';
        body = strstr(text, "\r\n\r\n");
        const char *field = strstr(text, "Content-Length: ");
        size_t wanted = field != NULL ? strtoul(field + 16, NULL, 10) : 0;
        if (body != NULL && strlen(body + 4) >= wanted)
            return length;
    }
}

/* Answers connection after connection with the texts in turn, the last one for ever. */
static void start_server(struct server *server, const char *const *answers, size_t count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    server->orchestrator = (struct bt_orchestrator){
        .address = INADDR_LOOPBACK, .port = ntohs(address.sin_port), .host_key = "key"};
    server->pid = fork();
    if (server->pid == 0) {
        for (size_t i = 0;; i += i + 1 < count) {
            int fd = accept(listener, NULL, NULL);
            (void)read_request(fd, asked);
            (void)!write(fd, answers[i], strlen(answers[i]));
            (void)close(fd);
        }
    }
    (void)close(listener);
}

static void stop_server(struct server *server)
{
    (void)kill(server->pid, SIGKILL);
    (void)waitpid(server->pid, NULL, 0);
}

#define JSON_ANSWER(status, body) "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n" body

static void test_register(void **state)
{
    static const char *const answers[] = {JSON_ANSWER("200 OK", "{\"policy_version\": 1}")};
    struct server server;
    struct bt_error error = {0};
    json_t *policy = json_loads("{\"version\": 1, \"routes\": []}", 0, NULL);
    struct bt_registration registration = {.slot = 3,
                                           .generation = 17,
                                           .name = "one",
                                           .address = 0x0af30007,
                                           .gateway_address = 0x0af30006,
                                           .token = "abc",
                                           .policy = policy};
    (void)state;
    start_server(&server, answers, 1);
    /* Whatever proxy the user has, berth's own calls do not go there. */
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
    assert_int_equal(bt_orchestrator_register(&server.orchestrator, &registration, &error), 0);
    assert_memory_equal(asked, "PUT /v1/agents/3/17 HTTP/1.1\r\n", 30);
    assert_non_null(strstr(asked, "Authorization: Bearer key\r\n"));
    assert_non_null(strstr(asked, "\"address\":\"10.243.0.7\""));
    assert_non_null(strstr(asked, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    assert_null(strstr(asked, "abc\""));
    json_decref(policy);
    stop_server(&server);
}

/* Secrets that older orchestrators do not know are left out until one takes the rest. */
static void test_older_orchestrators(void **state)
{
    static const char *const answers[] = {JSON_ANSWER("400 Bad", "{\"error\": \"an unknown key\"}"),
                                          JSON_ANSWER("400 Bad", "{\"error\": \"an unknown key\"}"),
                                          JSON_ANSWER("200 OK", "{\"policy_version\": 1}")};
    static const struct {
        size_t refusals;
        bool has_token, has_canary;
    } cases[] = {{0, true, true}, {1, false, true}, {2, false, false}};
    json_t *policy = json_loads("{\"version\": 1, \"routes\": []}", 0, NULL);
    const struct bt_registration registration = {.name = "one",
                                                 .token = "abc-token",
                                                 .policy = policy,
                                                 .canary = "abc-canary",
                                                 .credential_key = "abc-key"};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        struct server server;
        struct bt_error error = {0};
        start_server(&server, answers + 2 - cases[i].refusals, cases[i].refusals + 1);
        assert_int_equal(bt_orchestrator_register(&server.orchestrator, &registration, &error), 0);
        assert_int_equal(strstr(asked, "abc-token") != NULL, cases[i].has_token);
        assert_int_equal(strstr(asked, "abc-canary") != NULL, cases[i].has_canary);
        assert_int_equal(strstr(asked, "abc-key") != NULL, cases[i].has_canary);
        stop_server(&server);
    }
    json_decref(policy);
}

static void test_errors(void **state)
{
    static const char *const answers[] = {
        JSON_ANSWER("400 Bad", "{\"error\": \"route 0 is wrong\", \"hint\": \"look\"}"),
        JSON_ANSWER("401 No", ""),
        JSON_ANSWER("302 Found\r\nLocation: http://127.0.0.1:1/", ""),
        JSON_ANSWER("200 OK", "not json"),
        JSON_ANSWER("404 None", "{\"error\": \"none\"}"),
    };
    struct server server;
    struct bt_error error = {0};
    json_t *document = NULL;
    (void)state;
    start_server(&server, answers, BT_ARRAY_LENGTH(answers));
    assert_int_equal(bt_orchestrator_get(&server.orchestrator, "/v1/agents", &document, &error), -EINVAL);
    assert_non_null(strstr(error.message, "route 0 is wrong"));
    assert_string_equal(error.hint, "look");
    assert_int_equal(error.status, BT_EXIT_INFRASTRUCTURE);
    assert_int_equal(bt_orchestrator_get(&server.orchestrator, "/v1/agents", &document, &error), -EACCES);
    assert_null(strstr(error.message, "key"));
    assert_int_equal(bt_orchestrator_get(&server.orchestrator, "/v1/agents", &document, &error), -EIO);
    assert_int_equal(bt_orchestrator_get(&server.orchestrator, "/v1/agents", &document, &error), -EPROTO);
    assert_int_equal(bt_orchestrator_unregister(&server.orchestrator, 3, 17, &error), 0); /* gone is gone */
    assert_null(document);
    stop_server(&server);
    assert_int_equal(bt_orchestrator_get(&server.orchestrator, "/v1/agents", &document, &error),
                     -ECONNREFUSED);
}

static void test_waiting(void **state)
{
    static const char *const answers[] = {
        JSON_ANSWER("503 Soon", ""),
        JSON_ANSWER("200 OK", "{\"status\": \"ok\", \"gateway_seen\": null}"),
        JSON_ANSWER("200 OK", "{\"status\": \"ok\", \"gateway_seen\": null}"),
        JSON_ANSWER("200 OK", "{\"status\": \"ok\", \"gateway_seen\": 1}"),
        JSON_ANSWER("200 OK", "{\"status\": \"ok\", \"gateway_seen\": 300}"),
    };
    struct server server;
    struct bt_error error = {0};
    int ended[2];
    (void)state;
    start_server(&server, answers, BT_ARRAY_LENGTH(answers));
    assert_int_equal(bt_orchestrator_wait(&server.orchestrator, 5000, -1, &error), 0);
    assert_int_equal(bt_orchestrator_wait_gateway(&server.orchestrator, 5000, -1, &error), 0);
    assert_int_equal(bt_orchestrator_wait_gateway(&server.orchestrator, 300, -1, &error), -ETIMEDOUT);
    assert_int_equal(pipe(ended), 0);
    (void)close(ended[1]); /* the VM that was waited for ended */
    assert_int_equal(bt_orchestrator_wait_gateway(&server.orchestrator, 60000, ended[0], &error), -ECANCELED);
    (void)close(ended[0]);
    stop_server(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_register),
        cmocka_unit_test(test_older_orchestrators),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_waiting),
    };
    asked = mmap(NULL, ASKED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (asked == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests_name("orchestrator_client", tests, NULL, NULL);
}
