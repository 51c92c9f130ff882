/* The table of commands, in the order in which help shows them, and the options that all of them have.
 *
 * Used by main and by completion.
 */
#include <assert.h>
#include <string.h>

#include "frontend/command.h"

const struct bt_command *const bt_commands[] = {
    &bt_command_spawn,  &bt_command_run,     &bt_command_resume,    &bt_command_list,
    &bt_command_status, &bt_command_exec,    &bt_command_attach,    &bt_command_peek,
    &bt_command_steer,  &bt_command_stop,    &bt_command_rm,        &bt_command_diff,
    &bt_command_apply,  &bt_command_freeze,  &bt_command_cp,        &bt_command_probe,
    &bt_command_why,    &bt_command_logs,    &bt_command_approvals, &bt_command_credential,
    &bt_command_doctor, &bt_command_up,      &bt_command_down,      &bt_command_image,
    &bt_command_audit,  &bt_command_cleanup, &bt_command_version,
};
const size_t bt_command_count = BT_ARRAY_LENGTH(bt_commands);

static const struct bt_option bt_common_options[] = {
    {.name = "json", .help = "print one JSON document"},
    {.name = "quiet", .letter = 'q', .help = "no progress and no notes"},
    {.name = "environment", .letter = 'E', .value_name = "ENVIRONMENT", .help = "a separate set of agents"},
    {.name = "help", .letter = 'h', .help = "this help"},
};

size_t bt_command_options(const struct bt_command *command, struct bt_option ret_options[BT_OPTIONS_MAX])
{
    size_t count = command->option_count;

    assert(count + BT_ARRAY_LENGTH(bt_common_options) <= BT_OPTIONS_MAX);
    for (size_t i = 0; i < count; i++)
        ret_options[i] = command->options[i];
    memcpy(ret_options + count, bt_common_options, sizeof(bt_common_options));
    return count + BT_ARRAY_LENGTH(bt_common_options);
}
