/* The bytes of one TCP connection, in clear or under TLS: what codecs read from and write to.
 *
 * A channel reads into an input buffer, at most BT_CHANNEL_INPUT_MAX bytes ahead of its owner, and sends what
 * is in its output buffer at the end of the callback in which it was written (one record, one system call).
 * It never closes by itself. Called by session.c, upstream.c and the codecs; must not know HTTP.
 *
 * Callbacks come from the event loop, never from within a call of this interface. A callback may free the
 * channel.
 */
#ifndef BERTH_POLICY_GATEWAY_CHANNEL_H
#define BERTH_POLICY_GATEWAY_CHANNEL_H

#include <event2/buffer.h>
#include <event2/event.h>
#include <openssl/ssl.h>

#include "ipc/base/base.h"

#define BT_CHANNEL_INPUT_MAX (64U * 1024)  /* reading stops above */
#define BT_CHANNEL_OUTPUT_LOW (16U * 1024) /* on_write: output fell to this or less, after it was above */

struct bt_channel_loop; /* what the channels of one event loop share: scratch memory, the list of who has
                           output */
struct bt_channel_loop *bt_channel_loop_new(struct event_base *base);
struct bt_channel_loop *
bt_channel_loop_free(struct bt_channel_loop *loop); /* after its channels; accepts NULL */
/* Has this called whenever a channel's callback returned and what it wrote was sent. It may free channels. */
void bt_channel_loop_watch(struct bt_channel_loop *loop, void (*after)(void *context), void *context);

struct bt_channel;

enum bt_channel_end {
    BT_CHANNEL_OPEN,
    BT_CHANNEL_ENDED,     /* the peer ended its direction in order: FIN, under TLS after close_notify */
    BT_CHANNEL_TRUNCATED, /* FIN without close_notify: what came may be a part */
    BT_CHANNEL_BROKEN,    /* reset, or TLS failed; nothing can be sent any more */
};

struct bt_channel_events {
    /* There is input that was not there before, or bt_channel_end_of changed. */
    void (*on_read)(void *context);
    /* There is room again; also once when everything was sent. May be NULL. */
    void (*on_write)(void *context);
    /* The TLS handshake succeeded. May be NULL. */
    void (*on_secure)(void *context);
};

/* Takes over a connected, non-blocking socket. Reading starts at once. Until bt_channel_free the end of the
 * process resets it. events may be NULL until
 * bt_channel_set_events. */
struct bt_channel *bt_channel_new(struct bt_channel_loop *loop, evutil_socket_t fd,
                                  const struct bt_channel_events *events, void *context);
/* Closes at once; output that was not sent is lost. Accepts NULL; returns NULL. */
struct bt_channel *bt_channel_free(struct bt_channel *channel);
/* The same, with a reset that the peer cannot take for an orderly end. */
struct bt_channel *bt_channel_reset(struct bt_channel *channel);

/* Another owner. Input that is there already is told to it from the loop, as if it had just come. */
void bt_channel_set_events(struct bt_channel *channel, const struct bt_channel_events *events, void *context);

/* Has on_read called from the loop, whether there is anything new or not. */
void bt_channel_poke(struct bt_channel *channel);

/* Begins TLS; ssl is taken over, with its role set (SSL_set_accept_state, SSL_set_connect_state). Input that
 * is there already (the ClientHello) is read first. A handshake that fails is BT_CHANNEL_BROKEN. */
void bt_channel_start_tls(struct bt_channel *channel, SSL *ssl);
const SSL *bt_channel_ssl(const struct bt_channel *channel); /* NULL: in clear */

struct evbuffer *bt_channel_input(struct bt_channel *channel); /* drain what was used */
enum bt_channel_end bt_channel_end_of(const struct bt_channel *channel);
const char *bt_channel_error(const struct bt_channel *channel); /* why it is broken: a phrase; "" otherwise */
/* Stops or resumes reading from the peer. */
void bt_channel_set_reading(struct bt_channel *channel, bool is_reading);

void bt_channel_write(struct bt_channel *channel, const void *data, size_t length);
void bt_channel_write_buffer(struct bt_channel *channel, struct evbuffer *data); /* moves all of it */
/* For what writes in pieces: append to the buffer, then call touch. */
struct evbuffer *bt_channel_output(struct bt_channel *channel);
void bt_channel_touch(struct bt_channel *channel);
size_t bt_channel_waiting(const struct bt_channel *channel); /* bytes written and not yet sent */
size_t bt_channel_weight(const struct bt_channel *channel);  /* the same, and those that were read */
/* Ends this direction once everything was sent: close_notify, FIN. Nothing may be written afterwards. */
void bt_channel_finish(struct bt_channel *channel);

#endif
