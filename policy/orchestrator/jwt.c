/* The gateway's token. See jwt.h.
 *
 * The header is compared as text, so that no other algorithm ("none", RS256) can be asked for by the bearer.
 */
#include "policy/orchestrator/jwt.h"

#include <errno.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

/* {"alg":"HS256","typ":"JWT"} */
static const char header[] = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.";

#define SIGNATURE_SIZE 32
#define SIGNATURE_TEXT_SIZE 44 /* 43 characters without padding, and a NUL */
#define CLAIMS_SIZE 160

/* base64url without padding (RFC 7515, appendix C); text must hold 4 * (length + 2) / 3 + 1 bytes. */
static void encode(const uint8_t *data, size_t length, char *text)
{
    int written = EVP_EncodeBlock((unsigned char *)text, data, (int)length);
    char *end = text + written;
    while (end > text && end[-1] == '=')
        end--;
    *end = '\0';
    for (char *at = text; at < end; at++)
        *at = (char)(*at == '+' ? '-' : *at == '/' ? '_' : *at);
}

/* Decodes claims; they are only read after the signature over them was found right. */
static int decode_claims(const char *text, size_t length, char claims[CLAIMS_SIZE])
{
    char padded[CLAIMS_SIZE * 4 / 3 + 4];
    size_t padded_length = (length + 3) / 4 * 4;
    if (padded_length + 1 > sizeof(padded) || padded_length / 4 * 3 + 1 > CLAIMS_SIZE)
        return -EACCES;
    for (size_t i = 0; i < padded_length; i++)
        padded[i] = (char)(i >= length ? '=' : text[i] == '-' ? '+' : text[i] == '_' ? '/' : text[i]);
    int decoded = EVP_DecodeBlock((unsigned char *)claims, (const unsigned char *)padded, (int)padded_length);
    if (decoded < 0)
        return -EACCES;
    claims[(size_t)decoded - (padded_length - length)] = '\0';
    return 0;
}

static int sign(const uint8_t key[BT_JWT_KEY_SIZE], const char *text, size_t length,
                char signature[SIGNATURE_TEXT_SIZE + 1])
{
    uint8_t digest[SIGNATURE_SIZE];
    unsigned digest_length = 0;
    if (HMAC(EVP_sha256(), key, BT_JWT_KEY_SIZE, (const unsigned char *)text, length, digest,
             &digest_length) == NULL ||
        digest_length != sizeof(digest))
        return -EIO;
    encode(digest, sizeof(digest), signature);
    return 0;
}

int bt_jwt_make(const uint8_t key[BT_JWT_KEY_SIZE], int64_t now, char ret_token[BT_JWT_TEXT_SIZE])
{
    char claims[CLAIMS_SIZE / 2];
    char token[BT_JWT_TEXT_SIZE];
    char signature[SIGNATURE_TEXT_SIZE + 1];
    int length = snprintf(claims, sizeof(claims), "{\"aud\":\"gateway\",\"iat\":%lld,\"exp\":%lld}",
                          (long long)now, (long long)now + BT_JWT_LIFETIME_SECONDS);
    if (length < 0 || (size_t)length >= sizeof(claims))
        return -EIO;
    memcpy(token, header, sizeof(header));
    encode((const uint8_t *)claims, (size_t)length, token + sizeof(header) - 1);
    int result = sign(key, token, strlen(token), signature);
    if (result < 0)
        return result;
    length = snprintf(ret_token, BT_JWT_TEXT_SIZE, "%s.%s", token, signature);
    return length > 0 && length < BT_JWT_TEXT_SIZE ? 0 : -EIO;
}

static int check_claims(const char *claims, int64_t now)
{
    json_t *document = json_loads(claims, JSON_REJECT_DUPLICATES, NULL);
    const char *audience = json_string_value(json_object_get(document, "aud"));
    const json_t *expires = json_object_get(document, "exp");
    bool is_valid = audience != NULL && strcmp(audience, "gateway") == 0 && json_is_integer(expires) &&
                    json_integer_value(expires) > now;
    json_decref(document);
    return is_valid ? 0 : -EACCES;
}

int bt_jwt_check(const uint8_t key[BT_JWT_KEY_SIZE], int64_t now, const char *token)
{
    char signature[SIGNATURE_TEXT_SIZE + 1];
    char claims[CLAIMS_SIZE];
    const char *last_dot = strrchr(token, '.');
    size_t header_length = sizeof(header) - 1;
    if (strlen(token) >= BT_JWT_TEXT_SIZE || strncmp(token, header, header_length) != 0 || last_dot == NULL ||
        last_dot < token + header_length)
        return -EACCES;
    if (sign(key, token, (size_t)(last_dot - token), signature) < 0)
        return -EACCES;
    if (strlen(last_dot + 1) != strlen(signature) ||
        CRYPTO_memcmp(last_dot + 1, signature, strlen(signature)) != 0)
        return -EACCES;
    const char *encoded = token + header_length;
    if (decode_claims(encoded, (size_t)(last_dot - encoded), claims) < 0)
        return -EACCES;
    return check_claims(claims, now);
}
