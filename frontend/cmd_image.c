/* berth image: what guests boot from, built and listed. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/describe.h"
#include "frontend/frozen.h"

static json_t *bt_image_json(const struct bt_image *image)
{
    char built[BT_OUTPUT_TEXT_SIZE];

    bt_describe_time(image->built_seconds, built);
    return json_pack("{s:s, s:s, s:o, s:o, s:I, s:I, s:s}", "name", image->name, "digest", image->digest,
                     "path", bt_output_json_text(image->path), "initrd",
                     bt_output_json_text(*image->initrd_path ? image->initrd_path : NULL), "size_bytes",
                     (json_int_t)image->size_bytes, "disk_bytes", (json_int_t)image->disk_bytes, "built",
                     built);
}

static void bt_image_print(struct bt_output *output, const struct bt_image *images, size_t count)
{
    static const char *const titles[] = {"IMAGE", "DIGEST", "SIZE", "ON DISK", "BUILT"};
    int64_t now = (int64_t)time(NULL);
    struct bt_table table;

    bt_table_init(&table, titles, BT_ARRAY_LENGTH(titles));
    for (size_t i = 0; i < count; i++) {
        char size[BT_OUTPUT_TEXT_SIZE], disk[BT_OUTPUT_TEXT_SIZE], age[BT_OUTPUT_TEXT_SIZE];
        bt_output_bytes(images[i].size_bytes, size);
        bt_output_bytes(images[i].disk_bytes, disk);
        bt_output_age(now - images[i].built_seconds, age);
        bt_table_add(&table, BT_COLOR_NONE, "%s", images[i].name);
        bt_table_add(&table, BT_COLOR_DIM, "%.12s", images[i].digest);
        bt_table_add(&table, BT_COLOR_NONE, "%s", size);
        bt_table_add(&table, BT_COLOR_NONE, "%s", disk);
        bt_table_add(&table, BT_COLOR_NONE, "%s ago", age);
    }
    bt_table_print(output, &table);
}

static json_t *bt_image_frozen_json(const struct bt_frozen *frozen)
{
    char when[BT_OUTPUT_TEXT_SIZE];

    bt_describe_time(frozen->frozen_seconds, when);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:I, s:I, s:s}", "name", frozen->name, "agent", frozen->agent,
                     "recipe", frozen->recipe, "backend", frozen->backend, "path",
                     bt_output_json_text(frozen->folder), "size_bytes", (json_int_t)frozen->size_bytes,
                     "disk_bytes", (json_int_t)frozen->disk_bytes, "frozen", when);
}

static void bt_image_print_frozen(struct bt_output *output, const struct bt_frozen *frozen, size_t count)
{
    static const char *const titles[] = {"FROZEN", "ON", "BACKEND", "SIZE", "ON DISK", "MADE", "OF AGENT"};
    int64_t now = (int64_t)time(NULL);
    struct bt_table table;

    bt_table_init(&table, titles, BT_ARRAY_LENGTH(titles));
    for (size_t i = 0; i < count; i++) {
        char size[BT_OUTPUT_TEXT_SIZE], disk[BT_OUTPUT_TEXT_SIZE], age[BT_OUTPUT_TEXT_SIZE];
        bt_output_bytes(frozen[i].size_bytes, size);
        bt_output_bytes(frozen[i].disk_bytes, disk);
        bt_output_age(now - frozen[i].frozen_seconds, age);
        bt_table_add(&table, BT_COLOR_NONE, "%s", frozen[i].name);
        bt_table_add(&table, BT_COLOR_NONE, "%s", frozen[i].recipe);
        bt_table_add(&table, BT_COLOR_NONE, "%s", frozen[i].backend);
        bt_table_add(&table, BT_COLOR_NONE, "%s", size);
        bt_table_add(&table, BT_COLOR_NONE, "%s", disk);
        bt_table_add(&table, BT_COLOR_NONE, "%s ago", age);
        bt_table_add(&table, BT_COLOR_NONE, "%s", frozen[i].agent);
    }
    if (count > 0)
        bt_output_print(output, "\n");
    if (count > 0)
        bt_table_print(output, &table);
}

/* What agents were frozen to; *ret_array is a new reference. */
static int bt_image_list_frozen(struct bt_context *context, json_t **ret_array, struct bt_error *error)
{
    bt_auto_free struct bt_frozen *frozen = NULL;
    size_t count = 0;
    int r = bt_frozen_list(&context->paths, &frozen, &count, error);

    if (r < 0)
        return r;
    bt_image_print_frozen(&context->output, frozen, count);
    *ret_array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(*ret_array, bt_image_frozen_json(&frozen[i]));
    return 0;
}

