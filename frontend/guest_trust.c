/* Certificates as a Java key store. See guest_environment.h.
 *
 * The format of OpenJDK's sun.security.provider.JavaKeyStore: numbers are big-endian, texts have a length of
 * two bytes; a SHA-1 over the password, a fixed text and everything before it ends the file. That digest
 * protects nothing here: the store holds certificates only, and the password is the one that everybody uses.
 */
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>

#include "frontend/guest_environment.h"

#define STORE_MAX (16UL * 1024 * 1024)

static int add_number(struct bt_buffer *store, uint64_t number, unsigned bytes)
{
    char text[8];
    for (unsigned i = 0; i < bytes; i++)
        text[i] = (char)(number >> (8 * (bytes - 1 - i)) & 0xff);
    return bt_buffer_add(store, text, bytes);
}

static int add_text(struct bt_buffer *store, const char *text)
{
    int result = add_number(store, strlen(text), 2);
    return result == 0 ? bt_buffer_add_text(store, text) : result;
}

/* A trusted certificate: tag 2, alias, time of making (none), kind, encoding. */
static int add_certificate(struct bt_buffer *store, X509 *certificate, uint32_t index)
{
    unsigned char *encoding = NULL;
    char alias[32];
    int length = i2d_X509(certificate, &encoding);
    int result = length > 0 ? 0 : -EIO;
    (void)snprintf(alias, sizeof(alias), "berth-%u", index);
    if (result == 0)
        result = add_number(store, 2, 4);
    if (result == 0)
        result = add_text(store, alias);
    if (result == 0)
        result = add_number(store, 0, 8);
    if (result == 0)
        result = add_text(store, "X.509");
    if (result == 0)
        result = add_number(store, (uint64_t)length, 4);
    if (result == 0)
        result = bt_buffer_add(store, encoding, (size_t)length);
    OPENSSL_free(encoding);
    return result;
}

static int add_certificates(struct bt_buffer *store, const char *pem, size_t length, uint32_t *ret_count)
{
    BIO *input = BIO_new_mem_buf(pem, (int)length);
    uint32_t count = 0;
    int result = input != NULL ? 0 : -ENOMEM;
    X509 *certificate;
    while (result == 0 && (certificate = PEM_read_bio_X509(input, NULL, NULL, NULL)) != NULL) {
        result = add_certificate(store, certificate, count++);
        X509_free(certificate);
    }
    ERR_clear_error(); /* the end of the text is an error to OpenSSL */
    BIO_free(input);
    *ret_count = count;
    return result;
}

/* The password is two bytes a character. */
static int add_digest(struct bt_buffer *store)
{
    static const char password[] = "\0c\0h\0a\0n\0g\0e\0i\0t", salt[] = "Mighty Aphrodite";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool is_done = context != NULL && EVP_DigestInit_ex(context, EVP_sha1(), NULL) == 1 &&
                   EVP_DigestUpdate(context, password, sizeof(password) - 1) == 1 &&
                   EVP_DigestUpdate(context, salt, sizeof(salt) - 1) == 1 &&
                   EVP_DigestUpdate(context, store->data, store->length) == 1 &&
                   EVP_DigestFinal_ex(context, digest, &size) == 1;
    EVP_MD_CTX_free(context);
    return is_done ? bt_buffer_add(store, digest, size) : -EIO;
}

int bt_guest_trust_jks(const char *pem, size_t length, struct bt_buffer *ret_store, struct bt_error *error)
{
    bt_auto_buffer entries = {.limit = STORE_MAX};
    struct bt_buffer store = {.limit = STORE_MAX};
    uint32_t count = 0;
    int result = length < STORE_MAX ? add_certificates(&entries, pem, length, &count) : -EFBIG;
    if (result == 0)
        result = add_number(&store, 0xfeedfeedU, 4);
    if (result == 0)
        result = add_number(&store, 2, 4);
    if (result == 0)
        result = add_number(&store, count, 4);
    if (result == 0 && count > 0)
        result = bt_buffer_add(&store, entries.data, entries.length);
    if (result == 0)
        result = add_digest(&store);
    if (result < 0) {
        bt_buffer_free(&store);
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot write the Java key store of an agent");
    }
    *ret_store = store;
    return 0;
}
