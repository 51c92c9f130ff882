/* File systems of a guest. Called once by the boot, in the order of init.h.
 *
 * An agent's root is the shared read-only image under an overlay whose upper layer is the scratch disk.
 * Nothing that an agent can write to is mounted with set-id programs or device nodes.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "vm/init/init.h"

#define NEW_ROOT "/newroot"
#define LOWER "/lower"
#define SCRATCH "/scratch"
#define DISK_WAIT_MS 2000U
#define DISK_PATH_SIZE 64

static void mount_or_die(const char *source, const char *target, const char *type, unsigned long flags,
                         const char *options)
{
    if (mount(source, target, type, flags, options) < 0)
        bt_init_fatal("cannot mount %s at %s: %s", type != NULL ? type : source, target, strerror(errno));
}

static void make_folder_or_die(const char *path, mode_t mode, unsigned id)
{
    int result = bt_init_make_folder(path, mode, id, id);
    if (result < 0)
        bt_init_fatal("cannot make the folder %s: %s", path, strerror(-result));
}

static void link_descriptors(void)
{
    static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                           {"/proc/self/fd/0", "/dev/stdin"},
                                           {"/proc/self/fd/1", "/dev/stdout"},
                                           {"/proc/self/fd/2", "/dev/stderr"}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(links); i++)
        if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST)
            bt_init_say("cannot make %s: %s", links[i][1], strerror(errno));
}

void bt_init_mount_kernel_folders(void)
{
    (void)mkdir("/proc", 0555);
    (void)mkdir("/sys", 0555);
    (void)mkdir("/dev", 0755);
    mount_or_die("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_or_die("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_or_die("devtmpfs", "/dev", "devtmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755");
    (void)mkdir("/dev/pts", 0755);
    (void)mkdir("/dev/shm", 01777);
    mount_or_die("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666");
    mount_or_die("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    link_descriptors();
}

/* The monitor gives the disks the serial numbers disk0, disk1, ... in their order: virtio-mmio devices are
 * not numbered by the kernel in the order in which they were attached. */
static bool has_serial(const char *device, int place)
{
    char path[320];
    char serial[64];
    char wanted[16];
    size_t length;
    int written = snprintf(path, sizeof(path), "/sys/block/%s/serial", device);
    (void)snprintf(wanted, sizeof(wanted), "disk%d", place);
    if (written < 0 || (size_t)written >= sizeof(path) ||
        bt_init_read_file(path, serial, sizeof(serial), &length) < 0)
        return false;
    serial[strcspn(serial, "\n")] = '\0';
    return strcmp(serial, wanted) == 0;
}

static bool find_disk(int place, char ret_path[DISK_PATH_SIZE])
{
    bool is_found = false;
    DIR *devices = opendir("/sys/block");
    for (struct dirent *entry = devices != NULL ? readdir(devices) : NULL; entry != NULL && !is_found;
         entry = readdir(devices)) {
        if (!has_serial(entry->d_name, place))
            continue;
        int length = snprintf(ret_path, DISK_PATH_SIZE, "/dev/%s", entry->d_name);
        is_found = length > 0 && length < DISK_PATH_SIZE;
    }
    if (devices != NULL)
        (void)closedir(devices);
    return is_found;
}

