/* The docker backend against an engine that is a thread of this test: what is asked of it, in which order,
 * and what follows from answers that a real engine gives on its bad days only.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include <archive.h>
#include <archive_entry.h>

#include "backends/docker_internal.h"
#include "images/accounts.h"
#include "images/export.h"
#include "vm/container_protocol.h"

#define ANSWERS_MAX 8

struct engine {
    char folder[200];
    int listen_fd;
    pthread_t thread;
    struct bt_docker docker;
    struct {
        const char *request, *status, *body; /* of requests that begin like this; others: 200 {} */
    } answers[ANSWERS_MAX];
    pthread_mutex_t lock;
    struct bt_buffer log;  /* a line for each request: method and path without version */
    char body[4096];       /* of the last request */
    struct bt_paths paths; /* of the user */
    bool keeps_images;     /* one that was given is there from then on */
    unsigned upload_count;
    bool was_upload_whole; /* the last body in chunks came to its end */
};

/* Reads a body of either form; the beginning of a plain one is kept. Returns whether all of it came. */
static bool read_body(struct engine *engine, FILE *stream, size_t length, bool is_chunked)
{
    char line[128];
    while (is_chunked) {
        if (fgets(line, sizeof(line), stream) == NULL)
            return false;
        length = strtoul(line, NULL, 16);
        for (size_t i = 0; i < length + 2; i++)
            if (fgetc(stream) == EOF)
                return false;
        if (length == 0)
            return true;
    }
    engine->body[0] = '\0';
    for (size_t i = 0; i < length; i++) {
        int byte = fgetc(stream);
        if (byte == EOF)
            return false;
        if (i + 1 < sizeof(engine->body)) {
            engine->body[i] = (char)byte;
            engine->body[i + 1] = '\0';
        }
    }
    return true;
}

static void answer(struct engine *engine, FILE *stream)
{
    char first[1024], line[1024], request[1024] = "";
    size_t length = 0;
    bool is_chunked = false;
    const char *status = "200 OK", *body = "{}";
    if (fgets(first, sizeof(first), stream) == NULL)
        return;
    while (fgets(line, sizeof(line), stream) != NULL && strcmp(line, "\r\n") != 0) {
        if (strncmp(line, "Content-Length: ", 16) == 0)
            length = strtoul(line + 16, NULL, 10);
        is_chunked = is_chunked || strncmp(line, "Transfer-Encoding: chunked", 26) == 0;
    }
    bool is_whole = read_body(engine, stream, length, is_chunked);
    char *path = strchr(first, ' ');
    char *below = path == NULL ? NULL : strchr(path + 2, '/');
    if (below == NULL)
        return;
    *path = '\0';
    below[strcspn(below, " \r\n")] = '\0';
    (void)snprintf(request, sizeof(request), "%.20s %.900s", first, below);
    (void)pthread_mutex_lock(&engine->lock);
    if (bt_buffer_add_format(&engine->log, "%s\n", request) < 0)
        abort();
    if (is_chunked)
        engine->was_upload_whole = is_whole;
    for (size_t i = 0; i < ANSWERS_MAX && engine->answers[i].request != NULL; i++)
        if (strncmp(request, engine->answers[i].request, strlen(engine->answers[i].request)) == 0) {
            status = engine->answers[i].status;
            body = engine->answers[i].body;
        }
    if (strncmp(request, "POST /images/create", 19) == 0)
        engine->upload_count++;
    if (engine->keeps_images && engine->upload_count > 0 && strncmp(request, "GET /images/berth", 17) == 0)
        status = "200 OK";
    (void)pthread_mutex_unlock(&engine->lock);
    (void)fprintf(stream, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", status,
                  strlen(body), body);
    (void)fflush(stream);
}

