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

#define PROBE_TIMEOUT_MS 300
#define PAGE_LENGTH 4096U

#if defined(__x86_64__)
/* One page at guest address 0 that starts with "hlt"; the processor starts there in real mode. */
static int run_one_instruction(int machine_fd, int processor_fd, size_t run_length)
{
    uint8_t *memory = mmap(NULL, PAGE_LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct kvm_run *run = mmap(NULL, run_length, PROT_READ | PROT_WRITE, MAP_SHARED, processor_fd, 0);
    if (memory == MAP_FAILED || run == MAP_FAILED)
        return errno;
    memory[0] = 0xf4;
    struct kvm_userspace_memory_region region = {.memory_size = PAGE_LENGTH,
                                                 .userspace_addr = (uintptr_t)memory};
    struct kvm_sregs segments;
    struct kvm_regs registers = {.rflags = 2};
    if (ioctl(machine_fd, KVM_SET_USER_MEMORY_REGION, &region) < 0 ||
        ioctl(processor_fd, KVM_GET_SREGS, &segments) < 0)
        return errno;
    segments.cs.base = 0;
    segments.cs.selector = 0;
    if (ioctl(processor_fd, KVM_SET_SREGS, &segments) < 0 ||
        ioctl(processor_fd, KVM_SET_REGS, &registers) < 0 || ioctl(processor_fd, KVM_RUN, 0) < 0)
        return errno;
    return run->exit_reason == KVM_EXIT_HLT ? 0 : EIO;
}
#else
static int run_one_instruction(int machine_fd, int processor_fd, size_t run_length)
{
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
    return run_one_instruction(machine_fd, processor_fd, (size_t)run_length);
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
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (is_late)
        return ETIMEDOUT;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

bool bt_kvm_works(char *ret_reason, size_t size)
{
    static int known = -1;
    if (known < 0)
        known = probe_in_child();
    if (known == ETIMEDOUT)
        (void)snprintf(ret_reason, size, "/dev/kvm is there but does not run guests");
    else if (known != 0)
        (void)snprintf(ret_reason, size, "/dev/kvm: %s", strerror(known));
    return known == 0;
}
