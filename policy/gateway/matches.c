/* See matches.h. */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/matches.h"

#define KEY_SIZE 32
#define STARS_MAX 16

static uint8_t key[KEY_SIZE];

void bt_matches_start(void)
{
    bt_random_bytes(key, sizeof(key));
}

static void write_digest(const void *value, size_t length, char ret_digest[BT_DIGEST_TEXT_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (HMAC(EVP_sha256(), key, KEY_SIZE, value, length, digest, &size) == NULL ||
        2 * (size_t)size + 1 != BT_DIGEST_TEXT_SIZE)
        abort(); /* only a lack of memory makes it fail */
    for (unsigned i = 0; i < size; i++) {
        ret_digest[2 * i] = digits[digest[i] >> 4];
        ret_digest[2 * i + 1] = digits[digest[i] & 15];
    }
    ret_digest[2 * (size_t)size] = '\0';
}

static bool has(char (*digests)[BT_DIGEST_TEXT_SIZE], size_t count, const char *digest)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(digests[i], digest) == 0)
            return true;
    return false;
}

static bool is_waiting(const struct bt_matches *matches, const struct bt_match *match)
{
    for (size_t i = 0; i < matches->count; i++)
        if (strcmp(matches->items[i].digest, match->digest) == 0)
            return true;
    return false;
}

static void write_excerpt(struct bt_match *match, const char *anchor, size_t length)
{
    static const char stars[STARS_MAX + 1] = "****************";
    int shown = length < STARS_MAX ? (int)length : STARS_MAX;
    (void)snprintf(match->excerpt, sizeof(match->excerpt), "%.24s%.*s", anchor, shown, stars);
}

bool bt_matches_note(struct bt_matches *matches, const struct bt_match *match, const char *anchor,
                     const void *value, size_t length)
{
    struct bt_match own = *match;
    if (own.is_partial)
        bt_random_hex(own.digest, (BT_DIGEST_TEXT_SIZE - 1) / 2);
    else
        write_digest(value, length, own.digest);
    if (has(matches->allowed, matches->allowed_count, own.digest))
        return false;
    if (has(matches->remembered, matches->remembered_count, own.digest)) {
        matches->was_remembered = true;
        return false;
    }
    if (is_waiting(matches, &own))
        return true;
    if (matches->count + matches->used >= BT_MATCHES_MAX) {
        matches->is_overfull = true;
        return true;
    }
    write_excerpt(&own, anchor, length);
    matches->items[matches->count++] = own;
    return true;
}

void bt_matches_allow(struct bt_matches *matches)
{
    for (size_t i = 0; i < matches->count; i++)
        if (!matches->items[i].is_partial)
            memcpy(matches->allowed[matches->allowed_count++], matches->items[i].digest, BT_DIGEST_TEXT_SIZE);
    matches->used += matches->count;
    matches->count = 0;
}

/* ---- for good -------------------------------------------------------------------------------------------
 */

struct bt_approved {
    struct {
        char host[BT_HOST_NAME_SIZE];
        char digest[BT_DIGEST_TEXT_SIZE];
    } items[BT_MATCHES_REMEMBERED]; /* a ring */
    size_t next;
};

void bt_approved_add(struct bt_approved **approved, const char *host, const struct bt_matches *matches)
{
    if (*approved == NULL)
        *approved = bt_new(1, sizeof(**approved));
    for (size_t i = 0; i < matches->count; i++) {
        size_t at = (*approved)->next;
        if (matches->items[i].is_partial)
            continue;
        (void)snprintf((*approved)->items[at].host, BT_HOST_NAME_SIZE, "%s", host);
        memcpy((*approved)->items[at].digest, matches->items[i].digest, BT_DIGEST_TEXT_SIZE);
        (*approved)->next = (at + 1) % BT_MATCHES_REMEMBERED;
    }
}

struct bt_approved *bt_approved_free(struct bt_approved *approved)
{
    free(approved);
    return NULL;
}

void bt_approved_get(const struct bt_approved *approved, const char *host, struct bt_matches *ret_matches)
{
    for (size_t i = 0; approved != NULL && host != NULL && i < BT_MATCHES_REMEMBERED; i++)
        if (approved->items[i].digest[0] != '\0' && strcmp(approved->items[i].host, host) == 0)
            memcpy(ret_matches->remembered[ret_matches->remembered_count++], approved->items[i].digest,
                   BT_DIGEST_TEXT_SIZE);
}
