/* Images that bottles have built. See build.h.
 *
 * Must build nothing that was not agreed to: the digest that is shown is that of the very bytes that the
 * builder gets, so what changes on the disk after the question is in no image.
 */
#include "frontend/build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/backend.h"
#include "frontend/audit.h"
#include "images/context.h"

#define BT_BUILD_IMAGE "custom"
#define BT_BUILD_DOCKERFILE_MAX (256U * 1024U)
#define BT_BUILD_DIGEST_MINIMUM 12U /* digits that --build needs */

static const char bt_build_overlay[] = "ARG BERTH_BASE\nFROM $BERTH_BASE\nCOPY " BT_CONTEXT_OVERLAY "/ /\n";

bool bt_build_is_on_base(const char *dockerfile)
{
    static const char blanks[] = " \t\r";
    bool is_on_base = false;

    for (const char *line = dockerfile; *line; line += *line == '\n') {
        size_t length = strcspn(line, "\n");
        const char *word = line + strspn(line, blanks);
        if (strncasecmp(word, "FROM", 4) == 0 && strspn(word + 4, blanks) > 0) {
            word += 4 + strspn(word + 4, blanks);
            size_t name = strcspn(word, " \t\r\n");
            is_on_base = (name == 11 && strncmp(word, "$BERTH_BASE", name) == 0) ||
                         (name == 13 && strncmp(word, "${BERTH_BASE}", name) == 0);
        }
        line += length;
    }
    return is_on_base;
}

/* The Dockerfile is read once, here; the folder may have another one a moment later. */
static int bt_build_pack(const struct bt_plan *plan, const struct bt_paths *paths,
                         struct bt_build_context *ret_packed, struct bt_error *error)
{
    bt_auto_buffer text = {0};
    bt_auto_free char *folder = bt_string_copy(plan->overlay ? plan->overlay : plan->dockerfile);
    char *slash = strrchr(folder, '/');
    int r = 0;

    if (plan->overlay)
        return bt_context_pack(paths, folder, true, bt_build_overlay, ret_packed, error);
    r = bt_file_read(plan->dockerfile, BT_BUILD_DOCKERFILE_MAX, &text, error);
    if (r == 0 && (!text.data || strlen(text.data) != text.length || !bt_build_is_on_base(text.data)))
        r = bt_fail(error, BT_EXIT_ERROR, EINVAL, "begin it with: ARG BERTH_BASE, and then: FROM $BERTH_BASE",
                    "the last FROM of %s is not $BERTH_BASE, the image of berth's that agents need",
                    plan->dockerfile);
    if (r < 0)
        return r;
    *slash = '\0';
    return bt_context_pack(paths, *folder ? folder : "/", false, text.data, ret_packed, error);
}

static char *bt_build_agreed_path(const struct bt_paths *paths, const char *digest)
{
    return bt_string_format("%s/builds/%s", paths->state, digest);
}

static int bt_build_agree(struct bt_context *context, const struct bt_plan *plan,
                          const struct bt_build_context *packed, struct bt_error *error)
{
    bt_auto_free char *agreed = bt_build_agreed_path(&context->paths, packed->digest);
    bt_auto_free char *folder = bt_string_format("%s/builds", context->paths.state);
    const char *asked = bt_option_value(&context->arguments, "build", NULL);
    const char *path = plan->dockerfile ? plan->dockerfile : plan->overlay;
    char question[768], hint[128];
    bool is_named = asked && strlen(asked) >= BT_BUILD_DIGEST_MINIMUM &&
                    strncmp(packed->digest, asked, strlen(asked)) == 0;
    int r;

    if (access(agreed, F_OK) == 0)
        return 0;
    snprintf(question, sizeof(question), "build an image from %.400s (%llu bytes), digest %s?", path,
             (unsigned long long)packed->bytes, packed->digest);
    snprintf(hint, sizeof(hint), "say --build %.16s if you want that (--yes does not)", packed->digest);
    r = bt_command_confirm(context, is_named, question, error);
    if (r == -EPERM)
        return bt_fail(error, BT_EXIT_ERROR, EPERM, hint, "this must be confirmed: %s", question);
    if (r == 0)
        r = bt_folder_make(folder, 0700, error);
    if (r == 0)
        r = bt_file_write(agreed, path, strlen(path), 0600, error);
    return r;
}

/* Of all that the image follows from: what was agreed to, and what it is built on. */
static int bt_build_digest(const struct bt_paths *paths, const char *base, const char *context_digest,
                           char ret_digest[BT_DIGEST_TEXT_SIZE], struct bt_error *error)
{
    struct bt_image image;
    int r = bt_image_get(paths, base, false, NULL, &image, error);

    if (r < 0)
        return r;
    bt_auto_free char *text = bt_string_format("custom 1 %s %s", image.digest, context_digest);
    bt_digest_bytes(text, strlen(text), ret_digest);
    return 0;
}

static int bt_build_run(struct bt_context *context, const struct bt_plan *plan,
                        const struct bt_backend *backend, const struct bt_build_context *packed,
                        char ret_digest[BT_DIGEST_TEXT_SIZE], struct bt_error *error)
{
    struct bt_progress progress = bt_output_progress(&context->output);
    struct bt_image image;
    int r = backend->provide(&context->paths, plan->recipe, &progress, error);

    if (r == 0)
        r = bt_build_digest(&context->paths, plan->recipe, packed->digest, ret_digest, error);
    if (r < 0 || bt_image_find(&context->paths, BT_BUILD_IMAGE, ret_digest, &image, NULL) == 0)
        return r;
    const struct bt_build request = {.paths = &context->paths,
                                     .base_recipe = plan->recipe,
                                     .context_fd = packed->fd,
                                     .image = BT_BUILD_IMAGE,
                                     .digest = ret_digest,
                                     .progress = &progress};
    r = backend->build(&request, error);
    bt_output_progress_end(&context->output);
    if (r < 0)
        return r;
    return bt_audit_write(&context->paths, "image-build", context->environment, NULL,
                          json_pack("{s:s, s:s, s:s}", "image", BT_BUILD_IMAGE, "digest", ret_digest,
                                    "context", packed->digest),
                          error);
}

int bt_build_image(struct bt_context *context, struct bt_plan *plan, const char *backend_name,
                   struct bt_error *error)
{
    struct bt_build_context packed = {.fd = -1};
    const struct bt_backend *backend = NULL;
    char digest[BT_DIGEST_TEXT_SIZE];
    const char *why;
    int r = bt_backend_select(backend_name, &backend, &why, error);

    if (r == 0 && !backend->build)
        return bt_fail(error, BT_EXIT_ERROR, EOPNOTSUPP, "use --backend docker, or another image",
                       "the backend %s cannot build images from a Dockerfile or an overlay", backend_name);
    if (r == 0)
        r = bt_build_pack(plan, &context->paths, &packed, error);
    if (r == 0)
        r = bt_build_agree(context, plan, &packed, error);
    if (r == 0)
        r = bt_build_run(context, plan, backend, &packed, digest, error);
    bt_fd_close(&packed.fd);
    if (r < 0)
        return r;
    free(plan->recipe);
    plan->recipe = bt_string_format("%s@%s", BT_BUILD_IMAGE, digest);
    return 0;
}
