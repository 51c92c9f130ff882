/* What gcc's overflow builtins do, for Frama-C, which has no model of them. Included in front of every file
 * that eva.sh analyses; nothing else uses it.
 */
#ifndef BERTH_TESTS_VERIFY_EVA_BUILTINS_H
#define BERTH_TESTS_VERIFY_EVA_BUILTINS_H

#include <stdint.h>

static inline int verify_add_u32(uint32_t first, uint32_t second, uint32_t *ret_sum)
{
    uint64_t sum = (uint64_t)first + second;
    *ret_sum = (uint32_t)sum;
    return sum > UINT32_MAX;
}

static inline int verify_add_u64(uint64_t first, uint64_t second, uint64_t *ret_sum)
{
    *ret_sum = first + second;
    return first > UINT64_MAX - second;
}

static inline int verify_multiply_u64(uint64_t first, uint64_t second, uint64_t *ret_product)
{
    *ret_product = first * second;
    return second != 0 && first > UINT64_MAX / second;
}

/* By the size of the result: Frama-C has no _Generic either. */
#define __builtin_add_overflow(first, second, ret)                                                           \
    (sizeof(*(ret)) == sizeof(uint32_t)                                                                      \
         ? verify_add_u32((uint32_t)(first), (uint32_t)(second), (uint32_t *)(void *)(ret))                  \
         : verify_add_u64((first), (second), (uint64_t *)(void *)(ret)))
#define __builtin_mul_overflow(first, second, ret) verify_multiply_u64(first, second, ret)

#endif
