/* Doctor: what the machine offers. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/backend.h"
#include "frontend/doctor.h"
#include "vm/kvm_probe.h"
#include "vm/machine.h"

#define BT_TUN_MAJOR 10U
#define BT_TUN_MINOR 200U
#define BT_DISK_FAIL_BYTES (1ULL << 30)
#define BT_DISK_WARN_BYTES (5ULL << 30)
#define BT_MEMORY_WARN_BYTES (1ULL << 30)
#define BT_LANDLOCK_CREATE_RULESET 444L
#define BT_LANDLOCK_VERSION 1U

static void bt_doctor_tun(struct bt_doctor *doctor)
{
    static const char advice[] = "load it: modprobe tun; in a container, pass the device in";
    struct stat status;

    if (stat("/dev/net/tun", &status) < 0)
        bt_doctor_add(doctor, BT_HEALTH_FAIL, "/dev/net/tun", advice, "/dev/net/tun: %s", strerror(errno));
    else if (!S_ISCHR(status.st_mode) || major(status.st_rdev) != BT_TUN_MAJOR ||
             minor(status.st_rdev) != BT_TUN_MINOR)
        bt_doctor_add(doctor, BT_HEALTH_FAIL, "/dev/net/tun", advice, "/dev/net/tun is not the TUN device");
    else
        bt_doctor_add(doctor, BT_HEALTH_OK, "/dev/net/tun", NULL, "present; the helper opens it");
}

static void bt_doctor_vmm(struct bt_doctor *doctor)
{
    struct bt_error error = {0};
    bool uses_kvm = false;
    char reason[200] = "";

    if (bt_machine_check(&uses_kvm, &error) < 0) {
        bt_doctor_add(doctor, BT_HEALTH_FAIL, "qemu", *error.hint ? error.hint : NULL, "%s", error.message);
        return;
    }
    bt_doctor_add(doctor, BT_HEALTH_OK, "qemu", NULL, "qemu-system-x86_64 with the microvm machine");
    /* Asked even when the check said no: it gives the reason. */
    if (bt_kvm_works(reason, sizeof(reason)) && uses_kvm)
        bt_doctor_add(doctor, BT_HEALTH_OK, "KVM", NULL, "works");
    else
        bt_doctor_add(
            doctor, BT_HEALTH_WARN, "KVM",
            "guests work without it, some ten times slower; join the group kvm, or switch virtualisation on",
            "not usable%s%s: guests are emulated (TCG)", *reason ? ": " : "", reason);
}

/* Containers need nothing of berth but an engine; that there is none is no failure. */
static void bt_doctor_docker(struct bt_doctor *doctor)
{
    struct bt_error error = {0};
    int r = bt_backend_docker.check(&error);

    if (r == 0)
        bt_doctor_add(doctor, BT_HEALTH_OK, "docker", NULL,
                      "a container engine answers; --backend docker uses it (the weakest boundary)");
    else if (r == -ENOENT && !getenv("DOCKER_HOST"))
        bt_doctor_add(doctor, BT_HEALTH_OK, "docker", NULL,
                      "no container engine is here, and none is needed but for --backend docker");
    else
        bt_doctor_add(doctor, BT_HEALTH_WARN, "docker", *error.hint ? error.hint : NULL, "%s", error.message);
    if (r == 0 && access("/proc/sys/net/bridge", F_OK) < 0)
        bt_doctor_add(
            doctor, BT_HEALTH_WARN, "br_netfilter", "modprobe br_netfilter",
            "is not loaded: what agents in containers send to their own gateway is not filtered by port");
}

/* In a child, since a namespace cannot be left. */
static void bt_doctor_namespaces(struct bt_doctor *doctor)
{
    int status = -1;
    pid_t child = fork();

    if (child == 0)
        _exit(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 ? 0 : 1);
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        bt_doctor_add(doctor, BT_HEALTH_OK, "namespaces", NULL, "VMMs get an empty network namespace");
    else
        bt_doctor_add(doctor, BT_HEALTH_WARN, "namespaces",
                      "the jail then rests on seccomp and Landlock; sysctl "
                      "kernel.unprivileged_userns_clone=1 allows them",
                      "user namespaces are not permitted to you");
}

static void bt_doctor_landlock(struct bt_doctor *doctor)
{
    long version = syscall(BT_LANDLOCK_CREATE_RULESET, NULL, 0, BT_LANDLOCK_VERSION);

    if (version > 0)
        bt_doctor_add(doctor, BT_HEALTH_OK, "Landlock", NULL, "ABI %ld", version);
    else
        bt_doctor_add(doctor, BT_HEALTH_WARN, "Landlock", "add landlock to the kernel's lsm= list",
                      "not available: a VMM can read what you can read");
}

static void bt_doctor_memory(struct bt_doctor *doctor)
{
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long available = 0;
    char line[128], text[BT_OUTPUT_TEXT_SIZE];

    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "MemAvailable:", 13) == 0)
            available = strtoull(line + 13, NULL, 10) * 1024;
    }
    if (file)
        fclose(file);
    bt_output_bytes(available, text);
    if (available < BT_MEMORY_WARN_BYTES)
        bt_doctor_add(doctor, BT_HEALTH_WARN, "memory",
                      "end something else, or give agents less in their bottles",
                      "%s available; a guest takes a few hundred MiB and more as it works", text);
    else
        bt_doctor_add(doctor, BT_HEALTH_OK, "memory", NULL, "%s available", text);
}

/* Of the file system that a folder is, or will be, on. */
static void bt_doctor_disk(struct bt_doctor *doctor, const char *name, const char *path)
{
    bt_auto_free char *at = bt_string_copy(path);
    char text[BT_OUTPUT_TEXT_SIZE];
    struct statvfs status;
    uint64_t bytes;
    enum bt_health health;

    while (statvfs(at, &status) < 0) {
        char *slash = strrchr(at, '/');
        if (!slash || slash == at) {
            bt_doctor_add(doctor, BT_HEALTH_WARN, name, NULL, "cannot look at %s: %s", path, strerror(errno));
            return;
        }
        *slash = '\0';
    }
    bytes = (uint64_t)status.f_bavail * status.f_frsize;
    bt_output_bytes(bytes, text);
    health = bytes < BT_DISK_FAIL_BYTES   ? BT_HEALTH_FAIL
             : bytes < BT_DISK_WARN_BYTES ? BT_HEALTH_WARN
                                          : BT_HEALTH_OK;
    bt_doctor_add(doctor, health, name,
                  health == BT_HEALTH_OK ? NULL
                                         : "free some space there: berth cleanup images, berth cleanup bots",
                  "%s free for %s", text, path);
}

void bt_doctor_machine(struct bt_doctor *doctor)
{
    bt_doctor_tun(doctor);
    bt_doctor_vmm(doctor);
    bt_doctor_docker(doctor);
    bt_doctor_namespaces(doctor);
    bt_doctor_landlock(doctor);
    bt_doctor_memory(doctor);
    bt_doctor_disk(doctor, "state space", doctor->context->paths.state);
    bt_doctor_disk(doctor, "image space", doctor->context->paths.images);
}
