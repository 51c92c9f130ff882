/* What commands in a guest find: variables once each, loopback never through the proxy, and a key store that
 * Java's own tool reads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "frontend/guest_environment.h"
#include "lib/file.h"

static const char *value_of(const struct bt_list *environment, const char *name)
{
    const char *value = NULL;
    size_t length = strlen(name);
    for (size_t i = 0; i < environment->count; i++) {
        if (strncmp(environment->items[i], name, length) != 0 || environment->items[i][length] != '=')
            continue;
        if (value != NULL)
            fail_msg("%s is there twice", name);
        value = environment->items[i] + length + 1;
    }
    if (value == NULL)
        fail_msg("%s is missing", name);
    return value;
}

static void test_variables(void **state)
{
    static const char *const own[] = {"A=b", NULL};
    static const char *const trust[] = {
        "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE",
        "PIP_CERT",      "CARGO_HTTP_CAINFO",   "AWS_CA_BUNDLE",  "DENO_CERT",      "CODEX_CA_CERTIFICATE"};
    static const char *const proxies[] = {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"};
    static const char *const loopbacks[] = {"localhost", "127.0.0.1", "::1", "[::1]"};
    bt_auto_list environment = {0};
    (void)state;
    bt_guest_environment(0x0af30006, "token", "canary-value", own, "xterm", &environment);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(trust); i++)
        assert_string_equal(value_of(&environment, trust[i]), "/run/berth/config/trust.pem");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(proxies); i++)
        assert_string_equal(value_of(&environment, proxies[i]), "http://agent:token@10.243.0.6:8119");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(loopbacks); i++) {
        char wanted[32], all[256];
        snprintf(wanted, sizeof(wanted), ",%s,", loopbacks[i]);
        snprintf(all, sizeof(all), ",%s,", value_of(&environment, "no_proxy"));
        assert_non_null(strstr(all, wanted));
    }
    assert_string_equal(value_of(&environment, "NO_PROXY"), value_of(&environment, "no_proxy"));
    assert_string_equal(value_of(&environment, "NODE_USE_ENV_PROXY"), "1");
    assert_string_equal(value_of(&environment, "SSL_CERT_DIR"), "/etc/ssl/certs");
    assert_string_equal(value_of(&environment, "TERM"), "xterm");
    assert_string_equal(value_of(&environment, "BACKUP_ACCESS_TOKEN"), "canary-value");
    assert_string_equal(environment.items[environment.count - 1],
                        "A=b"); /* the bottle's have the last word */
    assert_non_null(strstr(value_of(&environment, "JAVA_TOOL_OPTIONS"), "/run/berth/config/trust.jks"));
}

static void test_reserved(void **state)
{
    (void)state;
    assert_true(bt_guest_environment_is_reserved("https_proxy"));
    assert_true(bt_guest_environment_is_reserved("No_Proxy"));
    assert_true(bt_guest_environment_is_reserved("BERTH_X"));
    assert_true(bt_guest_environment_is_reserved("PATH"));
    assert_true(bt_guest_environment_is_reserved("BACKUP_ACCESS_TOKEN"));
    assert_false(bt_guest_environment_is_reserved("SSL_CERT_FILE"));
    assert_false(bt_guest_environment_is_reserved("PATHS"));
}

/* A self-signed certificate of P-256, made for this test (openssl req -x509, CN=berth test). */
static const char certificate[] = "-----BEGIN CERTIFICATE-----\n"
                                  "MIIBgTCCASegAwIBAgIUNHVuuLwSDHJZY0QuzU5gH9wJJfswCgYIKoZIzj0EAwIw\n"
                                  "FTETMBEGA1UEAwwKYmVydGggdGVzdDAgFw0yNjExMjkyMDUxMDdaGA8yMTI2MTEw\n"
                                  "NTIwNTEwN1owFTETMBEGA1UEAwwKYmVydGggdGVzdDBZMBMGByqGSM49AgEGCCqG\n"
                                  "SM49AwEHA0IABN0R+YvATahGlTetlaxyMB3ls1iTo8EnNBo4dPBApO/jhhcAhqbM\n"
                                  "0MPiyChjJRXYLUYoXM5Aufvn1YxaFyeOiHajUzBRMB0GA1UdDgQWBBQIqJPxogsA\n"
                                  "Q/cxLth9MsIQur6KMDAfBgNVHSMEGDAWgBQIqJPxogsAQ/cxLth9MsIQur6KMDAP\n"
                                  "BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIDl6BZ76W0lz6SgljdX0\n"
                                  "xVrpdOa8UA9HKaOrTjZsMwYBAiEA9pK+AH6z/AE7cSq/3GYF49rNDEakOz/R4gfb\n"
                                  "H8ECJCY=\n"
                                  "-----END CERTIFICATE-----\n";

static void test_key_store(void **state)
{
    struct bt_buffer store = {0};
    struct bt_error error = {0};
    char text[4096];
    (void)state;
    snprintf(text, sizeof(text), "# roots\n%s\nsome text\n%s", certificate, certificate);
    assert_int_equal(bt_guest_trust_jks(text, strlen(text), &store, &error), 0);
    assert_memory_equal(store.data, "\xfe\xed\xfe\xed\0\0\0\2\0\0\0\2", 12);
    bt_buffer_free(&store);
    assert_int_equal(bt_guest_trust_jks("", 0, &store, &error), 0);
    assert_int_equal(store.length, 12 + 20);
    bt_buffer_free(&store);
}

/* Java is what decides whether it is one. */
static void test_key_store_in_java(void **state)
{
    struct bt_buffer store = {0};
    struct bt_error error = {0};
    char path[] = "/tmp/berth-key-store-XXXXXX", command[256];
    (void)state;
    if (access("/usr/bin/keytool", X_OK) < 0)
        skip();
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(bt_guest_trust_jks(certificate, sizeof(certificate) - 1, &store, &error), 0);
    assert_int_equal(bt_write_all(fd, store.data, store.length), 0);
    (void)close(fd);
    snprintf(command, sizeof(command),
             "/usr/bin/keytool -list -keystore %s -storetype JKS -storepass changeit 2>/dev/null", path);
    FILE *listing = popen(command, "r");
    assert_non_null(listing);
    char said[4096];
    size_t length = fread(said, 1, sizeof(said) - 1, listing);
    said[length] = '\0';
    assert_int_equal(pclose(listing), 0);
    (void)unlink(path);
    bt_buffer_free(&store);
    assert_non_null(strstr(said, "1 entry"));
    assert_non_null(strstr(said, "berth-0"));
    assert_non_null(strstr(said, "trustedCertEntry"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variables),
        cmocka_unit_test(test_reserved),
        cmocka_unit_test(test_key_store),
        cmocka_unit_test(test_key_store_in_java),
    };
    return cmocka_run_group_tests_name("guest environment", tests, NULL, NULL);
}
