/* Doctor: helper, programs, sub-ids, images. */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/doctor.h"
#include "images/images.h"
#include "ipc/client/helper_client.h"

#define BT_SUBIDS_NEEDED 65536U

static void bt_doctor_helper_refused(struct bt_doctor *doctor, int r)
{
    const char *socket = doctor->context->config.helper_socket;
    const char *advice = "have an administrator look at: berth-helper status";

    if (r == -ENOENT || r == -ECONNREFUSED)
        advice = "have an administrator run: berth-helper install";
    else if (r == -EACCES || r == -EPERM)
        advice = "have an administrator add you to the group berth, then log in again";
    else if (r == -EPROTO)
        advice = "install the helper of this berth's version";
    bt_doctor_add(doctor, BT_HEALTH_FAIL, "helper", advice, "the helper at %s does not answer: %s", socket,
                  strerror(-r));
}

static void bt_doctor_helper(struct bt_doctor *doctor)
{
    struct bt_helper_status status;
    struct bt_helper helper;
    int r = bt_helper_connect(doctor->context->config.helper_socket, &helper);

    if (r < 0) {
        bt_doctor_helper_refused(doctor, r);
        return;
    }
    r = bt_helper_status(&helper, &status);
    if (r < 0)
        bt_doctor_helper_refused(doctor, r);
    else if (!status.is_healthy)
        bt_doctor_add(
            doctor, BT_HEALTH_FAIL, "helper",
            "another firewall tool may have changed them; have an administrator run: berth-helper check",
            "the rules in the kernel are not what they should be");
    else if (status.free == 0)
        bt_doctor_add(doctor, BT_HEALTH_FAIL, "helper",
                      "end some agents, or raise slots in /etc/berth/helper.conf", "all %u slots are used",
                      helper.pool.slots);
    else
        bt_doctor_add(doctor, BT_HEALTH_OK, "helper", NULL, "healthy; %u of %u slots free, %u for you",
                      status.free, helper.pool.slots, helper.quota);
    bt_helper_close(&helper);
}

/* Along PATH, as execvp would. */
static bool bt_doctor_finds(const char *program)
{
    const char *path = getenv("PATH");

    for (const char *at = path ? path : "/usr/bin:/bin"; *at;) {
        size_t length = strcspn(at, ":");
        bt_auto_free char *candidate =
            bt_string_format("%.*s/%s", (int)(length < 4096 ? length : 4096), at, program);
        if (length > 0 && access(candidate, X_OK) == 0)
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

static void bt_doctor_program(struct bt_doctor *doctor, const char *program, const char *package,
                              const char *purpose, enum bt_health without)
{
    bt_auto_free char *advice = bt_string_format("install the package %s", package);

    if (bt_doctor_finds(program))
        bt_doctor_add(doctor, BT_HEALTH_OK, program, NULL, "present");
    else
        bt_doctor_add(doctor, without, program, advice, "not found in PATH; it is needed to %s", purpose);
}

/* Sums the counts of the user's lines, "name-or-uid:first:count" (subuid(5)). */
static uint64_t bt_doctor_count_subids(const char *path, const char *user, uid_t uid)
{
    FILE *file = fopen(path, "re");
    uint64_t sum = 0, count;
    char line[256], number[16];

    snprintf(number, sizeof(number), "%u", (unsigned)uid);
    while (file && fgets(line, sizeof(line), file)) {
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        if (!second)
            continue;
        *first = '\0';
        second++;
        second[strcspn(second, "\n")] = '\0';
        if ((strcmp(line, number) == 0 || (user && strcmp(line, user) == 0)) &&
            bt_number_parse(second, strlen(second), 1, UINT32_MAX, &count) == 0)
            sum += count;
    }
    if (file)
        fclose(file);
    return sum;
}

static void bt_doctor_subids(struct bt_doctor *doctor)
{
    enum bt_health without = doctor->has_images ? BT_HEALTH_WARN : BT_HEALTH_FAIL;
    const struct passwd *entry = getpwuid(geteuid());
    const char *user = entry ? entry->pw_name : NULL;
    uint64_t uids, gids;

    if (geteuid() == 0)
        return;
    uids = bt_doctor_count_subids("/etc/subuid", user, geteuid());
    gids = bt_doctor_count_subids("/etc/subgid", user, geteuid());
    if (uids >= BT_SUBIDS_NEEDED && gids >= BT_SUBIDS_NEEDED)
        bt_doctor_add(doctor, BT_HEALTH_OK, "sub-ids", NULL, "%llu uids, %llu gids", (unsigned long long)uids,
                      (unsigned long long)gids);
    else {
        bt_auto_free char *hint = bt_string_format("have an administrator run: usermod --add-subuids "
                                                   "100000-165535 --add-subgids 100000-165535 %s",
                                                   user ? user : "USER");
        bt_doctor_add(doctor, without, "sub-ids", hint,
                      "fewer than %u in /etc/subuid or /etc/subgid; they are needed to build images",
                      BT_SUBIDS_NEEDED);
    }
}

static bool bt_doctor_images(struct bt_doctor *doctor)
{
    static const char *const recipes[] = {"kernel", "infra", "shell"};
    struct bt_image image;
    char missing[64] = "";
    size_t used = 0;

    for (size_t i = 0; i < BT_ARRAY_LENGTH(recipes); i++) {
        if (bt_image_get(&doctor->context->paths, recipes[i], false, NULL, &image, NULL) < 0)
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, " %s", recipes[i]);
    }
    if (used == 0)
        bt_doctor_add(doctor, BT_HEALTH_OK, "images", NULL, "kernel, infra and shell are built");
    else
        bt_doctor_add(doctor, BT_HEALTH_WARN, "images",
                      "the first spawn builds them, or now: berth image build", "not built yet:%s", missing);
    return used == 0;
}

static void bt_doctor_own_programs(struct bt_doctor *doctor)
{
    static const char *const programs[] = {"berth-init", "berth-probe", "berth-gateway",
                                           "berth-orchestrator"};
    struct bt_error error = {0};
    char path[512];

    for (size_t i = 0; i < BT_ARRAY_LENGTH(programs); i++) {
        if (bt_program_path(programs[i], path, &error) < 0) {
            bt_doctor_add(doctor, BT_HEALTH_FAIL, "programs",
                          *error.hint ? error.hint : "install berth again", "%s", error.message);
            return;
        }
    }
    bt_doctor_add(doctor, BT_HEALTH_OK, "programs", NULL, "berth's own guest programs are present");
}

void bt_doctor_installation(struct bt_doctor *doctor)
{
    enum bt_health without;

    bt_doctor_helper(doctor);
    bt_doctor_own_programs(doctor);
    doctor->has_images = bt_doctor_images(doctor);
    without = doctor->has_images ? BT_HEALTH_WARN : BT_HEALTH_FAIL;
    bt_doctor_program(doctor, "mmdebstrap", "mmdebstrap", "build images", without);
    bt_doctor_program(doctor, "newuidmap", "uidmap", "build images", without);
    bt_doctor_program(doctor, "npm", "npm", "build the images of claude, codex and pi", BT_HEALTH_WARN);
    bt_doctor_program(doctor, "git", "git", "copy workspaces in and bring changes back", BT_HEALTH_FAIL);
    bt_doctor_subids(doctor);
}
