/* What the parts of berth-init share. Everything here runs as root in a guest, as PID 1 unless said
 * otherwise.
 *
 * Functions return 0 or a negative errno unless they cannot fail; a step of the boot that must not fail calls
 * bt_init_fatal, which ends the machine with a reason on its console.
 */
#ifndef BERTH_VM_INIT_INIT_H
#define BERTH_VM_INIT_INIT_H

#include <sys/types.h>

#include "vm/init/settings.h"

#define BT_INIT_CONFIG_FOLDER "/berth"  /* in the initrd */
#define BT_INIT_RUN_FOLDER "/run/berth" /* the same, once the boot is done (BT_GUEST_FOLDER) */
#define BT_INIT_AGENT_ID 1000U
#define BT_INIT_GATEWAY_ID 100U
#define BT_INIT_ORCHESTRATOR_ID 101U

/* report.c: lines on the console, "berth-init: ...". fatal never returns: it powers the machine off, or ends
 * the container. */
void bt_init_say(const char *format, ...) BT_PRINTF(1, 2);
void bt_init_fatal(const char *format, ...) BT_PRINTF(1, 2) __attribute__((noreturn));
void bt_init_power_off(void) __attribute__((noreturn));
uint64_t bt_init_now_ms(void); /* since the kernel started */

/* files.c: small files of the guest. */
int bt_init_read_file(const char *path, char *ret_text, size_t size, size_t *ret_length);
/* Replaces the file (a link there is removed, not followed). */
int bt_init_write_file(const char *path, const char *text, mode_t mode);
/* Writes into a file that the kernel keeps (/proc/sys, /sys). */
int bt_init_set_kernel(const char *path, const char *value);
int bt_init_make_folder(const char *path, mode_t mode, unsigned uid, unsigned gid);
/* Gives every file below folder (at most two levels: what the host can write there) to one user. */
void bt_init_give_folder(const char *folder, unsigned id);
int bt_init_copy_file(const char *from, const char *to, mode_t mode);

/* modules.c: loads /berth/modules/ in name order and removes them. */
void bt_init_load_modules(void);

/* mounts.c */
void bt_init_mount_kernel_folders(void);
void bt_init_enter_agent_root(const struct bt_settings *settings);
void bt_init_mount_registry(const struct bt_settings *settings);
void bt_init_mount_run_folder(void);
void bt_init_unmount_disks(void);

/* group.c: the agent's processes share what is left over when root has had its part. enter: for this process
 * and its children; success when there is no such group. */
void bt_init_make_group(void);
int bt_init_enter_group(void);

/* network.c */
void bt_init_start_network(const struct bt_settings *settings);

/* address.c: "berth-init address [ROUTER]"; returns the exit status. */
int bt_init_address(const char *router);

/* services.c: the one program that a guest exists for, kept running; and the end of the machine or container.
 * Never returns. */
struct bt_init_service {
    const char *const *arguments; /* [0] is its path; NULL = nothing but reaping */
    unsigned id;                  /* uid and gid; 0 = root with its capabilities */
    bool is_container;            /* its lifeline is standard input: vm/container_protocol.h */
    bool watches_memory;          /* with bt_init_watch_memory */
};
void bt_init_serve(const struct bt_init_service *service) __attribute__((noreturn));

/* memory.c: says on the console when less memory is left than ever before. */
void bt_init_watch_memory(void);

/* boot.c: the whole of PID 1. */
void bt_init_boot(void) __attribute__((noreturn));

/* user.c: the way down from root; used for services and for commands. Irreversible; whatever fails is an
 * error. With an id other than 0 no capability is left anywhere and no new privileges can be had. */
int bt_init_become_user(uid_t uid, gid_t gid);

/* preload.c: does this kernel's statx(2) know what common programs say with it, and does its poll(2) leave
 * alone what they ask? Where not: writes the library that makes up for it, and the loader's list that names
 * it. */
bool bt_init_is_kernel_whole(void);
int bt_init_make_up_for_kernel(const char *library_path, const char *list_path);

/* container.c: the whole of a container's first process; role: agent, gateway or orchestrator. */
void bt_init_container(const char *role) __attribute__((noreturn));

/* relay.c: "berth-init relay"; returns the command's exit status. */
int bt_init_relay(bool is_terminal);

/* run_command.c: "berth-init run"; returns the exit status of a request that could not be executed. */
int bt_init_run_command(void);

#endif
