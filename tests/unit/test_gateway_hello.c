/* The gateway's ClientHello reader, on hellos built here byte by byte and on one that OpenSSL made. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#include "lib/memory.h"
#include "policy/gateway/hello.h"

struct message {
    uint8_t bytes[4096];
    size_t length;
};

static void add(struct message *message, const void *data, size_t length)
{
    assert_true(message->length + length <= sizeof(message->bytes));
    memcpy(message->bytes + message->length, data, length);
    message->length += length;
}

static void add_number(struct message *message, size_t number, size_t bytes)
{
    for (size_t i = bytes; i > 0; i--) {
        uint8_t byte = (uint8_t)(number >> 8 * (i - 1) & 0xff);
        add(message, &byte, 1);
    }
}

static void add_extension(struct message *extensions, unsigned type, const struct message *content)
{
    add_number(extensions, type, 2);
    add_number(extensions, content->length, 2);
    add(extensions, content->bytes, content->length);
}

static void add_name(struct message *extensions, const char *name, size_t length)
{
    struct message content = {0};
    add_number(&content, length + 3, 2);
    add_number(&content, 0, 1);
    add_number(&content, length, 2);
    add(&content, name, length);
    add_extension(extensions, 0, &content);
}

/* The handshake message of a hello with these extensions. */
static struct message make_handshake(const struct message *extensions)
{
    struct message body = {0}, handshake = {0};
    uint8_t random[32] = {7};
    add_number(&body, 0x0303, 2);
    add(&body, random, sizeof(random));
    add_number(&body, 0, 1);
    add_number(&body, 2, 2);
    add_number(&body, 0x1301, 2);
    add_number(&body, 1, 1);
    add_number(&body, 0, 1);
    add_number(&body, extensions->length, 2);
    add(&body, extensions->bytes, extensions->length);
    add_number(&handshake, 1, 1);
    add_number(&handshake, body.length, 3);
    add(&handshake, body.bytes, body.length);
    return handshake;
}

/* Cut into records of at most piece bytes. */
static struct message make_records(const struct message *handshake, size_t piece)
{
    struct message records = {0};
    for (size_t at = 0; at < handshake->length; at += piece) {
        size_t part = handshake->length - at < piece ? handshake->length - at : piece;
        add_number(&records, 0x160301, 3);
        add_number(&records, part, 2);
        add(&records, handshake->bytes + at, part);
    }
    return records;
}

static struct message make_hello(const char *name, size_t length)
{
    struct message extensions = {0};
    if (name != NULL)
        add_name(&extensions, name, length);
    struct message handshake = make_handshake(&extensions);
    return make_records(&handshake, 4000);
}

static int parse(const struct message *message, struct bt_hello *hello)
{
    /* A copy of exact size, so that the sanitiser sees a read past its end. */
    bt_auto_free char *copy = bt_string_copy_length((const char *)message->bytes, message->length);
    bt_auto_free uint8_t *exact = bt_new(message->length, 1);
    memcpy(exact, copy, message->length);
    return bt_hello_parse(exact, message->length, hello);
}

static void test_names(void **state)
{
    struct bt_hello hello;
    struct message message = make_hello("Allowed.Example", 15);
    (void)state;
    assert_int_equal(parse(&message, &hello), 0);
    assert_true(hello.has_name);
    assert_false(hello.has_encrypted_hello);
    assert_string_equal(hello.name, "allowed.example");
    message = make_hello(NULL, 0);
    assert_int_equal(parse(&message, &hello), 0);
    assert_false(hello.has_name);
    static const struct {
        const char *name;
        size_t length;
    } bad[] = {{"", 0}, {"a\0b", 3}, {"1.2.3.4", 7}, {"a_b", 3}, {"a b", 3}, {"::1", 3}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        message = make_hello(bad[i].name, bad[i].length);
        assert_int_equal(parse(&message, &hello), -EBADMSG);
    }
}

static void test_pieces(void **state)
{
    struct message extensions = {0};
    struct bt_hello hello;
    (void)state;
    add_name(&extensions, "allowed.example", 15);
    struct message handshake = make_handshake(&extensions);
    for (size_t piece = 1; piece <= handshake.length; piece++) {
        struct message records = make_records(&handshake, piece);
        assert_int_equal(parse(&records, &hello), 0);
        assert_string_equal(hello.name, "allowed.example");
    }
    struct message records = make_records(&handshake, 20);
    size_t whole = records.length;
    for (size_t length = 0; length < whole; length++) {
        records.length = length;
        assert_int_equal(parse(&records, &hello), -EAGAIN);
    }
}

