/* The first process of a container: takes its files from standard input, starts what the container exists
 * for, reaps, and ends when the host asks or goes away. See vm/container_protocol.h.
 *
 * Called by main as process 1; never returns. Root here has no capability: whatever it must own, it makes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vm/container_protocol.h"
#include "vm/init/init.h"

#define PROGRAMS "/berth/bin"
#define FILE_HEADER_LENGTH 12U
#define NAME_MAX_LENGTH 200U

static void read_exactly(void *to, size_t length)
{
    size_t done = 0;
    while (done < length) {
        ssize_t count = read(STDIN_FILENO, (char *)to + done, length - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            bt_init_fatal("the host went away before it had sent the configuration");
        done += (size_t)count;
    }
}

/* Relative, no part that leads upwards. */
static bool is_name_safe(const char *name)
{
    for (const char *part = name; part != NULL;) {
        const char *end = strchr(part, '/');
        size_t length = end != NULL ? (size_t)(end - part) : strlen(part);
        if (length == 0 || strncmp(part, ".", length) == 0 || strncmp(part, "..", length) == 0)
            return false;
        part = end != NULL ? end + 1 : NULL;
    }
    return true;
}

static void make_parents(char *path)
{
    for (char *slash = strchr(path + sizeof(BT_INIT_RUN_FOLDER), '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            bt_init_fatal("cannot make a folder below %s: %s", BT_INIT_RUN_FOLDER, strerror(errno));
        *slash = '/';
    }
}

static void copy_content(int file_fd, size_t length)
{
    static char chunk[65536];
    while (length > 0) {
        size_t part = length < sizeof(chunk) ? length : sizeof(chunk);
        read_exactly(chunk, part);
        for (size_t done = 0; done < part;) {
            ssize_t count = write(file_fd, chunk + done, part - done);
            if (count < 0 && errno != EINTR)
                bt_init_fatal("cannot write below %s: %s", BT_INIT_RUN_FOLDER, strerror(errno));
            done += count > 0 ? (size_t)count : 0;
        }
        length -= part;
    }
    explicit_bzero(chunk, sizeof(chunk));
}

/* Takes one file; returns how many bytes of the configuration it was. */
static size_t receive_file(size_t left)
{
    static const char prefix[] = BT_INIT_RUN_FOLDER "/";
    uint8_t header[FILE_HEADER_LENGTH];
    char path[sizeof(prefix) + NAME_MAX_LENGTH];
    char *name = path + sizeof(prefix) - 1;
    if (left < sizeof(header))
        bt_init_fatal("the configuration is cut off");
    read_exactly(header, sizeof(header));
    size_t name_length = bt_load_u32(header + 4);
    size_t length = bt_load_u32(header + 8);
    if (name_length > NAME_MAX_LENGTH || length > left || name_length + length > left - sizeof(header))
        bt_init_fatal("the configuration is not valid");
    memcpy(path, prefix, sizeof(prefix));
    read_exactly(name, name_length);
    name[name_length] = '\0';
    if (strlen(name) != name_length || !is_name_safe(name))
        bt_init_fatal("the configuration has a file with a name that is not valid");
    make_parents(path);
    bt_auto_fd file_fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_fd < 0)
        bt_init_fatal("cannot write %s: %s", path, strerror(errno));
    copy_content(file_fd, length);
    if (fchmod(file_fd, bt_load_u32(header) & 0777U) < 0)
        bt_init_fatal("cannot set the mode of %s: %s", path, strerror(errno));
    return sizeof(header) + name_length + length;
}

static void receive_configuration(void)
{
    uint8_t header[8];
    read_exactly(header, sizeof(header));
    size_t left = bt_load_u32(header + 4);
    if (bt_load_u32(header) != BT_CONTAINER_MAGIC || left > BT_CONTAINER_LENGTH_MAX)
        bt_init_fatal("what the host sent is no configuration");
    while (left > 0)
        left -= receive_file(left);
}

void bt_init_container(const char *role)
{
    static const char *const gateway[] = {PROGRAMS "/berth-gateway",
                                          BT_INIT_RUN_FOLDER "/config/gateway.json", NULL};
    static const char *const orchestrator[] = {PROGRAMS "/berth-orchestrator",
                                               BT_INIT_RUN_FOLDER "/config/orchestrator.json", NULL};
    struct bt_init_service service = {.id = geteuid(), .is_container = true};
    if (strcmp(role, "gateway") == 0)
        service.arguments = gateway;
    else if (strcmp(role, "orchestrator") == 0)
        service.arguments = orchestrator;
    (void)umask(022);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* what it holds is not for a process of the same user */
    if (mkdir(BT_INIT_RUN_FOLDER, 0711) < 0)
        bt_init_fatal("cannot make %s: %s", BT_INIT_RUN_FOLDER, strerror(errno));
    receive_configuration();
    if (service.arguments == NULL && !bt_init_is_kernel_whole()) {
        int result = bt_init_make_up_for_kernel(BT_INIT_RUN_FOLDER "/preload.so", BT_CONTAINER_PRELOAD);
        if (result < 0)
            bt_init_fatal("cannot write below %s: %s", BT_INIT_RUN_FOLDER, strerror(-result));
    }
    (void)dprintf(STDOUT_FILENO, BT_CONTAINER_READY "\n");
    bt_init_serve(&service);
}
