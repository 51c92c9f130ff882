/* What of a user's environment is in the engine, by its labels. See docker_internal.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker_internal.h"

static json_t *filters_of(const char *owner, const char *environment)
{
    bt_auto_free char *of_owner = bt_string_format(BT_DOCKER_LABEL_OWNER "=%s", owner);
    bt_auto_free char *of_environment = bt_string_format(BT_DOCKER_LABEL_ENVIRONMENT "=%s", environment);
    return json_pack("{s:[s, s]}", "label", of_owner, of_environment);
}

/* Names and the filter's words have no byte that a query may not hold but these. */
char *bt_docker_encode(const char *text)
{
    struct bt_buffer encoded = {0};
    int result = 0;
    for (; *text != '\0' && result == 0; text++) {
        bool is_plain = strchr("abcdefghijklmnopqrstuvwxyz0123456789.-_", *text) != NULL;
        result = is_plain ? bt_buffer_add(&encoded, text, 1)
                          : bt_buffer_add_format(&encoded, "%%%02X", (unsigned)(unsigned char)*text);
    }
    return encoded.data == NULL ? bt_string_copy("") : encoded.data;
}

static bool has_label(const json_t *labels, const char *key, const char *value)
{
    const char *text = json_string_value(json_object_get(labels, key));
    return text != NULL && strcmp(text, value) == 0;
}

/* Adds "role name" of each object once. Not every engine wants all labels of a filter: podman's volumes need
 * one of them. */
static void collect(const json_t *objects, const char *owner, const char *environment, struct bt_list *found)
{
    size_t index;
    const json_t *object;
    json_array_foreach(objects, index, object)
    {
        const json_t *labels = json_object_get(object, "Labels");
        const char *name = json_string_value(json_object_get(labels, BT_DOCKER_LABEL_NAME));
        const char *role = json_string_value(json_object_get(labels, BT_DOCKER_LABEL_ROLE));
        if (name == NULL || role == NULL || !has_label(labels, BT_DOCKER_LABEL_OWNER, owner) ||
            !has_label(labels, BT_DOCKER_LABEL_ENVIRONMENT, environment))
            continue;
        bt_auto_free char *entry = bt_string_format("%s %s", role, name);
        if (!bt_list_has(found, entry))
            bt_list_add(found, entry);
    }
}

int bt_docker_enumerate(const struct bt_docker *docker, const char *state, const char *environment,
                        bool has_data,
                        void (*on_guest)(void *context, const struct bt_guest_identity *identity),
                        void *context, struct bt_error *error)
{
    static const char *const places[] = {
        "/containers/json?all=1&filters=", "/networks?filters=", "/volumes?filters="};
    char owner[13];
    bt_docker_owner(state, owner);
    json_t *filters = filters_of(owner, environment);
    bt_auto_free char *text = json_dumps(filters, JSON_COMPACT);
    bt_auto_free char *encoded = bt_docker_encode(text == NULL ? "" : text);
    bt_auto_list found = {0};
    int result = 0;
    json_decref(filters);
    for (size_t i = 0; result == 0 && i < BT_ARRAY_LENGTH(places) - (has_data ? 0 : 1); i++) {
        bt_auto_free char *path = bt_string_format("%s%s", places[i], encoded);
        json_t *answer = NULL;
        result = bt_docker_call(docker, "GET", path, NULL, &answer, error);
        collect(json_is_object(answer) ? json_object_get(answer, "Volumes") : answer, owner, environment,
                &found);
        json_decref(answer);
    }
    for (size_t i = 0; result == 0 && i < found.count; i++) {
        char *name = strchr(found.items[i], ' ');
        *name++ = '\0';
        const struct bt_guest_identity identity = {state, environment, bt_guest_role_of(found.items[i]),
                                                   name};
        on_guest(context, &identity);
    }
    return result;
}
