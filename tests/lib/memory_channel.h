/* A channel (policy/gateway/channel.h) without a socket, for tests and fuzzers of codecs: the test is the
 * peer.
 *
 * Included by one file of a program, which then has no other channel. Bytes are given by memory_channel_feed
 * and taken by memory_channel_take; what was not taken waits, as with a peer that does not read.
 */
#ifndef BERTH_TESTS_LIB_MEMORY_CHANNEL_H
#define BERTH_TESTS_LIB_MEMORY_CHANNEL_H

#include <stdlib.h>

#include "lib/memory.h"
#include "policy/gateway/channel.h"

struct bt_channel {
    const struct bt_channel_events *events;
    void *context;
    struct evbuffer *input, *output;
    enum bt_channel_end end;
    bool is_stopped, was_above, is_finished, is_poked;
    bool *is_gone; /* of who made it: set when its owner frees it */
};

static inline struct bt_channel *memory_channel_new(bool *is_gone)
{
    struct bt_channel *channel = bt_new(1, sizeof(*channel));
    channel->input = evbuffer_new();
    channel->output = evbuffer_new();
    channel->is_gone = is_gone;
    *is_gone = false;
    return channel;
}

/* Bytes from the peer. Those that do not fit, or come while nobody reads, are refused: returns how many were
 * taken. */
static inline size_t memory_channel_feed(struct bt_channel *channel, const void *data, size_t length)
{
    size_t there = evbuffer_get_length(channel->input);
    size_t space = there < BT_CHANNEL_INPUT_MAX ? BT_CHANNEL_INPUT_MAX - there : 0;
    if (channel->is_stopped || channel->end != BT_CHANNEL_OPEN)
        return 0;
    length = length < space ? length : space;
    if (length > 0) {
        evbuffer_add(channel->input, data, length);
        channel->events->on_read(channel->context);
    }
    return length;
}

static inline void memory_channel_end(struct bt_channel *channel, enum bt_channel_end end)
{
    channel->end = end;
    channel->events->on_read(channel->context);
}

/* What bt_channel_poke asked for, as the loop would do it; until nothing is asked any more. The codec may
 * free the channel. */
static inline void memory_channel_turn(struct bt_channel *channel, const bool *is_gone)
{
    while (!*is_gone && channel->is_poked) {
        channel->is_poked = false;
        channel->events->on_read(channel->context);
    }
}

/* Takes up to size bytes that the codec wrote. The codec may free the channel. */
static inline size_t memory_channel_take(struct bt_channel *channel, void *data, size_t size)
{
    int taken = evbuffer_remove(channel->output, data, size);
    if (channel->was_above && evbuffer_get_length(channel->output) <= BT_CHANNEL_OUTPUT_LOW) {
        channel->was_above = false;
        if (channel->events->on_write != NULL)
            channel->events->on_write(channel->context);
    }
    return taken > 0 ? (size_t)taken : 0;
}

struct bt_channel *bt_channel_free(struct bt_channel *channel)
{
    if (channel == NULL)
        return NULL;
    *channel->is_gone = true;
    evbuffer_free(channel->input);
    evbuffer_free(channel->output);
    free(channel);
    return NULL;
}

struct bt_channel *bt_channel_reset(struct bt_channel *channel)
{
    return bt_channel_free(channel);
}

void bt_channel_set_events(struct bt_channel *channel, const struct bt_channel_events *events, void *context)
{
    channel->events = events;
    channel->context = context;
}

void bt_channel_poke(struct bt_channel *channel)
{
    channel->is_poked = true;
}

const SSL *bt_channel_ssl(const struct bt_channel *channel)
{
    (void)channel;
    return NULL;
}

struct evbuffer *bt_channel_input(struct bt_channel *channel)
{
    return channel->input;
}

enum bt_channel_end bt_channel_end_of(const struct bt_channel *channel)
{
    return channel->end;
}

const char *bt_channel_error(const struct bt_channel *channel)
{
    (void)channel;
    return "";
}

void bt_channel_set_reading(struct bt_channel *channel, bool is_reading)
{
    channel->is_stopped = !is_reading;
}

struct evbuffer *bt_channel_output(struct bt_channel *channel)
{
    return channel->output;
}

size_t bt_channel_weight(const struct bt_channel *channel)
{
    return bt_channel_waiting(channel) + evbuffer_get_length(channel->input);
}

size_t bt_channel_waiting(const struct bt_channel *channel)
{
    return evbuffer_get_length(channel->output);
}

void bt_channel_touch(struct bt_channel *channel)
{
    channel->was_above = channel->was_above || bt_channel_waiting(channel) > BT_CHANNEL_OUTPUT_LOW;
}

void bt_channel_write(struct bt_channel *channel, const void *data, size_t length)
{
    evbuffer_add(channel->output, data, length);
    bt_channel_touch(channel);
}

void bt_channel_write_buffer(struct bt_channel *channel, struct evbuffer *data)
{
    evbuffer_add_buffer(channel->output, data);
    bt_channel_touch(channel);
}

void bt_channel_finish(struct bt_channel *channel)
{
    channel->is_finished = true;
}

#endif
