/* The guest link against a real SSH server (dropbear) and the real berth-init, in namespaces of its own. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <archive.h>
#include <archive_entry.h>
#include <pty.h>
#include <sanitizer/lsan_interface.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/file.h"
#include "tests/lib/guest_server.h"
#include "vm/guest_config.h"
#include "vm/guest_link_internal.h"
#include "vm/run_protocol.h"

#define MEGABYTE 1000000ULL

static struct guest_server server;
static const char *const environment[] = {"PATH=/usr/local/sbin:/usr/bin:/bin", "WORD=hello world", NULL};

static struct bt_guest_link *link_open(void)
{
    struct bt_guest_link *link = NULL;
    struct bt_error error = {0};
    if (bt_guest_connect(&server.address, 10000, -1, &link, &error) < 0)
        fail_msg("%s", error.message);
    return link;
}

static struct bt_guest_command command_of(const char *const *arguments)
{
    return (struct bt_guest_command){.arguments = arguments,
                                     .environment = environment,
                                     .folder = "/",
                                     .uid = 1000,
                                     .gid = 1000,
                                     .input_fd = -1};
}

/* Runs /bin/sh -c text in the "guest" and expects this status and output. */
static void expect(struct bt_guest_link *link, const char *text, int status, const char *output,
                   const char *errors)
{
    struct bt_buffer got_output = {0}, got_errors = {0};
    struct bt_error error = {0};
    const char *const arguments[] = {"sh", "-c", text, NULL};
    const struct bt_guest_command command = command_of(arguments);
    int got_status = -1;
    if (bt_guest_run_collect(link, &command, 65536, &got_output, &got_errors, &got_status, &error) < 0)
        fail_msg("%s", error.message);
    assert_string_equal(got_output.data ? got_output.data : "", output);
    assert_string_equal(got_errors.data ? got_errors.data : "", errors);
    assert_int_equal(got_status, status);
    bt_buffer_free(&got_output);
    bt_buffer_free(&got_errors);
}

/* Runs a shell text on this side and expects success. */
static void here(const char *text)
{
    int status = guest_server_shell(text);
    if (status != 0)
        fail_msg("status %d of: %s", status, text);
}

static void t_run_status_streams_and_user(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    expect(link, "echo out; echo err >&2; exit 7", 7, "out\n", "err\n");
    expect(link, "kill -KILL $$", 128 + SIGKILL, "", "");
    expect(link, "kill -TERM $$", 128 + SIGTERM, "", "");
    expect(link, "id -u; id -g; pwd; echo \"$WORD\"; env | sort | grep -v ^_=", 0,
           "1000\n1000\n/\nhello world\nPATH=/usr/local/sbin:/usr/bin:/bin\nPWD=/\nWORD=hello world\n", "");
    const char *const missing[] = {"no-such-program", NULL};
    const struct bt_guest_command command = command_of(missing);
    struct bt_error error = {0};
    int status = 0;
    assert_int_equal(bt_guest_run(link, &command, &status, &error), 0);
    assert_int_equal(status, 127);
    expect(link, "exit 255", 255, "", "");
    bt_guest_close(link);
}

struct counter {
    uint64_t bytes, stop_at;
    bool is_wrong;
};

static int count_zeros(void *context, bool is_stderr, const char *data, size_t length)
{
    struct counter *counter = context;
    static const char zeros[4096];
    for (size_t at = 0; at < length && !is_stderr; at += sizeof(zeros)) {
        size_t part = length - at < sizeof(zeros) ? length - at : sizeof(zeros);
        counter->is_wrong |= memcmp(data + at, zeros, part) != 0;
    }
    counter->bytes += is_stderr ? 0 : length;
    return counter->stop_at && counter->bytes >= counter->stop_at;
}

static void pass_zeros(struct bt_guest_link *link, const char *text, int input_fd, uint64_t expected)
{
    struct counter counter = {0};
    struct bt_error error = {0};
    const char *const arguments[] = {"sh", "-c", text, NULL};
    struct bt_guest_command command = command_of(arguments);
    command.input_fd = input_fd;
    command.on_output = count_zeros;
    command.context = &counter;
    int status = -1;
    if (bt_guest_run(link, &command, &status, &error) < 0)
        fail_msg("%s", error.message);
    assert_int_equal(status, 0);
    assert_int_equal(counter.bytes, expected);
    assert_false(counter.is_wrong);
}

