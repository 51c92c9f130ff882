/* The packets that berth-probe makes itself: DNS questions, and datagrams with a source address of its
 * choice. */
#include <errno.h>
#include <string.h>

#include "vm/probe/check.h"

#define IPV4_HEADER 20
#define UDP_HEADER 8

static void store_be16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static uint16_t load_be16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static void store_be32(uint8_t *at, uint32_t value)
{
    store_be16(at, (uint16_t)(value >> 16));
    store_be16(at + 2, (uint16_t)value);
}

int bt_probe_dns_question(const char *name, uint16_t id, uint8_t ret_packet[BT_PROBE_PACKET_MAX])
{
    memset(ret_packet, 0, BT_PROBE_PACKET_MAX);
    store_be16(ret_packet, id);
    store_be16(ret_packet + 2, 0x0100); /* recursion desired */
    store_be16(ret_packet + 4, 1);
    size_t at = 12;
    while (*name) {
        size_t length = strcspn(name, ".");
        if (length == 0 || length > 63 || at + length + 6 > BT_PROBE_PACKET_MAX)
            return -EINVAL;
        ret_packet[at++] = (uint8_t)length;
        memcpy(ret_packet + at, name, length);
        at += length;
        name += length;
        name += *name == '.';
    }
    at++;
    store_be16(ret_packet + at, 1);     /* A */
    store_be16(ret_packet + at + 2, 1); /* IN */
    return (int)(at + 4);
}

int bt_probe_dns_answer(const uint8_t *packet, size_t length, uint16_t id, unsigned *ret_code,
                        unsigned *ret_answers)
{
    if (length < 12 || load_be16(packet) != id || !(packet[2] & 0x80))
        return -EINVAL;
    *ret_code = packet[3] & 0x0fU;
    *ret_answers = load_be16(packet + 6);
    return 0;
}

static uint16_t checksum(const uint8_t *data, size_t length, uint32_t sum)
{
    for (size_t i = 0; i + 1 < length; i += 2)
        sum += load_be16(data + i);
    if (length % 2)
        sum += (uint32_t)data[length - 1] << 8;
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

int bt_probe_udp_packet(uint32_t source, uint32_t to, uint16_t port, const char *text,
                        uint8_t ret_packet[BT_PROBE_PACKET_MAX])
{
    size_t text_length = strlen(text), total = IPV4_HEADER + UDP_HEADER + text_length;
    if (total > BT_PROBE_PACKET_MAX)
        return -EINVAL;
    memset(ret_packet, 0, BT_PROBE_PACKET_MAX);
    uint8_t *udp = ret_packet + IPV4_HEADER;
    ret_packet[0] = 0x45;
    store_be16(ret_packet + 2, (uint16_t)total);
    ret_packet[8] = 64; /* time to live */
    ret_packet[9] = IPPROTO_UDP;
    store_be32(ret_packet + 12, source);
    store_be32(ret_packet + 16, to);
    store_be16(ret_packet + 10, checksum(ret_packet, IPV4_HEADER, 0));
    store_be16(udp, 40000);
    store_be16(udp + 2, port);
    store_be16(udp + 4, (uint16_t)(UDP_HEADER + text_length));
    const void *payload = text;
    memcpy(udp + UDP_HEADER, payload, text_length);
    /* The pseudo header: both addresses, protocol, length. */
    uint32_t sum = (source >> 16) + (source & 0xffff) + (to >> 16) + (to & 0xffff) + IPPROTO_UDP +
                   (uint32_t)(UDP_HEADER + text_length);
    uint16_t udp_sum = checksum(udp, UDP_HEADER + text_length, sum);
    store_be16(udp + 6, udp_sum ? udp_sum : 0xffff);
    return (int)total;
}
