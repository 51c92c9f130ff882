/* Images in the engine: the cached image of a recipe, exported as a tar and imported, once for each digest.
 * See docker_internal.h.
 *
 * berth-init is part of it, since a container needs a first process; so a new build of berth-init makes a new
 * image.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "images/cache.h"
#include "images/export.h"
#include "lib/http.h"
#include "vm/container_protocol.h"
#include "vm/trust_stores.h"

#define FORM_VERSION "7" /* of what is added below; a new one makes new images */
#define TAG_LENGTH 20
#define STACK_SIZE (256UL * 1024)
#define FOLDER_COUNT 12U

static int fingerprint(const struct bt_image *image, char ret_digest[BT_DIGEST_TEXT_SIZE], char ret_init[512],
                       struct bt_error *error)
{
    char init_digest[BT_DIGEST_TEXT_SIZE];
    int result = bt_program_path("berth-init", ret_init, error);
    if (result == 0)
        result = bt_digest_file(ret_init, init_digest, error);
    if (result < 0)
        return result;
    bt_auto_free char *text = bt_string_format("%s %s %s", FORM_VERSION, image->digest, init_digest);
    bt_digest_bytes(text, strlen(text), ret_digest);
    return 0;
}

int bt_docker_image_name(const char *state, const struct bt_image *image, char ret_name[BT_DOCKER_NAME_SIZE],
                         struct bt_error *error)
{
    char owner[13];
    char digest[BT_DIGEST_TEXT_SIZE];
    char init_path[512];
    int result = fingerprint(image, digest, init_path, error);
    if (result < 0)
        return result;
    bt_docker_owner(state, owner);
    (void)snprintf(ret_name, BT_DOCKER_NAME_SIZE, "berth-%s/%.60s:%.*s", owner, image->name, TAG_LENGTH,
                   digest);
    return 0;
}

/* The tar, made by a thread, on its way through a pipe. */
struct source {
    const struct bt_image *image;
    const char *init_path;
    int write_fd, read_fd;
    int result; /* of the thread; good to read once the pipe has ended */
    struct bt_error error;
    const struct bt_progress *progress;
    uint64_t bytes;
};

/* What an image has in a container beyond its recipe; returns how many. */
static size_t list_additions(const struct source *source, struct bt_image_addition *ret_additions,
                             char (*targets)[64])
{
    /* What berth keeps of a workspace in an agent, or the registry of an orchestrator. */
    bool is_infra = strcmp(source->image->name, "infra") == 0;
    unsigned keeper = is_infra ? BT_DOCKER_ORCHESTRATOR_ID : 0;
    /* Whose user is not root, and a runtime gives the mount there the mode that the folder has. */
    unsigned run_mode = is_infra ? 01777 : 0755;
    const struct {
        const char *path;
        unsigned mode, owner;
    } folders[FOLDER_COUNT] = {
        {"berth", 0755, 0}, {"berth/bin", 0755, 0}, {"run", run_mode, 0}, {"tmp", 01777, 0},
        {"proc", 0555, 0},  {"sys", 0555, 0},       {"dev", 0755, 0},     {"etc", 0755, 0},
        {"var", 0755, 0},   {"var/tmp", 01777, 0},  {"var/lib", 0755, 0}, {"var/lib/berth", 0755, keeper},
    };
    size_t count = 0;
    for (; count < FOLDER_COUNT; count++)
        ret_additions[count] = (struct bt_image_addition){
            .path = folders[count].path, .mode = folders[count].mode, .owner = folders[count].owner};
    ret_additions[count++] = (struct bt_image_addition){
        .path = "berth/bin/berth-init", .host_path = source->init_path, .mode = 0755};
    /* Docker lays its own over it; podman's would have all names that the host's has. */
    ret_additions[count++] = (struct bt_image_addition){
        .path = "etc/hosts", .text = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n", .mode = 0644};
    ret_additions[count++] = (struct bt_image_addition){
        .path = "etc/ld.so.preload", .link_target = BT_CONTAINER_PRELOAD, .mode = 0777};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bt_trust_stores); i++) {
        (void)snprintf(targets[i], sizeof(targets[i]), BT_GUEST_FOLDER "/%s", bt_trust_stores[i].file);
        ret_additions[count++] = (struct bt_image_addition){
            .path = bt_trust_stores[i].path, .link_target = targets[i], .mode = 0777};
    }
    return count;
}

