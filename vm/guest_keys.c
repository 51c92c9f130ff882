/* Ed25519 keys for one guest: the client's in OpenSSH's private format, the host's in dropbear's.
 *
 * Called by the launcher before a guest boots. Formats: PROTOCOL.key of OpenSSH ("openssh-key-v1", no
 * passphrase) and the string pair that dropbear writes for ssh-ed25519. Secrets live in fixed buffers here,
 * never in one that grows: growing leaves copies behind in freed memory.
 */
#include "vm/guest_link.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "lib/file.h"

#define KEY_BYTES 32
#define KEY_TYPE "ssh-ed25519"
#define BLOB_MAX 512
#define PEM_LINE 70

struct key_pair {
    uint8_t seed[KEY_BYTES];
    uint8_t public[KEY_BYTES];
};

/* Bytes of an SSH structure in the making (RFC 4251, section 5). Sizes are constant, so it cannot overflow.
 */
struct blob {
    uint8_t data[BLOB_MAX];
    size_t length;
};

static void blob_add(struct blob *blob, const void *data, size_t length)
{
    memcpy(blob->data + blob->length, data, length);
    blob->length += length;
}

static void blob_add_number(struct blob *blob, uint32_t value)
{
    const uint8_t bytes[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8),
                              (uint8_t)value};
    blob_add(blob, bytes, sizeof(bytes));
}

static void blob_add_string(struct blob *blob, const void *data, size_t length)
{
    blob_add_number(blob, (uint32_t)length);
    blob_add(blob, data, length);
}

static int pair_make(struct key_pair *ret_pair, struct bt_error *error)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    struct key_pair pair;
    size_t seed_length = KEY_BYTES, public_length = KEY_BYTES;
    bool is_made = key && EVP_PKEY_get_raw_private_key(key, pair.seed, &seed_length) == 1 &&
                   EVP_PKEY_get_raw_public_key(key, pair.public, &public_length) == 1;
    EVP_PKEY_free(key);
    if (is_made)
        *ret_pair = pair;
    OPENSSL_cleanse(&pair, sizeof(pair));
    if (!is_made)
        return bt_fail(error, BT_EXIT_ERROR, EIO,
                       "check that OpenSSL works: openssl genpkey -algorithm ed25519",
                       "cannot make an Ed25519 key");
    return 0;
}

static struct blob public_blob(const struct key_pair *pair)
{
    struct blob blob = {.length = 0};
    blob_add_string(&blob, KEY_TYPE, strlen(KEY_TYPE));
    blob_add_string(&blob, pair->public, KEY_BYTES);
    return blob;
}

/* "ssh-ed25519 <base64>" */
static char *public_line(const struct key_pair *pair)
{
    const struct blob blob = public_blob(pair);
    char text[BLOB_MAX * 2];
    (void)EVP_EncodeBlock((unsigned char *)text, blob.data, (int)blob.length);
    return bt_string_format(KEY_TYPE " %s", text);
}

static struct blob openssh_private_blob(const struct key_pair *pair)
{
    struct blob secret = {.length = 0};
    uint32_t check;
    bt_random_bytes(&check, sizeof(check));
    blob_add_number(&secret, check);
    blob_add_number(&secret, check);
    blob_add_string(&secret, KEY_TYPE, strlen(KEY_TYPE));
    blob_add_string(&secret, pair->public, KEY_BYTES);
    blob_add_number(&secret, 2 * KEY_BYTES);
    blob_add(&secret, pair->seed, KEY_BYTES);
    blob_add(&secret, pair->public, KEY_BYTES);
    blob_add_string(&secret, "berth", 5);
    for (uint8_t pad = 1; secret.length % 8 != 0; pad++)
        blob_add(&secret, &pad, 1);

    const struct blob public = public_blob(pair);
    struct blob whole = {.length = 0};
    blob_add(&whole, "openssh-key-v1", sizeof("openssh-key-v1")); /* with its NUL */
    blob_add_string(&whole, "none", 4);
    blob_add_string(&whole, "none", 4);
    blob_add_string(&whole, "", 0);
    blob_add_number(&whole, 1);
    blob_add_string(&whole, public.data, public.length);
    blob_add_string(&whole, secret.data, secret.length);
    OPENSSL_cleanse(&secret, sizeof(secret));
    return whole;
}

/* The text that ssh-keygen would write. */
static char *openssh_private_text(const struct key_pair *pair)
{
    static const char head[] = "-----BEGIN OPENSSH PRIVATE KEY-----\n";
    static const char tail[] = "-----END OPENSSH PRIVATE KEY-----\n";
    struct blob blob = openssh_private_blob(pair);
    char base64[BLOB_MAX * 2];
    size_t length = (size_t)EVP_EncodeBlock((unsigned char *)base64, blob.data, (int)blob.length);

    char *text = bt_new(1, sizeof(head) + sizeof(tail) + length + length / PEM_LINE + 2);
    char *at = mempcpy(text, head, sizeof(head) - 1);
    for (size_t offset = 0; offset < length; offset += PEM_LINE) {
        size_t part = length - offset < PEM_LINE ? length - offset : PEM_LINE;
        at = mempcpy(at, base64 + offset, part);
        *at++ = '\n';
    }
    memcpy(at, tail, sizeof(tail));
    OPENSSL_cleanse(&blob, sizeof(blob));
    OPENSSL_cleanse(base64, sizeof(base64));
    return text;
}

static int dropbear_key(const struct key_pair *pair, struct bt_buffer *ret_key)
{
    struct blob blob = {.length = 0};
    blob_add_string(&blob, KEY_TYPE, strlen(KEY_TYPE));
    blob_add_number(&blob, 2 * KEY_BYTES);
    blob_add(&blob, pair->seed, KEY_BYTES);
    blob_add(&blob, pair->public, KEY_BYTES);
    struct bt_buffer key = {0};
    int result = bt_buffer_add(&key, blob.data, blob.length);
    OPENSSL_cleanse(&blob, sizeof(blob));
    if (result == 0)
        *ret_key = key;
    return result;
}

int bt_guest_keys_make(struct bt_guest_keys *ret_keys, struct bt_error *error)
{
    struct key_pair client, host;
    int result = pair_make(&client, error);
    if (result == 0)
        result = pair_make(&host, error);
    if (result == 0) {
        struct bt_guest_keys keys = {0};
        result = dropbear_key(&host, &keys.host_key);
        if (result == 0) {
            keys.private_key = openssh_private_text(&client);
            keys.public_key = public_line(&client);
            keys.host_public_key = public_line(&host);
            *ret_keys = keys;
        } else {
            result = bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot store a host key");
        }
    }
    OPENSSL_cleanse(&client, sizeof(client));
    OPENSSL_cleanse(&host, sizeof(host));
    return result;
}

void bt_guest_keys_free(struct bt_guest_keys *keys)
{
    if (keys->private_key)
        OPENSSL_cleanse(keys->private_key, strlen(keys->private_key));
    free(keys->private_key);
    free(keys->public_key);
    free(keys->host_public_key);
    bt_buffer_wipe(&keys->host_key);
    *keys = (struct bt_guest_keys){0};
}
