/* The parts of the guest link that need no guest: the request against berth-init's own parser, detach keys,
 * keys. */
#include <archive.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "lib/file.h"
#include "vm/guest_link_copy.h"
#include "vm/guest_link_internal.h"
#include "vm/init/run_request.h"
#include "vm/run_protocol.h"

static struct bt_run_request parsed; /* large */

static void t_request_is_what_the_guest_parses(void **state)
{
    (void)state;
    const char *const arguments[] = {"git", "commit", "-m", "two words\nand a line", "", NULL};
    const char *const environment[] = {"PATH=/bin", "TOKEN=s3cret=x", NULL};
    const struct bt_guest_command command = {
        .arguments = arguments, .environment = environment, .folder = "/workspace", .uid = 1000, .gid = 1001};
    struct bt_buffer request = {0};
    struct bt_error error = {0};
    size_t length = 0;
    assert_int_equal(bt_run_request_encode(&command, &request, &error), 0);
    assert_int_equal(bt_run_parse_header((const uint8_t *)request.data, &parsed, &length), 0);
    assert_int_equal(length, request.length - BT_RUN_HEADER_LENGTH);
    assert_int_equal(bt_run_parse_body(request.data + BT_RUN_HEADER_LENGTH, length, &parsed), 0);
    assert_int_equal(parsed.uid, 1000);
    assert_int_equal(parsed.gid, 1001);
    assert_string_equal(parsed.folder, "/workspace");
    assert_int_equal(parsed.argument_count, 5);
    assert_string_equal(bt_run_arguments(&parsed)[3], "two words\nand a line");
    assert_string_equal(bt_run_arguments(&parsed)[4], "");
    assert_string_equal(bt_run_environment(&parsed)[1], "TOKEN=s3cret=x");
    assert_string_equal(bt_run_variable(&parsed, "PATH"), "/bin");
    bt_buffer_wipe(&request);
}

static void t_request_has_bounds(void **state)
{
    (void)state;
    struct bt_buffer request = {0};
    struct bt_error error = {0};
    const char *const nothing[] = {NULL};
    struct bt_guest_command command = {.arguments = nothing, .folder = "/"};
    assert_int_equal(bt_run_request_encode(&command, &request, &error), -EINVAL);
    char *large = bt_new(1, BT_RUN_LENGTH_MAX + 1);
    memset(large, 'x', BT_RUN_LENGTH_MAX);
    const char *const arguments[] = {"echo", large, NULL};
    command.arguments = arguments;
    assert_int_equal(bt_run_request_encode(&command, &request, &error), -E2BIG);
    /* The largest that fits must be accepted by the other side, too: 16 fixed bytes, "/", "echo", three NULs.
     */
    large[BT_RUN_LENGTH_MAX - 16 - 1 - 4 - 3] = '\0';
    size_t length = 0;
    assert_int_equal(bt_run_request_encode(&command, &request, &error), 0);
    assert_int_equal(bt_run_parse_header((const uint8_t *)request.data, &parsed, &length), 0);
    assert_int_equal(bt_run_parse_body(request.data + BT_RUN_HEADER_LENGTH, length, &parsed), 0);
    assert_int_equal(request.length, BT_RUN_LENGTH_MAX + 8);
    bt_buffer_wipe(&request);
    free(large);
}

/* Feeds pieces one after the other and collects what goes on to the command. */
static bool feed(struct bt_detach *detach, const char *const *pieces, char *ret_text)
{
    char out[64 + BT_DETACH_KEYS_MAX];
    size_t at = 0, length = 0;
    bool is_detached = false;
    for (; *pieces && !is_detached; pieces++) {
        is_detached = bt_detach_feed(detach, *pieces, strlen(*pieces), out, &length);
        memcpy(ret_text + at, out, length);
        at += length;
    }
    ret_text[at] = '\0';
    return is_detached;
}

static void t_detach_keys(void **state)
{
    (void)state;
    char text[256];
    struct bt_detach detach = {.keys = "\x10\x11"};
    assert_true(feed(&detach, (const char *const[]){"abc\x10", "\x11zzz", NULL}, text));
    assert_string_equal(text, "abc");
    detach = (struct bt_detach){.keys = "\x10\x11"};
    assert_false(feed(&detach, (const char *const[]){"a\x10", "b\x10\x10", "c", NULL}, text));
    assert_string_equal(text, "a\x10"
                              "b\x10\x10"
                              "c");
    detach = (struct bt_detach){.keys = "aab"};
    assert_true(feed(&detach, (const char *const[]){"xa", "aa", "b", NULL}, text));
    assert_string_equal(text, "xa");
    detach = (struct bt_detach){.keys = ""};
    assert_false(feed(&detach, (const char *const[]){"anything", NULL}, text));
    assert_string_equal(text, "anything");
}

static void t_keys_are_of_their_kind_and_new_each_time(void **state)
{
    (void)state;
    struct bt_guest_keys first, second;
    struct bt_error error = {0};
    assert_int_equal(bt_guest_keys_make(&first, &error), 0);
    assert_int_equal(bt_guest_keys_make(&second, &error), 0);
    assert_ptr_equal(strstr(first.private_key, "-----BEGIN OPENSSH PRIVATE KEY-----\n"), first.private_key);
    assert_ptr_equal(strstr(first.public_key, "ssh-ed25519 AAAA"), first.public_key);
    assert_string_not_equal(first.public_key, first.host_public_key);
    assert_string_not_equal(first.public_key, second.public_key);
    assert_string_not_equal(first.host_public_key, second.host_public_key);
    assert_int_equal(first.host_key.length, 4 + 11 + 4 + 64);
    bt_guest_keys_free(&first);
    bt_guest_keys_free(&second);
    assert_null(second.private_key);
}