static void *make_tar(void *argument)
{
    struct source *source = argument;
    struct bt_image_addition additions[FOLDER_COUNT + 3 + BT_ARRAY_LENGTH(bt_trust_stores)];
    char targets[BT_ARRAY_LENGTH(bt_trust_stores)][64];
    sigset_t broken_pipe;
    (void)sigemptyset(&broken_pipe);
    (void)sigaddset(&broken_pipe, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &broken_pipe, NULL); /* a refused image is an error, not an end */
    const struct bt_image_export_options options = {.additions = additions,
                                                    .addition_count =
                                                        list_additions(source, additions, targets),
                                                    .from_id = BT_GUEST_AGENT_ID,
                                                    .to_id = BT_DOCKER_AGENT_ID,
                                                    .own_folder = "berth"};
    source->result = bt_image_export(source->image, &options, source->write_fd, &source->error);
    bt_fd_close(&source->write_fd);
    return NULL;
}

static ssize_t read_tar(void *context, char *ret_data, size_t size)
{
    struct source *source = context;
    ssize_t count;
    while ((count = read(source->read_fd, ret_data, size)) < 0 && errno == EINTR)
        continue;
    if (count < 0)
        return -errno;
    if (count == 0) /* the request breaks off, so that half an image is none */
        return source->result;
    source->bytes += (uint64_t)count;
    if (source->progress != NULL && source->progress->report != NULL &&
        (source->bytes >> 22) != ((source->bytes - (uint64_t)count) >> 22))
        source->progress->report(source->progress->context, "giving the image to the container engine",
                                 source->bytes, 0);
    return count;
}

/* The engine answers 200 at once and tells failures in the stream of JSON documents that follows. */
static int check_answer(const struct bt_buffer *answer, struct bt_error *error)
{
    size_t at = 0;
    int result = 0;
    while (result == 0 && at < answer->length) {
        json_error_t where;
        json_t *document = json_loadb(answer->data + at, answer->length - at, JSON_DISABLE_EOF_CHECK, &where);
        if (document == NULL)
            break;
        const char *failure = json_string_value(json_object_get(document, "error"));
        if (failure != NULL) {
            json_t *message = json_pack("{s:s}", "message", failure);
            bt_auto_free char *text = json_dumps(message, 0);
            json_decref(message);
            result = bt_docker_fail(500, text, text == NULL ? 0 : strlen(text), error);
        }
        json_decref(document);
        at += (size_t)where.position;
    }
    return result;
}

/* What is built on it has these labels as well: that is how what a killed build left is known. */
static int import(const struct bt_docker *docker, const char *name, const char *digest, const char *owner,
                  struct source *source, struct bt_error *error)
{
    const char *tag = strchr(name, ':');
    bt_auto_buffer answer = {0};
    bt_auto_free char *labels = bt_string_format("changes=LABEL%%20" BT_DOCKER_LABEL_IMAGE
                                                 "%%3D%s&changes=LABEL%%20" BT_DOCKER_LABEL_OWNER "%%3D%s",
                                                 digest, owner);
    bt_auto_free char *path = docker->is_podman
                                  ? bt_podman_import_path(name, labels)
                                  : bt_string_format("/images/create?fromSrc=-&repo=%.*s&tag=%s&%s",
                                                     (int)(tag - name), name, tag + 1, labels);
    const struct bt_http_request request = {.method = "POST",
                                            .path = path,
                                            .content_type = "application/x-tar",
                                            .read_body = read_tar,
                                            .context = source};
    int result = bt_docker_transfer(docker, &request, &answer, error);
    return result < 0 ? result : check_answer(&answer, error);
}

