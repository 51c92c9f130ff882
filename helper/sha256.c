/* SHA-256, see sha256.h.
 *
 * Called by the audit log and by the command that verifies it. It must not keep anything between calls.
 */
#include "helper/sha256.h"

#include <string.h>

#define BLOCK_SIZE 64U
#define LENGTH_SIZE 8U
#define ROUNDS 64U

static const uint32_t round_constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t word, unsigned bits)
{
    return word >> bits | word << (32 - bits);
}

static void expand(const uint8_t *block, uint32_t ret_words[ROUNDS])
{
    for (unsigned i = 0; i < 16; i++)
        ret_words[i] = __builtin_bswap32(bt_load_u32(block + (size_t)4 * i));
    for (unsigned i = 16; i < ROUNDS; i++) {
        uint32_t early = ret_words[i - 15], late = ret_words[i - 2];
        uint32_t small = rotate(early, 7) ^ rotate(early, 18) ^ early >> 3;
        uint32_t large = rotate(late, 17) ^ rotate(late, 19) ^ late >> 10;
        ret_words[i] = ret_words[i - 16] + small + ret_words[i - 7] + large;
    }
}

static void digest_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t words[ROUNDS], v[8];
    expand(block, words);
    memcpy(v, state, sizeof(v));
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint32_t sum = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + round_constants[i] + words[i];
        uint32_t other = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                         ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof(v[0]));
        v[4] += sum;
        v[0] = sum + other;
    }
    for (unsigned i = 0; i < 8; i++)
        state[i] += v[i];
}

/* The last bytes, a one bit, zeros, and the length in bits, big-endian: one block or two. */
static void digest_tail(uint32_t state[8], const uint8_t *tail, size_t tail_length, uint64_t length)
{
    uint8_t blocks[2 * BLOCK_SIZE] = {0};
    size_t size = tail_length + 1 + LENGTH_SIZE <= BLOCK_SIZE ? BLOCK_SIZE : sizeof(blocks);
    memcpy(blocks, tail, tail_length);
    blocks[tail_length] = 0x80;
    bt_store_u64(blocks + size - LENGTH_SIZE, __builtin_bswap64(length * 8));
    for (size_t at = 0; at < size; at += BLOCK_SIZE)
        digest_block(state, blocks + at);
}

void bt_sha256(const void *data, size_t length, uint8_t ret_digest[BT_SHA256_SIZE])
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *at = data;
    size_t left = length;
    for (; left >= BLOCK_SIZE; left -= BLOCK_SIZE, at += BLOCK_SIZE)
        digest_block(state, at);
    digest_tail(state, at, left, length);
    for (unsigned i = 0; i < 8; i++)
        bt_store_u32(ret_digest + (size_t)4 * i, __builtin_bswap32(state[i]));
}
