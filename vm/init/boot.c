/* The boot of a guest, from the kernel's first process to the program that it exists for. Called by main as
 * PID 1; never returns. Whatever goes wrong ends the machine with "berth-init: fatal: ..." on its console.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "vm/init/init.h"
#include "vm/init/login.h"
#include "vm/trust_stores.h"

#define PROGRAMS BT_INIT_RUN_FOLDER "/bin"

static void open_console(void)
{
    int console_fd = open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (console_fd < 0)
        return;
    for (int fd = 0; fd < 3; fd++)
        (void)dup2(console_fd, fd);
    if (console_fd > 2)
        (void)close(console_fd);
}

static void read_settings(struct bt_settings *ret_settings)
{
    static char text[BT_SETTINGS_LENGTH_MAX];
    size_t length;
    unsigned line;
    int result = bt_init_read_file(BT_INIT_CONFIG_FOLDER "/guest.conf", text, sizeof(text), &length);
    if (result < 0)
        bt_init_fatal("cannot read guest.conf: %s", strerror(-result));
    if (bt_settings_parse(text, length, ret_settings, &line) < 0)
        bt_init_fatal("guest.conf is not valid (line %u)", line);
}

/* The machine's clock, which is the host's, unless there is none: then the time of the host when it wrote
 * guest.conf, plus the time since this kernel started, which is behind by what lay between the two. */
static void set_clock(uint64_t host_seconds)
{
    struct timespec now;
    if (host_seconds == 0 || clock_gettime(CLOCK_REALTIME, &now) < 0)
        return;
    time_t wanted = (time_t)(host_seconds + bt_init_now_ms() / 1000);
    if (now.tv_sec >= wanted - 1)
        return;
    struct timespec corrected = {.tv_sec = wanted};
    if (clock_settime(CLOCK_REALTIME, &corrected) < 0)
        bt_init_say("cannot set the clock: %s", strerror(errno));
}

static void write_or_die(const char *path, const char *text, mode_t mode)
{
    int result = bt_init_write_file(path, text, mode);
    if (result < 0)
        bt_init_fatal("cannot write %s: %s", path, strerror(-result));
}

static void write_agent_files(const struct bt_settings *settings)
{
    char text[256];
    char resolver[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(settings->gateway, resolver);
    (void)snprintf(text, sizeof(text), "nameserver %s\noptions timeout:3 attempts:2\n", resolver);
    write_or_die("/etc/resolv.conf", text, 0644);
    (void)snprintf(text, sizeof(text), "%s\n", settings->host_name);
    write_or_die("/etc/hostname", text, 0644);
    (void)snprintf(text, sizeof(text), "127.0.0.1 localhost\n127.0.1.1 %s\n::1 localhost ip6-localhost\n",
                   settings->host_name);
    write_or_die("/etc/hosts", text, 0644);
}

/* See vm/trust_stores.h. */
static void link_trust(void)
{
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bt_trust_stores); i++) {
        char store[64], target[64];
        (void)snprintf(store, sizeof(store), "/%s", bt_trust_stores[i].path);
        (void)snprintf(target, sizeof(target), BT_INIT_RUN_FOLDER "/%s", bt_trust_stores[i].file);
        if (access(target, F_OK) < 0)
            continue;
        if ((unlink(store) < 0 && errno != ENOENT && errno != ENOTDIR) ||
            (symlink(target, store) < 0 && errno != ENOENT && errno != ENOTDIR))
            bt_init_say("cannot replace %s: %s", store, strerror(errno));
    }
}

static void boot_agent(const struct bt_settings *settings)
{
    static const char host_key[] = BT_INIT_RUN_FOLDER "/dropbear_ed25519_host_key";
    /* In the foreground, to the console; no passwords, no forwarding either way. */
    static const char *const arguments[] = {
        "/usr/sbin/dropbear", "-F", "-E", "-s", "-j", "-k", "-p", "22", "-P", "/run/dropbear.pid", "-r",
        host_key,
        /* Copies of workspaces come through here: the default window of 24 KiB halves their speed. */
        "-W", "1048576", NULL};
    static const struct bt_init_service dropbear = {.arguments = arguments};
    bt_init_enter_agent_root(settings);
    bt_init_make_group();
    write_agent_files(settings);
    link_trust();
    bt_login_prepare();
    bt_init_serve(&dropbear);
}

static void boot_gateway(void)
{
    static const char *const arguments[] = {PROGRAMS "/berth-gateway",
                                            BT_INIT_RUN_FOLDER "/config/gateway.json", NULL};
    static const struct bt_init_service gateway = {
        .arguments = arguments, .id = BT_INIT_GATEWAY_ID, .watches_memory = true};
    bt_init_mount_run_folder();
    /* It listens on 53, 80 and 443 without any capability. */
    if (bt_init_set_kernel("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0") < 0)
        bt_init_fatal("cannot open the low ports to the gateway");
    (void)bt_init_set_kernel("/proc/sys/net/ipv4/ip_forward", "0");
    /* What sockets may hold in all, in pages, whatever the machine's size: a part of what the gateway leaves
     * to its system (policy/gateway/budget.c). */
    (void)bt_init_set_kernel("/proc/sys/net/ipv4/tcp_mem", "3840 5120 7680");
    bt_init_give_folder(BT_INIT_RUN_FOLDER "/config", BT_INIT_GATEWAY_ID);
    bt_init_serve(&gateway);
}

static void boot_orchestrator(const struct bt_settings *settings)
{
    static const char *const arguments[] = {PROGRAMS "/berth-orchestrator",
                                            BT_INIT_RUN_FOLDER "/config/orchestrator.json", NULL};
    static const struct bt_init_service orchestrator = {.arguments = arguments,
                                                        .id = BT_INIT_ORCHESTRATOR_ID};
    bt_init_mount_run_folder();
    bt_init_mount_registry(settings);
    (void)bt_init_set_kernel("/proc/sys/net/ipv4/ip_forward", "0");
    bt_init_give_folder(BT_INIT_RUN_FOLDER "/config", BT_INIT_ORCHESTRATOR_ID);
    bt_init_serve(&orchestrator);
}

/* The same program serves "berth-init run" in the running guest. */
static void install_self(void)
{
    static const char target[] = BT_INIT_CONFIG_FOLDER "/bin/berth-init";
    if (access(target, X_OK) == 0)
        return;
    (void)mkdir(BT_INIT_CONFIG_FOLDER "/bin", 0755);
    if (link("/init", target) == 0)
        return;
    int result = bt_init_copy_file("/proc/self/exe", target, 0755);
    if (result < 0)
        bt_init_fatal("cannot install berth-init: %s", strerror(-result));
}

void bt_init_boot(void)
{
    struct bt_settings settings;
    (void)umask(022);
    bt_init_mount_kernel_folders();
    open_console();
    read_settings(&settings);
    bt_init_load_modules();
    install_self();
    set_clock(settings.time_seconds);
    if (sethostname(settings.host_name, strlen(settings.host_name)) < 0)
        bt_init_fatal("cannot set the host name: %s", strerror(errno));
    (void)chmod(BT_INIT_CONFIG_FOLDER, 0711);
    bt_init_start_network(&settings);
    switch (settings.role) {
    case BT_SETTINGS_AGENT:
        boot_agent(&settings);
        break;
    case BT_SETTINGS_GATEWAY:
        boot_gateway();
        break;
    case BT_SETTINGS_ORCHESTRATOR:
        boot_orchestrator(&settings);
        break;
    }
    bt_init_fatal("guest.conf names no role");
}
