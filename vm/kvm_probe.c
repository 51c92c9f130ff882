/* Tries KVM for real: opens the node, makes a machine, gives it one page and one processor, and runs "hlt".
 * Called before a machine is started, in a child process that can be killed when the kernel does not return.
 */
#include "vm/kvm_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/base.h"

#define PROBE_TIMEOUT_MS 250

#if defined(__x86_64__)
/* Guest memory: three levels of page tables that map the first 2 MiB to themselves, then the page with the
 * code. */
#define TABLES_AT 0x1000U
#define CODE_AT 0x4000U
#define MEMORY_LENGTH 0x5000U
#define PAGE_PRESENT_WRITABLE 3U
#define PAGE_LARGE 0x80U
#define CPUID_ENTRIES_MAX 256
#define MSR_ARCH_CAPABILITIES 0x10aU

static void write_tables(uint8_t *memory)
{
    bt_store_u64(memory + TABLES_AT, (TABLES_AT + 0x1000U) | PAGE_PRESENT_WRITABLE);
    bt_store_u64(memory + TABLES_AT + 0x1000U, (TABLES_AT + 0x2000U) | PAGE_PRESENT_WRITABLE);
    bt_store_u64(memory + TABLES_AT + 0x2000U, PAGE_PRESENT_WRITABLE | PAGE_LARGE);
    memory[CODE_AT] = 0xf4; /* hlt */
}

/* 64-bit mode with paging, since real mode may be emulated by a KVM that cannot run anything else.
 * Intel SDM volume 3, 9.8.5: control registers and EFER of IA-32e mode. */
static int set_long_mode(int processor_fd)
{
    struct kvm_sregs segments;
    struct kvm_regs registers = {.rflags = 2, .rip = CODE_AT, .rsp = CODE_AT};
    struct kvm_segment code = {
        .limit = UINT32_MAX, .selector = 8, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    struct kvm_segment data = {
        .limit = UINT32_MAX, .selector = 16, .type = 3, .present = 1, .s = 1, .db = 1, .g = 1};
    if (ioctl(processor_fd, KVM_GET_SREGS, &segments) < 0)
        return errno;
    segments.cs = code;
    segments.ds = segments.es = segments.ss = segments.fs = segments.gs = data;
    segments.cr3 = TABLES_AT;
    segments.cr4 = 1U << 5;                /* PAE */
    segments.cr0 = 1U << 31 | 1U << 4 | 1; /* PG, ET, PE */
    segments.efer = 1U << 10 | 1U << 8;    /* LMA, LME */
    if (ioctl(processor_fd, KVM_SET_SREGS, &segments) < 0 ||
        ioctl(processor_fd, KVM_SET_REGS, &registers) < 0)
        return errno;
    return 0;
}

/* The host's processor features are passed on by qemu, and it ends when one of them is refused. Some nested
 * hosts announce IA32_ARCH_CAPABILITIES and then refuse it. */
static int pass_features(int kvm_fd, int processor_fd)
{
    static struct {
        struct kvm_cpuid2 head;
        struct kvm_cpuid_entry2 entries[CPUID_ENTRIES_MAX];
    } features = {.head.nent = CPUID_ENTRIES_MAX};
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry;
    } capabilities = {.head.nmsrs = 1, .entry.index = MSR_ARCH_CAPABILITIES};
    if (ioctl(kvm_fd, KVM_GET_SUPPORTED_CPUID, &features) < 0 ||
        ioctl(processor_fd, KVM_SET_CPUID2, &features) < 0)
        return errno;
    if (ioctl(kvm_fd, KVM_GET_MSRS, &capabilities) != 1)
        return 0;
    return ioctl(processor_fd, KVM_SET_MSRS, &capabilities) == 1 ? 0 : ENOTSUP;
}

static int run_one_instruction(int kvm_fd, int machine_fd, int processor_fd, size_t run_length)
{
    uint8_t *memory = mmap(NULL, MEMORY_LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct kvm_run *run = mmap(NULL, run_length, PROT_READ | PROT_WRITE, MAP_SHARED, processor_fd, 0);
    if (memory == MAP_FAILED || run == MAP_FAILED)
        return errno;
    write_tables(memory);
    struct kvm_userspace_memory_region region = {.memory_size = MEMORY_LENGTH,
                                                 .userspace_addr = (uintptr_t)memory};
    if (ioctl(machine_fd, KVM_SET_USER_MEMORY_REGION, &region) < 0)
        return errno;
    int result = pass_features(kvm_fd, processor_fd);
    if (result == 0)
        result = set_long_mode(processor_fd);
    if (result == 0 && ioctl(processor_fd, KVM_RUN, 0) < 0)
        result = errno;
    return result != 0 || run->exit_reason == KVM_EXIT_HLT ? result : EIO;
}
#else
static int run_one_instruction(int kvm_fd, int machine_fd, int processor_fd, size_t run_length)
{
    (void)kvm_fd;
    (void)machine_fd;
    (void)processor_fd;
    (void)run_length;
    return 0;
}
#endif

/* In the child; the exit status is an errno, 0 when the guest ran. */
static int probe(void)
{
    int kvm_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm_fd < 0)
        return errno;
    int run_length = ioctl(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0);
    if (ioctl(kvm_fd, KVM_GET_API_VERSION, 0) != KVM_API_VERSION || run_length <= 0)
        return EPROTO;
    int machine_fd = ioctl(kvm_fd, KVM_CREATE_VM, 0);
    if (machine_fd < 0)
        return errno;
    int processor_fd = ioctl(machine_fd, KVM_CREATE_VCPU, 0);
    if (processor_fd < 0)
        return errno;
    return run_one_instruction(kvm_fd, machine_fd, processor_fd, (size_t)run_length);
}

static int probe_in_child(void)
{
    pid_t pid = fork();
    if (pid < 0)
        return errno;
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        _exit(probe() & 0xff);
    }
    bt_auto_fd pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd ended = {.fd = pid_fd, .events = POLLIN};
    bool is_late = pid_fd < 0 || poll(&ended, 1, PROBE_TIMEOUT_MS) <= 0;
    if (is_late)
        (void)kill(pid, SIGKILL);
    int status = 0;
    pid_t reaped_pid;
    do {
        reaped_pid = waitpid(pid, &status, 0);
    } while (reaped_pid < 0 && errno == EINTR);
    if (is_late)
        return ETIMEDOUT;
    return reaped_pid == pid && WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

bool bt_kvm_works(char *ret_reason, size_t size)
{
    static int known = -1;
    if (known < 0)
        known = probe_in_child();
    if (known == ETIMEDOUT)
        (void)snprintf(ret_reason, size, "/dev/kvm is there but does not run guests");
    else if (known == ENOTSUP)
        (void)snprintf(ret_reason, size, "/dev/kvm does not accept the features of this processor");
    else if (known != 0)
        (void)snprintf(ret_reason, size, "/dev/kvm: %s", strerror(known));
    return known == 0;
}
