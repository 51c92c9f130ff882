/* SHA-256 (FIPS 180-4) of one piece of memory, for the chain of the audit log.
 *
 * Ours, since the other ways cost more than these lines: a crypto library would come with allocation and
 * configuration files, and the kernel's (AF_ALG) with a socket family that some kernels lack and that loads
 * modules. No secret passes through it, so its timing does not matter. Pure.
 */
#ifndef BERTH_HELPER_SHA256_H
#define BERTH_HELPER_SHA256_H

#include "ipc/base/base.h"

#define BT_SHA256_SIZE 32U

void bt_sha256(const void *data, size_t length, uint8_t ret_digest[BT_SHA256_SIZE]);

#endif
