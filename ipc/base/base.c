/* Vocabulary shared by every berth program. See base.h. */
#include "ipc/base/base.h"

#include <errno.h>
#include <unistd.h>

void bt_fd_close(int *fd)
{
    if (*fd >= 0) {
        int saved_errno = errno;
        (void)close(*fd);
        errno = saved_errno;
    }
    *fd = -1;
}

int bt_fd_take(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

int bt_number_parse(const char *text, size_t length, uint64_t minimum, uint64_t maximum, uint64_t *ret_value)
{
    uint64_t value = 0;
    if (length == 0 || (length > 1 && text[0] == '0'))
        return -EINVAL;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -EINVAL;
        if (__builtin_mul_overflow(value, 10U, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
            return -ERANGE;
    }
    if (value < minimum || value > maximum)
        return -ERANGE;
    *ret_value = value;
    return 0;
}

void bt_store_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value & 0xff);
    at[1] = (uint8_t)(value >> 8);
}

void bt_store_u32(uint8_t *at, uint32_t value)
{
    bt_store_u16(at, (uint16_t)(value & 0xffff));
    bt_store_u16(at + 2, (uint16_t)(value >> 16));
}

void bt_store_u64(uint8_t *at, uint64_t value)
{
    bt_store_u32(at, (uint32_t)(value & 0xffffffff));
    bt_store_u32(at + 4, (uint32_t)(value >> 32));
}

uint16_t bt_load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (at[1] << 8));
}

uint32_t bt_load_u32(const uint8_t *at)
{
    return (uint32_t)bt_load_u16(at) | ((uint32_t)bt_load_u16(at + 2) << 16);
}

uint64_t bt_load_u64(const uint8_t *at)
{
    return (uint64_t)bt_load_u32(at) | ((uint64_t)bt_load_u32(at + 4) << 32);
}

void bt_ipv4_format(uint32_t address, char ret_text[BT_IPV4_TEXT_SIZE])
{
    size_t at = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        unsigned part = (address >> shift) & 0xff;
        if (part >= 100)
            ret_text[at++] = (char)('0' + part / 100);
        if (part >= 10)
            ret_text[at++] = (char)('0' + part / 10 % 10);
        ret_text[at++] = (char)('0' + part % 10);
        ret_text[at++] = shift > 0 ? '.' : '\0';
    }
}

int bt_ipv4_parse(const char *text, uint32_t *ret_address)
{
    uint32_t address = 0;
    for (int part = 0; part < 4; part++) {
        size_t length = 0;
        while (text[length] >= '0' && text[length] <= '9' && length < 4)
            length++;
        uint64_t value;
        if (bt_number_parse(text, length, 0, 255, &value) < 0)
            return -EINVAL;
        address = address << 8 | (uint32_t)value;
        text += length;
        if (*text != (part < 3 ? '.' : '\0'))
            return -EINVAL;
        text++;
    }
    *ret_address = address;
    return 0;
}