static void test_two_names(void **state)
{
    struct message extensions = {0}, content = {0};
    struct bt_hello hello;
    (void)state;
    add_name(&extensions, "allowed.example", 15);
    add_name(&extensions, "blocked.example", 15);
    struct message handshake = make_handshake(&extensions);
    struct message records = make_records(&handshake, 4000);
    assert_int_equal(parse(&records, &hello), -EBADMSG);
    /* Two entries in one list. */
    extensions.length = 0;
    add_number(&content, 8, 2);
    add(&content, "\0\0\1a\0\0\1b", 8);
    add_extension(&extensions, 0, &content);
    handshake = make_handshake(&extensions);
    records = make_records(&handshake, 4000);
    assert_int_equal(parse(&records, &hello), -EBADMSG);
}

static void test_encrypted(void **state)
{
    static const unsigned types[] = {0xfe0d, 0xffce};
    struct bt_hello hello;
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(types); i++) {
        struct message extensions = {0}, content = {0};
        add_number(&content, 1, 4);
        add_name(&extensions, "allowed.example", 15);
        add_extension(&extensions, types[i], &content);
        struct message handshake = make_handshake(&extensions);
        struct message records = make_records(&handshake, 4000);
        assert_int_equal(parse(&records, &hello), 0);
        assert_true(hello.has_encrypted_hello);
    }
}

static void test_malformed(void **state)
{
    struct message good = make_hello("allowed.example", 15);
    struct bt_hello hello;
    (void)state;
    struct message message = {.bytes = "SSH-2.0-OpenSSH", .length = 15};
    assert_int_equal(parse(&message, &hello), -EPROTO);
    message = (struct message){.bytes = "GET / HTTP/1.1", .length = 14};
    assert_int_equal(parse(&message, &hello), -EPROTO);
    message = (struct message){.bytes = {0x80, 0x2e, 1, 3, 1}, .length = 5}; /* SSL 2 */
    assert_int_equal(parse(&message, &hello), -EPROTO);
    message = (struct message){.bytes = {22, 3, 1, 0, 0}, .length = 5}; /* an empty record */
    assert_int_equal(parse(&message, &hello), -EBADMSG);
    message = (struct message){.bytes = {22, 3, 1, 0x40, 1}, .length = 5}; /* above 2^14 */
    assert_int_equal(parse(&message, &hello), -EBADMSG);
    message = (struct message){.bytes = {22, 3, 1, 0, 4, 2, 0, 0, 0}, .length = 9}; /* ServerHello */
    assert_int_equal(parse(&message, &hello), -EBADMSG);
    message = (struct message){.bytes = {22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff}, .length = 9}; /* 16 MiB */
    assert_int_equal(parse(&message, &hello), -E2BIG);
    /* Another byte in the same record, behind the hello. */
    message = good;
    message.bytes[message.length++] = 0;
    message.bytes[4]++;
    assert_int_equal(parse(&message, &hello), -EBADMSG);
    /* Every single byte turned over: any answer, but no read outside. */
    for (size_t i = 0; i < good.length; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            message = good;
            message.bytes[i] ^= (uint8_t)(1U << bit);
            (void)!parse(&message, &hello);
        }
}

static void test_openssl(void **state)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    BIO *input = BIO_new(BIO_s_mem()), *output = BIO_new(BIO_s_mem());
    struct bt_hello hello;
    struct message message = {0};
    (void)state;
    SSL_set_bio(ssl, input, output);
    assert_int_equal(SSL_set_tlsext_host_name(ssl, "git.allowed.example"), 1);
    (void)SSL_connect(ssl);
    int length = BIO_read(output, message.bytes, (int)sizeof(message.bytes));
    assert_true(length > 0);
    message.length = (size_t)length;
    assert_int_equal(parse(&message, &hello), 0);
    assert_string_equal(hello.name, "git.allowed.example");
    SSL_free(ssl);
    SSL_CTX_free(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),     cmocka_unit_test(test_pieces),    cmocka_unit_test(test_two_names),
        cmocka_unit_test(test_encrypted), cmocka_unit_test(test_malformed), cmocka_unit_test(test_openssl),
    };
    return cmocka_run_group_tests_name("gateway_hello", tests, NULL, NULL);
}
