/* Whether KVM works here, by running a guest of one instruction. */
#ifndef BERTH_VM_KVM_PROBE_H
#define BERTH_VM_KVM_PROBE_H

#include <stdbool.h>
#include <stddef.h>

/* Takes some milliseconds; at most 250 ms where the kernel has a KVM that does not run guests (there are
 * such: the node exists, machines can be made, and the processor spins). The reason is a text such as
 * "/dev/kvm: Permission denied"; it is left alone when KVM works. The answer is kept for the life of the
 * process. */
bool bt_kvm_works(char *ret_reason, size_t size);

#endif