static void *serve(void *context)
{
    struct engine *engine = context;
    int fd;
    while ((fd = accept4(engine->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        FILE *stream = fdopen(fd, "r+");
        answer(engine, stream);
        (void)fclose(stream);
    }
    return NULL;
}

static int open_engine(void **state)
{
    struct engine *engine = bt_new(1, sizeof(*engine));
    const char *temporary = getenv("TMPDIR");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(engine->folder, sizeof(engine->folder), "%s/engine-XXXXXX",
                   temporary == NULL ? "/tmp" : temporary);
    assert_non_null(mkdtemp(engine->folder));
    (void)snprintf(engine->docker.socket_path, sizeof(engine->docker.socket_path), "%s/s", engine->folder);
    assert_true(strlen(engine->docker.socket_path) < sizeof(address.sun_path));
    memcpy(address.sun_path, engine->docker.socket_path, strlen(engine->docker.socket_path));
    engine->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(engine->listen_fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(engine->listen_fd, 16), 0);
    (void)snprintf(engine->paths.state, sizeof(engine->paths.state), "/nonexistent/state");
    (void)snprintf(engine->paths.images, sizeof(engine->paths.images), "%s/data/images", engine->folder);
    (void)snprintf(engine->docker.version, sizeof(engine->docker.version), "1.41");
    assert_int_equal(pthread_mutex_init(&engine->lock, NULL), 0);
    assert_int_equal(pthread_create(&engine->thread, NULL, serve, engine), 0);
    bt_auto_free char *host = bt_string_format("unix://%s", engine->docker.socket_path);
    assert_int_equal(setenv("DOCKER_HOST", host, 1), 0);
    *state = engine;
    return 0;
}

static int close_engine(void **state)
{
    struct engine *engine = *state;
    (void)shutdown(engine->listen_fd, SHUT_RDWR);
    (void)pthread_join(engine->thread, NULL);
    (void)close(engine->listen_fd);
    (void)pthread_mutex_destroy(&engine->lock);
    bt_buffer_free(&engine->log);
    assert_int_equal(bt_tree_remove(engine->folder, NULL), 0);
    free(engine);
    return unsetenv("DOCKER_HOST");
}

static void will_answer(struct engine *engine, const char *request, const char *status, const char *body)
{
    size_t i = 0;
    while (engine->answers[i].request != NULL)
        i++;
    assert_true(i < ANSWERS_MAX);
    engine->answers[i].request = request;
    engine->answers[i].status = status;
    engine->answers[i].body = body;
}

/* Where in the log a line begins like this; fails when there is none. */
static const char *asked(const struct engine *engine, const char *request)
{
    const char *at = engine->log.data == NULL ? "" : engine->log.data;
    for (; *at != '\0'; at = strchr(at, '\n') + 1)
        if (strncmp(at, request, strlen(request)) == 0)
            return at;
    fail_msg("never asked: %s; but:\n%s", request, engine->log.data);
    return NULL;
}

static const struct bt_guest_identity one = {"/nonexistent/state", "live", BT_GUEST_AGENT, "one"};

/* An engine hands out a volume that is there as if it were new. */
static void an_agent_begins_with_new_volumes(void **state)
{
    struct engine *engine = *state;
    static const char *const suffixes[] = {"home", "workspace", "base"};
    const struct bt_guest_plan plan = {.role = BT_GUEST_AGENT, .identity = one, .disk_bytes = 1U << 20};
    struct bt_error error = {0};
    char name[BT_DOCKER_NAME_SIZE];
    will_answer(engine, "GET ", "200 OK", "{\"ApiVersion\":\"1.41\",\"MinAPIVersion\":\"1.12\"}");
    bt_docker_name(&one, name);
    assert_int_equal(bt_backend_docker.prepare(&plan, &error), 0);
    const char *made = asked(engine, "POST /volumes/create");
    bt_auto_free char *container = bt_string_format("DELETE /containers/%s?", name);
    assert_true(asked(engine, container) < made);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(suffixes); i++) {
        bt_auto_free char *removed = bt_string_format("DELETE /volumes/%s.%s", name, suffixes[i]);
        assert_true(asked(engine, removed) < made);
    }
}

static void old_volumes_that_stay_are_an_error(void **state)
{
    struct engine *engine = *state;
    const struct bt_guest_plan plan = {.role = BT_GUEST_AGENT, .identity = one, .disk_bytes = 1U << 20};
    struct bt_error error = {0};
    will_answer(engine, "GET ", "200 OK", "{\"ApiVersion\":\"1.41\",\"MinAPIVersion\":\"1.12\"}");
    will_answer(engine, "DELETE /volumes/", "409 Conflict", "{\"message\":\"volume is in use\"}");
    assert_true(bt_backend_docker.prepare(&plan, &error) < 0);
    assert_non_null(strstr(error.message, "earlier agent of this name"));
    assert_non_null(strstr(error.message, "volume is in use"));
    assert_null(strstr(engine->log.data, "/volumes/create"));
}

/* An initrd of one file; so many of its last bytes are missing. */
static void make_image(const struct engine *engine, size_t missing, struct bt_image *ret_image)
{
    static char content[200000];
    size_t used = 0;
    memset(content, 'x', sizeof(content)); /* the end of a tar is zeros */
    bt_auto_free char *data = bt_new(2 * sizeof(content), 1);
    struct archive *archive = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    assert_int_equal(archive_write_set_format_cpio_newc(archive), ARCHIVE_OK);
    assert_int_equal(archive_write_open_memory(archive, data, 2 * sizeof(content), &used), ARCHIVE_OK);
    archive_entry_set_pathname(entry, "file");
    archive_entry_set_mode(entry, S_IFREG | 0644);
    archive_entry_set_size(entry, sizeof(content));
    assert_int_equal(archive_write_header(archive, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(archive, content, sizeof(content)), sizeof(content));
    archive_entry_free(entry);
    assert_int_equal(archive_write_close(archive), ARCHIVE_OK);
    assert_int_equal(archive_write_free(archive), ARCHIVE_OK);
    *ret_image = (struct bt_image){.name = "infra", .digest = "0123"};
    (void)snprintf(ret_image->path, sizeof(ret_image->path), "%s/initrd", engine->folder);
    assert_int_equal(bt_file_write(ret_image->path, data, used - missing, 0600, NULL), 0);
}

/* What older builds left of the same owner goes, and nothing of anybody else. */
static void old_images_of_ones_own_go(void **state)
{
    struct engine *engine = *state;
    char owner[13];
    struct bt_error error = {0};
    struct bt_image image;
    make_image(engine, 0, &image);
    bt_docker_owner(one.state, owner);
    bt_auto_free char *listed = bt_string_format("[{\"RepoTags\": [\"berth-%s/infra:old\"]}]", owner);
    bt_auto_free char *removed = bt_string_format("DELETE /images/berth-%s/infra:old", owner);
    bt_auto_free char *only = bt_string_format(
        "GET /images/json?filters=%%7B%%22reference%%22%%3A%%5B%%22berth-%s/infra%%22%%5D%%7D", owner);
    will_answer(engine, "GET /images/berth", "404 Not Found", "{\"message\":\"no such image\"}");
    will_answer(engine, "GET /images/json", "200 OK", listed);
    assert_int_equal(bt_docker_image_provide(&engine->docker, &engine->paths, &image, NULL, &error), 0);
    (void)asked(engine, only);
    (void)asked(engine, removed);
}

static void *provide_once(void *context)
{
    struct engine *engine = context;
    struct bt_error error = {0};
    struct bt_image image = {.name = "infra", .digest = "0123"};
    (void)snprintf(image.path, sizeof(image.path), "%s/initrd", engine->folder);
    return bt_docker_image_provide(&engine->docker, &engine->paths, &image, NULL, &error) == 0 ? context
                                                                                               : NULL;
}

/* Twenty launches at once are one upload. */
static void many_give_an_image_once(void **state)
{
    struct engine *engine = *state;
    struct bt_image image;
    pthread_t launches[8];
    make_image(engine, 0, &image);
    engine->keeps_images = true;
    will_answer(engine, "GET /images/berth", "404 Not Found", "{\"message\":\"no such image\"}");
    will_answer(engine, "GET /images/json", "200 OK", "[]");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(launches); i++)
        assert_int_equal(pthread_create(&launches[i], NULL, provide_once, engine), 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(launches); i++) {
        void *result;
        assert_int_equal(pthread_join(launches[i], &result), 0);
        assert_non_null(result);
    }
    assert_int_equal(engine->upload_count, 1);
}

static void an_image_is_given_whole(void **state)
{
    struct engine *engine = *state;
    struct bt_error error = {0};
    struct bt_image image;
    make_image(engine, 0, &image);
    will_answer(engine, "GET /images/berth", "404 Not Found", "{\"message\":\"no such image\"}");
    will_answer(engine, "GET /images/json", "200 OK", "[]");
    assert_int_equal(bt_docker_image_provide(&engine->docker, &engine->paths, &image, NULL, &error), 0);
    (void)asked(engine, "POST /images/create?");
    assert_true(engine->was_upload_whole);
}

/* Neither does the upload end as if it were whole, nor is what an engine made of it kept. */
static void half_an_image_is_none(void **state)
{
    struct engine *engine = *state;
    struct bt_error error = {0};
    struct bt_image image;
    make_image(engine, 100000, &image);
    engine->was_upload_whole = true;
    will_answer(engine, "GET /images/berth", "404 Not Found", "{\"message\":\"no such image\"}");
    assert_int_equal(bt_docker_image_provide(&engine->docker, &engine->paths, &image, NULL, &error), -EIO);
    assert_non_null(strstr(error.message, "cannot read"));
    assert_non_null(strstr(error.message, "initrd"));
    (void)asked(engine, "POST /images/create?");
    (void)asked(engine, "DELETE /images/berth");
    assert_false(engine->was_upload_whole);
}

static bool export_ends(const struct engine *engine, size_t missing, int wanted)
{
    struct bt_error error = {0};
    struct bt_image image;
    bt_auto_buffer tar = {0};
    size_t zeros = 0;
    make_image(engine, missing, &image);
    bt_auto_free char *path = bt_string_format("%s/tar", engine->folder);
    bt_auto_fd fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_int_equal(bt_image_export(&image, &(struct bt_image_export_options){0}, fd, &error), wanted);
    assert_int_equal(bt_file_read(path, 1UL << 20, &tar, &error), 0);
    assert_true(tar.length > 10000);
    while (zeros < 1024 && tar.data[tar.length - 1 - zeros] == '\0')
        zeros++;
    return zeros == 1024;
}

/* What was written of a tar before it failed is not closed as if that were all. */
static void a_failed_export_has_no_end(void **state)
{
    const struct engine *engine = *state;
    assert_true(export_ends(engine, 0, 0));
    assert_false(export_ends(engine, 100000, -EIO));
}

/* The user and the group of the agent, and nothing that only looks like their number. */
static const char podman_version[] =
    "{\"Components\":[{\"Name\":\"Podman Engine\",\"Version\":\"4.3.1\"}],\"Version\":\"4.3.1\","
    "\"ApiVersion\":\"1.41\",\"MinAPIVersion\":\"1.24\"}";

static void podman_is_known_by_its_version(void **state)
{
    struct engine *engine = *state;
    struct bt_docker docker;
    struct bt_docker_engine what;
    struct bt_error error = {0};
    will_answer(engine, "GET ", "200 OK", "{\"ApiVersion\":\"1.41\",\"MinAPIVersion\":\"1.12\"}");
    assert_int_equal(bt_docker_connect(&docker, &error), 0);
    assert_false(docker.is_podman);
    will_answer(engine, "GET ", "200 OK", podman_version);
    assert_int_equal(bt_docker_connect(&docker, &error), 0);
    assert_true(docker.is_podman);
    will_answer(engine, "GET /libpod/info", "200 OK",
                "{\"host\":{\"networkBackend\":\"netavark\",\"security\":{\"rootless\":false}}}");
    will_answer(engine, "GET /info", "200 OK", "{\"Runtimes\":{\"runsc\":{}},\"PidsLimit\":true}");
    assert_int_equal(bt_docker_engine(&docker, &what, &error), 0);
    assert_true(what.is_podman && what.has_pids);
    assert_false(what.has_runsc); /* no way to an address that is set later */
    assert_int_equal(bt_docker_engine_check(&what, &error), 0);
}

static void podman_of_another_kind_is_refused_by_name(void **state)
{
    struct engine *engine = *state;
    static const struct {
        const char *info, *why;
    } cases[] = {
        {"{\"host\":{\"networkBackend\":\"cni\"}}", "CNI"},
        {"{}", "CNI"},
        {"{\"host\":{\"networkBackend\":\"netavark\",\"security\":{\"rootless\":true}}}", "rootless"},
    };
    engine->docker.is_podman = true;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        struct bt_docker_engine what;
        struct bt_error error = {0};
        will_answer(engine, "GET /libpod/info", "200 OK", cases[i].info);
        assert_int_equal(bt_docker_engine(&engine->docker, &what, &error), 0);
        assert_int_equal(bt_docker_engine_check(&what, &error), -EOPNOTSUPP);
        assert_non_null(strstr(error.message, cases[i].why));
        assert_non_null(strstr(error.hint, "--backend qemu"));
    }
    engine->docker.is_podman = false;
}