static int export_and_import(const struct bt_docker *docker, const char *name, const char *digest,
                             const char *owner, struct source *source, struct bt_error *error)
{
    pthread_t thread;
    pthread_attr_t attributes;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make a pipe: %s", strerror(errno));
    source->read_fd = ends[0];
    source->write_fd = ends[1];
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    int code = pthread_create(&thread, &attributes, make_tar, source);
    (void)pthread_attr_destroy(&attributes);
    int result = code == 0
                     ? import(docker, name, digest, owner, source, error)
                     : bt_fail(error, BT_EXIT_ERROR, code, NULL, "cannot start a thread: %s", strerror(code));
    bt_fd_close(&source->read_fd); /* ends the thread when the engine refused */
    if (code == 0)
        (void)pthread_join(thread, NULL);
    else
        bt_fd_close(&source->write_fd);
    if (source->result < 0 && source->result != -EPIPE) {
        *error = source->error;
        result = source->result;
    }
    return result;
}

/* The owner's older images of the recipe go; one that a container still uses stays, as the engine refuses. */
static void remove_older(const struct bt_docker *docker, const char *name)
{
    const char *tag = strchr(name, ':');
    bt_auto_free char *path = bt_string_format(
        "/images/json?filters=%%7B%%22reference%%22%%3A%%5B%%22%.*s%%22%%5D%%7D", (int)(tag - name), name);
    json_t *images = NULL;
    size_t index, place;
    const json_t *image, *other;
    if (bt_docker_call(docker, "GET", path, NULL, &images, NULL) < 0)
        return;
    json_array_foreach(images, index, image)
    {
        json_array_foreach(json_object_get(image, "RepoTags"), place, other)
        {
            const char *text = json_string_value(other);
            if (text == NULL || strcmp(text, name) == 0 || bt_podman_is_name(text, name))
                continue;
            bt_auto_free char *old = bt_string_format("/images/%s", text);
            (void)bt_docker_call(docker, "DELETE", old, NULL, NULL, NULL);
        }
    }
    json_decref(images);
}

/* 1: the engine has the image. 0: it has not. */
static int has_image(const struct bt_docker *docker, const char *name, struct bt_error *error)
{
    struct bt_error own = {0};
    bt_auto_free char *path = bt_string_format("/images/%s/json", name);
    int result = bt_docker_call(docker, "GET", path, NULL, NULL, &own);
    if (result == 0)
        return 1;
    if (result != -ENOENT)
        *error = own;
    return result == -ENOENT ? 0 : result;
}

static int give(const struct bt_docker *docker, const char *name, const char *digest, const char *owner,
                struct source *source, struct bt_error *error)
{
    int result = export_and_import(docker, name, digest, owner, source, error);
    if (result == 0) {
        remove_older(docker, name);
        return 0;
    }
    bt_auto_free char *half = bt_string_format("/images/%s", name);
    if (source->result < 0) /* an engine that had it all the same */
        (void)bt_docker_call(docker, "DELETE", half, NULL, NULL, NULL);
    return bt_error_prefix(error, "cannot give the image %s to the container engine", source->image->name);
}

int bt_docker_image_provide(const struct bt_docker *docker, const struct bt_paths *paths,
                            const struct bt_image *image, const struct bt_progress *progress,
                            struct bt_error *error)
{
    char digest[BT_DIGEST_TEXT_SIZE];
    char init_path[512];
    char name[BT_DOCKER_NAME_SIZE];
    bt_auto_fd lock_fd = -1;
    int result = fingerprint(image, digest, init_path, error);
    if (result == 0)
        result = bt_docker_image_name(paths->state, image, name, error);
    if (result == 0)
        result = has_image(docker, name, error);
    if (result != 0)
        return result < 0 ? result : 0;
    /* Of many launches at once one gives it, and the others wait for that. */
    result = bt_cache_lock(paths, image->name, progress, &lock_fd, error);
    if (result == 0)
        result = has_image(docker, name, error);
    if (result != 0)
        return result < 0 ? result : 0;
    struct source source = {.image = image, .init_path = init_path, .progress = progress};
    char owner[13];
    bt_docker_owner(paths->state, owner);
    return give(docker, name, digest, owner, &source, error);
}
