/* ClientHello reader. See hello.h. */
#include "policy/gateway/hello.h"

#include <errno.h>
#include <string.h>

#define RECORD_HANDSHAKE 22
#define RECORD_LENGTH_MAX 16384
#define HANDSHAKE_CLIENT_HELLO 1
#define EXTENSION_SERVER_NAME 0
#define EXTENSION_ENCRYPTED_HELLO 0xfe0d
#define EXTENSION_ENCRYPTED_NAME 0xffce

/* A reader that notices overruns: after one, everything it gives is zero and is_broken is set. */
struct reader {
    const uint8_t *data;
    size_t length;
    bool is_broken;
};

static const uint8_t *take(struct reader *reader, size_t length)
{
    if (reader->is_broken || reader->length < length) {
        reader->is_broken = true;
        return NULL;
    }
    const uint8_t *data = reader->data;
    reader->data += length;
    reader->length -= length;
    return data;
}

/* A big-endian number of 1 to 3 bytes. */
static size_t take_number(struct reader *reader, size_t bytes)
{
    const uint8_t *data = take(reader, bytes);
    size_t number = 0;
    for (size_t i = 0; data != NULL && i < bytes; i++)
        number = number << 8 | data[i];
    return number;
}

/* A vector: a length of so many bytes, then that much. */
static struct reader take_vector(struct reader *reader, size_t length_bytes)
{
    size_t length = take_number(reader, length_bytes);
    const uint8_t *data = take(reader, length);
    return (struct reader){data, data != NULL ? length : 0, reader->is_broken};
}

/* Puts the handshake bytes of the records together. Returns their number, with *ret_length the whole
 * message's. */
static int join_records(const uint8_t *data, size_t length, uint8_t joined[BT_HELLO_MAX], size_t *ret_joined,
                        size_t *ret_needed)
{
    size_t at = 0, count = 0;
    *ret_needed = 4;
    while (count < *ret_needed) {
        if (at < length && data[at] != RECORD_HANDSHAKE)
            return at == 0 ? -EPROTO : -EBADMSG;
        if (at + 1 < length && data[at + 1] != 3)
            return at == 0 ? -EPROTO : -EBADMSG;
        if (length - at < 5)
            return -EAGAIN;
        size_t record = (size_t)data[at + 3] << 8 | data[at + 4];
        if (record == 0 || record > RECORD_LENGTH_MAX)
            return -EBADMSG;
        size_t present = length - at - 5 < record ? length - at - 5 : record;
        if (count + present > BT_HELLO_MAX)
            return -E2BIG;
        memcpy(joined + count, data + at + 5, present);
        count += present;
        if (count >= 1 && joined[0] != HANDSHAKE_CLIENT_HELLO)
            return -EBADMSG;
        if (count >= 4)
            *ret_needed = 4 + ((size_t)joined[1] << 16 | (size_t)joined[2] << 8 | joined[3]);
        if (*ret_needed > BT_HELLO_MAX)
            return -E2BIG;
        if (present < record)
            return count >= *ret_needed ? -EBADMSG : -EAGAIN;
        at += 5 + record;
    }
    *ret_joined = count;
    return 0;
}

static int parse_server_name(struct reader extension, struct bt_hello *hello)
{
    struct reader list = take_vector(&extension, 2);
    size_t type = take_number(&list, 1);
    struct reader name = take_vector(&list, 2);
    /* One name of type host_name, and nothing behind it: a second could be the one that the server takes. */
    if (extension.is_broken || list.is_broken || name.is_broken || extension.length != 0 ||
        list.length != 0 || type != 0 || hello->has_name)
        return -EBADMSG;
    if (name.length == 0 || bt_host_canonical((const char *)name.data, name.length, hello->name) < 0)
        return -EBADMSG;
    hello->has_name = true;
    return 0;
}

static int parse_extensions(struct reader extensions, struct bt_hello *hello)
{
    while (extensions.length > 0) {
        size_t type = take_number(&extensions, 2);
        struct reader extension = take_vector(&extensions, 2);
        if (extensions.is_broken)
            return -EBADMSG;
        if (type == EXTENSION_ENCRYPTED_HELLO || type == EXTENSION_ENCRYPTED_NAME)
            hello->has_encrypted_hello = true;
        int result = type == EXTENSION_SERVER_NAME ? parse_server_name(extension, hello) : 0;
        if (result < 0)
            return result;
    }
    return 0;
}

int bt_hello_parse(const uint8_t *data, size_t length, struct bt_hello *ret_hello)
{
    uint8_t joined[BT_HELLO_MAX];
    size_t count, needed;
    struct bt_hello hello = {0};
    int result = join_records(data, length, joined, &count, &needed);
    if (result < 0)
        return result;
    /* A second handshake message behind the hello, before the server spoke, is nothing a client sends. */
    if (count != needed)
        return -EBADMSG;
    struct reader message = {joined + 4, count - 4, false};
    size_t version = take_number(&message, 2);
    (void)take(&message, 32);
    struct reader session = take_vector(&message, 1);
    struct reader suites = take_vector(&message, 2);
    struct reader compressions = take_vector(&message, 1);
    if (message.is_broken || version < 0x0301 || session.length > 32 || suites.length < 2 ||
        suites.length % 2 != 0 || compressions.length < 1)
        return -EBADMSG;
    if (message.length > 0) {
        struct reader extensions = take_vector(&message, 2);
        if (message.is_broken || message.length != 0)
            return -EBADMSG;
        result = parse_extensions(extensions, &hello);
        if (result < 0)
            return result;
    }
    *ret_hello = hello;
    return 0;
}
