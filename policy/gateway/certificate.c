/* Leaves on demand. See certificate.h. */
#include "policy/gateway/certificate.h"

#include <errno.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "lib/memory.h"
#include "policy/rules/rules.h"

#define BUCKETS 256
#define BACKDATED_S (24L * 3600)  /* clocks of guests and hosts differ */
#define VALID_S (90L * 24 * 3600) /* browsers and Apple's clients take at most 397 days */
#define RENEWED_S (VALID_S / 2)   /* a kept leaf is made anew after this */
#define COMMON_NAME_MAX 64        /* RFC 5280, ub-common-name */
#define SERIAL_BYTES 16

struct leaf {
    LIST_ENTRY(leaf) bucket_link;
    TAILQ_ENTRY(leaf) age_link;
    time_t made;
    X509 *certificate;
    char host[BT_HOST_NAME_SIZE];
};

#define EXTENSIONS 5

struct bt_certificates {
    X509 *authority;
    EVP_PKEY *authority_key, *leaf_key;
    X509_EXTENSION *extensions[EXTENSIONS]; /* the same in every leaf */
    size_t count;
    LIST_HEAD(leaf_bucket, leaf) buckets[BUCKETS];
    TAILQ_HEAD(leaf_ages, leaf) ages; /* used last: first */
};

static struct leaf_bucket *bucket_of(struct bt_certificates *certificates, const char *host)
{
    uint32_t hash = 2166136261U; /* FNV-1a */
    for (; *host != '\0'; host++)
        hash = (hash ^ (unsigned char)*host) * 16777619U;
    return &certificates->buckets[hash % BUCKETS];
}

static void free_leaf(struct bt_certificates *certificates, struct leaf *leaf)
{
    LIST_REMOVE(leaf, bucket_link);
    TAILQ_REMOVE(&certificates->ages, leaf, age_link);
    certificates->count--;
    X509_free(leaf->certificate);
    free(leaf);
}

struct bt_certificates *bt_certificates_free(struct bt_certificates *certificates)
{
    if (certificates == NULL)
        return NULL;
    while (!TAILQ_EMPTY(&certificates->ages))
        free_leaf(certificates, TAILQ_FIRST(&certificates->ages));
    for (size_t i = 0; i < EXTENSIONS; i++)
        X509_EXTENSION_free(certificates->extensions[i]);
    X509_free(certificates->authority);
    EVP_PKEY_free(certificates->authority_key);
    EVP_PKEY_free(certificates->leaf_key);
    free(certificates);
    return NULL;
}

/* ---- the authority ---------------------------------------------------------------------------------------
 */

static X509 *read_certificate(const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *certificate = bio != NULL ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    BIO_free(bio);
    return certificate;
}

static EVP_PKEY *read_key(const char *text)
{
    static char no_password[] = "";
    BIO *bio = BIO_new_mem_buf(text, -1);
    EVP_PKEY *key = bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, NULL, no_password) : NULL;
    BIO_free(bio);
    return key;
}

/* The extensions that every leaf has. A first leaf without a host stands for all of them here. */
static int make_extensions(struct bt_certificates *certificates)
{
    static const struct {
        int nid;
        const char *value;
    } wanted[EXTENSIONS] = {
        {NID_basic_constraints, "critical,CA:FALSE"},
        {NID_key_usage, "critical,digitalSignature"},
        {NID_ext_key_usage, "serverAuth"},
        {NID_subject_key_identifier, "hash"},
        {NID_authority_key_identifier, "keyid:always"},
    };
    X509 *sample = X509_new();
    X509V3_CTX context;
    int result = sample != NULL && X509_set_pubkey(sample, certificates->leaf_key) == 1 ? 0 : -EIO;
    X509V3_set_ctx(&context, certificates->authority, sample, NULL, NULL, 0);
    for (size_t i = 0; i < EXTENSIONS && result == 0; i++) {
        certificates->extensions[i] = X509V3_EXT_conf_nid(NULL, &context, wanted[i].nid, wanted[i].value);
        result = certificates->extensions[i] != NULL ? 0 : -EIO;
    }
    X509_free(sample);
    return result;
}

int bt_certificates_new(const char *authority, struct bt_certificates **ret_certificates,
                        struct bt_error *error)
{
    static const char *const hint = "remove authority.pem after `berth down`: a new one is made";
    struct bt_certificates *certificates = bt_new(1, sizeof(*certificates));
    TAILQ_INIT(&certificates->ages);
    certificates->authority = read_certificate(authority);
    certificates->authority_key = read_key(authority);
    certificates->leaf_key = EVP_EC_gen("P-256");
    if (certificates->authority == NULL || certificates->authority_key == NULL ||
        certificates->leaf_key == NULL ||
        X509_check_private_key(certificates->authority, certificates->authority_key) != 1 ||
        X509_check_ca(certificates->authority) == 0 || make_extensions(certificates) < 0) {
        bt_certificates_free(certificates);
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, hint,
                       "the authority's certificate and key cannot be read or do not belong together");
    }
    *ret_certificates = certificates;
    return 0;
}

/* ---- leaves ----------------------------------------------------------------------------------------------
 */