static void equal_member(const json_t *document, const char *key, const char *wanted)
{
    bt_auto_free char *text = json_dumps(json_object_get(document, key), JSON_COMPACT | JSON_ENCODE_ANY);
    assert_string_equal(text, wanted);
}

/* Nothing of what confines a container gets lost on the way to the other API. */
static void podman_is_asked_for_the_same_container(void **state)
{
    const struct bt_guest_plan plan = {.role = BT_GUEST_AGENT, .memory_bytes = 1024};
    (void)state;
    json_t *docker = json_pack(
        "{s:s, s:s, s:s, s:[s], s:[s, s], s:{s:s}, s:s, s:{s:i, s:i, s:i, s:I, s:[{s:s, s:i, s:i}], s:{s:s}, "
        "s:[s], s:i, s:[s], s:[{s:s, s:s}]}}",
        "Image", "berth-0/shell:1", "Hostname", "one", "User", "0:0", "Entrypoint", BT_CONTAINER_INIT, "Cmd",
        "container", "agent", "Labels", "berth.role", "agent", "MacAddress", "02:42:0a:f2:00:03",
        "HostConfig", "Memory", 1024, "MemorySwap", 1024, "PidsLimit", 7, "NanoCpus", (json_int_t)2000000000,
        "Ulimits", "Name", "core", "Soft", 0, "Hard", 0, "Sysctls", "net.ipv4.ip_forward", "0", "Dns",
        "10.242.0.2", "OomScoreAdj", 500, "MaskedPaths", "/proc/interrupts", "Mounts", "Source", "v.home",
        "Target", "/home/agent");
    json_t *made = bt_podman_container(&plan, "berth-0.live.one", "/profile.json", docker);
    assert_non_null(made);
    static const char *const members[][2] = {
        {"name", "\"berth-0.live.one\""},
        {"image", "\"docker.io/berth-0/shell:1\""},
        {"user", "\"0:0\""},
        {"read_only_filesystem", "true"},
        {"cap_drop", "[\"all\"]"},
        {"no_new_privileges", "true"},
        {"seccomp_profile_path", "\"/profile.json\""},
        {"mask", "[\"/proc/interrupts\"]"},
        {"sysctl", "{\"net.ipv4.ip_forward\":\"0\"}"},
        {"resource_limits", "{\"memory\":{\"limit\":1024,\"swap\":1024},\"cpu\":{\"quota\":200000,\"period\":"
                            "100000},\"pids\":{\"limit\":7}}"},
        {"oom_score_adj", "500"},
        {"dns_server", "[\"10.242.0.2\"]"},
        {"volumes", "[{\"Name\":\"v.home\",\"Dest\":\"/home/agent\"}]"},
        {"Networks", "{\"berth-0.live.one\":{\"static_mac\":\"02:42:0a:f2:00:03\"}}"},
        {"pidns", "{\"nsmode\":\"private\"}"},
        {"ipcns", "{\"nsmode\":\"private\"}"},
        {"httpproxy", "false"},
        {"use_image_hosts", "true"},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(members); i++)
        equal_member(made, members[i][0], members[i][1]);
    assert_null(json_object_get(made, "privileged"));
    assert_null(json_object_get(made, "cap_add"));
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(made, "r_limits"), 0), "type")),
        "core");
    json_decref(made);
    json_decref(docker);
}

