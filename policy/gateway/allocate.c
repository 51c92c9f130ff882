/* Memory of libraries. See allocate.h. */
#include "policy/gateway/allocate.h"

#include <event2/event.h>
#include <jansson.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>

#include "policy/gateway/held.h"

#define MAPPED_MIN (256 * 1024)

static void *or_die(void *memory)
{
    if (memory == NULL) {
        (void)fputs("berth-gateway: out of memory\n", stderr);
        abort();
    }
    return memory;
}

static void *allocate(size_t size)
{
    return or_die(bt_held_take(size == 0 ? 1 : size));
}

static void *take_other(void *memory, size_t size)
{
    size_t before = memory != NULL ? malloc_usable_size(memory) : 0;
    void *other = realloc(memory, size);
    if (other != NULL)
        bt_held_change(before, malloc_usable_size(other));
    return other;
}

static void *reallocate(void *memory, size_t size)
{
    return or_die(take_other(memory, size == 0 ? 1 : size));
}

/* OpenSSL passes every failure on. */
static void *tls_allocate(size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return size == 0 ? NULL : bt_held_take(size);
}

static void tls_free(void *memory, const char *file, int line)
{
    (void)file;
    (void)line;
    bt_held_give(memory);
}

static void *tls_reallocate(void *memory, size_t size, const char *file, int line)
{
    if (size > 0)
        return take_other(memory, size);
    tls_free(memory, file, line);
    return NULL;
}

void bt_allocate_start(void)
{
    event_set_mem_functions(allocate, reallocate, bt_held_give);
    json_set_alloc_funcs(allocate, bt_held_give);
    if (CRYPTO_set_mem_functions(tls_allocate, tls_reallocate, tls_free) != 1)
        abort(); /* OpenSSL was used already: a fault in main.c */
    /* What is large goes back to the system at once, whatever was freed before. */
    (void)mallopt(M_MMAP_THRESHOLD, MAPPED_MIN);
}
