/* What the tests of the filters share: an agent's secrets, and a token; tests/lib/filter_run.h runs them. */
#ifndef BERTH_TESTS_UNIT_FILTER_FIXTURE_H
#define BERTH_TESTS_UNIT_FILTER_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/gateway/secrets.h"
#include "tests/lib/filter_run.h"

/* Made up, and of no provider's form. */
static const char secret_text[] = "q7/Zp+4\"w{K2}x=Vn8_Lr";
static const char canary_text[] = "cafe0123456789abcdef";

static inline struct bt_secrets *make_secrets(void)
{
    const struct bt_secret list[] = {
        {BT_SECRET_CREDENTIAL, secret_text, sizeof(secret_text) - 1},
        {BT_SECRET_CANARY, canary_text, sizeof(canary_text) - 1},
        {BT_SECRET_IDENTITY, "short", 5},
    };
    struct bt_secrets *secrets = NULL;
    assert_int_equal(bt_secrets_new(list, BT_ARRAY_LENGTH(list), &secrets, NULL), 0);
    assert_non_null(secrets);
    assert_true(bt_secrets_have(secrets, BT_SECRET_CREDENTIAL));
    assert_false(bt_secrets_have(secrets, BT_SECRET_IDENTITY));
    return secrets;
}

/* A token of GitHub's form, joined here. */
static inline const char *github_token(void)
{
    static char token[64];
    (void)snprintf(token, sizeof(token), "%s_%s%s", "ghp", "R7dkW2mQ9xLc4TnVb8", "sYf3Hj6GpZa1eUo5Ki");
    return token;
}

static inline void ignore(void *context, const void *data, size_t length)
{
    (void)context;
    (void)data;
    (void)length;
}

static inline int filters_start(void **state)
{
    (void)state;
    return bt_filters_start(NULL);
}

static inline int filters_stop(void **state)
{
    (void)state;
    bt_filters_stop();
    return 0;
}

#endif
