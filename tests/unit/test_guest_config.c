/* vm/guest_config.c: the archive as another reader of the format (libarchive) sees it, and guest.conf as
 * berth-init parses it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vm/guest_config.h"
#include "vm/init/settings.h"

#define ENTRIES_MAX 32

struct entry {
    char name[128];
    unsigned mode;
    size_t length;
    char data[512];
};

static struct entry entries[ENTRIES_MAX];
static size_t entry_count;

static void read_archive(const struct bt_buffer *buffer)
{
    struct archive *reader = archive_read_new();
    struct archive_entry *found;
    entry_count = 0;
    assert_int_equal(archive_read_support_format_cpio(reader), ARCHIVE_OK);
    assert_int_equal(archive_read_open_memory(reader, buffer->data, buffer->length), ARCHIVE_OK);
    int result;
    while ((result = archive_read_next_header(reader, &found)) == ARCHIVE_OK) {
        struct entry *entry = &entries[entry_count++];
        assert_true(entry_count <= ENTRIES_MAX);
        (void)snprintf(entry->name, sizeof(entry->name), "%s", archive_entry_pathname(found));
        entry->mode = archive_entry_mode(found);
        entry->length = (size_t)archive_entry_size(found);
        assert_int_equal(archive_entry_uid(found), 0);
        assert_int_equal(archive_entry_gid(found), 0);
        assert_true(entry->length < sizeof(entry->data));
        assert_int_equal(archive_read_data(reader, entry->data, sizeof(entry->data) - 1), entry->length);
        entry->data[entry->length] = '\0';
    }
    assert_int_equal(result, ARCHIVE_EOF);
    assert_int_equal(archive_read_free(reader), ARCHIVE_OK);
}

static const struct entry *find(const char *name)
{
    const struct entry *found = NULL;
    for (size_t i = 0; i < entry_count; i++) {
        if (strcmp(entries[i].name, name) != 0)
            continue;
        assert_null(found); /* nothing is there twice */
        found = &entries[i];
    }
    assert_non_null(found);
    return found;
}

static const struct bt_guest_file files[] = {
    {"authorized_keys", "ssh-ed25519 AAAA\n", 17, 0400},
    {"config/trust.pem", "trust", 5, 0444},
    {"config/deep/one", "1", 1, 0400},
    {"bin/berth-probe", "\177ELF\0\1", 6, 0755},
    {"empty", NULL, 0, 0400},
};

static const struct bt_guest_config agent = {.role = BT_GUEST_AGENT,
                                             .host_name = "agent-1",
                                             .address = 0x0af30003,
                                             .host_address = 0x0af30002,
                                             .prefix_length = 31,
                                             .time_seconds = 1234567890,
                                             .has_root_image = true,
                                             .has_scratch_disk = true,
                                             .has_workspace_disk = true,
                                             .files = files,
                                             .file_count = BT_ARRAY_LENGTH(files)};

static void t_guest_config_round_trip(void **state)
{
    (void)state;
    bt_auto_buffer archive = {0};
    struct bt_error error = {0};
    assert_int_equal(bt_guest_config_write(&agent, &archive, &error), 0);
    assert_int_equal(archive.length % 4, 0);
    read_archive(&archive);
    assert_int_equal(find("berth")->mode, 0040755);
    assert_int_equal(find("berth/config")->mode, 0040755);
    assert_int_equal(find("berth/config/deep")->mode, 0040755);
    assert_int_equal(find("berth/guest.conf")->mode, 0100400);
    assert_int_equal(find("berth/authorized_keys")->mode, 0100400);
    assert_string_equal(find("berth/authorized_keys")->data, "ssh-ed25519 AAAA\n");
    assert_int_equal(find("berth/config/trust.pem")->mode, 0100444);
    assert_int_equal(find("berth/bin/berth-probe")->mode, 0100755);
    assert_memory_equal(find("berth/bin/berth-probe")->data, "\177ELF\0\1", 6);
    assert_int_equal(find("berth/empty")->length, 0);
    assert_int_equal(entry_count, 10);
}

