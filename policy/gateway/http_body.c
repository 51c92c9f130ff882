/* Bodies as they come. See http_body.h. */
#include "policy/gateway/http_body.h"

#include <errno.h>

#define DIGITS_MAX 8

enum chunk_state { CHUNK_SIZE, CHUNK_SIZE_LF, CHUNK_DATA, CHUNK_CR, CHUNK_LF, CHUNK_LAST };

void bt_http_body_start(struct bt_http_body_reader *reader, enum bt_http_body body, uint64_t length)
{
    *reader = (struct bt_http_body_reader){
        .body = body, .left = body == BT_HTTP_BODY_LENGTH ? length : 0, .state = CHUNK_SIZE};
}

/* One byte outside of chunk data. Returns 0 or -EBADMSG. */
static int take_chunk_byte(struct bt_http_body_reader *reader, char byte)
{
    int digit = bt_hex_value(byte);
    switch ((enum chunk_state)reader->state) {
    case CHUNK_SIZE:
        if (digit >= 0 && reader->digits < DIGITS_MAX) {
            reader->left = reader->left << 4 | (unsigned)digit;
            reader->digits++;
            return 0;
        }
        reader->state = CHUNK_SIZE_LF;
        return byte == '\r' && reader->digits > 0 ? 0 : -EBADMSG;
    case CHUNK_SIZE_LF:
        reader->state = reader->left > 0 ? CHUNK_DATA : CHUNK_LAST;
        reader->digits = 0;
        return byte == '\n' ? 0 : -EBADMSG;
    case CHUNK_CR:
        reader->state = CHUNK_LF;
        return byte == '\r' ? 0 : -EBADMSG;
    case CHUNK_LF:
        reader->state = CHUNK_SIZE;
        return byte == '\n' ? 0 : -EBADMSG;
    case CHUNK_DATA:
    case CHUNK_LAST:
        break;
    }
    return -EBADMSG;
}

static int read_chunked(struct bt_http_body_reader *reader, const char *data, size_t length,
                        size_t *ret_taken, struct bt_http_slice *ret_data)
{
    size_t at = 0;
    while (at < length && reader->state != CHUNK_DATA && reader->state != CHUNK_LAST)
        if (take_chunk_byte(reader, data[at++]) < 0)
            return -EBADMSG;
    *ret_taken = at;
    if (reader->state == CHUNK_LAST)
        return BT_HTTP_PIECE_TRAILERS;
    if (at == length)
        return BT_HTTP_PIECE_MORE;
    size_t run = length - at < reader->left ? length - at : (size_t)reader->left;
    reader->left -= run;
    if (reader->left == 0)
        reader->state = CHUNK_CR;
    *ret_data = (struct bt_http_slice){data + at, run};
    *ret_taken = at + run;
    return BT_HTTP_PIECE_DATA;
}

int bt_http_body_read(struct bt_http_body_reader *reader, const char *data, size_t length, size_t *ret_taken,
                      struct bt_http_slice *ret_data)
{
    *ret_taken = 0;
    if (reader->body == BT_HTTP_BODY_CHUNKED)
        return read_chunked(reader, data, length, ret_taken, ret_data);
    if (reader->body == BT_HTTP_BODY_NONE || (reader->body == BT_HTTP_BODY_LENGTH && reader->left == 0))
        return BT_HTTP_PIECE_END;
    size_t run = length;
    if (reader->body == BT_HTTP_BODY_LENGTH) {
        run = run < reader->left ? run : (size_t)reader->left;
        reader->left -= run;
    }
    *ret_data = (struct bt_http_slice){data, run};
    *ret_taken = run;
    return run > 0 ? BT_HTTP_PIECE_DATA : BT_HTTP_PIECE_MORE;
}