/* A container of which podman can say nothing any more goes; one that is well stays, whatever went wrong. */
static void only_a_broken_container_is_removed(void **state)
{
    struct engine *engine = *state;
    bt_podman_remove_broken(&engine->docker, "well");
    assert_null(strstr(engine->log.data, "DELETE"));
    will_answer(engine, "GET /containers/gone/json", "404 Not Found", "{}");
    bt_podman_remove_broken(&engine->docker, "gone");
    assert_null(strstr(engine->log.data, "DELETE"));
    will_answer(engine, "GET /containers/broken/json", "500 Internal Server Error",
                "{\"message\":\"network inspection mismatch\"}");
    bt_podman_remove_broken(&engine->docker, "broken");
    assert_non_null(strstr(engine->log.data, "DELETE /containers/broken?force=1"));
}

/* podman's volumes are listed when one of the labels fits: those of others are nobody of ours. */
static void count_guest(void *context, const struct bt_guest_identity *identity)
{
    assert_string_equal(identity->name, "mine");
    ++*(unsigned *)context;
}

static void what_is_of_others_is_not_listed(void **state)
{
    struct engine *engine = *state;
    struct bt_error error = {0};
    unsigned count = 0;
    char owner[13];
    bt_docker_owner("/state", owner);
    bt_auto_free char *volumes = bt_string_format(
        "{\"Volumes\":[{\"Labels\":{\"berth.owner\":\"%s\",\"berth.environment\":\"live\",\"berth.role\":"
        "\"agent\","
        "\"berth.name\":\"mine\"}},{\"Labels\":{\"berth.owner\":\"000000000000\",\"berth.environment\":"
        "\"live\","
        "\"berth.role\":\"agent\",\"berth.name\":\"others\"}},{\"Labels\":{\"berth.owner\":\"%s\","
        "\"berth.environment\":\"test\",\"berth.role\":\"agent\",\"berth.name\":\"elsewhere\"}}]}",
        owner, owner);
    will_answer(engine, "GET /volumes?", "200 OK", volumes);
    assert_int_equal(
        bt_docker_enumerate(&engine->docker, "/state", "live", true, count_guest, &count, &error), 0);
    assert_int_equal(count, 1);
}