static void t_guest_config_is_understood_by_init(void **state)
{
    (void)state;
    bt_auto_buffer archive = {0};
    struct bt_settings settings;
    unsigned line;
    assert_int_equal(bt_guest_config_write(&agent, &archive, NULL), 0);
    read_archive(&archive);
    const struct entry *entry = find("berth/guest.conf");
    assert_int_equal(bt_settings_parse(entry->data, entry->length, &settings, &line), 0);
    assert_int_equal(settings.role, BT_SETTINGS_AGENT);
    assert_string_equal(settings.host_name, "agent-1");
    assert_int_equal(settings.address, 0x0af30003);
    assert_int_equal(settings.gateway, 0x0af30002);
    assert_int_equal(settings.prefix_length, 31);
    assert_int_equal(settings.time_seconds, 1234567890);
    assert_int_equal(settings.root_disk, 0);
    assert_int_equal(settings.scratch_disk, 1);
    assert_int_equal(settings.home_disk, BT_SETTINGS_NO_DISK);
    assert_int_equal(settings.workspace_disk, 2);
    assert_int_equal(settings.registry_disk, BT_SETTINGS_NO_DISK);
}

static void t_guest_config_follows_other_bytes(void **state)
{
    (void)state;
    bt_auto_buffer archive = {0};
    assert_int_equal(bt_buffer_add(&archive, "x", 1), 0);
    assert_int_equal(bt_guest_config_write(&agent, &archive, NULL), 0);
    assert_memory_equal(archive.data,
                        "x\0\0\0"
                        "070701",
                        10);
}

static void t_guest_config_refuses_unsafe_names(void **state)
{
    (void)state;
    static const char *const names[] = {"",      "/etc/passwd", "../up", "a/../b", "a//b",
                                        "a/./b", ".",           "..",    "a/",     "config/.."};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        bt_auto_buffer archive = {0};
        struct bt_error error = {0};
        struct bt_guest_file file = {names[i], "x", 1, 0400};
        struct bt_guest_config config = agent;
        config.files = &file;
        config.file_count = 1;
        assert_int_equal(bt_guest_config_write(&config, &archive, &error), -EINVAL);
        assert_true(error.message[0] != '\0');
    }
}

static void t_guest_config_refuses_host_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",   "Upper", "a b", "a\nrole gateway",
        "-a", "a-",    "a.b", "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        bt_auto_buffer archive = {0};
        struct bt_guest_config config = agent;
        config.host_name = names[i];
        assert_int_equal(bt_guest_config_write(&config, &archive, NULL), -EINVAL);
        assert_int_equal(archive.length, 0);
    }
}

static void t_guest_config_drops_set_id_bits(void **state)
{
    (void)state;
    bt_auto_buffer archive = {0};
    struct bt_guest_file file = {"tool", "x", 1, 06755};
    struct bt_guest_config config = agent;
    config.files = &file;
    config.file_count = 1;
    assert_int_equal(bt_guest_config_write(&config, &archive, NULL), 0);
    read_archive(&archive);
    assert_int_equal(find("berth/tool")->mode, 0100755);
}

static void t_guest_config_says_when_it_is_full(void **state)
{
    (void)state;
    bt_auto_buffer archive = {.limit = 600};
    struct bt_error error = {0};
    assert_int_equal(bt_guest_config_write(&agent, &archive, &error), -ENOSPC);
    assert_non_null(strstr(error.message, "guest's configuration"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_guest_config_round_trip),
        cmocka_unit_test(t_guest_config_is_understood_by_init),
        cmocka_unit_test(t_guest_config_follows_other_bytes),
        cmocka_unit_test(t_guest_config_refuses_unsafe_names),
        cmocka_unit_test(t_guest_config_refuses_host_names),
        cmocka_unit_test(t_guest_config_drops_set_id_bits),
        cmocka_unit_test(t_guest_config_says_when_it_is_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