static void mount_disk(int place, const char *target, unsigned long flags, const char *what)
{
    char path[DISK_PATH_SIZE];
    uint64_t deadline_ms = bt_init_now_ms() + DISK_WAIT_MS;
    while (!find_disk(place, path)) {
        if (bt_init_now_ms() > deadline_ms)
            bt_init_fatal("this machine has no %s disk (number %d)", what, place);
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    if (mount(path, target, "ext4", flags | MS_NOATIME, NULL) < 0)
        bt_init_fatal("cannot mount the %s disk %s: %s", what, path, strerror(errno));
}

static void mount_overlay(const struct bt_settings *settings)
{
    make_folder_or_die(LOWER, 0755, 0);
    make_folder_or_die(SCRATCH, 0700, 0);
    make_folder_or_die(NEW_ROOT, 0755, 0);
    mount_disk(settings->root_disk, LOWER, MS_RDONLY, "root");
    if (settings->scratch_disk != BT_SETTINGS_NO_DISK)
        mount_disk(settings->scratch_disk, SCRATCH, 0, "scratch");
    else
        mount_or_die("tmpfs", SCRATCH, "tmpfs", 0, "mode=0700");
    make_folder_or_die(SCRATCH "/upper", 0755, 0);
    make_folder_or_die(SCRATCH "/work", 0700, 0);
    mount_or_die("overlay", NEW_ROOT, "overlay", MS_NOSUID | MS_NODEV | MS_NOATIME,
                 "lowerdir=" LOWER ",upperdir=" SCRATCH "/upper,workdir=" SCRATCH "/work");
}

static void mount_agent_disk(int place, const char *target, const char *what)
{
    if (place == BT_SETTINGS_NO_DISK)
        return;
    make_folder_or_die(target, 0755, BT_INIT_AGENT_ID);
    mount_disk(place, target, MS_NOSUID | MS_NODEV, what);
    /* A new file system belongs to root. */
    make_folder_or_die(target, 0755, BT_INIT_AGENT_ID);
}

static void move_folder(const char *folder)
{
    char target[64];
    (void)snprintf(target, sizeof(target), NEW_ROOT "%s", folder);
    (void)mkdir(target, 0755);
    mount_or_die(folder, target, NULL, MS_MOVE, NULL);
}

/* /berth of the initrd appears as /run/berth: the files stay where the kernel unpacked them, in memory. */
static void bind_config(const char *run_folder)
{
    char target[64];
    mount_or_die("tmpfs", run_folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=64m");
    (void)snprintf(target, sizeof(target), "%s/berth", run_folder);
    make_folder_or_die(target, 0711, 0);
    mount_or_die(BT_INIT_CONFIG_FOLDER, target, NULL, MS_BIND, NULL);
    if (mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV, NULL) < 0)
        bt_init_fatal("cannot protect %s: %s", target, strerror(errno));
}

void bt_init_mount_run_folder(void)
{
    (void)mkdir("/run", 0755);
    bind_config("/run");
}

void bt_init_enter_agent_root(const struct bt_settings *settings)
{
    mount_overlay(settings);
    (void)mkdir(NEW_ROOT "/run", 0755);
    bind_config(NEW_ROOT "/run");
    move_folder("/dev");
    move_folder("/sys");
    move_folder("/proc");
    (void)unlink("/init");
    if (chdir(NEW_ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        bt_init_fatal("cannot enter the root image: %s", strerror(errno));
    make_folder_or_die("/home", 0755, 0);
    mount_agent_disk(settings->home_disk, "/home/agent", "home");
    mount_agent_disk(settings->workspace_disk, "/workspace", "workspace");
    /* git clones into an empty folder only, and a folder of root's is no part of a workspace; e2fsck makes it
     * again. */
    (void)rmdir("/home/agent/lost+found");
    (void)rmdir("/workspace/lost+found");
    if (settings->workspace_disk == BT_SETTINGS_NO_DISK)
        make_folder_or_die("/workspace", 0755, BT_INIT_AGENT_ID);
    if (chmod("/tmp", 01777) < 0)
        bt_init_say("the root image has no /tmp");
}

void bt_init_mount_registry(const struct bt_settings *settings)
{
    (void)mkdir("/var", 0755);
    (void)mkdir("/var/lib", 0755);
    make_folder_or_die("/var/lib/berth", 0700, BT_INIT_ORCHESTRATOR_ID);
    if (settings->registry_disk == BT_SETTINGS_NO_DISK)
        return;
    mount_disk(settings->registry_disk, "/var/lib/berth", MS_NOSUID | MS_NODEV | MS_NOEXEC, "registry");
    make_folder_or_die("/var/lib/berth", 0700, BT_INIT_ORCHESTRATOR_ID);
}

void bt_init_unmount_disks(void)
{
    static const char *const targets[] = {"/home/agent", "/workspace", "/var/lib/berth"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(targets); i++)
        if (umount2(targets[i], UMOUNT_NOFOLLOW) < 0 && errno == EBUSY)
            (void)mount(NULL, targets[i], NULL, MS_REMOUNT | MS_RDONLY, NULL);
}
