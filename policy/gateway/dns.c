/* DNS messages. See dns.h. */
#include "policy/gateway/dns.h"

#include <errno.h>
#include <string.h>

#define HEADER_SIZE 12
#define FLAG_RESPONSE 0x8000
#define FLAG_TRUNCATED 0x0200
#define FLAG_RECURSION_DESIRED 0x0100
#define FLAG_RECURSION_AVAILABLE 0x0080
#define TYPE_OPT 41
#define EDNS_SIZE 11
#define EDNS_UDP_SIZE 512

static uint16_t load(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static size_t store(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)(value & 0xff);
    return 2;
}

/* Reads the name at *at into dotted text; pointers do not belong in a question. Returns 0 or -EINVAL. */
static int take_name(const uint8_t *packet, size_t length, size_t *at, struct bt_dns_question *question)
{
    char text[BT_HOST_NAME_SIZE];
    size_t count = 0;
    bool is_odd = false;
    for (;;) {
        if (*at >= length || packet[*at] > 63)
            return -EINVAL;
        size_t label = packet[(*at)++];
        if (label == 0)
            break;
        if (*at + label > length || count + label + 1 >= sizeof(text))
            return -EINVAL;
        if (count > 0)
            text[count++] = '.';
        for (size_t i = 0; i < label; i++) {
            char byte = (char)packet[(*at)++];
            /* A dot inside a label would look like two labels, and is no host name. */
            bool is_plain = byte > ' ' && byte < 0x7f && byte != '.' && byte != '\\';
            is_odd = is_odd || !is_plain;
            text[count++] = (char)(is_plain ? byte : '?');
        }
    }
    text[count] = '\0';
    question->has_host = !is_odd && bt_host_canonical(text, count, question->host) == 0;
    if (!question->has_host)
        memcpy(question->host, text, count + 1);
    return 0;
}

/* The additional section may hold one OPT record, whose options do not matter here. */
static int take_edns(const uint8_t *packet, size_t length, size_t *at)
{
    if (*at + EDNS_SIZE > length || packet[*at] != 0 || load(packet + *at + 1) != TYPE_OPT)
        return -EINVAL;
    *at += (size_t)EDNS_SIZE + load(packet + *at + 9);
    return *at <= length ? 0 : -EINVAL;
}

int bt_dns_question_parse(const uint8_t *packet, size_t length, struct bt_dns_question *ret_question)
{
    struct bt_dns_question question = {.end = HEADER_SIZE};
    size_t at = HEADER_SIZE;
    if (length < HEADER_SIZE)
        return -EBADMSG;
    uint16_t flags = load(packet + 2);
    if ((flags & FLAG_RESPONSE) != 0)
        return -EBADMSG;
    question.id = load(packet);
    question.wants_recursion = (flags & FLAG_RECURSION_DESIRED) != 0;
    *ret_question = question;
    if ((flags >> 11 & 0xf) != 0)
        return -(100 + BT_DNS_NOT_IMPLEMENTED);
    if (length > BT_DNS_QUESTION_MAX || (flags & FLAG_TRUNCATED) != 0 || load(packet + 4) != 1 ||
        load(packet + 6) != 0 || load(packet + 8) != 0 || load(packet + 10) > 1 ||
        take_name(packet, length, &at, &question) < 0 || at + 4 > length)
        return -(100 + BT_DNS_FORMAT);
    question.type = load(packet + at);
    question.class = load(packet + at + 2);
    at += 4;
    question.end = at;
    question.has_edns = load(packet + 10) == 1;
    if ((question.has_edns && take_edns(packet, length, &at) < 0) || at != length)
        return -(100 + BT_DNS_FORMAT);
    *ret_question = question;
    return 0;
}

size_t bt_dns_answer_write(const uint8_t *packet, const struct bt_dns_question *question,
                           enum bt_dns_code code, uint32_t address, uint32_t ttl_seconds,
                           uint8_t ret_answer[BT_DNS_ANSWER_MAX])
{
    bool has_question = question->end > HEADER_SIZE;
    bool has_address = has_question && address != 0;
    uint16_t flags = (uint16_t)(FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | (uint16_t)code);
    if (question->wants_recursion)
        flags |= FLAG_RECURSION_DESIRED;
    size_t at = store(ret_answer, question->id);
    at += store(ret_answer + at, flags);
    at += store(ret_answer + at, has_question);
    at += store(ret_answer + at, has_address);
    at += store(ret_answer + at, 0);
    at += store(ret_answer + at, question->has_edns);
    /* The question is at most 12 + 255 + 4 bytes: it was parsed, or is absent. */
    memcpy(ret_answer + at, packet + HEADER_SIZE, question->end - HEADER_SIZE);
    at += question->end - HEADER_SIZE;
    if (has_address) {
        at += store(ret_answer + at, 0xc000 | HEADER_SIZE); /* the question's name */
        at += store(ret_answer + at, BT_DNS_TYPE_A);
        at += store(ret_answer + at, BT_DNS_CLASS_IN);
        at += store(ret_answer + at, (uint16_t)(ttl_seconds >> 16));
        at += store(ret_answer + at, (uint16_t)(ttl_seconds & 0xffff));
        at += store(ret_answer + at, 4);
        at += store(ret_answer + at, (uint16_t)(address >> 16));
        at += store(ret_answer + at, (uint16_t)(address & 0xffff));
    }
    if (question->has_edns) {
        ret_answer[at++] = 0;
        at += store(ret_answer + at, TYPE_OPT);
        at += store(ret_answer + at, EDNS_UDP_SIZE);
        memset(ret_answer + at, 0, 6);
        at += 6;
    }
    return at;
}
