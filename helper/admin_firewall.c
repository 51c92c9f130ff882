/* `berth-helper firewall`: our accept in the places that other firewalls leave to their users.
 *
 * A packet must be accepted by every base chain that sees it, so a host whose Docker, ufw or firewalld drops
 * what is forwarded drops agents' packets too, whatever table inet berth says. Run by berth-firewall.service,
 * which is bound to those services, and by uninstall with --remove. It opens nothing: what passes here still
 * has to pass our own table, and while that is gone all our interfaces are down. It must not touch a rule
 * that others made.
 */
#include <errno.h>
#include <string.h>

#include "helper/admin.h"

#define IPTABLES "/usr/sbin/iptables" /* the one that Docker and ufw use, whichever kernel side it has */
#define FIREWALL_CMD "/usr/bin/firewall-cmd"
#define INTERFACES "berth+"

/* iptables -w 5 ACTION CHAIN [1] DIRECTION berth+ -j ACCEPT */
static int iptables_rule(const char *action, const char *chain, const char *direction, bool is_quiet)
{
    const char *const insert[] = {IPTABLES,  "-w",       "5",  action,   chain, "1",
                                  direction, INTERFACES, "-j", "ACCEPT", NULL};
    const char *const other[] = {IPTABLES,  "-w",       "5",  action,   chain,
                                 direction, INTERFACES, "-j", "ACCEPT", NULL};
    return bt_admin_spawn(strcmp(action, "-I") == 0 ? insert : other, is_quiet);
}

static bool has_chain(const char *chain)
{
    const char *const list[] = {IPTABLES, "-w", "5", "-n", "-L", chain, NULL};
    return bt_admin_spawn(list, true) == 0;
}

/* 0, or 1 when iptables refused. */
static int set_rule(const struct bt_admin *admin, const char *chain, const char *direction)
{
    const char *action = admin->is_remove ? "-D" : "-I";
    bool is_there = iptables_rule("-C", chain, direction, true) == 0;
    if (is_there != admin->is_remove) {
        if (!admin->is_remove)
            bt_admin_tell("found: %s %s %s -j ACCEPT", chain, direction, INTERFACES);
        return 0;
    }
    if (admin->is_dry_run) {
        bt_admin_tell("would %s: %s %s %s -j ACCEPT", admin->is_remove ? "remove" : "add", chain, direction,
                      INTERFACES);
        return 0;
    }
    int status = iptables_rule(action, chain, direction, false);
    if (status != 0) {
        bt_admin_complain("iptables %s %s failed (%d); agents' traffic is dropped there", action, chain,
                          status);
        return 1;
    }
    bt_admin_tell("%s: %s %s %s -j ACCEPT", admin->is_remove ? "removed" : "added", chain, direction,
                  INTERFACES);
    return 0;
}

static int set_firewalld(const struct bt_admin *admin)
{
    static const char *const state[] = {FIREWALL_CMD, "--state", NULL};
    static const char *const add[] = {FIREWALL_CMD, "--zone=trusted", "--add-interface=" INTERFACES, NULL};
    static const char *const remove[] = {FIREWALL_CMD, "--zone=trusted", "--remove-interface=" INTERFACES,
                                         NULL};
    static const char *const query[] = {FIREWALL_CMD, "--zone=trusted", "--query-interface=" INTERFACES,
                                        NULL};
    if (bt_admin_spawn(state, true) != 0)
        return 0; /* not there, or not running: then its chains are not there either */
    bool is_there = bt_admin_spawn(query, true) == 0;
    if (is_there != admin->is_remove)
        return 0;
    if (admin->is_dry_run) {
        bt_admin_tell("would change: firewalld, zone trusted, interface %s", INTERFACES);
        return 0;
    }
    int status = bt_admin_spawn(admin->is_remove ? remove : add, false);
    if (status != 0) {
        bt_admin_complain("firewall-cmd failed (%d); agents' traffic is dropped by firewalld", status);
        return 1;
    }
    bt_admin_tell("%s: firewalld, zone trusted, interface %s", admin->is_remove ? "removed" : "added",
                  INTERFACES);
    return 0;
}

int bt_admin_firewall(const struct bt_admin *admin)
{
    static const char *const chains[] = {"DOCKER-USER", "ufw-before-forward"};
    static const char *const directions[] = {"-i", "-o"};
    int failed = 0;
    unsigned places = 0;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(chains); i++) {
        if (!has_chain(chains[i]))
            continue;
        places++;
        for (size_t j = 0; j < BT_ARRAY_LENGTH(directions); j++)
            failed += set_rule(admin, chains[i], directions[j]);
    }
    failed += set_firewalld(admin);
    if (places == 0 && !admin->is_remove)
        bt_admin_tell("found: no chain of Docker or ufw that would need our accept");
    return failed == 0 ? 0 : 1;
}
