/* The docker backend without an engine: where it is looked for, streams cut anywhere, names, addresses. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/docker_internal.h"

static void clear_environment(void)
{
    (void)unsetenv("DOCKER_HOST");
    (void)unsetenv("DOCKER_CONTEXT");
    (void)setenv("DOCKER_CONFIG", "/nonexistent", 1);
}

static void refused(const char *host, const char *word)
{
    struct bt_error error = {0};
    char path[256];
    clear_environment();
    (void)setenv("DOCKER_HOST", host, 1);
    assert_true(bt_docker_endpoint(path, &error) < 0);
    assert_non_null(strstr(error.message, word));
    assert_true(strlen(error.hint) > 0);
}

static void only_unix_sockets(void **state)
{
    struct bt_error error = {0};
    char path[256];
    (void)state;
    refused("tcp://192.0.2.1:2375", "tcp");
    refused("ssh://me@example", "ssh");
    refused("npipe:////./pipe/docker_engine", "npipe");
    refused("unix://relative", "path");
    clear_environment();
    (void)setenv("DOCKER_HOST", "unix:///somewhere/docker.sock", 1);
    assert_int_equal(bt_docker_endpoint(path, &error), 0);
    assert_string_equal(path, "/somewhere/docker.sock");
    clear_environment();
}

static void contexts_are_read(void **state)
{
    struct bt_error error = {0};
    char path[256];
    char digest[BT_DIGEST_TEXT_SIZE];
    const char *temporary = getenv("TMPDIR");
    bt_auto_free char *folder = bt_string_format("%s/docker-XXXXXX", temporary == NULL ? "/tmp" : temporary);
    (void)state;
    clear_environment();
    assert_non_null(mkdtemp(folder));
    bt_digest_bytes("work", 4, digest);
    bt_auto_free char *meta_folder = bt_string_format("%s/contexts/meta/%s", folder, digest);
    bt_auto_free char *meta = bt_string_format("%s/meta.json", meta_folder);
    bt_auto_free char *config = bt_string_format("%s/config.json", folder);
    static const char remote[] = "{\"Endpoints\":{\"docker\":{\"Host\":\"ssh://me@far\"}}}";
    static const char local[] = "{\"Endpoints\":{\"docker\":{\"Host\":\"unix:///run/work.sock\"}}}";
    static const char chosen[] = "{\"currentContext\":\"work\"}";
    assert_int_equal(bt_folder_make(meta_folder, 0700, &error), 0);
    (void)setenv("DOCKER_CONFIG", folder, 1);
    assert_int_equal(bt_file_write(config, chosen, sizeof(chosen) - 1, 0600, &error), 0);
    assert_true(bt_docker_endpoint(path, &error) < 0); /* it names a context that is not there */
    assert_int_equal(bt_file_write(meta, remote, sizeof(remote) - 1, 0600, &error), 0);
    assert_true(bt_docker_endpoint(path, &error) < 0);
    assert_non_null(strstr(error.message, "ssh"));
    assert_int_equal(bt_file_write(meta, local, sizeof(local) - 1, 0600, &error), 0);
    assert_int_equal(bt_docker_endpoint(path, &error), 0);
    assert_string_equal(path, "/run/work.sock");
    assert_int_equal(bt_tree_remove(folder, &error), 0);
    clear_environment();
}