/* What it says is handed on as it is, with what to do about it; and with where to look when nobody knows. */
static void what_an_engine_refuses_is_told_with_a_hint(void **state)
{
    struct engine *engine = *state;
    static const struct {
        const char *body, *hint;
        int result;
    } refusals[] = {
        {"{\"message\":\"Failed to Setup IP tables: Unable to enable ACCEPT OUTGOING rule: (iptables failed: "
         "iptables --wait -I FORWARD -i berthd0 ! -o berthd0 -j ACCEPT: iptables: No chain/target/match by "
         "that name.)\"}",
         "restart docker", -EIO},
        {"{\"message\":\"mkdir /var/lib/docker/volumes/x: no space left on device\"}", "free some space",
         -ENOSPC},
        {"{\"message\":\"Pool overlaps with other one on this address space\"}", "docker network ls",
         -ENOSPC},
        {"{\"message\":\"open /dev/x: too many open files\"}", "LimitNOFILE", -EIO},
        {"{\"message\":\"the moon is full\"}", "the engine's log", -EIO},
        {"not JSON", "the engine's log", -EIO},
    };
    will_answer(engine, "POST /networks/create", "500 Internal Server Error", "");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(refusals); i++) {
        struct bt_error error = {0};
        engine->answers[0].body = refusals[i].body;
        assert_int_equal(
            bt_docker_call(&engine->docker, "POST", "/networks/create", json_object(), NULL, &error),
            refusals[i].result);
        assert_int_equal(error.status, BT_EXIT_INFRASTRUCTURE);
        assert_non_null(strstr(error.hint, refusals[i].hint));
    }
}

