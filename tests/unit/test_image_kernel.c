/* Taking a kernel package apart, with packages made here: a real bzImage layout, real ELF modules, real ar
 * and tar. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "images/archive.h"
#include "images/kernel.h"
#include "images/module.h"
#include "images/vmlinux.h"
#include "tests/lib/test_folder.h"

#define MODULES "./lib/modules/6.1/kernel/"

struct world {
    char folder[256];
    char deb[300];
    struct bt_recipe recipe;
};

static int setup(void **state)
{
    struct world *world = bt_new(1, sizeof *world);
    test_folder_make(world->folder, sizeof world->folder);
    (void)snprintf(world->deb, sizeof world->deb, "%s/kernel.deb", world->folder);
    world->recipe.form = BT_RECIPE_KERNEL;
    world->recipe.init = bt_string_copy("test-program");
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    struct bt_error error;
    bt_recipe_free(&world->recipe);
    assert_int_equal(bt_tree_remove(world->folder, &error), 0);
    free(world);
    return 0;
}

/* An ELF module with nothing but a .modinfo section. */
static void make_module(const char *depends, struct bt_buffer *ret_module)
{
    static const char names[] = "\0.shstrtab\0.modinfo";
    bt_auto_buffer info = {0};
    assert_int_equal(bt_buffer_add(&info, "license=GPL", 12), 0);
    assert_int_equal(bt_buffer_add_format(&info, "depends=%s", depends), 0);
    assert_int_equal(bt_buffer_add(&info, "", 1), 0);
    Elf64_Ehdr header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                         .e_type = ET_REL,
                         .e_machine = EM_X86_64,
                         .e_shentsize = sizeof(Elf64_Shdr),
                         .e_shnum = 3,
                         .e_shstrndx = 1};
    size_t names_at = sizeof header, info_at = names_at + sizeof names;
    header.e_shoff = info_at + info.length;
    Elf64_Shdr sections[3] = {
        {0},
        {.sh_name = 1, .sh_type = SHT_STRTAB, .sh_offset = names_at, .sh_size = sizeof names},
        {.sh_name = 11, .sh_type = SHT_PROGBITS, .sh_offset = info_at, .sh_size = info.length},
    };
    assert_int_equal(bt_buffer_add(ret_module, &header, sizeof header), 0);
    assert_int_equal(bt_buffer_add(ret_module, names, sizeof names), 0);
    assert_int_equal(bt_buffer_add(ret_module, info.data, info.length), 0);
    assert_int_equal(bt_buffer_add(ret_module, sections, sizeof sections), 0);
}

/* An ELF kernel with one PT_NOTE segment. */
static void make_kernel(uint32_t note_type, struct bt_buffer *ret_kernel)
{
    struct {
        Elf64_Nhdr header;
        char name[4];
        uint32_t entry;
    } note = {{4, 4, note_type}, "Xen", 0x1000000};
    Elf64_Ehdr header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                         .e_type = ET_EXEC,
                         .e_machine = EM_X86_64,
                         .e_phoff = sizeof header,
                         .e_phentsize = sizeof(Elf64_Phdr),
                         .e_phnum = 1};
    Elf64_Phdr program = {
        .p_type = PT_NOTE, .p_offset = sizeof header + sizeof program, .p_filesz = sizeof note};
    assert_int_equal(bt_buffer_add(ret_kernel, &header, sizeof header), 0);
    assert_int_equal(bt_buffer_add(ret_kernel, &program, sizeof program), 0);
    assert_int_equal(bt_buffer_add(ret_kernel, &note, sizeof note), 0);
}

static la_ssize_t append(struct archive *archive, void *context, const void *bytes, size_t length)
{
    (void)archive;
    assert_int_equal(bt_buffer_add(context, bytes, length), 0);
    return (la_ssize_t)length;
}

