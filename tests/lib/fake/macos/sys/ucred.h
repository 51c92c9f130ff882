/* LOCAL_PEERCRED and LOCAL_PEERTOKEN, unix(4); on macOS the numbers are in <sys/un.h>. */
#ifndef BERTH_TESTS_FAKE_MACOS_UCRED_H
#define BERTH_TESTS_FAKE_MACOS_UCRED_H
#include <sys/types.h>
#define XUCRED_VERSION 0
#define SOL_LOCAL 0
#define LOCAL_PEERCRED 0x001
#define LOCAL_PEERTOKEN 0x006
struct xucred {
    unsigned cr_version;
    uid_t cr_uid;
    short cr_ngroups;
    gid_t cr_groups[16];
};
#endif
