/* Refusals as answers. See refusal.h. */
#include "policy/gateway/refusal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/memory.h"

static const char *phrase_of(unsigned status)
{
    switch (status) {
    case 400:
        return "Bad request";
    case 403:
        return "Refused by berth";
    case 407:
        return "Proxy authentication required";
    case 421:
        return "Misdirected request";
    case 431:
        return "Head too large";
    case 502:
        return "Bad gateway";
    case 503:
        return "Unavailable";
    case 504:
        return "No answer";
    default:
        return "Error";
    }
}

static void add(struct bt_message *head, const char *name, const char *value)
{
    head->fields[head->field_count++] = (struct bt_http_field){{name, strlen(name)}, {value, strlen(value)}};
}

/* The caller frees it. */
static char *make_body(const struct bt_refusal *refusal, const char *host)
{
    json_t *document =
        json_pack("{s:s, s:s, s:s, s:s, s:s}", "error", phrase_of(refusal->status), "host", host, "reason",
                  refusal->reason, "rule", refusal->rule, "hint", refusal->hint);
    char *body = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    return body;
}

void bt_refusal_answer(const struct bt_refusal *refusal, const char *host, struct bt_stream *stream)
{
    struct bt_message head = {.status = refusal->status};
    char reason[128];
    int length = snprintf(reason, sizeof(reason), "%s (%s)", phrase_of(refusal->status), refusal->rule);
    bt_auto_free char *body = make_body(refusal, host);
    const char *text = body != NULL ? body : "{}";
    head.reason = (struct bt_http_slice){reason, (size_t)length};
    head.content_length = (int64_t)strlen(text);
    add(&head, "content-type", "application/json");
    add(&head, "cache-control", "no-store");
    if (refusal->status == 407)
        add(&head, "proxy-authenticate", "Basic realm=\"berth\"");
    if (stream->operations->send_head(stream, &head, false) == 0 &&
        stream->operations->send_data(stream, text, strlen(text)) == 0)
        (void)stream->operations->send_end(stream, NULL);
}

void bt_refusal_send(const struct bt_refusal *refusal, int fd)
{
    char answer[1024];
    bt_auto_free char *body = make_body(refusal, "");
    if (body == NULL)
        return;
    int length = snprintf(answer, sizeof(answer),
                          "HTTP/1.1 %u %s (%s)\r\nConnection: close\r\nContent-Type: application/json\r\n"
                          "Content-Length: %zu\r\n\r\n%s",
                          refusal->status, phrase_of(refusal->status), refusal->rule, strlen(body), body);
    if (length > 0 && (size_t)length < sizeof(answer))
        (void)send(fd, answer, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void bt_refusal_show(struct bt_http_slice text, char ret_shown[BT_SHOWN_HOST_SIZE])
{
    size_t length = text.length < BT_SHOWN_HOST_SIZE - 1 ? text.length : BT_SHOWN_HOST_SIZE - 1;
    for (size_t i = 0; i < length; i++)
        ret_shown[i] = (char)(text.data[i] > ' ' && text.data[i] < 0x7f ? text.data[i] : '?');
    ret_shown[length] = '\0';
}
