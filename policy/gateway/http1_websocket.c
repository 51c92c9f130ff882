/* The opening handshake of WebSocket (RFC 6455, 4), as far as it is HTTP/1.1's own. See http1_internal.h. */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "lib/file.h"
#include "policy/gateway/http1_internal.h"

#define SHA1_BYTES 20

void bt_http1_websocket_key(char ret_key[BT_WEBSOCKET_KEY_LENGTH + 1])
{
    unsigned char bytes[16];
    bt_random_bytes(bytes, sizeof(bytes));
    (void)EVP_EncodeBlock((unsigned char *)ret_key, bytes, (int)sizeof(bytes));
}

void bt_http1_websocket_accept(const char *key, char ret_accept[BT_WEBSOCKET_ACCEPT_SIZE])
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    char text[BT_WEBSOCKET_KEY_LENGTH + sizeof(guid)];
    unsigned char digest[SHA1_BYTES];
    int length = snprintf(text, sizeof(text), "%s%s", key, guid);
    ret_accept[0] = '\0';
    if (EVP_Digest(text, (size_t)length, digest, NULL, EVP_sha1(), NULL) == 1)
        (void)EVP_EncodeBlock((unsigned char *)ret_accept, digest, (int)sizeof(digest));
}