static void t_many_megabytes_both_ways_at_once(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    bt_auto_fd zero_fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    pass_zeros(link, "head -c 150000000", zero_fd, 150 * MEGABYTE);
    bt_guest_close(link);
}

/* SSH makes new keys after a gigabyte; libraries have failed there. */
static void t_stream_survives_new_keys(void **state)
{
    (void)state;
    __lsan_disable(); /* libssh2 1.10 forgets the 51 bytes of the first host key when keys change */
    struct bt_guest_link *link = link_open();
    __lsan_enable();
    pass_zeros(link, "head -c 1200000000 /dev/zero", -1, 1200 * MEGABYTE);
    expect(link, "echo still here", 0, "still here\n", "");
    bt_guest_close(link);
}

static void t_input_bytes_then_descriptor_then_end(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct bt_buffer output = {0}, errors = {0};
    struct bt_error error = {0};
    int pipe_fds[2], status = -1;
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    assert_int_equal(write(pipe_fds[1], "second", 6), 6);
    (void)close(pipe_fds[1]);
    const char *const arguments[] = {"sh", "-c", "cat; cat >&2 /dev/null", NULL};
    struct bt_guest_command command = command_of(arguments);
    command.input = "first ";
    command.input_length = 6;
    command.input_fd = pipe_fds[0];
    assert_int_equal(bt_guest_run_collect(link, &command, 100, &output, &errors, &status, &error), 0);
    assert_string_equal(output.data, "first second");
    (void)close(pipe_fds[0]);
    bt_buffer_free(&output);
    bt_buffer_free(&errors);
    bt_guest_close(link);
}

/* A command that ends without reading its input must not leave us writing for ever. */
static void t_unread_input_does_not_hang(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    bt_auto_fd zero_fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    pass_zeros(link, "head -c 1000", zero_fd, 1000);
    pass_zeros(link, "exec <&-; sleep 0.3; exit 0", zero_fd, 0);
    expect(link, "echo on", 0, "on\n", "");
    bt_guest_close(link);
}

static void t_slow_reader_holds_the_command_back(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct counter counter = {.stop_at = 10 * MEGABYTE};
    struct bt_error error = {0};
    const char *const arguments[] = {"cat", "/dev/zero", NULL};
    struct bt_guest_command command = command_of(arguments);
    command.on_output = count_zeros;
    command.context = &counter;
    int status = -1;
    assert_int_equal(bt_guest_run(link, &command, &status, &error), -ECANCELED);
    assert_in_range(counter.bytes, 10 * MEGABYTE, 11 * MEGABYTE);
    bt_guest_close(link);
}

static void t_output_limit_and_timeout(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct bt_buffer output = {0}, errors = {0};
    struct bt_error error = {0};
    const char *const endless[] = {"yes", NULL};
    struct bt_guest_command command = command_of(endless);
    int status = -1;
    assert_int_equal(bt_guest_run_collect(link, &command, 1000, &output, &errors, &status, &error), -EFBIG);
    bt_guest_close(link);

    link = link_open();
    const char *const sleeping[] = {"sleep", "30.125", NULL};
    command = command_of(sleeping);
    command.timeout_ms = 200;
    int64_t before_ms = bt_link_now_ms();
    assert_int_equal(bt_guest_run(link, &command, &status, &error), -ETIMEDOUT);
    assert_in_range(bt_link_now_ms() - before_ms, 200, 1500);
    assert_int_equal(bt_guest_run(link, &command, &status, &error), -ENOTCONN);
    bt_guest_close(link);
    /* The end of the connection was the end of the command. */
    link = link_open();
    expect(
        link,
        "i=0; while pgrep -fx 'sleep 30.125' >/dev/null && [ $i -lt 200 ]; do sleep 0.1; i=$((i+1)); done; "
        "pgrep -fcx 'sleep 30.125'",
        1, "0\n", "");
    bt_guest_close(link);
}