/* Whatever the pieces in which it is read, the same comes out. */
static void streams_cut_anywhere(void **state)
{
    static const char bytes[] = "\1\0\0\0\0\0\0\5hello\2\0\0\0\0\0\0\3err\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\1!";
    const size_t length = sizeof(bytes) - 1;
    (void)state;
    for (size_t step = 1; step <= length; step++) {
        struct bt_docker_demux demux = {0};
        char streams[2][16] = {"", ""};
        size_t lengths[2] = {0, 0};
        for (size_t at = 0; at < length;) {
            size_t part = length - at < step ? length - at : step;
            for (size_t done = 0; done < part;) {
                const char *data;
                size_t got;
                int stream;
                ssize_t used = bt_docker_demux(&demux, bytes + at + done, part - done, &stream, &data, &got);
                assert_true(used > 0 || got > 0);
                memcpy(streams[stream - 1] + lengths[stream - 1], data, got);
                lengths[stream - 1] += got;
                done += (size_t)used;
            }
            at += part;
        }
        assert_int_equal(lengths[0], 6);
        assert_memory_equal(streams[0], "hello!", 6);
        assert_int_equal(lengths[1], 3);
        assert_memory_equal(streams[1], "err", 3);
    }
    struct bt_docker_demux demux = {0};
    const char *data;
    size_t got;
    int stream;
    assert_true(bt_docker_demux(&demux, "HTTP/1.1", 8, &stream, &data, &got) < 0);
}

static void names_are_apart(void **state)
{
    const struct bt_guest_identity agent = {"/home/a/state", "live", BT_GUEST_AGENT, "gateway"};
    const struct bt_guest_identity gateway = {"/home/a/state", "live", BT_GUEST_GATEWAY, ""};
    const struct bt_guest_identity other = {"/home/b/state", "live", BT_GUEST_GATEWAY, ""};
    char names[3][BT_DOCKER_NAME_SIZE];
    char mac[BT_DOCKER_MAC_SIZE];
    (void)state;
    bt_docker_name(&agent, names[0]);
    bt_docker_name(&gateway, names[1]);
    bt_docker_name(&other, names[2]);
    assert_string_not_equal(names[0], names[1]);
    assert_string_not_equal(names[1], names[2]);
    bt_docker_mac(0x0af20013, mac);
    assert_string_equal(mac, "02:42:0a:f2:00:13");
}

static void failures_say_what_to_do(void **state)
{
    static const char full[] = "{\"message\":\"write /var/lib/docker/x: no space left on device\"}";
    static const char taken[] = "{\"message\":\"Pool overlaps with other one on this address space\"}";
    static const char rude[] = "{\"message\":\"a\\u001b[31mb\"}";
    struct bt_error error = {0};
    (void)state;
    assert_int_equal(bt_docker_fail(500, full, sizeof(full) - 1, &error), -ENOSPC);
    assert_non_null(strstr(error.hint, "free some space"));
    assert_int_equal(bt_docker_fail(403, taken, sizeof(taken) - 1, &error), -ENOSPC);
    assert_non_null(strstr(error.hint, "docker network"));
    assert_int_equal(bt_docker_fail(404, "nonsense", 8, &error), -ENOENT);
    assert_true(bt_docker_fail(500, rude, sizeof(rude) - 1, &error) < 0);
    assert_null(strchr(error.message, '\033'));
}

static void engines_that_cannot(void **state)
{
    const struct bt_docker_engine rootless = {.is_rootless = true}, desktop = {.is_desktop = true},
                                  good = {0};
    struct bt_error error = {0};
    (void)state;
    assert_true(bt_docker_engine_check(&rootless, &error) < 0);
    assert_non_null(strstr(error.message, "rootless"));
    assert_true(bt_docker_engine_check(&desktop, &error) < 0);
    assert_non_null(strstr(error.message, "Docker Desktop"));
    assert_int_equal(bt_docker_engine_check(&good, &error), 0);
}

/* Whoever only tries passes no error. */
static void nobody_asks_why(void **state)
{
    const struct bt_docker docker = {.socket_path = "/nonexistent/docker.sock", .version = "1.41"};
    int fd = -1;
    (void)state;
    assert_true(bt_docker_call(&docker, "GET", "/networks", NULL, NULL, NULL) < 0);
    assert_true(bt_docker_stream(&docker, "/containers/x/attach", NULL, &fd, NULL) < 0);
    assert_int_equal(fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_unix_sockets),       cmocka_unit_test(contexts_are_read),
        cmocka_unit_test(streams_cut_anywhere),    cmocka_unit_test(names_are_apart),
        cmocka_unit_test(failures_say_what_to_do), cmocka_unit_test(engines_that_cannot),
        cmocka_unit_test(nobody_asks_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
