/* What a killed build left in the engine. See docker_internal.h.
 *
 * The builder's containers and images have no name of ours; they inherit the labels of the image that they
 * began with. A guest's container has a role as well, an image of ours a name. What a user runs by hand on
 * such an image has a network, or runs. Stages of a Dockerfile that begin with somebody else's image cannot
 * be told from that user's own.
 */
#include <errno.h>
#include <string.h>

#include "backends/docker_internal.h"
#include "images/cache.h"

#define LOCK_NAME "custom-images"

int bt_docker_build_lock(const struct bt_paths *paths, const struct bt_progress *progress, int *ret_lock_fd,
                         struct bt_error *error)
{
    return bt_cache_lock(paths, LOCK_NAME, progress, ret_lock_fd, error);
}

static bool is_of_build(const json_t *container)
{
    const char *state = json_string_value(json_object_get(container, "State"));
    const char *network =
        json_string_value(json_object_get(json_object_get(container, "HostConfig"), "NetworkMode"));
    return json_object_get(json_object_get(container, "Labels"), BT_DOCKER_LABEL_ROLE) == NULL &&
           network != NULL && strcmp(network, "none") == 0 && state != NULL && strcmp(state, "running") != 0;
}

static bool is_nameless(const json_t *image)
{
    const json_t *tags = json_object_get(image, "RepoTags");
    const char *first = json_string_value(json_array_get(tags, 0));
    return first == NULL || strcmp(first, "<none>:<none>") == 0;
}

static char *query(const char *state, const char *place, bool is_dangling)
{
    char owner[13];
    bt_docker_owner(state, owner);
    bt_auto_free char *label = bt_string_format(BT_DOCKER_LABEL_OWNER "=%s", owner);
    json_t *filters = json_pack("{s:[s]}", "label", label);
    if (is_dangling)
        (void)json_object_set_new(filters, "dangling", json_pack("[s]", "true"));
    bt_auto_free char *text = json_dumps(filters, JSON_COMPACT);
    bt_auto_free char *encoded = bt_docker_encode(text == NULL ? "" : text);
    json_decref(filters);
    return bt_string_format("%sfilters=%s", place, encoded);
}

/* One kind of thing. What the engine does not want to remove is in use, so it was not left by anybody. */
static int sweep(const struct bt_docker *docker, const char *path, bool (*is_left)(const json_t *object),
                 const char *one, const char *what, struct bt_list *ret_found, struct bt_error *error)
{
    json_t *objects = NULL;
    size_t index;
    const json_t *object;
    int result = bt_docker_call(docker, "GET", path, NULL, &objects, error);
    json_array_foreach(objects, index, object)
    {
        const char *id = json_string_value(json_object_get(object, "Id"));
        if (result < 0 || id == NULL || !is_left(object))
            continue;
        bt_auto_free char *remove = bt_string_format("/%s/%s", one, id);
        if (ret_found != NULL)
            bt_list_add_format(ret_found, "%s %.19s", what, id);
        else
            (void)bt_docker_call(docker, "DELETE", remove, NULL, NULL, NULL);
    }
    json_decref(objects);
    return result;
}

int bt_docker_build_sweep(const struct bt_docker *docker, const char *state, struct bt_list *ret_found,
                          struct bt_error *error)
{
    bt_auto_free char *containers = query(state, "/containers/json?all=1&", false);
    bt_auto_free char *images = query(state, "/images/json?", true);
    int result = sweep(docker, containers, is_of_build, "containers", "container", ret_found, error);
    return result < 0 ? result : sweep(docker, images, is_nameless, "images", "image", ret_found, error);
}
