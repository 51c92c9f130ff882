/* `berth-helper firewall`: our accept in the places that other firewalls leave to their users.
 *
 * A packet must be accepted by every base chain that sees it, so a host whose Docker, ufw or firewalld drops
 * what is forwarded drops agents' packets too, whatever table inet berth says. Run by berth-firewall.service,
 * which those services start, and by uninstall with --remove. It opens nothing: what passes here still has to
 * pass our own table, and while that is gone all our interfaces are down. It must not touch a rule that
 * others made.
 */
#include <errno.h>
#include <unistd.h>

#include "helper/admin.h"

#define IPTABLES "/usr/sbin/iptables" /* the one that Docker and ufw use, whichever kernel side it has */
#define UFW "/usr/sbin/ufw"
#define UFW_RULES "/etc/ufw/user.rules"
#define GREP "/bin/grep"
#define FIREWALL_CMD "/usr/bin/firewall-cmd"
#define INTERFACES "berth+" /* TAPs and bridges */

/* One rule: how to see it, make it and take it away. Every vector is a program's, by its path. */
struct rule {
    const char *name;
    const char *const *query, *const *add, *const *remove;
};

#define ARGUMENTS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define DOCKER_RULE(direction)                                                                               \
    {                                                                                                        \
        "iptables DOCKER-USER " direction " " INTERFACES " -j ACCEPT",                                       \
            ARGUMENTS(IPTABLES, "-w", "5", "-C", "DOCKER-USER", direction, INTERFACES, "-j", "ACCEPT"),      \
            ARGUMENTS(IPTABLES, "-w", "5", "-I", "DOCKER-USER", "1", direction, INTERFACES, "-j", "ACCEPT"), \
            ARGUMENTS(IPTABLES, "-w", "5", "-D", "DOCKER-USER", direction, INTERFACES, "-j", "ACCEPT"),      \
    }
#define UFW_RULE(direction)                                                                                  \
    {                                                                                                        \
        "ufw route allow " direction " on " INTERFACES,                                                      \
            ARGUMENTS(GREP, "-q", "route:allow .* " direction "_" INTERFACES "$", UFW_RULES),                \
            ARGUMENTS(UFW, "route", "prepend", "allow", direction, "on", INTERFACES),                        \
            ARGUMENTS(UFW, "route", "delete", "allow", direction, "on", INTERFACES),                         \
    }

/* Docker's chain is the kernel's, and Docker keeps what is in it when it starts again. ufw writes its own
 * files, also while it is switched off, and makes its chains from them at every reload. */
static const struct place {
    const char *name;
    const char *const *is_there; /* ends with 0 where there is such a place */
    struct rule rules[2];
} places[] = {
    {"Docker",
     ARGUMENTS(IPTABLES, "-w", "5", "-n", "-L", "DOCKER-USER"),
     {DOCKER_RULE("-i"), DOCKER_RULE("-o")}},
    {"ufw", ARGUMENTS(GREP, "-q", "COMMIT", UFW_RULES), {UFW_RULE("in"), UFW_RULE("out")}},
};

/* 0, or 1 when the other firewall refused. */
static int set_rule(const struct bt_admin *admin, const char *place, const struct rule *rule)
{
    bool is_there = bt_admin_spawn(rule->query, true) == 0;
    if (is_there != admin->is_remove) {
        if (is_there)
            bt_admin_tell("found: %s", rule->name);
        return 0;
    }
    if (admin->is_dry_run) {
        bt_admin_tell("would %s: %s", admin->is_remove ? "remove" : "add", rule->name);
        return 0;
    }
    const char *const *command = admin->is_remove ? rule->remove : rule->add;
    int status = bt_admin_spawn(command, true);
    if (status != 0) {
        bt_admin_complain("%s does not take our rule %s(%s ended with %d); run that by hand: `%s`%s", place,
                          admin->is_remove ? "back " : "", command[0], status, rule->name,
                          admin->is_remove ? "" : "; until then it drops agents' traffic");
        return 1;
    }
    bt_admin_tell("%s: %s", admin->is_remove ? "removed" : "added", rule->name);
    return 0;
}

#define ZONE_RULE(zone)                                                                                      \
    {                                                                                                        \
        "firewall-cmd --zone=" zone " --add-interface=" INTERFACES,                                          \
            ARGUMENTS(FIREWALL_CMD, "--zone=" zone, "--query-interface=" INTERFACES),                        \
            ARGUMENTS(FIREWALL_CMD, "--zone=" zone, "--add-interface=" INTERFACES),                          \
            ARGUMENTS(FIREWALL_CMD, "--zone=" zone, "--remove-interface=" INTERFACES),                       \
    }

static const struct rule own_zone = ZONE_RULE("berth"), trusted_zone = ZONE_RULE("trusted");

/* From its next start or reload on, firewalld has the zone `berth` of the file that install writes. It is not
 * made to reload: others may have rules in it that are not saved. Until then the interfaces are in the zone
 * `trusted`. */
static int set_firewalld(const struct bt_admin *admin)
{
    bool has_own_zone = bt_admin_spawn(ARGUMENTS(FIREWALL_CMD, "--info-zone=berth"), true) == 0;
    int failed = 0;
    if (admin->is_remove || has_own_zone)
        failed += set_rule(admin, "firewalld", &own_zone);
    if (admin->is_remove || !has_own_zone)
        failed += set_rule(admin, "firewalld", &trusted_zone);
    if (admin->is_remove && has_own_zone)
        bt_admin_tell("kept: the empty chains of firewalld's zone berth, until it reads its files again "
                      "(firewall-cmd --reload, which drops what is not saved there)");
    return failed;
}

/* firewall-cmd alone would wait long for a firewalld that does not run. */
static bool is_firewalld_running(void)
{
    int status =
        bt_admin_spawn(ARGUMENTS(BT_ADMIN_SYSTEMCTL, "is-active", "--quiet", "firewalld.service"), true);
    return (status == 0 || access("/run/systemd/system", F_OK) < 0) &&
           bt_admin_spawn(ARGUMENTS(FIREWALL_CMD, "--state"), true) == 0;
}

int bt_admin_firewall(const struct bt_admin *admin)
{
    int failed = 0;
    unsigned found = 0;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(places); i++) {
        if (bt_admin_spawn(places[i].is_there, true) != 0)
            continue;
        found++;
        for (size_t j = 0; j < BT_ARRAY_LENGTH(places[i].rules); j++)
            failed += set_rule(admin, places[i].name, &places[i].rules[j]);
    }
    if (is_firewalld_running()) {
        found++;
        failed += set_firewalld(admin);
    }
    if (found == 0 && !admin->is_remove)
        bt_admin_tell("found: no firewall of Docker, ufw or firewalld that would need our accept");
    return failed == 0 ? 0 : 1;
}