/* Whoever only tries asks for no error. */
static void an_engine_that_is_gone_is_no_crash(void **state)
{
    struct bt_docker nobody = {.socket_path = "/nonexistent/engine", .version = "1.41"};
    int fd = -1;
    (void)state;
    assert_int_equal(bt_docker_call(&nobody, "GET", "/info", NULL, NULL, NULL), -ENOENT);
    assert_int_equal(bt_docker_stream(&nobody, "/exec/x/start", NULL, &fd, NULL), -ENOENT);
}

/* What engines say of their hosts' control groups: of the first version with all controllers; of the second;
 * of the second where the engine is in the topmost group, which has no memory.swap.max; of a kernel without
 * the memory controller (as on some boards); rootless, without any. */
static void limits_follow_from_control_groups(void **state)
{
    struct engine *engine = *state;
    static const struct {
        const char *info;
        int status;        /* of a bottle that asks for memory */
        const char *words; /* in the error, or in the notes of one that asks for nothing; NULL = no notes */
    } engines[] = {
        {"{\"CgroupVersion\":\"1\",\"CgroupDriver\":\"cgroupfs\",\"MemoryLimit\":true,\"SwapLimit\":true,"
         "\"CpuCfsQuota\":true,\"PidsLimit\":true}",
         0, NULL},
        {"{\"CgroupVersion\":\"2\",\"CgroupDriver\":\"systemd\",\"MemoryLimit\":true,\"SwapLimit\":true,"
         "\"CpuCfsQuota\":true,\"PidsLimit\":true,\"OomKillDisable\":false}",
         0, NULL},
        {"{\"CgroupVersion\":\"2\",\"CgroupDriver\":\"cgroupfs\",\"MemoryLimit\":true,\"SwapLimit\":false,"
         "\"CpuCfsQuota\":true,\"PidsLimit\":true}",
         -EOPNOTSUPP, "does not count swap"},
        {"{\"CgroupVersion\":\"1\",\"MemoryLimit\":false,\"SwapLimit\":false,\"CpuCfsQuota\":true,"
         "\"PidsLimit\":true}",
         -EOPNOTSUPP, "control groups do not"},
        {"{\"CgroupVersion\":\"2\",\"CgroupDriver\":\"none\"}", -EOPNOTSUPP, "control groups do not"},
    };
    will_answer(engine, "GET /info", "200 OK", "");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(engines); i++) {
        struct bt_docker_engine found;
        struct bt_list notes = {0};
        struct bt_error error = {0};
        engine->answers[0].body = engines[i].info;
        assert_int_equal(bt_docker_engine(&engine->docker, &found, &error), 0);
        const struct bt_guest_limits asked = {.is_memory_asked = true}, usual = {0};
        assert_int_equal(bt_docker_vet(&engine->docker, &found, &asked, &notes, &error), engines[i].status);
        assert_true(engines[i].status == 0 || strstr(error.message, engines[i].words) != NULL);
        bt_list_free(&notes);
        notes = (struct bt_list){0};
        assert_int_equal(bt_docker_vet(&engine->docker, &found, &usual, &notes, &error), 0);
        assert_int_equal(notes.count > 0, engines[i].words != NULL);
        assert_true(engines[i].words == NULL || strstr(notes.items[0], engines[i].words) != NULL);
        bt_list_free(&notes);
    }
}

