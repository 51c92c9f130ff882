/* Images that the engine's builder makes, into the cache. See docker_internal.h and README.md.
 *
 * What is built is found by the id that the builder answers, in no case by a name or a label, which any user
 * of the engine can give; it is taken out of the engine as one tar, without the settings of an image, and
 * what the engine had of it is removed. From then on it is an image like any other. One build of a user at a
 * time: what of builds is in the engine when none runs was left by one that was killed, see
 * docker_build_sweep.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "images/archive.h"
#include "images/cache.h"
#include "images/disk.h"
#include "images/ext4_tar.h"
#include "lib/http.h"

#define LINE_MAX_BYTES (1024UL * 1024)
#define EXPORT_MAX (16ULL << 30)
#define ROOM (256ULL << 20) /* of the file system, beyond the tar */

/* ---- what the builder says ---- */

static void copy_clean(char *ret_text, size_t size, const char *text)
{
    size_t length = 0;
    for (; *text != '\0' && length + 1 < size; text++)
        ret_text[length++] = (char)((unsigned char)*text < 0x20 || *text == 0x7f ? ' ' : *text);
    ret_text[length] = '\0';
}

static bool is_image_id(const char *text)
{
    return text != NULL && strncmp(text, "sha256:", 7) == 0 && strlen(text) == 71 &&
           strspn(text + 7, "0123456789abcdef") == 64;
}

static int take_line(struct bt_docker_build_log *log)
{
    json_t *document = json_loadb(log->line.data, log->line.length, 0, NULL);
    const char *said = json_string_value(json_object_get(document, "stream"));
    const char *failure = json_string_value(json_object_get(document, "error"));
    const char *id = json_string_value(json_object_get(json_object_get(document, "aux"), "ID"));
    int result = json_is_object(document) ? 0 : -EBADMSG;
    if (said != NULL && said[strspn(said, " \r\n")] != '\0')
        copy_clean(log->last, sizeof log->last, said);
    if (failure != NULL)
        copy_clean(log->failure, sizeof log->failure, failure);
    if (is_image_id(id))
        (void)snprintf(log->image_id, sizeof log->image_id, "%s", id);
    json_decref(document);
    log->line.length = 0;
    return result;
}

int bt_docker_build_log_take(struct bt_docker_build_log *log, const char *data, size_t length)
{
    int result = 0;
    log->line.limit = LINE_MAX_BYTES;
    while (result == 0 && length > 0) {
        const char *end = memchr(data, '\n', length);
        size_t piece = end == NULL ? length : (size_t)(end - data);
        if (bt_buffer_add(&log->line, data, piece) < 0)
            return -EFBIG;
        if (end != NULL && log->line.length > 0 && log->line.data[strspn(log->line.data, " \r")] != '\0')
            result = take_line(log);
        if (end != NULL)
            log->line.length = 0;
        data += piece + (end != NULL);
        length -= piece + (end != NULL);
    }
    return result;
}

struct building {
    const struct bt_build *build;
    struct bt_docker_build_log log;
};

static int take_log(void *context, const void *data, size_t length)
{
    struct building *building = context;
    const struct bt_progress *progress = building->build->progress;
    int result = bt_docker_build_log_take(&building->log, data, length);
    if (progress != NULL && progress->report != NULL && building->log.last[0] != '\0')
        progress->report(progress->context, building->log.last, 0, 0);
    return result;
}

static ssize_t give_context(void *context, char *ret_data, size_t size)
{
    const struct building *building = context;
    ssize_t count;
    while ((count = read(building->build->context_fd, ret_data, size)) < 0 && errno == EINTR)
        continue;
    return count < 0 ? -errno : count;
}

/* Its steps have no network: they run outside of the gateway. Nothing is asked of a registry that the engine
 * has already. */
static char *build_path(const char *base)
{
    json_t *arguments = json_pack("{s:s}", "BERTH_BASE", base);
    bt_auto_free char *text = json_dumps(arguments, JSON_COMPACT);
    bt_auto_free char *encoded = bt_docker_encode(text);
    json_decref(arguments);
    return bt_string_format(
        "/build?version=1&networkmode=none&rm=1&forcerm=1&dockerfile=.berth-dockerfile&buildargs=%s",
        encoded);
}

static int run_builder(const struct bt_docker *docker, const char *base, struct building *building,
                       struct bt_error *error)
{
    bt_auto_free char *path = build_path(base);
    const struct bt_http_request request = {.method = "POST",
                                            .path = path,
                                            .content_type = "application/x-tar",
                                            .read_body = give_context,
                                            .take_body = take_log,
                                            .context = building};
    int result = bt_docker_transfer(docker, &request, NULL, error);
    bt_buffer_free(&building->log.line);
    if (result < 0)
        return bt_error_prefix(error, "cannot build the image");
    if (building->log.failure[0] != '\0')
        return bt_fail(
            error, BT_EXIT_ERROR, EIO, "its steps have no network; what it needs must lie beside it",
            "the image could not be built: %s (after: %s)", building->log.failure, building->log.last);
    if (building->log.image_id[0] == '\0')
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EBADMSG, NULL,
                       "the container engine's builder named no image");
    return 0;
}

/* ---- out of the engine ---- */

struct export_sink {
    int fd;
    uint64_t bytes;
};

static int take_export(void *context, const void *data, size_t length)
{
    struct export_sink *sink = context;
    if (length > EXPORT_MAX - sink->bytes)
        return -EFBIG;
    sink->bytes += length;
    return bt_write_all(sink->fd, data, length);
}

