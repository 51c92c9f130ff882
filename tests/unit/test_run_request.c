/* vm/init/run_request.c: what the host sends is executed as it was sent; anything else is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vm/init/run_request.h"
#include "vm/run_protocol.h"

static struct bt_run_request request;

static void make_header(uint8_t header[BT_RUN_HEADER_LENGTH], uint32_t length, uint32_t arguments,
                        uint32_t variables)
{
    bt_store_u32(header, BT_RUN_MAGIC);
    bt_store_u32(header + 4, length);
    bt_store_u32(header + 8, 1000);
    bt_store_u32(header + 12, 1001);
    bt_store_u32(header + 16, arguments);
    bt_store_u32(header + 20, variables);
}

/* Parses a body through an exact heap copy, so that a read beyond its end is caught by the sanitizer. */
static int parse(uint32_t arguments, uint32_t variables, const char *body, size_t length, char **ret_copy)
{
    uint8_t header[BT_RUN_HEADER_LENGTH];
    size_t announced = 0;
    make_header(header, (uint32_t)length + 16, arguments, variables);
    int result = bt_run_parse_header(header, &request, &announced);
    if (result < 0)
        return result;
    assert_int_equal(announced, length);
    *ret_copy = malloc(length > 0 ? length : 1);
    assert_non_null(*ret_copy);
    memcpy(*ret_copy, body, length);
    return bt_run_parse_body(*ret_copy, length, &request);
}

static void t_run_request_is_taken_as_sent(void **state)
{
    (void)state;
    static const char body[] = "/workspace\0sh\0\0a b\n$HOME\0PATH=/bin:/usr/bin\0EMPTY=";
    char *copy = NULL;
    assert_int_equal(parse(3, 2, body, sizeof(body), &copy), 0);
    assert_int_equal(request.uid, 1000);
    assert_int_equal(request.gid, 1001);
    assert_string_equal(request.folder, "/workspace");
    char **arguments = bt_run_arguments(&request);
    assert_string_equal(arguments[0], "sh");
    assert_string_equal(arguments[1], "");
    assert_string_equal(arguments[2], "a b\n$HOME");
    assert_null(arguments[3]);
    char **environment = bt_run_environment(&request);
    assert_string_equal(environment[0], "PATH=/bin:/usr/bin");
    assert_string_equal(environment[1], "EMPTY=");
    assert_null(environment[2]);
    assert_string_equal(bt_run_variable(&request, "PATH"), "/bin:/usr/bin");
    assert_string_equal(bt_run_variable(&request, "EMPTY"), "");
    assert_null(bt_run_variable(&request, "PAT"));
    free(copy);
}

static void t_run_request_refuses_headers(void **state)
{
    (void)state;
    uint8_t header[BT_RUN_HEADER_LENGTH];
    size_t length = 7;
    static const struct {
        uint32_t length, arguments, variables;
    } cases[] = {{15, 1, 0},
                 {0, 1, 0},
                 {BT_RUN_LENGTH_MAX + 1, 1, 0},
                 {UINT32_MAX, 1, 0},
                 {100, 0, 0},
                 {100, BT_RUN_STRINGS_MAX + 1, 0},
                 {100, 1, BT_RUN_STRINGS_MAX},
                 {100, UINT32_MAX, 2},
                 {100, 2, UINT32_MAX}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        make_header(header, cases[i].length, cases[i].arguments, cases[i].variables);
        assert_int_equal(bt_run_parse_header(header, &request, &length), -EINVAL);
    }
    make_header(header, 100, 1, 1);
    header[0] ^= 1;
    assert_int_equal(bt_run_parse_header(header, &request, &length), -EINVAL);
    assert_int_equal(length, 7);
}

static void t_run_request_refuses_no_user(void **state)
{
    (void)state;
    uint8_t header[BT_RUN_HEADER_LENGTH];
    size_t length;
    for (size_t at = 8; at <= 12; at += 4) {
        make_header(header, 100, 1, 0);
        bt_store_u32(header + at, UINT32_MAX);
        assert_int_equal(bt_run_parse_header(header, &request, &length), -EINVAL);
    }
}

static void t_run_request_refuses_bodies(void **state)
{
    (void)state;
    static const struct {
        uint32_t arguments, variables;
        const char *body;
        size_t length;
    } cases[] = {
        {1, 0, "", 0},
        {1, 0, "/", 1},          /* not ended */
        {1, 0, "/\0", 2},        /* no argument */
        {1, 0, "/\0sh", 4},      /* argument not ended */
        {1, 0, "home\0sh\0", 8}, /* folder not absolute */
        {1, 0, "\0sh\0", 4},
        {1, 0, "/\0\0", 3},             /* no program */
        {1, 0, "/\0sh\0x\0", 7},        /* more than announced */
        {1, 1, "/\0sh\0", 5},           /* less than announced */
        {1, 1, "/\0sh\0novalue\0", 13}, /* no variable */
        {1, 1, "/\0sh\0=x\0", 8},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        char *copy = NULL;
        assert_int_equal(parse(cases[i].arguments, cases[i].variables, cases[i].body, cases[i].length, &copy),
                         -EINVAL);
        free(copy);
    }
}

static void t_run_request_takes_the_largest(void **state)
{
    (void)state;
    size_t length = BT_RUN_LENGTH_MAX - 16;
    char *body = malloc(length);
    char *copy = NULL;
    assert_non_null(body);
    memset(body, 'a', length);
    memcpy(body, "/\0sh\0", 5);
    body[length - 1] = '\0';
    assert_int_equal(parse(2, 0, body, length, &copy), 0);
    assert_int_equal(strlen(bt_run_arguments(&request)[1]), length - 6);
    free(copy);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_run_request_is_taken_as_sent),  cmocka_unit_test(t_run_request_refuses_headers),
        cmocka_unit_test(t_run_request_refuses_no_user),   cmocka_unit_test(t_run_request_refuses_bodies),
        cmocka_unit_test(t_run_request_takes_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
