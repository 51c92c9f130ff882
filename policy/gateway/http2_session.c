/* nghttp2 as the codec wants it: what is announced, what is limited. See http2_connection.h. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#include "policy/gateway/held.h"
#include "policy/gateway/http2_connection.h"

#define CONNECTION_WINDOW (1024 * 1024)               /* given back as it comes: streams are what is held */
#define SEND_HEAD_MAX (BT_HTTP_HEAD_MAX + 32U * 1024) /* as nghttp2 reckons it, with its own overhead */
#define RESET_BURST 500
#define RESET_PER_SECOND 33

/* ---- memory: what a peer makes nghttp2 keep is counted, and ends the connection at its limit
 * ---------------- */

static void *account(struct bt_http2 *http2, void *memory)
{
    size_t size = memory != NULL ? malloc_usable_size(memory) : 0;
    http2->memory += size;
    bt_held_change(0, size);
    return memory;
}

static bool may_take(const struct bt_http2 *http2, size_t count, size_t size)
{
    return http2->memory <= BT_HTTP2_MEMORY_MAX &&
           (size == 0 || count <= (BT_HTTP2_MEMORY_MAX - http2->memory) / size);
}

static void *take(size_t size, void *context)
{
    struct bt_http2 *http2 = context;
    return may_take(http2, 1, size) ? account(http2, malloc(size)) : NULL;
}

static void *take_zeroed(size_t count, size_t size, void *context)
{
    struct bt_http2 *http2 = context;
    return may_take(http2, count, size) ? account(http2, calloc(count, size)) : NULL;
}

static void give_back(void *memory, void *context)
{
    struct bt_http2 *http2 = context;
    if (memory != NULL)
        http2->memory -= malloc_usable_size(memory);
    bt_held_give(memory);
}

static void *take_other(void *memory, size_t size, void *context)
{
    struct bt_http2 *http2 = context;
    size_t before = memory != NULL ? malloc_usable_size(memory) : 0;
    if (size > before && !may_take(http2, 1, size - before))
        return NULL;
    void *other = realloc(memory, size > 0 ? size : 1);
    if (other == NULL)
        return NULL;
    http2->memory -= before;
    bt_held_change(before, 0);
    return account(http2, other);
}

/* ---- limits and settings
 * -----------------------------------------------------------------------------------
 */

static void set_options(nghttp2_option *option)
{
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_peer_max_concurrent_streams(option, BT_HTTP2_STREAMS_MAX);
    nghttp2_option_set_max_send_header_block_length(option, SEND_HEAD_MAX);
    nghttp2_option_set_stream_reset_rate_limit(option, RESET_BURST, RESET_PER_SECOND);
}

static int submit_settings(struct bt_http2 *http2)
{
    static const nghttp2_settings_entry server[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, BT_HTTP2_STREAMS_MAX},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, BT_STREAM_HELD_MAX},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, BT_HTTP_HEAD_MAX},
        {NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL, 1},
        /* Every stream gets its turn: see bt_http2_stream_new. */
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
    };
    static const nghttp2_settings_entry client[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, BT_STREAM_HELD_MAX},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, BT_HTTP_HEAD_MAX},
    };
    bool is_server = http2->role == BT_HTTP2_SERVER;
    int result = nghttp2_submit_settings(http2->session, NGHTTP2_FLAG_NONE, is_server ? server : client,
                                         is_server ? BT_ARRAY_LENGTH(server) : BT_ARRAY_LENGTH(client));
    if (result == 0)
        result =
            nghttp2_session_set_local_window_size(http2->session, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW);
    return result == 0 ? 0 : -ENOMEM;
}

int bt_http2_session_start(struct bt_http2 *http2)
{
    nghttp2_mem memory = {http2, take, give_back, take_zeroed, take_other};
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    int result = -ENOMEM;
    if (nghttp2_session_callbacks_new(&callbacks) == 0 && nghttp2_option_new(&option) == 0) {
        bt_http2_frames_set_callbacks(callbacks);
        set_options(option);
        result = http2->role == BT_HTTP2_SERVER
                     ? nghttp2_session_server_new3(&http2->session, callbacks, http2, option, &memory)
                     : nghttp2_session_client_new3(&http2->session, callbacks, http2, option, &memory);
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return result == 0 ? submit_settings(http2) : -ENOMEM;
}
