/* See held.h. */
#include "policy/gateway/held.h"

#include <malloc.h>
#include <stdlib.h>

static size_t counted, measured;

void bt_held_change(size_t before, size_t after)
{
    counted = counted - before + after;
}

void *bt_held_take(size_t size)
{
    void *memory = malloc(size);
    if (memory != NULL)
        bt_held_change(0, malloc_usable_size(memory));
    return memory;
}

void bt_held_give(void *memory)
{
    if (memory != NULL)
        bt_held_change(malloc_usable_size(memory), 0);
    free(memory);
}

void bt_held_measure(void)
{
    struct mallinfo2 heap = mallinfo2();
    size_t all = heap.uordblks + heap.hblkhd;
    measured = all > counted ? all - counted : 0;
}

size_t bt_held(void)
{
    return counted + measured;
}
