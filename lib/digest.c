/* Digests and random bytes (OpenSSL, getrandom(2)). See file.h. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "lib/file.h"

static void to_hex(const unsigned char *bytes, size_t length, char *ret_text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < length; i++) {
        ret_text[2 * i] = digits[bytes[i] >> 4];
        ret_text[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret_text[2 * length] = '\0';
}

static _Noreturn void die(const char *message)
{
    (void)fprintf(stderr, "berth: %s\n", message);
    abort();
}

void bt_digest_bytes(const void *data, size_t length, char ret_text[BT_DIGEST_TEXT_SIZE])
{
    unsigned char digest[32];
    unsigned int size = 0;
    if (EVP_Digest(data, length, digest, &size, EVP_sha256(), NULL) != 1 || size != sizeof digest)
        die("SHA-256 failed");
    to_hex(digest, sizeof digest, ret_text);
}

static int digest_stream(EVP_MD_CTX *context, int fd)
{
    unsigned char chunk[65536];
    for (;;) {
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : 0;
        if (EVP_DigestUpdate(context, chunk, (size_t)got) != 1)
            return -EIO;
    }
}

int bt_digest_file(const char *path, char ret_text[BT_DIGEST_TEXT_SIZE], struct bt_error *error)
{
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", path, strerror(errno));
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context == NULL || EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1)
        die("SHA-256 failed");
    int result = digest_stream(context, fd);
    unsigned char digest[32];
    if (result == 0 && EVP_DigestFinal_ex(context, digest, NULL) != 1)
        result = -EIO;
    EVP_MD_CTX_free(context);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot read %s: %s", path, strerror(-result));
    to_hex(digest, sizeof digest, ret_text);
    return 0;
}

void bt_random_bytes(void *ret_bytes, size_t length)
{
    unsigned char *at = ret_bytes;
    while (length > 0) {
        ssize_t got = getrandom(at, length, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            die("the kernel gives no random bytes");
        at += got;
        length -= (size_t)got;
    }
}

void bt_random_hex(char *ret_text, size_t bytes)
{
    unsigned char raw[64];
    while (bytes > 0) {
        size_t part = bytes < sizeof raw ? bytes : sizeof raw;
        bt_random_bytes(raw, part);
        to_hex(raw, part, ret_text);
        ret_text += 2 * part;
        bytes -= part;
    }
    explicit_bzero(raw, sizeof raw);
}