/* Only the engine's word for how it starts gVisor tells that limits do not hold in it. */
static void gvisor_without_control_groups_is_said(void **state)
{
    struct engine *engine = *state;
    static const struct {
        const char *arguments;
        size_t notes;
    } runtimes[] = {{"\"--platform=ptrace\",\"--ignore-cgroups\"", 1},
                    {"\"--platform=systrap\"", 0},
                    {"\"--ignore-cgroups=false\"", 0}};
    const struct bt_guest_limits limits = {.is_gvisor_asked = true};
    char info[512] = "";
    will_answer(engine, "GET /info", "200 OK", info);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(runtimes); i++) {
        struct bt_docker_engine found;
        struct bt_list notes = {0};
        struct bt_error error = {0};
        (void)snprintf(info, sizeof(info),
                       "{\"MemoryLimit\":true,\"SwapLimit\":true,\"CpuCfsQuota\":true,\"PidsLimit\":true,"
                       "\"Runtimes\":{\"runsc\":{\"path\":\"/usr/bin/runsc\",\"runtimeArgs\":[%s]}}}",
                       runtimes[i].arguments);
        assert_int_equal(bt_docker_engine(&engine->docker, &found, &error), 0);
        assert_true(found.has_runsc);
        assert_int_equal(bt_docker_vet(&engine->docker, &found, &limits, &notes, &error), 0);
        assert_int_equal(notes.count, runtimes[i].notes);
        assert_true(notes.count == 0 || strstr(notes.items[0], "--ignore-cgroups") != NULL);
        bt_list_free(&notes);
    }
}

