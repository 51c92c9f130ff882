/* Which name of a file came first: against a plain table, and at the limit. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "images/hard_links.h"

#define FILES 5000U
#define NAMES 3U

/* Every file has three names, which come in an order without order. */
static void t_first_name_is_found(void **state)
{
    static char first[FILES][16];
    static uint16_t turns[FILES * NAMES];
    struct bt_hard_links links = {.size_max = 1UL << 20};
    uint32_t random = 1;
    (void)state;
    for (uint16_t i = 0; i < FILES * NAMES; i++)
        turns[i] = i;
    for (uint16_t i = FILES * NAMES - 1; i > 0; i--) {
        random = random * 1103515245U + 12345U;
        uint16_t j = (uint16_t)((random >> 8) % (i + 1U)), kept = turns[i];
        turns[i] = turns[j];
        turns[j] = kept;
    }
    for (uint16_t i = 0; i < FILES * NAMES; i++) {
        char name[16];
        const char *earlier = "unset";
        uint16_t file = turns[i] % FILES;
        (void)snprintf(name, sizeof(name), "f%u", turns[i]);
        assert_int_equal(bt_hard_links_meet(&links, file, NAMES, name, &earlier), 0);
        if (first[file][0] == '\0') {
            assert_null(earlier);
            memcpy(first[file], name, sizeof(name));
        } else {
            assert_string_equal(earlier, first[file]);
        }
    }
    assert_int_equal(links.size, 0); /* every name came, so nothing is kept */
    assert_null(links.files);
    bt_hard_links_free(&links);
}

static void t_single_names_take_nothing(void **state)
{
    struct bt_hard_links links = {.size_max = 0};
    const char *earlier = "unset";
    (void)state;
    for (unsigned names = 0; names <= 1; names++) {
        assert_int_equal(bt_hard_links_meet(&links, 7, names, "a", &earlier), 0);
        assert_null(earlier);
    }
    bt_hard_links_free(&links);
}

/* Names that never come: memory is bounded, and what is known stays known. */
static void t_limit(void **state)
{
    struct bt_hard_links links = {.size_max = 10000};
    const char *earlier = NULL;
    uint64_t files = 0;
    (void)state;
    while (bt_hard_links_meet(&links, files, 2, "some/where", &earlier) == 0)
        files++;
    assert_in_range(files, 50, 200);
    assert_true(links.size <= links.size_max);
    assert_int_equal(bt_hard_links_meet(&links, files, 2, "some/where", &earlier), -EFBIG);
    assert_int_equal(bt_hard_links_meet(&links, 0, 2, "else/where", &earlier), 0);
    assert_string_equal(earlier, "some/where");
    assert_int_equal(bt_hard_links_meet(&links, files, 2, "some/where", &earlier), 0); /* there is room now */
    assert_null(earlier);
    bt_hard_links_free(&links);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_first_name_is_found),
        cmocka_unit_test(t_single_names_take_nothing),
        cmocka_unit_test(t_limit),
    };
    return cmocka_run_group_tests_name("hard links", tests, NULL, NULL);
}
