/* An agent's home out of its volume and into another one, as the engine's own tar. See docker_internal.h.
 *
 * The engine reads and writes volumes only through a container; one that was never started will do, so
 * nothing of the agent runs for it, and an agent that has ended is no different from one that works. The tar
 * passes through as it is: no file of it is ever made on the host but the tar itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "lib/http.h"

#define HOME "/home/agent"
#define FILE_NAME "home.tar"
#define SECRET_MAX 256U

void bt_docker_home_reader_name(const struct bt_guest_identity *identity, char ret_name[BT_DOCKER_NAME_SIZE])
{
    char name[BT_DOCKER_NAME_SIZE];
    bt_docker_name(identity, name);
    (void)snprintf(ret_name, BT_DOCKER_NAME_SIZE, "%.150s.freeze", name);
}

/* ---- out ---- */

/* Where the tar goes. Zeros become holes: a home may have a file that is nearly all hole. */
struct sink {
    const struct bt_freeze *freeze;
    int fd;
    uint64_t bytes;
    char tail[SECRET_MAX]; /* the last bytes: a secret may come in two pieces */
    size_t tail_length;
};

static bool has_secret(const struct bt_freeze *freeze, const char *data, size_t length)
{
    for (const char *const *secret = freeze->secrets; *secret != NULL; secret++)
        if (memmem(data, length, *secret, strlen(*secret)) != NULL)
            return true;
    return false;
}

/* Looks at the seam between the last piece and this one, then at this one. */
static bool finds_secret(struct sink *sink, const char *data, size_t length)
{
    char seam[2 * SECRET_MAX];
    size_t head = length < SECRET_MAX ? length : SECRET_MAX;
    memcpy(seam, sink->tail, sink->tail_length);
    memcpy(seam + sink->tail_length, data, head);
    size_t total = sink->tail_length + head;
    bool is_found = has_secret(sink->freeze, seam, total) || has_secret(sink->freeze, data, length);
    if (length >= SECRET_MAX) {
        memcpy(sink->tail, data + length - SECRET_MAX, SECRET_MAX);
        sink->tail_length = SECRET_MAX;
    } else {
        size_t kept = total < SECRET_MAX ? total : SECRET_MAX;
        memcpy(sink->tail, seam + total - kept, kept);
        sink->tail_length = kept;
    }
    return is_found;
}

static bool is_zeros(const char *data, size_t length)
{
    return length > 0 && data[0] == 0 && memcmp(data, data + 1, length - 1) == 0;
}

static int take_tar(void *context, const void *data, size_t length)
{
    struct sink *sink = context;
    const struct bt_progress *progress = sink->freeze->progress;
    if (length > sink->freeze->bytes_max - sink->bytes)
        return -EFBIG;
    if (finds_secret(sink, data, length))
        return -EPERM;
    sink->bytes += length;
    if (progress != NULL && progress->report != NULL && sink->bytes >> 22 != (sink->bytes - length) >> 22)
        progress->report(progress->context, "copying its home", sink->bytes, 0);
    if (is_zeros(data, length))
        return lseek(sink->fd, (off_t)length, SEEK_CUR) < 0 ? -errno : 0;
    return bt_write_all(sink->fd, data, length);
}

static int fail_save(int result, const struct bt_freeze *freeze, struct bt_error *error)
{
    if (result == -EFBIG)
        return bt_fail(error, BT_EXIT_ERROR, EFBIG, "have it remove what nobody needs, then try again",
                       "its home is larger than the %llu MiB that it may have",
                       (unsigned long long)(freeze->bytes_max >> 20));
    if (result == -EPERM)
        return bt_fail(error, BT_EXIT_ERROR, EPERM,
                       "remove it there: the variable HTTPS_PROXY of its commands has what to look for",
                       "a file in its home holds the token of the agent, which no image may have");
    return result;
}

static int read_home(const struct bt_docker *docker, const char *reader, struct sink *sink,
                     struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/containers/%s/archive?path=" HOME "/.", reader);
    const struct bt_http_request request = {
        .method = "GET", .path = path, .take_body = take_tar, .context = sink};
    int result = bt_docker_transfer(docker, &request, NULL, error);
    if (result == 0 && ftruncate(sink->fd, (off_t)sink->bytes) < 0)
        result = bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot write the copy: %s", strerror(errno));
    return fail_save(result, sink->freeze, error);
}

