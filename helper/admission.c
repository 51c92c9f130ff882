/* Connection limits and token buckets per uid, see admission.h.
 *
 * Called by the engine. It must not let one uid's behaviour change what another uid gets: limits are per uid,
 * and where a limit is common, the heaviest uid gives way.
 */
#include "helper/admission.h"

#include <errno.h>
#include <string.h>

#include "helper/say.h"

#define OVERFLOW_UID 65534U /* what the kernel shows for a uid that has no mapping, user_namespaces(7) */
#define MILLI 1000U

void bt_admission_init(struct bt_admission *admission, const struct bt_admission_limits *limits)
{
    memset(admission, 0, sizeof(*admission));
    admission->limits = *limits;
}

bool bt_admission_is_uid_served(const struct bt_admission *admission, uint32_t uid)
{
    return uid != UINT32_MAX && uid != OVERFLOW_UID && uid <= admission->limits.uid_max;
}

static struct bt_admission_uid *find(struct bt_admission *admission, uint32_t uid)
{
    for (size_t i = 0; i < BT_ADMISSION_UIDS; i++)
        if (admission->uids[i].is_used && admission->uids[i].uid == uid)
            return &admission->uids[i];
    return NULL;
}

static void refill(struct bt_admission *admission, struct bt_admission_uid *entry, uint64_t now_ms)
{
    uint64_t full = (uint64_t)admission->limits.burst * MILLI;
    uint64_t elapsed_ms = now_ms > entry->refilled_ms ? now_ms - entry->refilled_ms : 0;
    entry->refilled_ms = now_ms;
    if (entry->milli_tokens >= full)
        return; /* a grant for adoptions may lie above */
    if (elapsed_ms > full / admission->limits.rate) {
        entry->milli_tokens = full;
        return;
    }
    entry->milli_tokens += elapsed_ms * admission->limits.rate;
    if (entry->milli_tokens > full)
        entry->milli_tokens = full;
}

/* An entry without connections and with a full bucket carries no information any more, but for its counts:
 * those that no summary has told yet are given up last. */
static bool is_idle(struct bt_admission *admission, struct bt_admission_uid *entry, uint64_t now_ms)
{
    if (entry->spare + entry->leased > 0)
        return false;
    refill(admission, entry, now_ms);
    return entry->milli_tokens >= (uint64_t)admission->limits.burst * MILLI;
}

static struct bt_admission_uid *find_room(struct bt_admission *admission, uint64_t now_ms)
{
    struct bt_admission_uid *room = NULL;
    for (size_t i = 0; i < BT_ADMISSION_UIDS; i++) {
        struct bt_admission_uid *entry = &admission->uids[i];
        if (!entry->is_used)
            return entry;
        if ((!room || (room->answered | room->refused) != 0) && is_idle(admission, entry, now_ms))
            room = entry;
    }
    return room;
}

static struct bt_admission_uid *find_or_make(struct bt_admission *admission, uint32_t uid, unsigned reserved,
                                             uint64_t now_ms)
{
    struct bt_admission_uid *entry = find(admission, uid);
    if (entry)
        return entry;
    entry = find_room(admission, now_ms);
    if (!entry)
        return NULL;
    *entry = (struct bt_admission_uid){.uid = uid, .is_used = true, .refilled_ms = now_ms};
    entry->milli_tokens = ((uint64_t)admission->limits.burst + BT_ADMISSION_TOKENS_A_SLOT * reserved) * MILLI;
    return entry;
}

static const struct bt_admission_uid *find_heaviest(const struct bt_admission *admission)
{
    const struct bt_admission_uid *heaviest = &admission->uids[0];
    for (size_t i = 1; i < BT_ADMISSION_UIDS; i++)
        if (admission->uids[i].spare > heaviest->spare)
            heaviest = &admission->uids[i];
    return heaviest;
}

static bool take(struct bt_admission *admission, struct bt_admission_uid *entry, uint64_t now_ms)
{
    refill(admission, entry, now_ms);
    if (entry->milli_tokens < MILLI)
        return false;
    entry->milli_tokens -= MILLI;
    return true;
}

int bt_admission_enter(struct bt_admission *admission, uint32_t uid, unsigned reserved,
                       unsigned reserved_total, uint64_t now_ms, uint32_t *ret_heaviest_uid)
{
    struct bt_admission_uid *entry = find_or_make(admission, uid, reserved, now_ms);
    if (!entry)
        return -EUSERS;
    if (entry->spare >= BT_SPARE_PER_UID + reserved)
        return -EUSERS;
    if (admission->spare >= BT_SPARE_TOTAL + reserved_total) {
        const struct bt_admission_uid *heaviest = find_heaviest(admission);
        if (heaviest->spare <= entry->spare + 1)
            return -EUSERS;
        *ret_heaviest_uid = heaviest->uid;
        return -EBUSY;
    }
    if (!take(admission, entry, now_ms))
        return -EAGAIN;
    entry->spare++;
    admission->spare++;
    return 0;
}

void bt_admission_leave(struct bt_admission *admission, uint32_t uid)
{
    struct bt_admission_uid *entry = find(admission, uid);
    bt_require(entry && entry->spare > 0 && admission->spare > 0,
               "admission: the counts of connections are wrong");
    entry->spare--;
    admission->spare--;
}

void bt_admission_set_leased(struct bt_admission *admission, uint32_t uid, bool is_leased)
{
    struct bt_admission_uid *entry = find(admission, uid);
    bt_require(entry && (is_leased || entry->leased > 0), "admission: the counts of connections are wrong");
    if (is_leased) {
        bt_admission_leave(admission, uid);
        entry->leased++;
    } else {
        entry->leased--;
        entry->spare++;
        admission->spare++;
    }
}

bool bt_admission_take_token(struct bt_admission *admission, uint32_t uid, uint64_t now_ms)
{
    struct bt_admission_uid *entry = find(admission, uid);
    return entry && take(admission, entry, now_ms);
}

void bt_admission_count(struct bt_admission *admission, uint32_t uid, bool is_refused)
{
    struct bt_admission_uid *entry = find(admission, uid);
    uint32_t *counter = &admission->strangers_refused;
    if (entry)
        counter = is_refused ? &entry->refused : &entry->answered;
    if (*counter < UINT32_MAX)
        (*counter)++;
}

bool bt_admission_take_counts(struct bt_admission *admission, uint32_t *ret_uid, uint32_t *ret_answered,
                              uint32_t *ret_refused)
{
    for (size_t i = 0; i < BT_ADMISSION_UIDS; i++) {
        struct bt_admission_uid *entry = &admission->uids[i];
        if (!entry->is_used || (entry->answered == 0 && entry->refused == 0))
            continue;
        *ret_uid = entry->uid;
        *ret_answered = entry->answered;
        *ret_refused = entry->refused;
        entry->answered = entry->refused = 0;
        return true;
    }
    if (admission->strangers_refused == 0)
        return false;
    *ret_uid = UINT32_MAX;
    *ret_answered = 0;
    *ret_refused = admission->strangers_refused;
    admission->strangers_refused = 0;
    return true;
}

bool bt_admission_take_line(struct bt_admission *admission, uint32_t uid)
{
    struct bt_admission_uid *entry = find(admission, uid);
    if (!entry || entry->lines >= BT_REFUSAL_LINES)
        return false;
    entry->lines++;
    return true;
}

void bt_admission_renew_lines(struct bt_admission *admission)
{
    for (size_t i = 0; i < BT_ADMISSION_UIDS; i++)
        admission->uids[i].lines = 0;
}
