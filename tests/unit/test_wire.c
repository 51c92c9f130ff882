/* The frames: every length is the channel's business; here every byte of every frame is turned over, every
 * slot of every pool is computed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/wire/frame.h"

static struct bt_request hello_request(void)
{
    struct bt_request request = {.verb = BT_VERB_HELLO, .sequence = 1};
    request.body.hello.version_min = 1;
    request.body.hello.version_max = 3;
    return request;
}

static struct bt_request lease_request(void)
{
    struct bt_request request = {.verb = BT_VERB_LEASE, .version = 1, .sequence = 7, .epoch = 99};
    request.body.lease.role = BT_ROLE_GATEWAY;
    request.body.lease.environment = 15;
    request.body.lease.has_slot = true;
    request.body.lease.slot = 1023;
    return request;
}

static struct bt_request adopt_request(void)
{
    struct bt_request request = {.verb = BT_VERB_LEASE, .version = 1, .sequence = 2, .epoch = 99};
    request.body.lease.has_slot = true;
    request.body.lease.is_adopt = true;
    request.body.lease.slot = 5;
    request.body.lease.generation = 0x01020304;
    return request;
}

static struct bt_reply lease_reply(void)
{
    struct bt_reply reply = {.verb = BT_VERB_LEASE, .version = 1, .sequence = 7, .epoch = 99};
    struct bt_reply_lease *lease = &reply.body.lease;
    lease->slot = 3;
    lease->role = BT_ROLE_ORCHESTRATOR;
    lease->generation = 77;
    lease->environment = 2;
    lease->prefix_length = 31;
    lease->has_fd = true;
    lease->host_address = 0x0af30006;
    lease->guest_address = 0x0af30007;
    memcpy(lease->host_mac, "\x02host!", 6);
    memcpy(lease->guest_mac, "\x02guest", 6);
    memcpy(lease->interface_name, "berth3", 6);
    return reply;
}

static void t_wire_layout_is_the_documented_one(void **state)
{
    (void)state;
    uint8_t frame[BT_FRAME_SIZE];
    uint8_t expected[BT_FRAME_SIZE] = "BHT1\x01\x00\x00\x03\x07\x00\x00\x00\x00\x00\x00\x00\x63";
    struct bt_request request = lease_request();
    memcpy(expected + 24, "\x00\x01\x0f\x01\xff\x03", 6);
    assert_int_equal(bt_frame_encode_request(&request, frame), 0);
    assert_memory_equal(frame, expected, BT_FRAME_SIZE);

    uint8_t expected_reply[BT_FRAME_SIZE] = "BHT1\x01\x00\x01\x03\x07\x00\x00\x00\x00\x00\x00\x00\x63";
    static const uint8_t body[] =
        "\x00\x02\x02\x01\x03\x00\x1f\x00\x4d\x00\x00\x00\x06\x00\xf3\x0a\x07\x00\xf3\x0a"
        "\x02host!\x02guestberth3";
    struct bt_reply reply = lease_reply();
    memcpy(expected_reply + 24, body, sizeof(body) - 1);
    assert_int_equal(bt_frame_encode_reply(&reply, frame), 0);
    assert_memory_equal(frame, expected_reply, BT_FRAME_SIZE);
}

static void t_wire_requests_survive_a_round_trip(void **state)
{
    (void)state;
    struct bt_request requests[] = {
        hello_request(),
        lease_request(),
        adopt_request(),
        {.verb = BT_VERB_STATUS, .version = 1, .sequence = 2, .epoch = 1},
        {.verb = BT_VERB_SEAL, .version = 1, .sequence = UINT32_MAX, .epoch = UINT64_MAX},
        {.verb = BT_VERB_COUNTERS, .version = 1, .sequence = 4, .epoch = 1},
        {.verb = BT_VERB_RELEASE, .version = 1, .sequence = 5, .epoch = 1},
        {.verb = BT_VERB_RECONCILE, .version = 1, .sequence = 6, .epoch = 1}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(requests); i++) {
        uint8_t frame[BT_FRAME_SIZE];
        struct bt_request back;
        memset(&back, 0, sizeof(back));
        assert_int_equal(bt_frame_encode_request(&requests[i], frame), 0);
        assert_int_equal(bt_frame_decode_request(frame, &back), 0);
        assert_int_equal(back.verb, requests[i].verb);
        assert_int_equal(back.sequence, requests[i].sequence);
        assert_true(back.epoch == requests[i].epoch);
        if (back.verb == BT_VERB_LEASE) {
            assert_int_equal(back.body.lease.slot, requests[i].body.lease.slot);
            assert_int_equal(back.body.lease.role, requests[i].body.lease.role);
            assert_int_equal(back.body.lease.is_adopt, requests[i].body.lease.is_adopt);
            assert_int_equal(back.body.lease.generation, requests[i].body.lease.generation);
        }
    }
}

static void t_wire_replies_survive_a_round_trip(void **state)
{
    (void)state;
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_reply back, reply = lease_reply();
    assert_int_equal(bt_frame_encode_reply(&reply, frame), 0);
    assert_int_equal(bt_frame_decode_reply(frame, &back), 0);
    assert_memory_equal(back.body.lease.guest_mac, reply.body.lease.guest_mac, 6);
    assert_string_equal(back.body.lease.interface_name, "berth3");
    assert_true(back.body.lease.has_fd);
    assert_int_equal(back.body.lease.guest_address, 0x0af30007);

    reply = (struct bt_reply){.verb = BT_VERB_STATUS, .version = 1, .sequence = 2, .epoch = 5};
    reply.body.status =
        (struct bt_reply_status){.live = 1, .reserved = 2, .dead = 3, .free = 4, .is_healthy = true};
    reply.body.status.own[127] = 0x80;
    assert_int_equal(bt_frame_encode_reply(&reply, frame), 0);
    assert_int_equal(bt_frame_decode_reply(frame, &back), 0);
    assert_memory_equal(&back.body.status, &reply.body.status, sizeof(back.body.status));

    reply = (struct bt_reply){.verb = BT_VERB_COUNTERS, .version = 1, .sequence = 2, .epoch = 5};
    reply.body.counters.dropped_bytes = UINT64_MAX;
    assert_int_equal(bt_frame_encode_reply(&reply, frame), 0);
    assert_int_equal(bt_frame_decode_reply(frame, &back), 0);
    assert_true(back.body.counters.dropped_bytes == UINT64_MAX);

    reply = (struct bt_reply){.verb = BT_VERB_HELLO, .status = BT_STATUS_VERSION, .sequence = 1, .epoch = 5};
    reply.body.hello.version_min = 1;
    reply.body.hello.version_max = 2;
    assert_int_equal(bt_frame_encode_reply(&reply, frame), 0);
    assert_int_equal(bt_frame_decode_reply(frame, &back), 0);
    assert_int_equal(back.body.hello.version_max, 2);
}

/* Whatever one byte becomes: either the decoder refuses it, or it packs to exactly these bytes again. */
static void mutate(const uint8_t frame[BT_FRAME_SIZE], bool is_request, unsigned *ret_accepted)
{
    unsigned accepted = 0;
    for (size_t at = 0; at < BT_FRAME_SIZE; at++) {
        for (unsigned value = 0; value < 256; value++) {
            uint8_t mutant[BT_FRAME_SIZE], again[BT_FRAME_SIZE];
            struct bt_request request;
            struct bt_reply reply;
            memcpy(mutant, frame, BT_FRAME_SIZE);
            mutant[at] = (uint8_t)value;
            int error = is_request ? bt_frame_decode_request(mutant, &request)
                                   : bt_frame_decode_reply(mutant, &reply);
            if (error < 0) {
                assert_int_equal(error, -EBADMSG);
                assert_int_not_equal(value, frame[at]);
                continue;
            }
            accepted++;
            error =
                is_request ? bt_frame_encode_request(&request, again) : bt_frame_encode_reply(&reply, again);
            assert_int_equal(error, 0);
            assert_memory_equal(mutant, again, BT_FRAME_SIZE);
        }
    }
    *ret_accepted = accepted;
}

