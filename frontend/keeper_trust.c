/* What programs in a guest trust: the host's own roots, gateway.trust of config.yaml and, in agents, the
 * user's authority, so that a gateway verifies the outside as the host would and agents believe their
 * gateway. See keeper.h.
 */
#include <errno.h>
#include <unistd.h>

#include "frontend/authority.h"
#include "frontend/keeper.h"

#define TRUST_MAX (8UL * 1024 * 1024)
#define HOST_TRUST "/etc/ssl/certs/ca-certificates.crt"

static int add(struct bt_buffer *trust, const char *data, size_t length, struct bt_error *error)
{
    if (bt_buffer_add_text(trust, "\n") < 0 || bt_buffer_add(trust, data, length) < 0)
        return bt_fail(error, BT_EXIT_ERROR, EFBIG, "shorten gateway.trust in config.yaml",
                       "the trusted certificates are more than %lu bytes", TRUST_MAX);
    return 0;
}

static int add_file(struct bt_buffer *trust, const char *path, struct bt_error *error)
{
    bt_auto_buffer own = {0};
    int result = bt_file_read(path, TRUST_MAX, &own, error);
    return result < 0 ? result : add(trust, own.data != NULL ? own.data : "", own.length, error);
}

static int add_authority(const struct bt_keeper *keeper, struct bt_buffer *trust, struct bt_error *error)
{
    struct bt_buffer authority = {0};
    int result = bt_authority_get(&keeper->paths, &authority, error);
    if (result == 0) {
        size_t length;
        const char *certificate = bt_authority_certificate(&authority, &length);
        result = add(trust, certificate, length, error);
    }
    bt_buffer_wipe(&authority);
    return result;
}

int bt_keeper_trust(const struct bt_keeper *keeper, bool has_authority, struct bt_buffer *ret_trust,
                    struct bt_error *error)
{
    size_t index;
    const json_t *path;
    int result = 0;
    ret_trust->limit = TRUST_MAX;
    if (access(HOST_TRUST, R_OK) == 0)
        result = add_file(ret_trust, HOST_TRUST, error);
    json_array_foreach(json_object_get(keeper->request, "trust"), index, path)
    {
        if (result == 0)
            result = add_file(ret_trust, json_string_value(path), error);
    }
    return result == 0 && has_authority ? add_authority(keeper, ret_trust, error) : result;
}