/* One stream of the named libarchive filter. */
static void compress(const char *filter, const struct bt_buffer *data, struct bt_buffer *ret_packed)
{
    struct archive *archive = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    archive_write_set_format_raw(archive);
    assert_int_equal(archive_write_add_filter_by_name(archive, filter), ARCHIVE_OK);
    archive_write_set_bytes_per_block(archive, 0);
    assert_int_equal(archive_write_open(archive, ret_packed, NULL, append, NULL), ARCHIVE_OK);
    archive_entry_set_filetype(entry, AE_IFREG);
    assert_int_equal(archive_write_header(archive, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(archive, data->data, data->length), (la_ssize_t)data->length);
    assert_int_equal(archive_write_close(archive), ARCHIVE_OK);
    archive_entry_free(entry);
    (void)archive_write_free(archive);
}

static void make_bzimage(const char *filter, uint32_t note_type, struct bt_buffer *ret_image)
{
    bt_auto_buffer kernel = {0};
    bt_auto_buffer payload = {0};
    uint8_t setup_part[5 * 512] = {0}, size[4];
    make_kernel(note_type, &kernel);
    compress(filter, &kernel, &payload);
    if (strcmp(filter, "gzip") != 0) {
        bt_store_u32(size, (uint32_t)kernel.length);
        assert_int_equal(bt_buffer_add(&payload, size, sizeof size), 0);
    }
    setup_part[0x1f1] = 4;
    memcpy(setup_part + 0x202, "HdrS\x0f\x02", 6);
    bt_store_u32(setup_part + 0x248, 64);
    bt_store_u32(setup_part + 0x24c, (uint32_t)payload.length);
    assert_int_equal(bt_buffer_add(ret_image, setup_part, sizeof setup_part), 0);
    assert_int_equal(bt_buffer_add(ret_image, setup_part + 1024, 64), 0); /* the unpacker's code lies here */
    assert_int_equal(bt_buffer_add(ret_image, payload.data, payload.length), 0);
}

static void add(struct archive *archive, const char *path, const void *data, size_t length)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, path);
    archive_entry_set_mode(entry, AE_IFREG | 0644);
    archive_entry_set_size(entry, (la_int64_t)length);
    assert_int_equal(archive_write_header(archive, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(archive, data, length), (la_ssize_t)length);
    archive_entry_free(entry);
}

static void add_module(struct archive *data, const char *path, const char *depends, bool is_compressed)
{
    bt_auto_buffer module = {0};
    bt_auto_buffer packed = {0};
    make_module(depends, &module);
    if (is_compressed)
        compress("xz", &module, &packed);
    add(data, path, is_compressed ? packed.data : module.data, is_compressed ? packed.length : module.length);
}

static void write_deb(struct world *world, const struct bt_buffer *data)
{
    struct archive *deb = archive_write_new();
    archive_write_set_format_ar_svr4(deb);
    assert_int_equal(archive_write_open_filename(deb, world->deb), ARCHIVE_OK);
    add(deb, "debian-binary", "2.0\n", 4);
    add(deb, "control.tar", "", 0);
    add(deb, "data.tar.xz", data->data, data->length);
    assert_int_equal(archive_write_close(deb), ARCHIVE_OK);
    (void)archive_write_free(deb);
}

/* A package with a kernel and modules: net depends on core and on one that is built in, core is compressed.
 */
static void make_package(struct world *world, uint32_t note_type)
{
    static const char builtin[] = "kernel/lib/builtin-one.ko\n";
    bt_auto_buffer bytes = {0};
    bt_auto_buffer image = {0};
    struct archive *data = archive_write_new();
    archive_write_set_format_gnutar(data);
    assert_int_equal(archive_write_add_filter_xz(data), ARCHIVE_OK);
    assert_int_equal(archive_write_open(data, &bytes, NULL, append, NULL), ARCHIVE_OK);
    make_bzimage("gzip", note_type, &image);
    add(data, "./boot/vmlinuz-6.1", image.data, image.length);
    add_module(data, MODULES "drivers/core.ko.xz", "", true);
    add_module(data, MODULES "net/net-card.ko", "builtin-one,core,late", false);
    add_module(data, MODULES "net/unused.ko", "", false);
    add_module(data, MODULES "zz/late.ko", "core", false);
    add(data, "./lib/modules/6.1/modules.builtin", builtin, sizeof builtin - 1);
    assert_int_equal(archive_write_close(data), ARCHIVE_OK);
    (void)archive_write_free(data);
    write_deb(world, &bytes);
}