static void t_wire_every_single_byte_mutation(void **state)
{
    (void)state;
    uint8_t frame[BT_FRAME_SIZE];
    unsigned accepted;
    struct bt_request request = {
        .verb = BT_VERB_SEAL, .version = 1, .sequence = 0x01010101, .epoch = UINT64_MAX};
    assert_int_equal(bt_frame_encode_request(&request, frame), 0);
    mutate(frame, true, &accepted);
    /* All values of version, sequence and epoch but a version of 0; verbs 2..7, of which LEASE is one with an
     * empty body; all other bytes only as they are. */
    assert_int_equal(accepted, 256 * (2 + 4 + 8) - 1 + 6 + (BT_FRAME_SIZE - 15));

    request = lease_request();
    assert_int_equal(bt_frame_encode_request(&request, frame), 0);
    mutate(frame, true, &accepted);
    request = adopt_request();
    assert_int_equal(bt_frame_encode_request(&request, frame), 0);
    mutate(frame, true, &accepted);
    request = hello_request();
    assert_int_equal(bt_frame_encode_request(&request, frame), 0);
    mutate(frame, true, &accepted);
    struct bt_reply reply = lease_reply();
    assert_int_equal(bt_frame_encode_reply(&reply, frame), 0);
    mutate(frame, false, &accepted);
}