static void t_guest_paths(void **state)
{
    (void)state;
    char *name = NULL;
    struct bt_error error = {0};
    assert_int_equal(bt_copy_guest_path("//home/agent//", &name, &error), 0);
    assert_string_equal(name, "home/agent");
    free(name);
    assert_int_equal(bt_copy_guest_path("/", &name, &error), 0);
    assert_string_equal(name, "");
    free(name);
    assert_int_equal(bt_copy_guest_path("/a/..b/c..", &name, &error), 0);
    free(name);
    assert_int_equal(bt_copy_guest_path("/a/../b", &name, &error), -EINVAL);
    assert_int_equal(bt_copy_guest_path("/..", &name, &error), -EINVAL);
    assert_int_equal(bt_copy_guest_path("workspace", &name, &error), -EINVAL);
    assert_int_equal(bt_copy_guest_path("", &name, &error), -EINVAL);
}

/* ---- what a guest sends ---- */

#define TAR_BLOCK 512U

static void put_octal(uint8_t *at, size_t size, uint64_t value)
{
    (void)snprintf((char *)at, size, "%0*llo", (int)size - 1, (unsigned long long)value);
}

/* A header of GNU tar's sparse kind, whose map has one part: the file is said to have real_size bytes, of
 * which stored bytes from offset on follow. */
static void write_sparse_header(uint8_t header[TAR_BLOCK], uint64_t stored, uint64_t offset,
                                uint64_t real_size)
{
    unsigned sum = 0;
    memset(header, 0, TAR_BLOCK);
    memcpy(header, "file", 4);
    put_octal(header + 100, 8, 0644);
    put_octal(header + 124, 12, stored);
    put_octal(header + 136, 12, 0);
    memset(header + 148, ' ', 8);
    header[156] = 'S';
    memcpy(header + 257, "ustar  ", 8);
    put_octal(header + 386, 12, offset);
    put_octal(header + 398, 12, stored);
    put_octal(header + 483, 12, real_size);
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += header[i];
    put_octal(header + 148, 7, sum);
}

/* Unpacks one sparse file with a limit of 64 KiB; what it took of the disk goes to *ret_blocks. */
static int unpack_sparse(uint64_t stored, uint64_t offset, uint64_t real_size, off_t *ret_size)
{
    char folder[] = "/tmp/berth-unpack-XXXXXX";
    struct stat about = {.st_size = -1};
    size_t length = TAR_BLOCK + (stored + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK + 2 * TAR_BLOCK;
    uint8_t *bytes = bt_new(length, 1);
    write_sparse_header(bytes, stored, offset, real_size);
    memset(bytes + TAR_BLOCK, 'x', stored);
    assert_non_null(mkdtemp(folder));
    bt_auto_fd folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct bt_guest_unpack unpack = {.parent_fd = folder_fd, .base = "w", .left = 65536};
    struct archive *archive = archive_read_new();
    assert_int_equal(archive_read_support_format_tar(archive), ARCHIVE_OK);
    assert_int_equal(archive_read_open_memory(archive, bytes, length), ARCHIVE_OK);
    int result = bt_guest_unpack(&unpack, archive);
    (void)archive_read_free(archive);
    (void)fstatat(folder_fd, "w", &about, AT_SYMLINK_NOFOLLOW);
    *ret_size = about.st_size;
    free(bytes);
    assert_int_equal(bt_tree_remove(folder, NULL), 0);
    return result;
}

/* The size that a file is said to have bounds what is written of it: the map of a sparse one may say
 * otherwise. */
static void t_unpack_holds_a_sparse_file_to_its_size(void **state)
{
    (void)state;
    off_t size;
    assert_int_equal(unpack_sparse(100, 30000, 30100, &size), 0);
    assert_int_equal(size, 30100);
    assert_int_equal(unpack_sparse(1 << 20, 0, 4, &size), -EFBIG);
    assert_true(size <= 65536);
    assert_int_equal(unpack_sparse(100, 1 << 30, 4, &size), -EFBIG);
    assert_true(size <= 65536);
}

static void t_what_comes_instead_of_a_start_is_shown_and_steers_nothing(void **state)
{
    (void)state;
    static const char words[] = "OCI runtime exec failed: \033[2Jno space left on device\nmore";
    struct bt_guest_link link = {.name = "container one"};
    struct bt_guest_session *session = bt_new(1, sizeof(*session));
    session->link = &link;
    struct bt_error error = {0};
    assert_int_equal(bt_guest_session_deliver(session, false, words, sizeof(words) - 1, &error), -EPROTO);
    assert_non_null(strstr(error.message, "container one"));
    assert_non_null(strstr(error.message, "it says: OCI runtime exec failed: ?[2Jno space left on device"));
    assert_null(strstr(error.message, "more"));
    free(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_request_is_what_the_guest_parses),
        cmocka_unit_test(t_request_has_bounds),
        cmocka_unit_test(t_detach_keys),
        cmocka_unit_test(t_keys_are_of_their_kind_and_new_each_time),
        cmocka_unit_test(t_guest_paths),
        cmocka_unit_test(t_unpack_holds_a_sparse_file_to_its_size),
        cmocka_unit_test(t_what_comes_instead_of_a_start_is_shown_and_steers_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