static int export_container(const struct bt_docker *docker, const char *container, struct export_sink *sink,
                            struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/containers/%s/export", container);
    const struct bt_http_request request = {
        .method = "GET", .path = path, .take_body = take_export, .context = sink};
    int result = bt_docker_transfer(docker, &request, NULL, error);
    return result < 0 ? bt_error_prefix(error, "cannot take the built image out of the engine") : 0;
}

/* Through a container that is never started. */
static int export_image(const struct bt_docker *docker, const char *state, const char *image_id,
                        struct export_sink *sink, struct bt_error *error)
{
    json_t *answer = NULL;
    char owner[13];
    bt_docker_owner(state, owner);
    json_t *document = json_pack("{s:s, s:[s], s:{s:s}, s:b, s:{s:s}}", "Image", image_id, "Entrypoint",
                                 "/nothing-runs", "Labels", BT_DOCKER_LABEL_OWNER, owner, "NetworkDisabled",
                                 true, "HostConfig", "NetworkMode", "none");
    int result = bt_docker_call(docker, "POST", "/containers/create", document, &answer, error);
    const char *id = json_string_value(json_object_get(answer, "Id"));
    if (result == 0 && (id == NULL || strspn(id, "0123456789abcdef") != strlen(id)))
        result =
            bt_fail(error, BT_EXIT_INFRASTRUCTURE, EBADMSG, NULL, "the container engine named no container");
    if (result == 0) {
        bt_auto_free char *remove = bt_string_format("/containers/%s?force=1&v=1", id);
        result = export_container(docker, id, sink, error);
        (void)bt_docker_call(docker, "DELETE", remove, NULL, NULL, NULL);
    }
    json_decref(answer);
    return result;
}

/* berth's own part of the image is added anew when it is given to the engine: nobody's file is in its place.
 */
static int write_disk(const struct export_sink *sink, const char *folder, const struct bt_build *build,
                      struct bt_error *error)
{
    static const char *const exclude[] = {"berth", ".dockerenv", "dev/*", "proc/*",
                                          "sys/*", "run/*",      "tmp/*"};
    const struct bt_ext4_rules rules = {
        .exclude = exclude, .exclude_count = BT_ARRAY_LENGTH(exclude), .drops_privilege = true};
    bt_auto_free char *path = bt_string_format("%s/" BT_DISK_FILE, folder);
    bt_auto_archive *archive = archive_read_new();
    (void)archive_read_support_format_tar(archive);
    if (lseek(sink->fd, 0, SEEK_SET) < 0 || archive_read_open_fd(archive, sink->fd, 65536) != ARCHIVE_OK)
        return bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "cannot read the built image");
    return bt_ext4_write_archive(archive, path, sink->bytes * 2 + ROOM, build->image, &rules, build->progress,
                                 error);
}

static int keep(const struct export_sink *sink, const struct bt_build *build, struct bt_error *error)
{
    char folder[768];
    bt_auto_fd lock_fd = -1;
    struct bt_error ignored;
    int result = bt_cache_lock(build->paths, build->image, build->progress, &lock_fd, error);
    if (result == 0)
        result = bt_cache_begin(build->paths, build->image, folder, error);
    if (result < 0)
        return result;
    result = write_disk(sink, folder, build, error);
    if (result == 0)
        result = bt_cache_commit(build->paths, build->image, build->digest, folder, error);
    if (result < 0)
        (void)bt_tree_remove(folder, &ignored);
    return result;
}

/* What nobody gave a name. A build that changed nothing has the id of its base, which stays. */
static void remove_image(const struct bt_docker *docker, const char *image_id)
{
    bt_auto_free char *inspect = bt_string_format("/images/%s/json", image_id);
    bt_auto_free char *remove = bt_string_format("/images/%s", image_id);
    json_t *document = NULL;
    int result = bt_docker_call(docker, "GET", inspect, NULL, &document, NULL);
    bool has_names = json_array_size(json_object_get(document, "RepoTags")) > 0;
    json_decref(document);
    if (result == 0 && !has_names)
        (void)bt_docker_call(docker, "DELETE", remove, NULL, NULL, NULL);
}

int bt_docker_build(const struct bt_docker *docker, const struct bt_build *build, struct bt_error *error)
{
    struct building building = {.build = build};
    struct bt_image image;
    char base[BT_DOCKER_NAME_SIZE];
    bt_auto_fd lock_fd = -1;
    int result = bt_docker_build_lock(build->paths, build->progress, &lock_fd, error);
    if (result == 0)
        result = bt_docker_build_sweep(docker, build->paths->state, NULL, error);
    if (result == 0)
        result = bt_image_get(build->paths, build->base_recipe, false, NULL, &image, error);
    if (result == 0)
        result = bt_docker_image_name(build->paths->state, &image, base, error);
    if (result == 0)
        result = run_builder(docker, base, &building, error);
    if (result < 0)
        return result;
    bt_auto_fd fd = open(build->paths->cache, O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);
    struct export_sink sink = {.fd = fd};
    result = fd < 0 ? bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make a file in %s: %s",
                              build->paths->cache, strerror(errno))
                    : export_image(docker, build->paths->state, building.log.image_id, &sink, error);
    remove_image(docker, building.log.image_id);
    return result < 0 ? result : keep(&sink, build, error);
}
