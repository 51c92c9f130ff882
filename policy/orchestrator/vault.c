/* Sealed secrets of registrations. See vault.h.
 *
 * Layout: 12 bytes nonce, ciphertext, 16 bytes tag (NIST SP 800-38D). The nonce is random: a key seals a
 * handful of times in its life. Slot and generation are bound to it as associated data, so that no row can
 * take another's place.
 */
#include "policy/orchestrator/vault.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/file.h"
#include "policy/rules/ports.h"
#include "policy/rules/slice.h"

#define NONCE_SIZE 12
#define TAG_SIZE 16
#define SECRETS_MAX (512U * 1024)

struct entry {
    bool has_key;
    uint32_t generation;
    uint8_t key[BT_VAULT_KEY_SIZE];
};

struct bt_vault {
    struct entry entries[BT_SLOTS_MAX];
};

struct bt_vault *bt_vault_new(void)
{
    return bt_new(1, sizeof(struct bt_vault));
}

struct bt_vault *bt_vault_free(struct bt_vault *vault)
{
    if (vault != NULL)
        explicit_bzero(vault, sizeof(*vault));
    free(vault);
    return NULL;
}

int bt_vault_take_key(struct bt_vault *vault, uint16_t slot, uint32_t generation, const char *key)
{
    struct entry entry = {.has_key = true, .generation = generation};
    if (slot >= BT_SLOTS_MAX || strlen(key) != 2 * sizeof(entry.key) ||
        strspn(key, "0123456789abcdef") != 2 * sizeof(entry.key))
        return -EINVAL;
    for (size_t i = 0; i < sizeof(entry.key); i++)
        entry.key[i] = (uint8_t)(bt_hex_value(key[2 * i]) * 16 + bt_hex_value(key[2 * i + 1]));
    vault->entries[slot] = entry;
    explicit_bzero(&entry, sizeof(entry));
    return 0;
}

void bt_vault_forget(struct bt_vault *vault, uint16_t slot, uint32_t generation)
{
    if (slot < BT_SLOTS_MAX && vault->entries[slot].generation == generation)
        explicit_bzero(&vault->entries[slot], sizeof(vault->entries[slot]));
}

static const uint8_t *find_key(const struct bt_vault *vault, uint16_t slot, uint32_t generation)
{
    if (slot >= BT_SLOTS_MAX || !vault->entries[slot].has_key ||
        vault->entries[slot].generation != generation)
        return NULL;
    return vault->entries[slot].key;
}

/* What the sealed data belongs to. Returns its length. */
static int associated(uint16_t slot, uint32_t generation, char ret_text[48])
{
    return snprintf(ret_text, 48, "berth registration %u/%u", slot, generation);
}

static bool encrypt(const uint8_t *key, const char *bound, int bound_length, const char *text, int length,
                    uint8_t *sealed)
{
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    uint8_t *body = sealed + NONCE_SIZE;
    int written = 0, ignored = 0;
    bool is_done = cipher != NULL && EVP_EncryptInit_ex(cipher, EVP_aes_256_gcm(), NULL, key, sealed) == 1 &&
                   EVP_EncryptUpdate(cipher, NULL, &ignored, (const uint8_t *)bound, bound_length) == 1 &&
                   EVP_EncryptUpdate(cipher, body, &written, (const uint8_t *)text, length) == 1 &&
                   EVP_EncryptFinal_ex(cipher, body + written, &ignored) == 1 &&
                   EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, TAG_SIZE, body + length) == 1;
    EVP_CIPHER_CTX_free(cipher);
    return is_done;
}

int bt_vault_seal(const struct bt_vault *vault, uint16_t slot, uint32_t generation, const json_t *secrets,
                  struct bt_buffer *ret_sealed)
{
    const uint8_t *key = find_key(vault, slot, generation);
    if (key == NULL)
        return -ENOKEY;
    bt_auto_free char *text = json_dumps(secrets, JSON_COMPACT | JSON_SORT_KEYS);
    size_t length = text != NULL ? strlen(text) : 0;
    if (text == NULL || length > SECRETS_MAX)
        return -EIO;
    char bound[48];
    int bound_length = associated(slot, generation, bound);
    bt_auto_free uint8_t *sealed = bt_new(1, NONCE_SIZE + length + TAG_SIZE);
    bt_random_bytes(sealed, NONCE_SIZE);
    bool is_done = encrypt(key, bound, bound_length, text, (int)length, sealed);
    explicit_bzero(text, length);
    if (!is_done || bt_buffer_add(ret_sealed, sealed, NONCE_SIZE + length + TAG_SIZE) < 0)
        return -EIO;
    return 0;
}

static bool decrypt(const uint8_t *key, const char *bound, int bound_length, const uint8_t *sealed,
                    int length, char *text)
{
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    const uint8_t *body = sealed + NONCE_SIZE;
    uint8_t tag[TAG_SIZE];
    int written = 0, ignored = 0;
    memcpy(tag, body + length, TAG_SIZE);
    bool is_done = cipher != NULL && EVP_DecryptInit_ex(cipher, EVP_aes_256_gcm(), NULL, key, sealed) == 1 &&
                   EVP_DecryptUpdate(cipher, NULL, &ignored, (const uint8_t *)bound, bound_length) == 1 &&
                   EVP_DecryptUpdate(cipher, (uint8_t *)text, &written, body, length) == 1 &&
                   EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_SET_TAG, TAG_SIZE, tag) == 1 &&
                   EVP_DecryptFinal_ex(cipher, (uint8_t *)text + written, &ignored) == 1;
    EVP_CIPHER_CTX_free(cipher);
    return is_done;
}

int bt_vault_open(const struct bt_vault *vault, uint16_t slot, uint32_t generation,
                  const struct bt_buffer *sealed, json_t **ret_secrets)
{
    const uint8_t *key = find_key(vault, slot, generation);
    if (key == NULL)
        return -ENOKEY;
    if (sealed->length < NONCE_SIZE + TAG_SIZE || sealed->length > NONCE_SIZE + SECRETS_MAX + TAG_SIZE)
        return -EBADMSG;
    char bound[48];
    int bound_length = associated(slot, generation, bound);
    size_t length = sealed->length - NONCE_SIZE - TAG_SIZE;
    bt_auto_free char *text = bt_new(1, length + 1);
    json_t *secrets = NULL;
    if (decrypt(key, bound, bound_length, (const uint8_t *)sealed->data, (int)length, text))
        secrets = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    explicit_bzero(text, length);
    if (!json_is_object(secrets)) {
        json_decref(secrets);
        return -EBADMSG;
    }
    *ret_secrets = secrets;
    return 0;
}
