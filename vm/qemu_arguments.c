/* Builds qemu's command line. Called by the qemu driver. Must not put anything secret there: keys and
 * configuration travel in the initrd, which is a descriptor.
 */
#include "vm/qemu_arguments.h"

#include <inttypes.h>
#include <string.h>

/* What every guest kernel is told. Landlock stays available to programs of the guest (harnesses use it). */
#define KERNEL_COMMON                                                                                        \
    "quiet panic=-1 audit=0 apparmor=0 lsm=landlock,yama cryptomgr.notests=1 8250.nr_uarts=1 "               \
    "random.trust_cpu=on"
/* Emulation: no calibration loops (they take long and may not end), no defence against processors that it is
 * not. */
#define KERNEL_EMULATED " no_timer_check lpj=1000000 mitigations=off nokaslr noreplace-smp"

static void add(struct bt_list *arguments, const char *option, const char *value)
{
    bt_list_add(arguments, option);
    bt_list_add(arguments, value);
}

/* qemu doubles commas inside a value. */
static char *escape_commas(const char *text)
{
    size_t length = strlen(text);
    char *escaped = bt_new(2 * length + 1, 1);
    size_t out = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == ',')
            escaped[out++] = ',';
        escaped[out++] = text[i];
    }
    return escaped;
}

static void add_machine(struct bt_list *arguments, const struct bt_machine_config *config, bool uses_kvm)
{
#if defined(__x86_64__)
    add(arguments, "-machine", "microvm,acpi=on,usb=off,dump-guest-core=off,mem-merge=off");
    /* Five-level page tables only make emulated memory slower. */
    add(arguments, "-cpu", uses_kvm ? "host" : "max,la57=off");
#else
    add(arguments, "-machine", "virt,dump-guest-core=off,mem-merge=off");
    add(arguments, "-cpu", uses_kvm ? "host" : "max");
#endif
    add(arguments, "-accel", uses_kvm ? "kvm" : "tcg,thread=multi,tb-size=256");
    bt_list_add(arguments, "-m");
    bt_list_add_format(arguments, "%" PRIu64 "M", config->memory_bytes / (1024U * 1024U));
    bt_list_add(arguments, "-smp");
    bt_list_add_format(arguments, "%u", config->cpus);
}

static void add_kernel(struct bt_list *arguments, const struct bt_machine_config *config, bool uses_kvm,
                       uint64_t tsc_khz)
{
    add(arguments, "-kernel", config->kernel_path);
    bt_list_add(arguments, "-initrd");
    bt_list_add_format(arguments, "/proc/self/fd/%d", BT_QEMU_FD_INITRD);
    bt_auto_free char *clock = NULL;
#if defined(__x86_64__)
    const char *console = "console=ttyS0 ";
    /* The emulated counter is the host's: with its true frequency the guest's clock is right and it can
     * sleep. */
    if (!uses_kvm && tsc_khz != 0)
        clock = bt_string_format(" tsc_early_khz=%" PRIu64 " tsc=reliable", tsc_khz);
#else
    const char *console = "console=ttyAMA0 ";
    (void)tsc_khz;
#endif
    bt_list_add(arguments, "-append");
    bt_list_add_format(arguments, "%s%s%s%s", console, KERNEL_COMMON, uses_kvm ? "" : KERNEL_EMULATED,
                       clock != NULL ? clock : "");
}

/* The console is qemu's standard input and output; QMP is an inherited socket. */
static void add_channels(struct bt_list *arguments)
{
    add(arguments, "-chardev", "stdio,id=console,signal=off");
    add(arguments, "-serial", "chardev:console");
    bt_list_add(arguments, "-chardev");
    bt_list_add_format(arguments, "socket,id=control,fd=%d", BT_QEMU_FD_CONTROL);
    add(arguments, "-mon", "chardev=control,mode=control");
}

/* A host without space is an error that the guest sees (qemu would stop the machine, and nobody would know
 * why). */
static void add_disk(struct bt_list *arguments, const struct bt_machine_disk *disk, size_t place)
{
    bt_auto_free char *path = escape_commas(disk->path);
    bt_list_add(arguments, "-blockdev");
    bt_list_add_format(
        arguments,
        "driver=raw,node-name=disk%zu,read-only=%s,discard=unmap,file.driver=file,file.filename=%s", place,
        disk->is_read_only ? "on" : "off", path);
    bt_list_add(arguments, "-device");
    bt_list_add_format(arguments,
                       "virtio-blk-device,drive=disk%zu,serial=disk%zu,werror=report,rerror=report", place,
                       place);
}

static void add_network(struct bt_list *arguments, const struct bt_machine_config *config)
{
    if (config->tap_fd < 0)
        return;
    bt_list_add(arguments, "-netdev");
    bt_list_add_format(arguments, "tap,id=network,fd=%d,vhost=off", BT_QEMU_FD_TAP);
    bt_list_add(arguments, "-device");
    bt_list_add_format(arguments, "virtio-net-device,netdev=network,mac=%02x:%02x:%02x:%02x:%02x:%02x",
                       config->mac[0], config->mac[1], config->mac[2], config->mac[3], config->mac[4],
                       config->mac[5]);
}

void bt_qemu_arguments(const struct bt_machine_config *config, const char *program, bool uses_kvm,
                       uint64_t tsc_khz, struct bt_list *ret_arguments)
{
    bt_list_add(ret_arguments, program);
    bt_list_add(ret_arguments, "-nodefaults");
    bt_list_add(ret_arguments, "-no-user-config");
    bt_list_add(ret_arguments, "-no-reboot");
    add(ret_arguments, "-display", "none");
    add(ret_arguments, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    add_machine(ret_arguments, config, uses_kvm);
    add_kernel(ret_arguments, config, uses_kvm, tsc_khz);
    add_channels(ret_arguments);
    for (size_t i = 0; i < config->disk_count; i++)
        add_disk(ret_arguments, &config->disks[i], i);
    add_network(ret_arguments, config);
}
