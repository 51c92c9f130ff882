/* The user's authority: minted once, whoever asks first; in the form that strict verifiers want; and the
 * leaves that the gateway makes with it. */
#include <errno.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "frontend/authority.h"
#include "policy/gateway/tls.h"
#include "tests/lib/test_folder.h"

static struct bt_paths paths;

static int set_up(void **state)
{
    (void)state;
    test_folder_make(paths.state, sizeof(paths.state));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return bt_tree_remove(paths.state, NULL);
}

static X509 *read_certificate(const struct bt_buffer *authority)
{
    BIO *bio = BIO_new_mem_buf(authority->data, (int)authority->length);
    X509 *certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    assert_non_null(certificate);
    return certificate;
}

static void test_minted_once(void **state)
{
    struct bt_buffer first = {0}, second = {0};
    struct bt_error error = {0};
    struct stat status;
    char path[600];
    size_t length;
    (void)state;
    assert_int_equal(bt_authority_get(&paths, &first, &error), 0);
    assert_int_equal(bt_authority_get(&paths, &second, &error), 0);
    assert_string_equal(first.data, second.data);
    (void)snprintf(path, sizeof(path), "%s/authority.pem", paths.state);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    /* What agents get has no key in it. */
    const char *public = bt_authority_certificate(&first, &length);
    bt_auto_free char *certificate = bt_string_copy_length(public, length);
    assert_non_null(strstr(certificate, "BEGIN CERTIFICATE"));
    assert_null(strstr(certificate, "PRIVATE"));
    assert_int_equal(bt_file_write(path, "damaged", 7, 0600, &error), 0);
    bt_buffer_wipe(&second);
    assert_int_equal(bt_authority_get(&paths, &second, &error), -EBADMSG);
    assert_int_equal(bt_file_write(path, first.data, first.length, 0600, &error), 0);
    bt_buffer_wipe(&first);
}

static void test_form(void **state)
{
    struct bt_buffer text = {0};
    int is_critical = 0;
    (void)state;
    assert_int_equal(bt_authority_get(&paths, &text, NULL), 0);
    X509 *certificate = read_certificate(&text);
    BASIC_CONSTRAINTS *constraints = X509_get_ext_d2i(certificate, NID_basic_constraints, &is_critical, NULL);
    assert_non_null(constraints);
    assert_true(is_critical && constraints->ca != 0);
    assert_int_equal(ASN1_INTEGER_get(constraints->pathlen), 0);
    BASIC_CONSTRAINTS_free(constraints);
    assert_int_equal(X509_get_key_usage(certificate), KU_KEY_CERT_SIGN);
    assert_non_null(X509_get0_subject_key_id(certificate));
    assert_true(X509_cmp_current_time(X509_get0_notBefore(certificate)) < 0);
    assert_int_equal(EVP_PKEY_get_id(X509_get0_pubkey(certificate)), EVP_PKEY_EC);
    X509_free(certificate);
    bt_buffer_wipe(&text);
}

/* Verifies a leaf for a host as a strict client does. */
static int verify(X509 *authority, X509 *leaf, const char *host)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    assert_true(store != NULL && context != NULL && X509_STORE_add_cert(store, authority) == 1);
    assert_int_equal(X509_STORE_CTX_init(context, store, leaf, NULL), 1);
    X509_VERIFY_PARAM *parameters = X509_STORE_CTX_get0_param(context);
    (void)X509_VERIFY_PARAM_set_flags(parameters, X509_V_FLAG_X509_STRICT);
    (void)X509_VERIFY_PARAM_set_purpose(parameters, X509_PURPOSE_SSL_SERVER);
    assert_int_equal(X509_VERIFY_PARAM_set1_host(parameters, host, 0), 1);
    (void)X509_verify_cert(context);
    int result = X509_STORE_CTX_get_error(context);
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    return result;
}

static void test_leaves(void **state)
{
    static const char longest[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa."
                                  "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb.example";
    static const char *const hosts[] = {"a.example", "xn--bcher-kva.example", longest};
    struct bt_buffer text = {0}, none = {0};
    struct bt_tls *tls = NULL;
    (void)state;
    assert_int_equal(bt_authority_get(&paths, &text, NULL), 0);
    struct bt_tls_settings settings = {.authority = text.data, .anchors = &none, .anchor_count = 1};
    assert_int_equal(bt_tls_new(&settings, &tls, NULL), 0);
    X509 *authority = read_certificate(&text);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(hosts); i++) {
        SSL *ssl = bt_tls_accept(tls, hosts[i]);
        assert_non_null(ssl);
        X509 *leaf = SSL_get_certificate(ssl);
        int days = 0, seconds = 0;
        assert_int_equal(verify(authority, leaf, hosts[i]), X509_V_OK);
        assert_int_equal(verify(authority, leaf, "other.example"), X509_V_ERR_HOSTNAME_MISMATCH);
        assert_int_equal(ASN1_TIME_diff(&days, &seconds, X509_get0_notBefore(leaf), X509_get0_notAfter(leaf)),
                         1);
        assert_in_range(days, 1, 397);
        SSL_free(ssl);
    }
    /* More names than are kept: all of them work. */
    for (int i = 0; i < 1500; i++) {
        char host[32];
        (void)snprintf(host, sizeof(host), "n%d.example", i);
        SSL *ssl = bt_tls_accept(tls, host);
        assert_non_null(ssl);
        SSL_free(ssl);
    }
    X509_free(authority);
    bt_tls_free(tls);
    settings.authority = "no authority";
    assert_int_equal(bt_tls_new(&settings, &tls, NULL), -EINVAL);
    bt_buffer_wipe(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_minted_once), cmocka_unit_test(test_form),
                                       cmocka_unit_test(test_leaves)};
    return cmocka_run_group_tests_name("authority", tests, set_up, tear_down);
}
