/* Transactions on the elements: those of one lease, and all of them at once.
 *
 * Called by the verbs and by repair. Elements are grouped by set, since a message carries elements of one set
 * only.
 */
#include "helper/kernel_linux.h"

#include <linux/netfilter/nf_tables.h>

struct set_writer {
    struct bt_batch *batch;
    enum bt_set set;
    uint16_t type;
};

static void write_of_set(void *context, const struct bt_element *element)
{
    const struct set_writer *writer = context;
    if (element->set == writer->set)
        bt_element_write(writer->batch, writer->type, element);
}

void bt_lease_write(const struct bt_kernel *kernel, struct bt_batch *batch, struct bt_lease_table table,
                    const struct bt_lease *lease, unsigned parts, bool is_linked, bool is_added)
{
    struct set_writer writer = {.batch = batch, .type = is_added ? NFT_MSG_NEWSETELEM : NFT_MSG_DELSETELEM};
    for (unsigned set = 0; set < BT_SET_COUNTED; set++) {
        writer.set = (enum bt_set)set;
        bt_lease_elements(kernel, lease, parts, write_of_set, &writer);
        if (is_linked && bt_set_layouts[set].kind == BT_SET_OF_LINKS)
            bt_lease_links(kernel, table, lease, write_of_set, &writer);
    }
}

void bt_state_write(const struct bt_kernel *kernel, struct bt_batch *batch)
{
    struct bt_element element;
    bt_state_element(kernel->high_water, &element);
    bt_element_write(batch, NFT_MSG_DELSETELEM, &element); /* by its key */
    bt_element_write(batch, NFT_MSG_NEWSETELEM, &element);
}

/* Room that one lease's elements of one set take at most, with their message and the transaction's end. */
#define CHUNK_ROOM 65536U

static int commit_when_full(struct bt_kernel *kernel, struct bt_batch *batch)
{
    if (bt_batch_used(batch) + CHUNK_ROOM < batch->size)
        return 0;
    int error = bt_transaction_commit(kernel, batch);
    if (error == 0)
        bt_transaction_start(kernel, batch);
    return error;
}

static int write_set(struct bt_kernel *kernel, struct bt_batch *batch, struct bt_lease_table live,
                     enum bt_set set)
{
    struct set_writer writer = {.batch = batch, .set = set, .type = NFT_MSG_NEWSETELEM};
    bt_constant_elements(kernel, write_of_set, &writer);
    for (size_t i = 0; i < live.count; i++) {
        int error = commit_when_full(kernel, batch);
        if (error < 0)
            return error;
        bt_lease_elements(kernel, &live.leases[i], BT_PART_AUTHORITY | BT_PART_ACCOUNT | BT_PART_RECORD,
                          write_of_set, &writer);
        bt_lease_dials(kernel, live, &live.leases[i], write_of_set, &writer);
    }
    for (uint16_t slot = 0; slot < kernel->config.pool.slots; slot++) {
        int error = commit_when_full(kernel, batch);
        if (error < 0)
            return error;
        if (kernel->slots[slot].state == BT_SLOT_RESERVED)
            bt_lease_elements(kernel, &kernel->slots[slot].lease, BT_PART_ACCOUNT | BT_PART_RESERVED,
                              write_of_set, &writer);
    }
    return 0;
}

int bt_elements_rewrite(struct bt_kernel *kernel, struct bt_batch *batch, struct bt_lease_table live,
                        bool is_new)
{
    for (unsigned set = 0; !is_new && set < BT_SET_COUNTED; set++)
        bt_set_flush(batch, (enum bt_set)set);
    for (unsigned set = 0; set < BT_SET_COUNTED; set++) {
        int error = write_set(kernel, batch, live, (enum bt_set)set);
        if (error < 0)
            return error;
    }
    return bt_transaction_commit(kernel, batch);
}