static int bt_image_run_list(struct bt_context *context, struct bt_error *error)
{
    bt_auto_free struct bt_image *images = NULL;
    size_t count = 0;
    json_t *array = json_array(), *frozen = NULL;
    int r = bt_image_list(&context->paths, &images, &count, error);

    if (r < 0) {
        json_decref(array);
        return r;
    }
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, bt_image_json(&images[i]));
    if (count == 0)
        bt_output_note(&context->output,
                       "no images yet; berth image build makes them, and so does the first spawn");
    else
        bt_image_print(&context->output, images, count);
    r = bt_image_list_frozen(context, &frozen, error);
    if (r < 0) {
        json_decref(array);
        return r;
    }
    bt_output_document(&context->output, json_pack("{s:o, s:o}", "images", array, "frozen", frozen));
    return 0;
}

static int bt_image_build_one(struct bt_context *context, const char *recipe, json_t *built,
                              struct bt_error *error)
{
    struct bt_progress progress = bt_output_progress(&context->output);
    char disk[BT_OUTPUT_TEXT_SIZE];
    struct bt_image image;
    int r = bt_option_is_set(&context->arguments, "force")
                ? bt_image_build(&context->paths, recipe, &progress, &image, error)
                : bt_image_get(&context->paths, recipe, true, &progress, &image, error);

    if (r == 0)
        r = bt_audit_write(&context->paths, "image-build", context->environment, NULL,
                           json_pack("{s:s, s:s}", "image", image.name, "digest", image.digest), error);
    if (r < 0)
        return r;
    bt_output_bytes(image.disk_bytes, disk);
    bt_output_print(&context->output, "%s is ready: %.12s, %s\n", image.name, image.digest, disk);
    json_array_append_new(built, bt_image_json(&image));
    return 0;
}

static int bt_image_run_build(struct bt_context *context, struct bt_error *error)
{
    static const char *const all[] = {"kernel", "infra", "shell"};
    const struct bt_list *operands = &context->arguments.operands;
    json_t *built = json_array();
    int r = 0;

    for (size_t i = 1; i < operands->count && r == 0; i++)
        r = bt_image_build_one(context, operands->items[i], built, error);
    for (size_t i = 0; operands->count == 1 && i < BT_ARRAY_LENGTH(all) && r == 0; i++)
        r = bt_image_build_one(context, all[i], built, error);
    if (r < 0) {
        json_decref(built);
        return r;
    }
    bt_output_document(&context->output, json_pack("{s:o}", "images", built));
    return 0;
}

static int bt_image_run_remove(struct bt_context *context, struct bt_error *error)
{
    const struct bt_list *operands = &context->arguments.operands;
    json_t *removed = json_array();
    int r = operands->count > 1 ? 0
                                : bt_fail(error, BT_EXIT_USAGE, EINVAL, "berth image list shows yours",
                                          "which image is to be removed is missing");

    for (size_t i = 1; i < operands->count && r == 0; i++) {
        r = bt_frozen_remove(&context->paths, operands->items[i], error);
        if (r == 0)
            r = bt_audit_write(&context->paths, "image-rm", context->environment, NULL,
                               json_pack("{s:s}", "image", operands->items[i]), error);
        if (r == 0)
            bt_output_print(&context->output, "removed %s\n", operands->items[i]);
        json_array_append_new(removed, bt_output_json_text(operands->items[i]));
    }
    if (r < 0) {
        json_decref(removed);
        return r;
    }
    bt_output_document(&context->output, json_pack("{s:o}", "removed", removed));
    return 0;
}

static int bt_image_run(struct bt_context *context, struct bt_error *error)
{
    const char *verb = context->arguments.operands.items[0];

    if (strcmp(verb, "build") == 0)
        return bt_image_run_build(context, error);
    if (strcmp(verb, "list") == 0 && context->arguments.operands.count == 1)
        return bt_image_run_list(context, error);
    if (strcmp(verb, "rm") == 0)
        return bt_image_run_remove(context, error);
    if (strcmp(verb, "pull") == 0)
        return bt_fail(error, BT_EXIT_USAGE, EOPNOTSUPP, "berth image build makes it here",
                       "'image pull' is not supported by this version");
    return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                   "berth image build [RECIPE...], berth image list, or berth image rm IMAGE...",
                   "'%.64s' is not something to do with images", verb);
}

static const struct bt_option bt_image_options[] = {
    {.name = "force", .letter = 'f', .help = "build again what is cached"},
};

const struct bt_command bt_command_image = {
    .name = "image",
    .operands = "build [RECIPE...] | list | rm IMAGE...",
    .summary = "Build or list what guests boot from, or remove what agents were frozen to",
    .details =
        "Without a recipe: kernel, infra and shell. What is cached for the same inputs is not built again.",
    .options = bt_image_options,
    .option_count = BT_ARRAY_LENGTH(bt_image_options),
    .minimum = 1,
    .maximum = 16,
    .needs = BT_COMMAND_PLAIN,
    .run = bt_image_run,
};
