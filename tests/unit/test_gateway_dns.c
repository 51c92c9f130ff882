/* The gateway's DNS messages. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/gateway/dns.h"

#define HEADER "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
#define QUESTION "\7allowed\7Example\0\0\1\0\1"

static int parse(const char *packet, size_t length, struct bt_dns_question *question)
{
    bt_auto_free uint8_t *exact = bt_new(length, 1);
    memcpy(exact, packet, length);
    return bt_dns_question_parse(exact, length, question);
}
#define PARSE(text, question) parse(text, sizeof(text) - 1, question)
#define FORMAT_ERROR (-(100 + BT_DNS_FORMAT))

static void test_question(void **state)
{
    struct bt_dns_question question;
    (void)state;
    assert_int_equal(PARSE(HEADER QUESTION, &question), 0);
    assert_int_equal(question.id, 0x1234);
    assert_true(question.wants_recursion && question.has_host && !question.has_edns);
    assert_string_equal(question.host, "allowed.example");
    assert_int_equal(question.type, BT_DNS_TYPE_A);
    assert_int_equal(question.end, sizeof(HEADER QUESTION) - 1);
    assert_int_equal(PARSE("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01" QUESTION
                           "\0\0\x29\x10\x00\0\0\0\0\0\4\0\x0a\0\0",
                           &question),
                     0);
    assert_true(question.has_edns);
    /* The root, an underscore, a dot inside a label: names, but not of hosts. */
    assert_int_equal(PARSE(HEADER "\0\0\2\0\1", &question), 0);
    assert_false(question.has_host);
    assert_int_equal(PARSE(HEADER "\4_tcp\1a\0\0\1\0\1", &question), 0);
    assert_false(question.has_host);
    assert_int_equal(PARSE(HEADER "\x0f"
                                  "allowed.example\0\0\1\0\1",
                           &question),
                     0);
    assert_false(question.has_host);
    assert_string_equal(question.host, "allowed?example");
    assert_int_equal(PARSE(HEADER "\3a\0b\0\0\1\0\1", &question), 0);
    assert_false(question.has_host);
}

static void test_refused_forms(void **state)
{
    struct bt_dns_question question;
    (void)state;
    assert_int_equal(PARSE("\x12\x34\x01", &question), -EBADMSG);
    assert_int_equal(PARSE("\x12\x34\x81\x00\x00\x01\x00\x00\x00\x00\x00\x00" QUESTION, &question), -EBADMSG);
    assert_int_equal(PARSE("\x12\x34\x28\x00\x00\x01\x00\x00\x00\x00\x00\x00" QUESTION, &question),
                     -(100 + BT_DNS_NOT_IMPLEMENTED));
    assert_int_equal(PARSE("\x12\x34\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00", &question), FORMAT_ERROR);
    assert_int_equal(PARSE("\x12\x34\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00" QUESTION QUESTION, &question),
                     FORMAT_ERROR);
    assert_int_equal(PARSE("\x12\x34\x01\x00\x00\x01\x00\x01\x00\x00\x00\x00" QUESTION, &question),
                     FORMAT_ERROR);
    assert_int_equal(PARSE("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01" QUESTION, &question),
                     FORMAT_ERROR);
    assert_int_equal(PARSE(HEADER QUESTION "x", &question), FORMAT_ERROR);
    assert_int_equal(PARSE(HEADER "\xc0\x0c\0\1\0\1", &question), FORMAT_ERROR); /* a pointer to itself */
    assert_int_equal(PARSE(HEADER "\7allow", &question), FORMAT_ERROR);
    assert_int_equal(PARSE(HEADER "\1a\0\0\1", &question), FORMAT_ERROR);
    assert_int_equal(question.end, 12);
    char packet[12 + 4 * 64 + 5] = HEADER;
    for (size_t label = 0; label < 4; label++) { /* 256 bytes of name */
        packet[12 + label * 64] = 63;
        memset(packet + 13 + label * 64, 'a', 63);
    }
    memcpy(packet + 12 + 256, "\0\0\1\0\1", 5);
    assert_int_equal(parse(packet, sizeof(packet), &question), FORMAT_ERROR);
}

static void test_answers(void **state)
{
    static const char packet[] = HEADER QUESTION;
    static const char wanted[] = "\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" QUESTION
                                 "\xc0\x0c\0\1\0\1\0\0\0\5\0\4\x0a\xf3\0\6";
    static const char refused[] = "\x12\x34\x81\x85\x00\x01\x00\x00\x00\x00\x00\x00" QUESTION;
    static const char format[] = "\x12\x34\x81\x81\x00\x00\x00\x00\x00\x00\x00\x00";
    struct bt_dns_question question;
    uint8_t answer[BT_DNS_ANSWER_MAX];
    (void)state;
    assert_int_equal(PARSE(HEADER QUESTION, &question), 0);
    size_t length = bt_dns_answer_write((const uint8_t *)packet, &question, BT_DNS_OK, 0x0af30006, 5, answer);
    assert_int_equal(length, sizeof(wanted) - 1);
    assert_memory_equal(answer, wanted, length);
    length = bt_dns_answer_write((const uint8_t *)packet, &question, BT_DNS_REFUSED, 0, 5, answer);
    assert_int_equal(length, sizeof(refused) - 1);
    assert_memory_equal(answer, refused, length);
    assert_int_equal(PARSE(HEADER "\x40", &question), FORMAT_ERROR);
    length = bt_dns_answer_write((const uint8_t *)HEADER "\x40", &question, BT_DNS_FORMAT, 0, 5, answer);
    assert_int_equal(length, sizeof(format) - 1);
    assert_memory_equal(answer, format, length);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_question),
        cmocka_unit_test(test_refused_forms),
        cmocka_unit_test(test_answers),
    };
    return cmocka_run_group_tests_name("gateway_dns", tests, NULL, NULL);
}
