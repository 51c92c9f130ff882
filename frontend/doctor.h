/* The checks of `berth doctor`: each looks at one thing that berth needs, changes nothing, and says what to
 * do.
 */
#ifndef BERTH_FRONTEND_DOCTOR_H
#define BERTH_FRONTEND_DOCTOR_H

#include "frontend/command.h"

enum bt_health { BT_HEALTH_OK, BT_HEALTH_WARN, BT_HEALTH_FAIL };

struct bt_finding {
    enum bt_health health;
    char name[32];
    char detail[400];
    char advice[400]; /* empty when all is well */
};

#define BT_FINDINGS_MAX 40U

struct bt_doctor {
    struct bt_context *context;
    bool has_images; /* so that what only builds need is no failure */
    struct bt_finding findings[BT_FINDINGS_MAX];
    size_t count;
};

/* Adds a finding. advice may be NULL. */
void bt_doctor_add(struct bt_doctor *doctor, enum bt_health health, const char *name, const char *advice,
                   const char *format, ...) BT_PRINTF(5, 6);

/* The machine: /dev/net/tun, VMM, KVM, namespaces, Landlock, memory, disk. */
void bt_doctor_machine(struct bt_doctor *doctor);
/* The installation: helper, programs, sub-ids, images. */
void bt_doctor_installation(struct bt_doctor *doctor);
/* The user's own: config.yaml, state database, runtime folder, resolvers. */
void bt_doctor_user(struct bt_doctor *doctor);

#endif
