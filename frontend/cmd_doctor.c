/* berth doctor: what is missing on this machine, and what to do about it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "frontend/doctor.h"
#include "ipc/client/helper_client.h"

static const char *const bt_health_names[] = {"ok", "warn", "fail"};

void bt_doctor_add(struct bt_doctor *doctor, enum bt_health health, const char *name, const char *advice,
                   const char *format, ...)
{
    struct bt_finding *finding;
    va_list arguments;

    if (doctor->count >= BT_FINDINGS_MAX)
        return;
    finding = &doctor->findings[doctor->count++];
    finding->health = health;
    snprintf(finding->name, sizeof(finding->name), "%s", name);
    snprintf(finding->advice, sizeof(finding->advice), "%s", advice ? advice : "");
    va_start(arguments, format);
    vsnprintf(finding->detail, sizeof(finding->detail), format, arguments);
    va_end(arguments);
}

/* A broken config.yaml is a finding; the other checks then go by the defaults. */
static void bt_doctor_config(struct bt_doctor *doctor)
{
    struct bt_context *context = doctor->context;
    struct bt_error error = {0};

    if (bt_config_load(&context->paths, &context->config, &error) == 0) {
        bt_auto_free char *path = bt_string_format("%s/config.yaml", context->paths.config);
        bt_doctor_add(doctor, BT_HEALTH_OK, "config.yaml", NULL, "%s%s", path,
                      access(path, F_OK) == 0 ? "" : " is not there, and need not be: default settings");
        return;
    }
    bt_doctor_add(doctor, BT_HEALTH_FAIL, "config.yaml", *error.hint ? error.hint : "correct it", "%s",
                  error.message);
    context->config.helper_socket = bt_string_copy(BT_HELPER_SOCKET_DEFAULT);
    context->config.environment = bt_string_copy(BT_ENVIRONMENT_LIVE);
}

static void bt_doctor_print(struct bt_output *output, const struct bt_doctor *doctor)
{
    static const enum bt_color colors[] = {BT_COLOR_GREEN, BT_COLOR_YELLOW, BT_COLOR_RED};

    for (size_t i = 0; i < doctor->count; i++) {
        const struct bt_finding *finding = &doctor->findings[i];
        bt_output_print_color(output, colors[finding->health], "%-4s", bt_health_names[finding->health]);
        bt_output_print(output, "  %-15s %s\n", finding->name, finding->detail);
        if (*finding->advice)
            bt_output_print(output, "      what to do: %s\n", finding->advice);
    }
}

static int bt_doctor_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_doctor doctor = {.context = context};
    size_t counts[3] = {0};
    json_t *checks = json_array();

    (void)error;
    bt_doctor_config(&doctor);
    bt_doctor_machine(&doctor);
    bt_doctor_installation(&doctor);
    bt_doctor_user(&doctor);
    for (size_t i = 0; i < doctor.count; i++) {
        const struct bt_finding *finding = &doctor.findings[i];
        counts[finding->health]++;
        json_array_append_new(checks,
                              json_pack("{s:s, s:s, s:o, s:o}", "name", finding->name, "result",
                                        bt_health_names[finding->health], "detail",
                                        bt_output_json_text(finding->detail), "what_to_do",
                                        bt_output_json_text(*finding->advice ? finding->advice : NULL)));
    }
    bt_doctor_print(&context->output, &doctor);
    bt_output_print(&context->output, "%zu ok, %zu to look at, %zu missing\n", counts[BT_HEALTH_OK],
                    counts[BT_HEALTH_WARN], counts[BT_HEALTH_FAIL]);
    bt_output_document(&context->output,
                       json_pack("{s:b, s:o}", "is_ready", counts[BT_HEALTH_FAIL] == 0, "checks", checks));
    if (counts[BT_HEALTH_FAIL] > 0)
        context->exit_status = BT_EXIT_INFRASTRUCTURE;
    return 0;
}

const struct bt_command bt_command_doctor = {
    .name = "doctor",
    .operands = "",
    .summary = "Check what berth needs on this machine, and say what to do",
    .details = "Changes nothing. Exit status 2 when something that is needed is missing.",
    .needs = BT_COMMAND_PLAIN,
    .run = bt_doctor_run,
};
