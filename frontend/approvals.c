/* The owner's side of approvals. See approvals.h. */
#include "frontend/approvals.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "frontend/infra.h"
#include "ipc/wire/pool.h"
#include "policy/client/orchestrator_client.h"

#define BT_APPROVALS_GLANCE_MS 500L

/* key: what *ret_orchestrator borrows; wiped by the caller. */
static int bt_approvals_open(const struct bt_paths *paths, const char *environment,
                             char key[BT_DIGEST_TEXT_SIZE], struct bt_orchestrator *ret_orchestrator,
                             struct bt_error *error)
{
    struct bt_infra_pair pair = {0};
    int r = bt_infra_status(paths, environment, &pair, error);

    if (r == 0 && pair.orchestrator.keeper.pid == 0)
        r = bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOTCONN, "berth up starts it",
                    "the orchestrator does not run");
    if (r == 0)
        r = bt_infra_host_key(paths, key, error);
    if (r == 0)
        *ret_orchestrator = (struct bt_orchestrator){pair.orchestrator.address, BT_ORCHESTRATOR_PORT, key};
    return r;
}

/* timeout_ms 0: that of any call. */
static int bt_approvals_get(const struct bt_paths *paths, const char *environment, long timeout_ms,
                            json_t **ret_approvals, struct bt_error *error)
{
    char key[BT_DIGEST_TEXT_SIZE] = "";
    struct bt_orchestrator orchestrator;
    json_t *document = NULL;
    int r = bt_approvals_open(paths, environment, key, &orchestrator, error);

    if (r == 0)
        r = timeout_ms > 0
                ? bt_orchestrator_get_within(&orchestrator, "/v1/approvals", timeout_ms, &document, error)
                : bt_orchestrator_get(&orchestrator, "/v1/approvals", &document, error);
    explicit_bzero(key, sizeof(key));
    if (r < 0)
        return r;
    *ret_approvals = json_incref(json_object_get(document, "approvals"));
    json_decref(document);
    if (json_is_array(*ret_approvals))
        return 0;
    json_decref(*ret_approvals);
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EPROTO, NULL, "the orchestrator's answer has no approvals");
}

int bt_approvals_list(const struct bt_paths *paths, const char *environment, json_t **ret_approvals,
                      struct bt_error *error)
{
    int r = bt_approvals_get(paths, environment, 0, ret_approvals, error);

    if (r == -ENOENT)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOTSUP,
                       "berth down, then berth up: agents must end for it",
                       "the orchestrator that runs is of an older berth, which knows no approvals");
    return r;
}

int bt_approvals_answer(const struct bt_paths *paths, const char *environment, json_int_t number,
                        struct bt_approvals_answer answer, struct bt_error *error)
{
    char key[BT_DIGEST_TEXT_SIZE] = "";
    struct bt_orchestrator orchestrator;
    bt_auto_free char *path = bt_string_format("/v1/approvals/%lld", (long long)number);
    json_t *document = json_pack("{s:s}", "answer", answer.is_allowed ? "allow" : "deny");
    int r = bt_approvals_open(paths, environment, key, &orchestrator, error);

    if (answer.is_remembered)
        json_object_set_new(document, "remember", json_true());
    if (r == 0)
        r = bt_orchestrator_put(&orchestrator, path, document, error);
    explicit_bzero(key, sizeof(key));
    json_decref(document);
    if (r == -ENOENT)
        return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT,
                       "it was answered, it waited too long, or its agent gave up; berth approvals list",
                       "no request %lld waits", (long long)number);
    return r;
}

json_t *bt_approvals_numbers(const struct bt_paths *paths, const char *environment)
{
    json_t *approvals = NULL, *approval, *numbers = json_array();
    bt_auto_free char *database = bt_string_format("%s/berth.db", paths->state);
    size_t index;

    /* Who only looks does not make the database of somebody who has none yet. */
    if (access(database, F_OK) < 0 ||
        bt_approvals_get(paths, environment, BT_APPROVALS_GLANCE_MS, &approvals, NULL) < 0)
        return numbers;
    json_array_foreach(approvals, index, approval)
        json_array_append(numbers, json_object_get(approval, "number"));
    json_decref(approvals);
    return numbers;
}