static void t_wire_refuses_what_is_outside_its_domain(void **state)
{
    (void)state;
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_request request = lease_request();
    request.body.lease.environment = 16;
    assert_int_equal(bt_frame_encode_request(&request, frame), -EINVAL);
    request = lease_request();
    request.body.lease.slot = 1024;
    assert_int_equal(bt_frame_encode_request(&request, frame), -EINVAL);
    request = lease_request();
    request.body.lease.role = BT_ROLE_MAX;
    assert_int_equal(bt_frame_encode_request(&request, frame), -EINVAL);
    request = lease_request();
    request.body.lease.has_slot = false; /* but a slot */
    assert_int_equal(bt_frame_encode_request(&request, frame), -EINVAL);
    request = adopt_request();
    request.body.lease.generation = 0;
    assert_int_equal(bt_frame_encode_request(&request, frame), -EINVAL);
    request = adopt_request();
    request.body.lease.role = BT_ROLE_GATEWAY;
    assert_int_equal(bt_frame_encode_request(&request, frame), -EINVAL);
    request = hello_request();
    request.body.hello.version_min = 4;
    assert_int_equal(bt_frame_encode_request(&request, frame), -EINVAL);
    request = hello_request();
    request.verb = BT_VERB_MAX;
    assert_int_equal(bt_frame_encode_request(&request, frame), -EINVAL);
    struct bt_reply reply = lease_reply();
    memset(reply.body.lease.interface_name, 'x', BT_INTERFACE_NAME_SIZE);
    assert_int_equal(bt_frame_encode_reply(&reply, frame), -EINVAL);
    reply = lease_reply();
    reply.body.lease.interface_name[10] = 'x'; /* behind the NUL */
    assert_int_equal(bt_frame_encode_reply(&reply, frame), -EINVAL);
}

static void t_wire_statuses_have_errnos(void **state)
{
    (void)state;
    assert_int_equal(bt_status_errno(BT_STATUS_OK), 0);
    for (unsigned i = 1; i < BT_STATUS_MAX; i++) {
        assert_true(bt_status_errno((enum bt_status)i) < 0);
        for (unsigned j = 0; j < i; j++)
            assert_int_not_equal(bt_status_errno((enum bt_status)i), bt_status_errno((enum bt_status)j));
    }
    assert_int_equal(bt_status_errno(BT_STATUS_MAX), -EPROTO);
    assert_int_equal(bt_status_errno((enum bt_status)0xffffffff), -EPROTO);
    assert_string_equal(bt_verb_name(BT_VERB_LEASE), "LEASE");
    assert_string_equal(bt_verb_name(BT_VERB_MAX), "?");
}

/* All 65536 numbers against every pool size that matters. */
static void t_pool_every_slot(void **state)
{
    (void)state;
    static const uint16_t sizes[] = {1, 2, 255, 256, 257, 1023, 1024};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(sizes); i++) {
        struct bt_pool pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT, .slots = sizes[i]};
        for (unsigned slot = 0; slot <= UINT16_MAX; slot++) {
            uint32_t host = 1, guest = 2;
            char name[BT_INTERFACE_NAME_SIZE] = "untouched", expected[BT_INTERFACE_NAME_SIZE];
            uint8_t host_mac[6] = {0}, guest_mac[6] = {0};
            int error = bt_pool_tap_addresses(&pool, (uint16_t)slot, &host, &guest);
            assert_int_equal(bt_pool_tap_name(&pool, (uint16_t)slot, name), error);
            assert_int_equal(bt_pool_tap_macs(&pool, (uint16_t)slot, host_mac, guest_mac), error);
            if (slot >= sizes[i]) {
                assert_int_equal(error, -ERANGE);
                assert_int_equal(host, 1);
                assert_string_equal(name, "untouched");
                continue;
            }
            assert_int_equal(error, 0);
            assert_int_equal(host, BT_POOL_TAP_BASE_DEFAULT + 2 * slot);
            assert_int_equal(guest, host + 1);
            snprintf(expected, sizeof(expected), "berth%u", slot);
            assert_string_equal(name, expected);
            assert_int_equal(host_mac[0] & 3, 2); /* locally administered, unicast */
            assert_int_equal(guest_mac[4] << 8 | guest_mac[5], slot);
            assert_memory_not_equal(host_mac, guest_mac, 6);
        }
    }
}

