/* Memory of libraries. See allocate.h. */
#include "policy/gateway/allocate.h"

#include <event2/event.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

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
    return or_die(malloc(size == 0 ? 1 : size));
}

static void *reallocate(void *memory, size_t size)
{
    return or_die(realloc(memory, size == 0 ? 1 : size));
}

void bt_allocate_start(void)
{
    event_set_mem_functions(allocate, reallocate, free);
    json_set_alloc_funcs(allocate, free);
}