static void end_process(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Of a server whose process ends between the start of "berth-init run" and its request: whether the command
 * of the request was executed. The middle process is that server. */
static bool is_executed(bool is_server_alive)
{
    const char *const arguments[] = {"touch", "/run/executed", NULL};
    struct bt_guest_command command = command_of(arguments);
    struct bt_buffer request = {0};
    struct bt_error error = {0};
    int input[2], output[2];
    char byte = 0;
    command.uid = command.gid = 0;
    assert_int_equal(bt_run_request_encode(&command, &request, &error), 0);
    assert_int_equal(pipe2(input, O_CLOEXEC), 0);
    assert_int_equal(pipe2(output, O_CLOEXEC), 0);
    pid_t middle = fork();
    if (middle == 0) {
        if (fork() != 0) {
            (void)close_range(3, ~0U, 0);
            (void)pause();
            _exit(0);
        }
        (void)dup2(input[0], STDIN_FILENO);
        (void)dup2(output[1], STDOUT_FILENO);
        (void)execl(BT_GUEST_RUN, "berth-init", "run", (char *)NULL);
        _exit(127);
    }
    (void)close(input[0]);
    (void)close(output[1]);
    assert_int_equal(read(output[0], &byte, 1), 1);
    assert_int_equal(byte, BT_RUN_READY);
    if (!is_server_alive)
        end_process(middle);
    assert_int_equal(write(input[1], request.data, request.length), (ssize_t)request.length);
    while (read(output[0], &byte, 1) > 0)
        continue;
    if (is_server_alive)
        end_process(middle);
    (void)close(input[1]);
    (void)close(output[0]);
    bt_buffer_wipe(&request);
    return unlink("/run/executed") == 0;
}

static void t_nothing_is_executed_for_a_connection_that_has_ended(void **state)
{
    (void)state;
    assert_true(is_executed(true));
    assert_false(is_executed(false));
}

static void t_wrong_host_key_is_refused(void **state)
{
    (void)state;
    struct bt_guest_keys other;
    struct bt_error error = {0};
    struct bt_guest_link *link = NULL;
    assert_int_equal(bt_guest_keys_make(&other, &error), 0);
    struct bt_guest_address address = server.address;
    address.host_public_key = other.host_public_key;
    assert_int_equal(bt_guest_connect(&address, 5000, -1, &link, &error), -EKEYREJECTED);
    address = server.address;
    address.private_key = other.private_key;
    assert_int_equal(bt_guest_connect(&address, 5000, -1, &link, &error), -EACCES);
    address.host_public_key = "ssh-rsa AAAA";
    assert_int_equal(bt_guest_connect(&address, 5000, -1, &link, &error), -EINVAL);
    assert_null(link);
    bt_guest_keys_free(&other);
}

static void t_connect_waits_for_a_late_server_and_no_longer(void **state)
{
    (void)state;
    struct bt_error error = {0};
    struct bt_guest_link *link = NULL;
    guest_server_stop(&server);
    int64_t before_ms = bt_link_now_ms();
    assert_int_equal(bt_guest_connect(&server.address, 300, -1, &link, &error), -ETIMEDOUT);
    assert_in_range(bt_link_now_ms() - before_ms, 290, 600);

    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    (void)close(pipe_fds[1]); /* readable (end) at once: the machine "ended" */
    before_ms = bt_link_now_ms();
    assert_int_equal(bt_guest_connect(&server.address, 5000, pipe_fds[0], &link, &error), -ECANCELED);
    assert_in_range(bt_link_now_ms() - before_ms, 0, 200);
    (void)close(pipe_fds[0]);

    pid_t pid = fork();
    if (pid == 0) {
        (void)usleep(300000);
        guest_server_restart(&server); /* it ends with this process */
        (void)pause();
    }
    before_ms = bt_link_now_ms();
    link = link_open();
    int64_t took_ms = bt_link_now_ms() - before_ms;
    assert_in_range(took_ms, 290, 900); /* far from the second that a lost SYN would cost */
    expect(link, "echo up", 0, "up\n", "");
    bt_guest_close(link);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    guest_server_restart(&server);
}

static long peak_kilobytes(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

static void t_tree_of_ten_thousand_files_and_back(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct bt_error error = {0};
    here("mkdir -p /tmp/tree && cd /tmp/tree && "
         "for i in $(seq 100); do mkdir $i; for j in $(seq 100); do echo $i.$j > $i/$j; done; done; "
         "ln -s 5/7 link; ln -s missing dangling; mkdir empty; printf x > \"$(printf 'bad\\377name')\"; echo "
         "u > "
         "\"$(printf '\\303\\274mlaut')\"; long=$(head -c 200 /dev/zero | tr '\\0' n); mkdir -p $long/$long; "
         "echo deep > "
         "$long/$long/$long; echo '#!' > run; chmod 755 run; chmod 600 5/5; mkfifo pipe; printf 'a\\nb' > "
         "'new\nline'; "
         "touch -d 2001-02-03T04:05:06 old; mkdir -m 777 /tmp/guest");
    if (bt_guest_copy_in(link, "/tmp/tree", "/tmp/guest/tree", 1000, 1000, &error) < 0)
        fail_msg("%s", error.message);
    here("rm /tmp/tree/pipe; diff -r --no-dereference /tmp/tree /tmp/guest/tree && "
         "test $(stat -c %a:%u:%g /tmp/guest/tree/run) = 755:1000:1000 && test $(stat -c %a "
         "/tmp/guest/tree/5/5) = 600 && "
         "test $(stat -c %Y /tmp/guest/tree/old) = $(stat -c %Y /tmp/tree/old) && "
         "test $(find /tmp/guest/tree ! -uid 1000 | wc -l) = 0");
    if (bt_guest_copy_out(link, "/tmp/guest/tree", "/tmp/back", 64 * MEGABYTE, &error) < 0)
        fail_msg("%s", error.message);
    here("diff -r --no-dereference /tmp/tree /tmp/back && test $(stat -c %a /tmp/back/run) = 755");
    /* Again onto itself: contents are replaced, a folder that is there is kept. */
    here("echo other > /tmp/tree/run; chmod 711 /tmp/guest/tree");
    assert_int_equal(bt_guest_copy_in(link, "/tmp/tree", "/tmp/guest/tree", 1000, 1000, &error), 0);
    assert_int_equal(bt_guest_copy_out(link, "/tmp/guest/tree", "/tmp/back", 64 * MEGABYTE, &error), 0);
    here("test \"$(cat /tmp/back/run)\" = other && test $(stat -c %a /tmp/guest/tree) = 711");
    here("rm -rf /tmp/tree /tmp/back /tmp/guest");
    bt_guest_close(link);
}

static void t_two_gigabytes_with_little_memory(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct bt_error error = {0};
    here("mkdir -m 777 /tmp/guest; truncate -s 2G /tmp/big; printf end >> /tmp/big; printf middle | dd "
         "of=/tmp/big bs=1 "
         "seek=1234567890 conv=notrunc status=none; truncate -s 100M /tmp/hole; head -c 40000000 "
         "/dev/urandom > /tmp/dense");
    long before = peak_kilobytes();
    assert_int_equal(bt_guest_copy_in(link, "/tmp/big", "/tmp/guest/big", 1000, 1000, &error), 0);
    assert_int_equal(bt_guest_copy_in(link, "/tmp/hole", "/tmp/guest/new/hole", 1000, 1000, &error), 0);
    assert_int_equal(bt_guest_copy_in(link, "/tmp/dense", "/tmp/guest/dense", 1000, 1000, &error), 0);
    here("cmp /tmp/big /tmp/guest/big && cmp /tmp/hole /tmp/guest/new/hole && cmp /tmp/dense "
         "/tmp/guest/dense");
    assert_int_equal(bt_guest_copy_out(link, "/tmp/guest/big", "/tmp/back", 3ULL << 30, &error), 0);
    assert_int_equal(bt_guest_copy_out(link, "/tmp/guest/dense", "/tmp/dense2", 3ULL << 30, &error), 0);
    here("cmp /tmp/big /tmp/back && cmp /tmp/dense /tmp/dense2 && test $(du -k /tmp/back | cut -f1) -lt "
         "10000");
    assert_in_range(peak_kilobytes() - before, 0, 32 * 1024);
    assert_int_equal(bt_guest_copy_out(link, "/tmp/guest/dense", "/tmp/dense3", 39 * MEGABYTE, &error),
                     -EFBIG);
    here("rm -rf /tmp/big /tmp/hole /tmp/dense* /tmp/back /tmp/guest");
    bt_guest_close(link);
}

static uint64_t progress_bytes;
static void on_progress(void *context, uint64_t bytes)
{
    (void)context;
    progress_bytes = bytes;
}

static void t_list_is_copied_and_nothing_else(void **state)
{
    (void)state;
    static const char names[] = "a/one\0two\0gone\0link";
    struct bt_guest_link *link = link_open();
    struct bt_error error = {0};
    here("mkdir -p /tmp/source/a; cd /tmp/source; echo 1 > a/one; echo 22 > two; echo 3 > unlisted; ln -s "
         "a/one link; "
         "ln -s /etc escape; mkdir -m 777 /tmp/guest");
    assert_int_equal(bt_guest_copy_list_in(link, "/tmp/source", names, sizeof(names), "/tmp/guest", 1000,
                                           1000, on_progress, NULL, &error),
                     0);
    assert_int_equal(progress_bytes, 5);
    here("cd /tmp/guest; test \"$(find . | sort | tr '\\n' ' ')\" = '. ./a ./a/one ./link ./two '");
    static const char through[] = "escape/passwd", outside[] = "../etc/passwd";
    assert_int_equal(bt_guest_copy_list_in(link, "/tmp/source", through, sizeof(through), "/tmp/guest", 1000,
                                           1000, NULL, NULL, &error),
                     -ELOOP);
    assert_int_equal(bt_guest_copy_list_in(link, "/tmp/source", outside, sizeof(outside), "/tmp/guest", 1000,
                                           1000, NULL, NULL, &error),
                     -EXDEV);
    here("rm -rf /tmp/source /tmp/guest");
    bt_guest_close(link);
}

static void t_copy_failures_say_why(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct bt_error error = {0};
    here("echo x > /tmp/file; mkdir -m 755 /tmp/closed");
    assert_int_equal(bt_guest_copy_in(link, "/tmp/file", "/tmp/closed/file", 1000, 1000, &error), -EIO);
    assert_non_null(strstr(error.message, "Permission denied"));
    assert_int_equal(bt_guest_copy_in(link, "/tmp/absent", "/tmp/x", 1000, 1000, &error), -ENOENT);
    assert_int_equal(bt_guest_copy_out(link, "/tmp/absent", "/tmp/y", 1000000, &error), -EIO);
    assert_non_null(strstr(error.message, "No such file"));
    assert_int_equal(bt_guest_copy_out(link, "/tmp/file", "/tmp/absent/y", 1000000, &error), -ENOENT);
    bt_guest_close(link);
    here("rm -rf /tmp/file /tmp/closed");
}

static void tar_entry(struct archive *archive, const char *name, unsigned type, const char *text)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, type);
    archive_entry_set_perm(entry, type == AE_IFREG ? 06755 : 0755);
    if (type == AE_IFLNK)
        archive_entry_set_symlink(entry, text);
    archive_entry_set_size(entry, type == AE_IFREG ? (la_int64_t)strlen(text) : 0);
    assert_int_equal(archive_write_header(archive, entry), ARCHIVE_OK);
    if (type == AE_IFREG)
        assert_int_equal(archive_write_data(archive, text, strlen(text)), strlen(text));
    archive_entry_free(entry);
}