static void t_pool_places(void **state)
{
    (void)state;
    struct bt_pool pool = {
        .tap_base = BT_POOL_TAP_BASE_DEFAULT, .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT, .slots = 1024};
    struct bt_place place;
    static const uint8_t member[6] = {0x02, 0x42, 10, 242, 31, 251};
    for (unsigned slot = 0; slot <= UINT16_MAX; slot++) {
        for (unsigned role = 0; role < BT_ROLE_MAX; role++) {
            bool is_gateway = role == BT_ROLE_GATEWAY;
            int error = bt_pool_place(&pool, BT_KIND_BRIDGE, (enum bt_role)role, (uint16_t)slot, &place);
            assert_int_equal(error, slot < 1024 ? 0 : -ERANGE);
            if (error < 0)
                continue;
            assert_int_equal(place.host_address, BT_POOL_BRIDGE_BASE_DEFAULT + 8 * slot + 1);
            assert_int_equal(place.gateway_address, place.host_address + 1);
            assert_int_equal(place.guest_address, place.host_address + (is_gateway ? 1 : 2));
            assert_int_equal(memcmp(place.guest_mac, place.gateway_mac, 6) == 0, is_gateway);
        }
    }
    assert_int_equal(bt_pool_place(&pool, BT_KIND_BRIDGE, BT_ROLE_AGENT, 1023, &place), 0);
    assert_string_equal(place.interface_name, "berthd1023");
    assert_memory_equal(place.guest_mac, member, 6);
    assert_int_equal(place.prefix_length, 29);
    assert_int_equal(bt_pool_place(&pool, BT_KIND_TAP_FD, BT_ROLE_GATEWAY, 7, &place), 0);
    assert_string_equal(place.interface_name, "berth7");
    assert_int_equal(place.guest_address, BT_POOL_TAP_BASE_DEFAULT + 15);
    assert_int_equal(place.prefix_length, 31);
    assert_int_equal(place.gateway_address, 0);
    assert_int_equal(bt_pool_place(&pool, BT_KIND_PF, BT_ROLE_AGENT, 7, &place), -EOPNOTSUPP);
    pool.bridge_base = 0xfffffff8;
    assert_int_equal(bt_pool_place(&pool, BT_KIND_BRIDGE, BT_ROLE_AGENT, 0, &place), 0);
    assert_int_equal(bt_pool_place(&pool, BT_KIND_BRIDGE, BT_ROLE_AGENT, 1, &place), -ERANGE);
    pool.bridge_base = 4;
    assert_int_equal(bt_pool_place(&pool, BT_KIND_BRIDGE, BT_ROLE_AGENT, 0, &place), -ERANGE);
}

static void t_pool_refuses_impossible_pools(void **state)
{
    (void)state;
    uint32_t host, guest;
    struct bt_pool odd = {.tap_base = 0x0af30001, .slots = 4};
    assert_int_equal(bt_pool_tap_addresses(&odd, 0, &host, &guest), -ERANGE);
    struct bt_pool wrapping = {.tap_base = 0xfffffffe, .slots = 4};
    assert_int_equal(bt_pool_tap_addresses(&wrapping, 0, &host, &guest), 0);
    assert_int_equal(guest, 0xffffffff);
    assert_int_equal(bt_pool_tap_addresses(&wrapping, 1, &host, &guest), -ERANGE);
    struct bt_pool large = {.tap_base = 0x0af30000, .slots = 1025};
    assert_int_equal(bt_pool_tap_addresses(&large, 0, &host, &guest), -ERANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_wire_layout_is_the_documented_one),
        cmocka_unit_test(t_wire_requests_survive_a_round_trip),
        cmocka_unit_test(t_wire_replies_survive_a_round_trip),
        cmocka_unit_test(t_wire_every_single_byte_mutation),
        cmocka_unit_test(t_wire_refuses_what_is_outside_its_domain),
        cmocka_unit_test(t_wire_statuses_have_errnos),
        cmocka_unit_test(t_pool_every_slot),
        cmocka_unit_test(t_pool_places),
        cmocka_unit_test(t_pool_refuses_impossible_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