static void accounts_get_another_number(void **state)
{
    static const char before[] =
        "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:1000:/home/1000:/bin/bash\n"
        "other:x:10001:1000::/:/bin/sh\nshort:x:1000\n\nlast:x:1000:";
    static const char after[] =
        "root:x:0:0:root:/root:/bin/sh\nagent:x:65525:65525:1000:/home/1000:/bin/bash\n"
        "other:x:10001:65525::/:/bin/sh\nshort:x:65525\n\nlast:x:65525:";
    bt_auto_buffer text = {0};
    (void)state;
    assert_int_equal(bt_accounts_renumber(before, 1000, 65525, &text), 0);
    assert_int_equal(text.length, sizeof(after) - 1);
    assert_memory_equal(text.data, after, text.length);
}

static void a_command_runs_as_nobodys_account(void **state)
{
    struct engine *engine = *state;
    const char *const arguments[] = {"true", NULL};
    const struct bt_guest_access access = {.identity = one};
    struct bt_guest_command command = {.arguments = arguments, .input_fd = -1};
    struct bt_guest_link *link = NULL;
    struct bt_error error = {0};
    int status;
    command.uid = command.gid = BT_GUEST_AGENT_ID;
    assert_null(getpwuid(BT_DOCKER_AGENT_ID));
    assert_int_equal(bt_docker_accounts_check(&error), 0);
    will_answer(engine, "GET ", "200 OK", "{\"ApiVersion\":\"1.41\",\"MinAPIVersion\":\"1.12\"}");
    will_answer(engine, "POST /containers/", "500 Oops", "{\"message\":\"not today\"}");
    assert_int_equal(bt_docker_link(&access, &link, &error), 0);
    assert_true(bt_guest_run(link, &command, &status, &error) < 0);
    (void)bt_guest_close(link);
    (void)asked(engine, "POST /containers/");
    assert_non_null(strstr(engine->body, "\"User\":\"65525:65525\""));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_engine, close_engine)
    const struct CMUnitTest tests[] = {
        TEST(an_agent_begins_with_new_volumes),
        TEST(old_volumes_that_stay_are_an_error),
        TEST(an_image_is_given_whole),
        TEST(many_give_an_image_once),
        TEST(old_images_of_ones_own_go),
        TEST(half_an_image_is_none),
        TEST(a_failed_export_has_no_end),
        TEST(accounts_get_another_number),
        TEST(podman_is_known_by_its_version),
        TEST(podman_of_another_kind_is_refused_by_name),
        TEST(podman_is_asked_for_the_same_container),
        TEST(only_a_broken_container_is_removed),
        TEST(what_is_of_others_is_not_listed),
        TEST(what_an_engine_refuses_is_told_with_a_hint),
        TEST(an_engine_that_is_gone_is_no_crash),
        TEST(limits_follow_from_control_groups),
        TEST(gvisor_without_control_groups_is_said),
        TEST(a_command_runs_as_nobodys_account),
    };
    (void)signal(SIGPIPE, SIG_IGN); /* the engine answers who may be gone */
    return cmocka_run_group_tests_name("docker_engine", tests, NULL, NULL);
}