static int set_serial(X509 *certificate)
{
    unsigned char bytes[SERIAL_BYTES];
    if (RAND_bytes(bytes, (int)sizeof(bytes)) != 1)
        return -EIO;
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40); /* positive, and always as long */
    BIGNUM *number = BN_bin2bn(bytes, (int)sizeof(bytes), NULL);
    bool is_set = number != NULL && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL;
    BN_free(number);
    return is_set ? 0 : -EIO;
}

static int set_times(X509 *certificate, const X509 *authority)
{
    time_t now = time(NULL);
    ASN1_TIME *end = ASN1_TIME_adj(NULL, now - BACKDATED_S, 0, VALID_S);
    /* A leaf that outlives its authority is refused by strict clients. */
    if (end != NULL && ASN1_TIME_compare(end, X509_get0_notAfter(authority)) > 0) {
        ASN1_TIME_free(end);
        end = ASN1_STRING_dup(X509_get0_notAfter(authority));
    }
    bool is_set = end != NULL && X509_set1_notAfter(certificate, end) == 1 &&
                  X509_time_adj_ex(X509_getm_notBefore(certificate), 0, -BACKDATED_S, &now) != NULL;
    ASN1_TIME_free(end);
    return is_set ? 0 : -EIO;
}

/* The host goes into subjectAltName, which is what counts; the subject has it too when it fits there. */
static int set_names(X509 *certificate, const X509 *authority, const char *host)
{
    X509_NAME *subject = X509_get_subject_name(certificate);
    size_t length = strlen(host);
    bool is_named = length <= COMMON_NAME_MAX;
    if (is_named && X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_ASC,
                                               (const unsigned char *)host, (int)length, -1, 0) != 1)
        return -EIO;
    GENERAL_NAMES *names = GENERAL_NAMES_new();
    GENERAL_NAME *name = GENERAL_NAME_new();
    ASN1_IA5STRING *text = ASN1_IA5STRING_new();
    int result = -EIO;
    if (names != NULL && name != NULL && text != NULL && ASN1_STRING_set(text, host, (int)length) == 1) {
        GENERAL_NAME_set0_value(name, GEN_DNS, BT_TAKE(text));
        if (sk_GENERAL_NAME_push(names, name) > 0) {
            name = NULL;
            /* Critical where there is no subject (RFC 5280, 4.2.1.6). */
            if (X509_add1_ext_i2d(certificate, NID_subject_alt_name, names, !is_named, 0) == 1 &&
                X509_set_issuer_name(certificate, X509_get_subject_name(authority)) == 1)
                result = 0;
        }
    }
    ASN1_IA5STRING_free(text);
    GENERAL_NAME_free(name);
    GENERAL_NAMES_free(names);
    return result;
}

static X509 *sign_leaf(const struct bt_certificates *certificates, const char *host)
{
    X509 *certificate = X509_new();
    bool is_made = certificate != NULL && X509_set_version(certificate, X509_VERSION_3) == 1 &&
                   set_serial(certificate) == 0 && set_times(certificate, certificates->authority) == 0 &&
                   set_names(certificate, certificates->authority, host) == 0 &&
                   X509_set_pubkey(certificate, certificates->leaf_key) == 1;
    for (size_t i = 0; i < EXTENSIONS && is_made; i++)
        is_made = X509_add_ext(certificate, certificates->extensions[i], -1) == 1;
    if (is_made && X509_sign(certificate, certificates->authority_key, EVP_sha256()) > 0)
        return certificate;
    X509_free(certificate);
    return NULL;
}

static struct leaf *find_leaf(struct bt_certificates *certificates, const char *host)
{
    struct leaf *leaf;
    LIST_FOREACH(leaf, bucket_of(certificates, host), bucket_link)
    if (strcmp(leaf->host, host) == 0)
        return leaf;
    return NULL;
}

static struct leaf *make_leaf(struct bt_certificates *certificates, const char *host)
{
    X509 *certificate = sign_leaf(certificates, host);
    if (certificate == NULL)
        return NULL;
    if (certificates->count >= BT_CERTIFICATES_MAX)
        free_leaf(certificates, TAILQ_LAST(&certificates->ages, leaf_ages));
    struct leaf *leaf = bt_new(1, sizeof(*leaf));
    leaf->certificate = certificate;
    leaf->made = time(NULL);
    memcpy(leaf->host, host, strlen(host) + 1);
    LIST_INSERT_HEAD(bucket_of(certificates, host), leaf, bucket_link);
    TAILQ_INSERT_HEAD(&certificates->ages, leaf, age_link);
    certificates->count++;
    return leaf;
}

int bt_certificates_use(struct bt_certificates *certificates, const char *host, SSL *ssl)
{
    struct leaf *leaf = find_leaf(certificates, host);
    if (leaf != NULL && time(NULL) - leaf->made >= RENEWED_S) {
        free_leaf(certificates, leaf);
        leaf = NULL;
    }
    if (leaf == NULL) {
        leaf = make_leaf(certificates, host);
    } else {
        TAILQ_REMOVE(&certificates->ages, leaf, age_link);
        TAILQ_INSERT_HEAD(&certificates->ages, leaf, age_link);
    }
    if (leaf == NULL || SSL_use_certificate(ssl, leaf->certificate) != 1 ||
        SSL_use_PrivateKey(ssl, certificates->leaf_key) != 1)
        return -EIO;
    return 0;
}