/* Of no network, and with nothing of the agent but its home. As the agent: podman gives all that it reads to
 * the container's user. */
static json_t *reader_document(const struct bt_guest_identity *identity, const char *image)
{
    char name[BT_DOCKER_NAME_SIZE];
    bt_docker_name(identity, name);
    bt_auto_free char *volume = bt_string_format("%s.home", name);
    bt_auto_free char *user = bt_string_format("%u:%u", BT_DOCKER_AGENT_ID, BT_DOCKER_AGENT_ID);
    return json_pack("{s:s, s:s, s:[s], s:o, s:b, s:{s:s, s:[s], s:[{s:s, s:s, s:s, s:b, s:{s:b}}]}}",
                     "Image", image, "User", user, "Entrypoint", "/nothing-runs", "Labels",
                     bt_docker_labels(identity), "NetworkDisabled", true, "HostConfig", "NetworkMode", "none",
                     "CapDrop", "ALL", "Mounts", "Type", "volume", "Source", volume, "Target", HOME,
                     "ReadOnly", true, "VolumeOptions", "NoCopy", true);
}

static int make_reader(const struct bt_docker *docker, const struct bt_freeze *freeze, const char *reader,
                       struct bt_error *error)
{
    char image_name[BT_DOCKER_NAME_SIZE];
    struct bt_image image;
    bt_auto_free char *create = bt_string_format("/containers/create?name=%s", reader);
    bt_auto_free char *stale = bt_string_format("/containers/%s?force=1&v=0", reader);
    int result = bt_image_get(freeze->paths, freeze->recipe, false, NULL, &image, error);
    if (result == 0)
        result = bt_docker_image_name(freeze->identity.state, &image, image_name, error);
    if (result == 0) /* an engine would make the volume */
        result = bt_docker_volumes_check(docker, &freeze->identity, error);
    if (result < 0)
        return result;
    (void)bt_docker_call(docker, "DELETE", stale, NULL, NULL, NULL);
    result =
        bt_docker_call(docker, "POST", create, reader_document(&freeze->identity, image_name), NULL, error);
    return result < 0 ? bt_error_prefix(error, "cannot make a container to read the home with") : 0;
}

int bt_docker_home_save(const struct bt_docker *docker, const struct bt_freeze *freeze,
                        struct bt_error *error)
{
    char reader[BT_DOCKER_NAME_SIZE];
    bt_auto_free char *file = bt_string_format("%s/" FILE_NAME, freeze->folder);
    bt_auto_fd fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make %s: %s", file, strerror(errno));
    bt_docker_home_reader_name(&freeze->identity, reader);
    bt_auto_free char *remove = bt_string_format("/containers/%s?force=1&v=0", reader);
    struct sink sink = {.freeze = freeze, .fd = fd};
    int result = make_reader(docker, freeze, reader, error);
    if (result == 0)
        result = read_home(docker, reader, &sink, error);
    (void)bt_docker_call(docker, "DELETE", remove, NULL, NULL, NULL);
    return result;
}

/* ---- in ---- */

static ssize_t give_tar(void *context, char *ret_data, size_t size)
{
    const int *fd = context;
    ssize_t count;
    while ((count = read(*fd, ret_data, size)) < 0 && errno == EINTR)
        continue;
    return count < 0 ? -errno : count;
}

int bt_docker_home_fill(const struct bt_docker *docker, const struct bt_guest_plan *plan,
                        struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    bt_docker_name(&plan->identity, name);
    bt_auto_free char *file = bt_string_format("%s/" FILE_NAME, plan->home_folder);
    bt_auto_free char *path = bt_string_format("/containers/%s/archive?path=" HOME, name);
    bt_auto_fd fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, "freeze the agent again, or use another image",
                       "cannot read the home of the image, %s: %s", file, strerror(errno));
    const struct bt_http_request request = {.method = "PUT",
                                            .path = path,
                                            .content_type = "application/x-tar",
                                            .read_body = give_tar,
                                            .context = &fd};
    int result = bt_docker_transfer(docker, &request, NULL, error);
    return result < 0 ? bt_error_prefix(error, "cannot fill the home of the agent") : 0;
}