struct evil_entry {
    const char *name;
    unsigned type;
    const char *text;
};

/* What a guest whose tar is the attacker's sends: these entries, whatever was asked for. */
static int copy_out_evil(const struct evil_entry *entries, size_t count, struct bt_error *error)
{
    struct archive *archive = archive_write_new();
    (void)archive_write_set_format_gnutar(archive);
    assert_int_equal(archive_write_open_filename(archive, "/tmp/evil.tar"), ARCHIVE_OK);
    for (size_t i = 0; i < count; i++)
        tar_entry(archive, entries[i].name, entries[i].type, entries[i].text);
    (void)archive_write_free(archive);
    here("rm -rf /tmp/out; mkdir -p /tmp/out; printf '#!/bin/sh\\nexec cat /tmp/evil.tar\\n' > "
         "/usr/local/sbin/tar; chmod 755 "
         "/usr/local/sbin/tar /tmp/evil.tar");
    struct bt_guest_link *link = link_open();
    int result = bt_guest_copy_out(link, "/w", "/tmp/out/w", 1000000, error);
    bt_guest_close(link);
    here("rm /usr/local/sbin/tar /tmp/evil.tar");
    return result;
}

static void t_hostile_archives(void **state)
{
    (void)state;
    struct bt_error error = {0};
    const struct evil_entry up[] = {{"w", AE_IFDIR, ""}, {"w/../../escape", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(up, 2, &error), -EINVAL);
    const struct evil_entry absolute[] = {{"w", AE_IFDIR, ""}, {"/tmp/escape", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(absolute, 2, &error), -EINVAL);
    const struct evil_entry second_top[] = {{"w", AE_IFDIR, ""}, {"other", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(second_top, 2, &error), -EINVAL);
    const struct evil_entry through[] = {
        {"w", AE_IFDIR, ""}, {"w/d", AE_IFDIR, ""}, {"w/l", AE_IFLNK, "d"}, {"w/l/file", AE_IFREG, "x"}};
    assert_true(copy_out_evil(through, 4, &error) < 0);
    here("test ! -e /tmp/out/w/d/file && test ! -e /tmp/escape && test ! -e /tmp/out/other && test ! -e "
         "/tmp/out/escape");
    const struct evil_entry links[] = {
        {"w", AE_IFDIR, ""},           {"w/abs", AE_IFLNK, "/etc/passwd"}, {"w/up", AE_IFLNK, "../x"},
        {"w/a", AE_IFDIR, ""},         {"w/a/top", AE_IFLNK, ".."},        {"w/a/out", AE_IFLNK, "top/../x"},
        {"w/a/ok", AE_IFLNK, "../up"}, {"w/device", AE_IFCHR, ""},         {"w/file", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(links, BT_ARRAY_LENGTH(links), &error), -EXDEV);
    here("cd /tmp/out/w; test \"$(find . | sort | tr '\\n' ' ')\" = '. ./a ./a/ok ./a/top ./file '; test "
         "$(stat -c %a file) = "
         "755");
    /* A link that is already here, put there by whoever: not followed. */
    const struct evil_entry plain[] = {
        {"w", AE_IFDIR, ""}, {"w/d", AE_IFDIR, ""}, {"w/d/file", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(plain, 3, &error), 0);
    static struct evil_entry many[2000];
    many[0] = plain[0];
    for (size_t i = 1; i < BT_ARRAY_LENGTH(many); i++)
        many[i] = (struct evil_entry){"w/same", AE_IFREG, ""};
    assert_int_equal(copy_out_evil(many, BT_ARRAY_LENGTH(many), &error), -EFBIG);
    here("rm -rf /tmp/out");
}

/* ---- the terminal
 * ---------------------------------------------------------------------------------------------- */

static void read_until(int fd, const char *wanted)
{
    char text[8192] = "";
    size_t length = 0;
    int64_t deadline_ms = bt_link_now_ms() + 10000;
    while (!strstr(text, wanted)) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (bt_link_now_ms() > deadline_ms || length > sizeof(text) - 1025 || poll(&poll_fd, 1, 10000) <= 0)
            fail_msg("no \"%s\" in \"%s\"", wanted, text);
        ssize_t count = read(fd, text + length, 1024);
        if (count <= 0)
            fail_msg("no \"%s\" in \"%s\" at its end", wanted, text);
        length += (size_t)count;
        text[length] = '\0';
    }
}

/* A child whose terminal is a new pseudo-terminal runs a command in the guest; it exits 100 when it was
 * detached from, 99 on failure, else with the status of the command. */
static pid_t terminal_start(const char *text, int *ret_fd)
{
    struct winsize size = {.ws_row = 33, .ws_col = 101};
    (void)fflush(stdout);
    pid_t pid = forkpty(ret_fd, NULL, NULL, &size);
    if (pid == 0) {
        struct bt_error error = {0};
        const char *const arguments[] = {"sh", "-c", text, NULL};
        const struct bt_guest_command command = command_of(arguments);
        struct bt_guest_link *link = link_open();
        int status = 0;
        bool is_detached = false;
        int result = bt_guest_terminal(link, &command, "\x10\x11", &status, &is_detached, &error);
        struct termios now;
        bool is_restored = tcgetattr(0, &now) == 0 && (now.c_lflag & (ECHO | ICANON)) == (ECHO | ICANON);
        bt_guest_close(link);
        if (result < 0)
            (void)dprintf(1, "%s\n", error.message);
        (void)dprintf(1, "restored=%d\n", is_restored);
        (void)tcdrain(1);
        (void)usleep(100000);
        _exit(result < 0 ? 99 : is_detached ? 100 : status);
    }
    return pid;
}

static int terminal_end(pid_t pid, int fd)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    (void)close(fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void type_text(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void t_terminal_size_input_and_status(void **state)
{
    (void)state;
    int fd = -1;
    pid_t pid =
        terminal_start("test -t 0 && test -t 1 && stty size; trap 'stty size' WINCH; echo ready; until read "
                       "line; do :; done; echo got:$line; "
                       "read line; exit 5",
                       &fd);
    read_until(fd, "33 101\r\nready");
    const struct winsize size = {.ws_row = 44, .ws_col = 122};
    assert_int_equal(ioctl(fd, TIOCSWINSZ, &size), 0);
    read_until(fd, "44 122");
    type_text(fd, "hello\n");
    read_until(fd, "got:hello");
    type_text(fd, "\n");
    read_until(fd, "restored=1");
    assert_int_equal(terminal_end(pid, fd), 5);
}

static void t_terminal_hides_the_request(void **state)
{
    (void)state;
    int fd = -1;
    pid_t pid = terminal_start("echo start; sleep 0.2; exit 0", &fd);
    char text[4096] = "";
    size_t length = 0;
    ssize_t count;
    while (length < sizeof(text) - 1 && (count = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)count;
    assert_null(memmem(text, length, "hello world", 11)); /* the environment */
    assert_non_null(memmem(text, length, "start", 5));
    assert_int_equal(terminal_end(pid, fd), 0);
}

static void t_terminal_detaches_and_is_restored(void **state)
{
    (void)state;
    int fd = -1;
    pid_t pid = terminal_start("echo started; stty raw -echo; cat", &fd);
    read_until(fd, "started");
    (void)usleep(300000);
    type_text(fd, "ab\x10");
    read_until(fd, "ab");
    read_until(fd, "\x10"); /* given up as a detach key after a second */
    type_text(fd, "\x10\x11");
    read_until(fd, "restored=1");
    assert_int_equal(terminal_end(pid, fd), 100);
}

static void t_terminal_is_restored_after_a_signal_and_a_broken_link(void **state)
{
    (void)state;
    int fd = -1;
    pid_t pid = terminal_start("echo started; sleep 60", &fd);
    read_until(fd, "started");
    struct termios now;
    assert_int_equal(tcgetattr(fd, &now), 0);
    assert_int_equal(now.c_lflag & (ECHO | ICANON), 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_int_equal(tcgetattr(fd, &now), 0);
    assert_int_equal(now.c_lflag & (ECHO | ICANON), ECHO | ICANON);
    (void)close(fd);

    pid = terminal_start("echo started; sleep 60", &fd);
    read_until(fd, "started");
    char *text = bt_string_format("kill -KILL $(pgrep -P %d)", server.pid); /* the connection's own process */
    here(text);
    free(text);
    read_until(fd, "restored=1");
    assert_int_equal(terminal_end(pid, fd), 99);
}

int main(void)
{
    /* Of whoever serves connections; a command has neither. */
    (void)signal(SIGHUP, SIG_IGN);
    guest_server_enter_namespaces();
    assert_int_equal(mount("tmpfs", "/usr/local/sbin", "tmpfs", 0, NULL), 0);
    guest_server_start(&server, 0x7f000001, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_run_status_streams_and_user),
        cmocka_unit_test(t_many_megabytes_both_ways_at_once),
        cmocka_unit_test(t_stream_survives_new_keys),
        cmocka_unit_test(t_input_bytes_then_descriptor_then_end),
        cmocka_unit_test(t_unread_input_does_not_hang),
        cmocka_unit_test(t_slow_reader_holds_the_command_back),
        cmocka_unit_test(t_output_limit_and_timeout),
        cmocka_unit_test(t_nothing_is_executed_for_a_connection_that_has_ended),
        cmocka_unit_test(t_wrong_host_key_is_refused),
        cmocka_unit_test(t_connect_waits_for_a_late_server_and_no_longer),
        cmocka_unit_test(t_tree_of_ten_thousand_files_and_back),
        cmocka_unit_test(t_two_gigabytes_with_little_memory),
        cmocka_unit_test(t_list_is_copied_and_nothing_else),
        cmocka_unit_test(t_copy_failures_say_why),
        cmocka_unit_test(t_hostile_archives),
        cmocka_unit_test(t_terminal_size_input_and_status),
        cmocka_unit_test(t_terminal_hides_the_request),
        cmocka_unit_test(t_terminal_detaches_and_is_restored),
        cmocka_unit_test(t_terminal_is_restored_after_a_signal_and_a_broken_link),
    };
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    guest_server_free(&server);
    return result;
}