/* "name name name" of an initrd. */
static char *list_initrd(const struct world *world)
{
    char path[300];
    bt_auto_buffer names = {0};
    struct archive_entry *entry;
    bt_auto_archive *archive = archive_read_new();
    (void)archive_read_support_format_cpio(archive);
    (void)snprintf(path, sizeof path, "%s/initrd", world->folder);
    assert_int_equal(archive_read_open_filename(archive, path, 10240), ARCHIVE_OK);
    while (archive_read_next_header(archive, &entry) == ARCHIVE_OK)
        assert_int_equal(bt_buffer_add_format(&names, "%s ", archive_entry_pathname(entry)), 0);
    return bt_string_copy(names.data);
}

/* bt_program_path looks beside the test program. */
static int place_program(void **state)
{
    (void)state;
    char path[512];
    struct bt_error error;
    ssize_t length = readlink("/proc/self/exe", path, 400);
    assert_true(length > 0);
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    memcpy(slash, "/test-program", sizeof "/test-program");
    return bt_file_write(path, "#!", 2, 0755, &error);
}

static int remove_program(void **state)
{
    (void)state;
    char path[512];
    struct bt_error error;
    return bt_program_path("test-program", path, &error) == 0 ? unlink(path) : -1;
}

static void t_kernel_takes_package_apart(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char path[300], found[BT_DIGEST_TEXT_SIZE], expected[BT_DIGEST_TEXT_SIZE];
    bt_auto_buffer kernel = {0};
    make_package(world, 18);
    bt_list_add(&world->recipe.modules, "net_card");
    assert_int_equal(bt_kernel_build(&world->recipe, world->deb, world->folder, NULL, &error), 0);
    bt_auto_free char *names = list_initrd(world);
    assert_string_equal(names, "init berth berth/modules berth/modules/00-core.ko berth/modules/01-late.ko "
                               "berth/modules/02-net_card.ko ");
    (void)snprintf(path, sizeof path, "%s/kernel", world->folder);
    make_kernel(18, &kernel);
    bt_digest_bytes(kernel.data, kernel.length, expected);
    assert_int_equal(bt_digest_file(path, found, &error), 0);
    assert_string_equal(found, expected);
}

static void t_kernel_without_pvh_stays_packed(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char path[300];
    bt_auto_buffer found = {0};
    make_package(world, 17);
    assert_int_equal(bt_kernel_build(&world->recipe, world->deb, world->folder, NULL, &error), 0);
    (void)snprintf(path, sizeof path, "%s/kernel", world->folder);
    assert_int_equal(bt_file_read(path, 1 << 20, &found, &error), 0);
    assert_memory_equal(found.data + 0x202, "HdrS", 4);
}

static void t_kernel_names_missing_modules(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    make_package(world, 18);
    bt_list_add(&world->recipe.modules, "no_such_module");
    assert_int_equal(bt_kernel_build(&world->recipe, world->deb, world->folder, NULL, &error), -ENOENT);
    assert_non_null(strstr(error.message, "no_such_module"));
}

static void t_kernel_refuses_broken_packages(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    make_package(world, 18);
    assert_int_equal(truncate(world->deb, 900), 0);
    assert_true(bt_kernel_build(&world->recipe, world->deb, world->folder, NULL, &error) < 0);
    assert_int_equal(bt_file_write(world->deb, "no package", 10, 0600, &error), 0);
    assert_true(bt_kernel_build(&world->recipe, world->deb, world->folder, NULL, &error) < 0);
    assert_int_equal(bt_kernel_build(&world->recipe, "/nonexistent.deb", world->folder, NULL, &error),
                     -ENOENT);
}

