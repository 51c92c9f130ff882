/* Files that are not its own: the root, the kernel's folders, devices, mounts, descriptors left open. */
#include "tests/attack/hostile/hostile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* write PATH: opens it; of a folder, makes a file in it. Nothing is written into what opens. */
static void try_write(char **words)
{
    struct stat found;
    char path[512];
    (void)snprintf(path, sizeof(path), "%s", words[0]);
    bool is_folder = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
    if (is_folder)
        (void)snprintf(path, sizeof(path), "%s/hostile-was-here", words[0]);
    int fd = open(path, O_WRONLY | O_CLOEXEC | (is_folder ? O_CREAT : 0), 0600);
    if (fd >= 0 && fstat(fd, &found) == 0 && S_ISCHR(found.st_mode) && found.st_rdev == makedev(1, 3))
        (void)printf("refused by a null device in its place");
    else
        outcome(fd, "opened for writing");
}

/* read PATH: how much of it is there. */
static void try_read(char **words)
{
    char data[4096];
    int fd = open(words[0], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t length = fd < 0 ? -1 : read(fd, data, sizeof(data));
    if (length < 0)
        refused();
    else if (length == 0)
        (void)printf("empty");
    else
        (void)printf("done read %zd", length);
}

/* list PATH: how many entries. */
static void try_list(char **words)
{
    DIR *folder = opendir(words[0]);
    unsigned count = 0;
    if (folder == NULL) {
        refused();
        return;
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += entry->d_name[0] != '.';
    (void)closedir(folder);
    if (count == 0)
        (void)printf("empty");
    else
        (void)printf("done listed %u", count);
}

/* node PATH b|c MAJOR MINOR: makes a device and opens it. */
static void try_node(char **words)
{
    mode_t kind = words[1][0] == 'b' ? S_IFBLK : S_IFCHR;
    dev_t device = makedev((unsigned)number_of(words[2]), (unsigned)number_of(words[3]));
    if (mknod(words[0], kind | 0600, device) < 0) {
        refused();
        return;
    }
    outcome(open(words[0], O_RDWR | O_CLOEXEC | O_NONBLOCK), "opened a device");
    (void)unlink(words[0]);
}

/* mount SOURCE TARGET TYPE FLAGS */
static void try_mount(char **words)
{
    outcome(mount(words[0], words[1], words[2], (unsigned long)number_of(words[3]), NULL), "mounted");
}

/* umount PATH */
static void try_umount(char **words)
{
    outcome(umount2(words[0], MNT_DETACH), "taken away");
}

/* root PATH: another root, by chroot(2) and pivot_root(2). */
static void try_root(char **words)
{
    if (chroot(words[0]) == 0)
        done("chroot");
    else
        outcome(syscall(SYS_pivot_root, words[0], words[0]), "pivot_root");
}

/* handle PATH: a file by its number (open_by_handle_at), which knows no root. */
static void try_handle(char **words)
{
    struct file_handle *handle = calloc(1, sizeof(*handle) + 128);
    int mount_id = 0;
    if (handle == NULL)
        return;
    handle->handle_bytes = 128;
    int fd = open(words[0], O_RDONLY | O_CLOEXEC);
    if (name_to_handle_at(AT_FDCWD, words[0], handle, &mount_id, 0) < 0)
        refused();
    else
        outcome(open_by_handle_at(fd, handle, O_RDONLY), "opened by handle");
}

/* link TARGET PATH: a hard link to somebody else's file. */
static void try_hard_link(char **words)
{
    outcome(link(words[0], words[1]), "linked");
    (void)unlink(words[1]);
}

/* left-open: descriptors that whoever started it forgot; 0, 1 and 2 are pipes of its own. */
static void try_left_open(char **words)
{
    char path[64], target[256];
    unsigned count = 0;
    (void)words;
    for (int fd = 3; fd < 1024; fd++) {
        if (fcntl(fd, F_GETFD) < 0)
            continue;
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        target[length < 0 ? 0 : length] = '\0';
        (void)printf("%s%d:%s", count++ == 0 ? "done " : " ", fd, target);
    }
    if (count == 0)
        (void)printf("none");
}

const struct attempt file_attempts[] = {
    {"write", try_write},       {"read", try_read},           {"list", try_list}, {"node", try_node},
    {"mount", try_mount},       {"umount", try_umount},       {"root", try_root}, {"handle", try_handle},
    {"link-to", try_hard_link}, {"left-open", try_left_open}, {NULL, NULL},
};
