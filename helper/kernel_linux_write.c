/* Transactions on the elements: those of one lease, and all of them at once.
 *
 * Called by the verbs and by repair. Elements are grouped by set, since a message carries elements of one set
 * only.
 */
#include "helper/kernel_linux.h"

#include <linux/netfilter/nf_tables.h>

struct set_writer {
    struct bt_kernel *kernel; /* NULL: all has to fit in one transaction */
    struct bt_batch *batch;
    enum bt_set set;
    uint16_t type;
    int error;
};

/* More than an element takes, with its message and the end of the transaction. */
#define ELEMENT_ROOM 65536U

static void write_of_set(void *context, const struct bt_element *element)
{
    struct set_writer *writer = context;
    if (element->set != writer->set || writer->error < 0)
        return;
    if (writer->kernel && bt_batch_used(writer->batch) + ELEMENT_ROOM > writer->batch->size) {
        writer->error = bt_transaction_commit(writer->kernel, writer->batch);
        bt_transaction_start(writer->kernel, writer->batch);
    }
    bt_element_write(writer->batch, writer->type, element);
}

void bt_lease_write(const struct bt_kernel *kernel, struct bt_batch *batch, struct bt_lease_table table,
                    const struct bt_lease *lease, unsigned parts, bool is_linked, bool is_added)
{
    struct set_writer writer = {.batch = batch, .type = is_added ? NFT_MSG_NEWSETELEM : NFT_MSG_DELSETELEM};
    const struct bt_element_visitor visitor = {write_of_set, &writer};
    for (unsigned set = 0; set < BT_SET_COUNTED; set++) {
        writer.set = (enum bt_set)set;
        bt_lease_elements(kernel, lease, parts, &visitor);
        if (is_linked && bt_set_layouts[set].kind == BT_SET_OF_LINKS)
            bt_lease_links(kernel, table, lease, &visitor);
    }
}

void bt_state_write(const struct bt_kernel *kernel, struct bt_batch *batch)
{
    struct bt_element element;
    bt_state_element(kernel->high_water, &element);
    bt_element_write(batch, NFT_MSG_DELSETELEM, &element); /* by its key */
    bt_element_write(batch, NFT_MSG_NEWSETELEM, &element);
}

int bt_elements_rewrite(struct bt_kernel *kernel, struct bt_batch *batch, struct bt_lease_table live,
                        bool is_new)
{
    struct set_writer writer = {.kernel = kernel, .batch = batch, .type = NFT_MSG_NEWSETELEM};
    const struct bt_element_visitor visitor = {write_of_set, &writer};
    for (unsigned set = 0; !is_new && set < BT_SET_COUNTED; set++)
        bt_set_flush(batch, (enum bt_set)set);
    for (unsigned set = 0; set < BT_SET_COUNTED; set++) {
        writer.set = (enum bt_set)set;
        bt_all_elements(kernel, live, &visitor);
    }
    return writer.error < 0 ? writer.error : bt_transaction_commit(kernel, batch);
}
