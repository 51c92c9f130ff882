/* Entry points for Frama-C EVA: ipc/wire and the pool's arithmetic on any bytes and any fields.
 *
 * Analysed by eva.sh, never run. Every buffer has exactly the size that its function documents, so that one
 * byte too far is an alarm; every assertion is one that EVA has to prove.
 */
#include <__fc_builtin.h>
#include <stdint.h>

#include "ipc/wire/frame.h"

static bool any_bool(void)
{
    return Frama_C_interval(0, 1) != 0;
}

void verify_decode_request(void);
void verify_decode_request(void)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_request request;
    Frama_C_make_unknown((char *)frame, sizeof(frame));
    if (bt_frame_decode_request(frame, &request) == 0) {
        /*@ assert 0 < request.verb < BT_VERB_MAX; */
        (void)request;
    }
}

void verify_decode_reply(void);
void verify_decode_reply(void)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_reply reply;
    Frama_C_make_unknown((char *)frame, sizeof(frame));
    if (bt_frame_decode_reply(frame, &reply) == 0) {
        /*@ assert 0 < reply.verb < BT_VERB_MAX && reply.status < BT_STATUS_MAX; */
        (void)reply;
    }
}

void verify_encode_request(void);
void verify_encode_request(void)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_request request;
    Frama_C_make_unknown((char *)&request, sizeof(request));
    if (any_bool()) {
        request.body.lease.has_slot = any_bool();
        request.body.lease.is_adopt = any_bool();
    } else {
        request.verb = BT_VERB_HELLO;
    }
    (void)!bt_frame_encode_request(&request, frame);
}

void verify_encode_reply(void);
void verify_encode_reply(void)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_reply reply;
    Frama_C_make_unknown((char *)&reply, sizeof(reply));
    switch (Frama_C_interval(0, 2)) {
    case 0:
        reply.verb = BT_VERB_LEASE;
        reply.body.lease.has_fd = any_bool();
        reply.body.lease.is_sealed = any_bool();
        break;
    case 1:
        reply.verb = BT_VERB_STATUS;
        reply.body.status.is_healthy = any_bool();
        break;
    default:
        reply.verb = any_bool() ? BT_VERB_HELLO : BT_VERB_COUNTERS;
        break;
    }
    (void)!bt_frame_encode_reply(&reply, frame);
}

void verify_pool(void);
void verify_pool(void)
{
    struct bt_pool pool;
    struct bt_place place;
    uint32_t host, guest;
    char name[BT_INTERFACE_NAME_SIZE];
    uint8_t host_mac[6], guest_mac[6];
    uint16_t slot = (uint16_t)Frama_C_interval(0, UINT16_MAX);
    Frama_C_make_unknown((char *)&pool, sizeof(pool));
    if (bt_pool_tap_addresses(&pool, slot, &host, &guest) == 0) {
        /*@ assert host != guest; */
        (void)host;
    }
    (void)!bt_pool_tap_name(&pool, slot, name);
    (void)!bt_pool_tap_macs(&pool, slot, host_mac, guest_mac);
    (void)!bt_pool_place(&pool, (enum bt_kind)Frama_C_interval(0, BT_KIND_MAX),
                         (enum bt_role)Frama_C_interval(0, BT_ROLE_MAX), slot, &place);
}

void verify_numbers(void);
void verify_numbers(void)
{
    char text[24];
    uint64_t value;
    size_t length = (size_t)Frama_C_interval(0, sizeof(text));
    Frama_C_make_unknown(text, sizeof(text));
    if (bt_number_parse(text, length, 0, 1023, &value) == 0) {
        /*@ assert value <= 1023; */
        (void)value;
    }
}

void verify_names(void);
void verify_names(void)
{
    (void)bt_verb_name((enum bt_verb)Frama_C_unsigned_int_interval(0, UINT32_MAX));
    (void)bt_status_errno((enum bt_status)Frama_C_unsigned_int_interval(0, UINT32_MAX));
}
