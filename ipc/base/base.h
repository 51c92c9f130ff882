/* Vocabulary shared by every berth program: descriptors, numbers, bytes.
 *
 * Used by all folders, the helper included, so nothing here allocates, prints or reads the environment.
 */
#ifndef BERTH_IPC_BASE_BASE_H
#define BERTH_IPC_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#define BT_MUST_CHECK __attribute__((warn_unused_result))
#define BT_CLEANUP(function) __attribute__((cleanup(function)))
#define BT_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* Closes *fd when it is >= 0 and sets it to -1. Keeps errno. Safe on an already closed holder. */
void bt_fd_close(int *fd);
#define bt_auto_fd BT_CLEANUP(bt_fd_close) int

/* Returns *fd and leaves -1 behind: the caller becomes the owner. */
int bt_fd_take(int *fd);

/* Parses text[0..length) as a decimal number without sign, blanks or leading zeros (but "0" itself).
 * Returns 0, -EINVAL (not a number) or -ERANGE (outside minimum..maximum); *ret_value only on success. */
int bt_number_parse(const char *text, size_t length, uint64_t minimum, uint64_t maximum,
                    uint64_t *ret_value) BT_MUST_CHECK;

/* Little-endian stores and loads; the caller has checked that the bytes are there. */
void bt_store_u16(uint8_t *at, uint16_t value);
void bt_store_u32(uint8_t *at, uint32_t value);
void bt_store_u64(uint8_t *at, uint64_t value);
uint16_t bt_load_u16(const uint8_t *at);
uint32_t bt_load_u32(const uint8_t *at);
uint64_t bt_load_u64(const uint8_t *at);

/* Writes an IPv4 address (host byte order) as dotted text, at most 15 characters and a NUL. */
#define BT_IPV4_TEXT_SIZE 16
void bt_ipv4_format(uint32_t address, char ret_text[BT_IPV4_TEXT_SIZE]);

/* Parses a strict dotted quad (four decimal parts, no leading zeros). Returns 0 or -EINVAL. */
int bt_ipv4_parse(const char *text, uint32_t *ret_address) BT_MUST_CHECK;

#endif
