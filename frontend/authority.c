/* Minting and reading the authority. See authority.h. */
#include "frontend/authority.h"

#include <errno.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define AUTHORITY_MAX (64UL * 1024)
#define BACKDATED_S (48L * 3600)
#define VALID_S (10L * 365 * 24 * 3600)
#define SERIAL_BYTES 16
#define BEGIN "-----BEGIN CERTIFICATE-----"
#define END "-----END CERTIFICATE-----\n"

static int add_extension(X509 *certificate, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, certificate, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool is_added = extension != NULL && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return is_added ? 0 : -EIO;
}

static int set_identity(X509 *certificate)
{
    unsigned char bytes[SERIAL_BYTES];
    char host[65] = "localhost";
    char name[160];
    const struct passwd *user = getpwuid(getuid());
    (void)gethostname(host, sizeof(host) - 1);
    /* A common name has at most 64 bytes (RFC 5280, ub-common-name). */
    int length =
        snprintf(name, sizeof(name), "berth of %.20s on %.30s", user != NULL ? user->pw_name : "user", host);
    bt_random_bytes(bytes, sizeof(bytes));
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40);
    BIGNUM *number = BN_bin2bn(bytes, (int)sizeof(bytes), NULL);
    X509_NAME *subject = X509_get_subject_name(certificate);
    bool is_set = number != NULL && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL &&
                  X509_NAME_add_entry_by_NID(subject, NID_organizationName, MBSTRING_UTF8,
                                             (const unsigned char *)"berth", -1, -1, 0) == 1 &&
                  X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_UTF8,
                                             (const unsigned char *)name, length, -1, 0) == 1 &&
                  X509_set_issuer_name(certificate, subject) == 1;
    BN_free(number);
    return is_set ? 0 : -EIO;
}

static X509 *make_certificate(EVP_PKEY *key)
{
    X509 *certificate = X509_new();
    if (certificate != NULL && X509_set_version(certificate, X509_VERSION_3) == 1 &&
        set_identity(certificate) == 0 &&
        X509_gmtime_adj(X509_getm_notBefore(certificate), -BACKDATED_S) != NULL &&
        X509_gmtime_adj(X509_getm_notAfter(certificate), VALID_S) != NULL &&
        X509_set_pubkey(certificate, key) == 1 &&
        add_extension(certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") == 0 &&
        add_extension(certificate, NID_key_usage, "critical,keyCertSign") == 0 &&
        add_extension(certificate, NID_subject_key_identifier, "hash") == 0 &&
        X509_sign(certificate, key, EVP_sha256()) > 0)
        return certificate;
    X509_free(certificate);
    return NULL;
}

static int mint(struct bt_buffer *text, struct bt_error *error)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = key != NULL ? make_certificate(key) : NULL;
    BIO *bio = BIO_new(BIO_s_secmem());
    int result = -EIO;
    if (certificate != NULL && bio != NULL && PEM_write_bio_X509(bio, certificate) == 1 &&
        PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1) {
        char *data = NULL;
        long length = BIO_get_mem_data(bio, &data);
        result = bt_buffer_add(text, data, (size_t)length);
    }
    BIO_free(bio);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return result < 0 ? bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "cannot make a certificate authority") : 0;
}

/* A new one, unless somebody else was first: the link is made only where nothing is yet. */
static int make_file(const char *path, struct bt_error *error)
{
    struct bt_buffer text = {0};
    bt_auto_free char *own = bt_string_format("%s.%d", path, (int)getpid());
    int result = mint(&text, error);
    if (result == 0)
        result = bt_file_write(own, text.data, text.length, 0600, error);
    bt_buffer_wipe(&text);
    if (result == 0 && link(own, path) < 0 && errno != EEXIST)
        result = bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot create %s: %s", path, strerror(errno));
    (void)unlink(own);
    return result;
}

int bt_authority_get(const struct bt_paths *paths, struct bt_buffer *ret_authority, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/authority.pem", paths->state);
    struct bt_buffer text = {0};
    size_t length;
    int result = bt_folder_make(paths->state, 0700, error);
    if (result == 0 && access(path, F_OK) < 0 && errno == ENOENT)
        result = make_file(path, error);
    if (result == 0)
        result = bt_file_read(path, AUTHORITY_MAX, &text, error);
    if (result == 0 &&
        (bt_authority_certificate(&text, &length) == NULL || strstr(text.data, "PRIVATE KEY-----") == NULL))
        result = bt_fail(error, BT_EXIT_ERROR, EBADMSG, "remove it after berth down; a new one is made",
                         "%s is damaged", path);
    if (result < 0)
        bt_buffer_wipe(&text);
    else
        *ret_authority = text;
    return result;
}

const char *bt_authority_certificate(const struct bt_buffer *authority, size_t *ret_length)
{
    const char *begin = authority->data != NULL ? strstr(authority->data, BEGIN) : NULL;
    const char *end = begin != NULL ? strstr(begin, END) : NULL;
    if (end == NULL)
        return NULL;
    *ret_length = (size_t)(end - begin) + sizeof(END) - 1;
    return begin;
}