static void t_vmlinux_unpacks_every_compression(void **state)
{
    (void)state;
    static const char *const filters[] = {"gzip", "xz", "zstd", "lz4", "bzip2"};
    bt_auto_buffer expected = {0};
    make_kernel(18, &expected);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(filters); i++) {
        struct bt_error error = {0};
        bt_auto_buffer image = {0};
        bt_auto_buffer kernel = {0};
        make_bzimage(filters[i], 18, &image);
        assert_int_equal(bt_vmlinux_extract(image.data, image.length, &kernel, &error), 0);
        assert_int_equal(kernel.length, expected.length);
        assert_memory_equal(kernel.data, expected.data, expected.length);
    }
}

/* Every truncation and many changed bytes: an error or a kernel, never a read outside (sanitizers watch). */
static void t_vmlinux_survives_damage(void **state)
{
    (void)state;
    bt_auto_buffer image = {0};
    make_bzimage("gzip", 18, &image);
    for (size_t length = 0; length < image.length; length += 13) {
        bt_auto_free char *part = bt_new(length + 1, 1);
        bt_auto_buffer kernel = {0};
        memcpy(part, image.data, length);
        assert_true(bt_vmlinux_extract(part, length, &kernel, NULL) < 0);
    }
    for (size_t at = 0x1f1; at < 0x250; at++) {
        bt_auto_buffer kernel = {0};
        char before = image.data[at];
        image.data[at] = (char)0xff;
        (void)bt_vmlinux_extract(image.data, image.length, &kernel, NULL);
        image.data[at] = before;
    }
}

static void t_module_reads_depends(void **state)
{
    (void)state;
    struct bt_error error = {0};
    bt_auto_buffer module = {0};
    bt_auto_list names = {0};
    make_module("virtio,virtio-ring", &module);
    assert_int_equal(bt_module_depends(module.data, module.length, &names, &error), 0);
    assert_int_equal(names.count, 2);
    assert_string_equal(names.items[0], "virtio");
    assert_string_equal(names.items[1], "virtio_ring");
    for (size_t length = 0; length < module.length; length++) {
        bt_auto_free char *part = bt_new(length + 1, 1);
        memcpy(part, module.data, length);
        assert_int_equal(bt_module_depends(part, length, &names, NULL), -EBADMSG);
    }
    for (size_t at = 0; at < module.length; at++) {
        bt_auto_free char *copy = bt_new(module.length, 1);
        memcpy(copy, module.data, module.length);
        copy[at] = (char)0xff;
        (void)bt_module_depends(copy, module.length, &names, NULL);
    }
}

static void t_module_names(void **state)
{
    (void)state;
    char name[BT_MODULE_NAME_SIZE];
    assert_true(bt_module_name("kernel/char/virtio-rng.ko.xz", name));
    assert_string_equal(name, "virtio_rng");
    assert_true(bt_module_name("overlay.ko", name));
    assert_false(bt_module_name("modules.order", name));
    assert_false(bt_module_name("x.kon", name));
    assert_false(bt_module_name("a/.ko", name));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(t_kernel_takes_package_apart),
        TEST(t_kernel_without_pvh_stays_packed),
        TEST(t_kernel_names_missing_modules),
        TEST(t_kernel_refuses_broken_packages),
        cmocka_unit_test(t_vmlinux_unpacks_every_compression),
        cmocka_unit_test(t_vmlinux_survives_damage),
        cmocka_unit_test(t_module_reads_depends),
        cmocka_unit_test(t_module_names),
    };
    return cmocka_run_group_tests_name("image-kernel", tests, place_program, remove_program);
}
