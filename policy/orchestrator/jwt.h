/* JSON Web Tokens (RFC 7519) of one kind: HS256, audience "gateway", ten minutes. Called by api.c. */
#ifndef BERTH_POLICY_ORCHESTRATOR_JWT_H
#define BERTH_POLICY_ORCHESTRATOR_JWT_H

#include "lib/error.h"

#define BT_JWT_KEY_SIZE 32
#define BT_JWT_LIFETIME_SECONDS 600
#define BT_JWT_TEXT_SIZE 256

/* now: seconds since 1970. */
int bt_jwt_make(const uint8_t key[BT_JWT_KEY_SIZE], int64_t now,
                char ret_token[BT_JWT_TEXT_SIZE]) BT_MUST_CHECK;

/* Returns 0, or -EACCES for anything but an unexpired token that bt_jwt_make made with this key. */
int bt_jwt_check(const uint8_t key[BT_JWT_KEY_SIZE], int64_t now, const char *token) BT_MUST_CHECK;

#endif
