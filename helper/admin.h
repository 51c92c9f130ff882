/* The administrator's commands: install, uninstall, status, audit, check, firewall.
 *
 * Used by main only, for a process that is started by hand (or, for firewall, by a oneshot unit), does one of
 * them and ends. Nothing here runs in the engine: these files may use stdio and start programs (by fixed
 * paths and argument vectors, without a shell), the others may not; tests/lint/helper_symbols.sh tells them
 * apart by their names, admin*.c.
 */
#ifndef BERTH_HELPER_ADMIN_H
#define BERTH_HELPER_ADMIN_H

#include "helper/config.h"
#include "helper/installed.h"

/* True: the arguments name an administrator's command; it has been run and *ret_status is the exit status. */
bool bt_admin_run(int count, char **arguments, int *ret_status);

/* ---- shared by admin*.c -------------------------------------------------------------------------------- */

struct bt_admin {
    const char *config_path;
    bool is_dry_run, is_verify, is_remove, is_setuid;
    uint32_t lines;
};

/* Each returns an exit status: 0, 1 (something is wrong or failed; it has been said). */
int bt_admin_install(const struct bt_admin *admin);
int bt_admin_uninstall(const struct bt_admin *admin);
int bt_admin_status(const struct bt_admin *admin);
int bt_admin_audit(const struct bt_admin *admin);
int bt_admin_check(const struct bt_admin *admin);
int bt_admin_firewall(const struct bt_admin *admin);

/* The setuid bit of the starter, for install --setuid and for uninstall. An exit status, as above. */
int bt_admin_give_setuid(const struct bt_admin *admin);
int bt_admin_take_setuid(const struct bt_admin *admin);

/* One line on standard output: what was found or done. */
void bt_admin_tell(const char *format, ...) BT_PRINTF(1, 2);
/* One line on standard error: what failed, why, what to do. */
void bt_admin_complain(const char *format, ...) BT_PRINTF(1, 2);

/* The configuration in force; the defaults when there is no file. */
int bt_admin_read_config(const struct bt_admin *admin, struct bt_config *ret_config) BT_MUST_CHECK;

/* Runs a program by its absolute path with a fixed environment and waits for it. The exit status, or negative
 * errno when it could not be run (-ENOENT: not there). is_quiet: its output goes nowhere. */
int bt_admin_spawn(const char *const *arguments, bool is_quiet) BT_MUST_CHECK;

/* The same, with what it prints on standard output in ret_text, as a string of at most size - 1 bytes. */
int bt_admin_read_output(const char *const *arguments, char *ret_text, size_t size) BT_MUST_CHECK;

/* Sends a request that a family header follows (flags and number are set here) and calls visit with every
 * message of the dump; visit returns MNL_CB_OK, or MNL_CB_ERROR with errno. 0 or negative errno. */
struct nlmsghdr;
int bt_admin_dump(int protocol, struct nlmsghdr *request,
                  int (*visit)(const struct nlmsghdr *message, void *context), void *context) BT_MUST_CHECK;

/* Base chains of other tables that drop what is forwarded and do not accept berth's interfaces: tells of
 * each; returns how many, or negative errno. */
int bt_admin_find_blocking_chains(void) BT_MUST_CHECK;

/* Tells whether the configuration's blocks of addresses are free; for each that overlaps a route, an address
 * or the other block, by what it is taken and which block is free. Interfaces of berth itself do not count.
 * 0: both are free. 1: not, or it cannot be told. */
int bt_admin_check_blocks(const struct bt_config *config) BT_MUST_CHECK;

/* Asks the helper how it is, and tells. 0: it answers, and its rules are as they should be. */
int bt_admin_tell_engine(void) BT_MUST_CHECK;

/* Walks path up to "/": each part must be root's and not writable by others. Tells what is not; returns how
 * many, and counts an absent path as one. */
int bt_admin_walk(const char *path);

/* What is installed, for install, uninstall and check. */
struct bt_admin_file {
    const char *path, *content;
    const char *folder; /* not NULL: only where this folder is there */
};
extern const struct bt_admin_file bt_admin_units[];
extern const size_t bt_admin_unit_count;
#define BT_ADMIN_SYSTEMCTL "/usr/bin/systemctl"
#define BT_ADMIN_HELPER BT_INSTALLED_HELPER

#endif
