/* Reading the elements of the table back, and comparing them with what they must be.
 *
 * Called for STATUS, COUNTERS, RECONCILE, after a restart and whenever an answer of the kernel was ambiguous.
 * What is read is data: lengths are checked, nothing is believed that does not fit the set's layout.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>

/* ---- parsing ---------------------------------------------------------------------------------------- */

static const struct nlattr *find(const struct nlattr *nest, uint16_t type)
{
    return bt_attribute_find(bt_attributes_in(nest), type);
}

/* Copies an attribute's payload when it fits. */
static int copy(const struct nlattr *attribute, uint8_t *to, size_t room, uint32_t *ret_length)
{
    size_t length = mnl_attr_get_payload_len(attribute);
    if (length > room)
        return -EBADMSG;
    memcpy(to, mnl_attr_get_payload(attribute), length);
    *ret_length = (uint32_t)length;
    return 0;
}

static uint64_t load_be64(const struct nlattr *attribute)
{
    uint64_t value = 0;
    if (attribute && mnl_attr_get_payload_len(attribute) == sizeof(value))
        memcpy(&value, mnl_attr_get_payload(attribute), sizeof(value));
    return be64toh(value);
}

/* An expression is {name, data}; only counters are of interest. */
static void parse_expression(const struct nlattr *nest, struct bt_element *element)
{
    const struct nlattr *name = find(nest, NFTA_EXPR_NAME);
    const struct nlattr *data = find(nest, NFTA_EXPR_DATA);
    if (!name || !data || mnl_attr_validate(name, MNL_TYPE_NUL_STRING) < 0 ||
        strcmp(mnl_attr_get_str(name), "counter") != 0)
        return;
    element->counter.bytes = load_be64(find(data, NFTA_COUNTER_BYTES));
    element->counter.packets = load_be64(find(data, NFTA_COUNTER_PACKETS));
}

static int parse_element_part(const struct nlattr *attribute, struct bt_element *element)
{
    const struct nlattr *inner;
    struct bt_attributes walk;
    switch (mnl_attr_get_type(attribute)) {
    case NFTA_SET_ELEM_KEY:
        inner = find(attribute, NFTA_DATA_VALUE);
        return inner ? copy(inner, element->key, sizeof(element->key), &element->key_length) : -EBADMSG;
    case NFTA_SET_ELEM_DATA:
        inner = find(attribute, NFTA_DATA_VALUE);
        return inner ? copy(inner, element->data, sizeof(element->data), &element->data_length) : -EBADMSG;
    case NFTA_SET_ELEM_USERDATA:
        return copy(attribute, element->userdata, sizeof(element->userdata), &element->userdata_length);
    case NFTA_SET_ELEM_EXPR:
        parse_expression(attribute, element);
        return 0;
    case NFTA_SET_ELEM_EXPRESSIONS:
        walk = bt_attributes_in(attribute);
        while (bt_attribute_next(&walk, &inner))
            parse_expression(inner, element);
        return 0;
    default:
        return 0;
    }
}

static int parse_element(const struct nlattr *nest, enum bt_set set, struct bt_element *ret_element)
{
    struct bt_element element = {.set = set};
    const struct nlattr *attribute;
    struct bt_attributes parts = bt_attributes_in(nest);
    while (bt_attribute_next(&parts, &attribute)) {
        int error = parse_element_part(attribute, &element);
        if (error < 0)
            return error;
    }
    *ret_element = element;
    return 0;
}

struct element_walk {
    enum bt_set set;
    bt_element_visit visit;
    void *context;
};

static int walk_elements(const struct nlmsghdr *message, void *context)
{
    struct element_walk *walk = context;
    const struct nlattr *nest;
    const struct nlattr *list =
        bt_attribute_find(bt_attributes_of(message, sizeof(struct nfgenmsg)), NFTA_SET_ELEM_LIST_ELEMENTS);
    if (!list)
        return 0;
    struct bt_attributes elements = bt_attributes_in(list);
    while (bt_attribute_next(&elements, &nest)) {
        struct bt_element element;
        int error = parse_element(nest, walk->set, &element);
        if (error < 0)
            return error;
        walk->visit(walk->context, &element);
    }
    return 0;
}

int bt_set_dump(struct bt_kernel *kernel, enum bt_set set, bt_element_visit visit, void *context)
{
    struct bt_batch batch;
    struct element_walk walk = {.set = set, .visit = visit, .context = context};
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = bt_table_message(&batch, NFT_MSG_GETSETELEM, NLM_F_DUMP);
    mnl_attr_put_strz(message, NFTA_SET_ELEM_LIST_SET, bt_set_layouts[set].name);
    return bt_netlink_query(kernel, kernel->netfilter_fd, &batch, walk_elements, &walk);
}

static void keep_element(void *context, const struct bt_element *element)
{
    struct bt_element *kept = context;
    *kept = *element;
}

int bt_element_get(struct bt_kernel *kernel, struct bt_element *element)
{
    struct bt_batch batch;
    struct bt_element found = {.key_length = 0};
    struct element_walk walk = {.set = element->set, .visit = keep_element, .context = &found};
    bt_batch_start(kernel, &batch);
    bt_element_write(&batch, NFT_MSG_GETSETELEM, element);
    int error = bt_netlink_query(kernel, kernel->netfilter_fd, &batch, walk_elements, &walk);
    if (error < 0)
        return error;
    if (found.key_length != element->key_length || memcmp(found.key, element->key, found.key_length) != 0)
        return -ENOENT;
    *element = found;
    return 0;
}

/* ---- comparing: a sum of digests does not depend on the order in which a hash table is walked ------- */

struct tally {
    uint64_t sum[BT_SET_MAX];
    uint32_t count[BT_SET_MAX];
};

/* FNV-1a. */
static uint64_t digest_add(uint64_t digest, const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        digest = (digest ^ bytes[i]) * 0x100000001b3U;
    return digest;
}

static uint64_t element_digest(const struct bt_element *element)
{
    uint64_t digest = 0xcbf29ce484222325U;
    digest = digest_add(digest, element->key, element->key_length);
    digest = digest_add(digest, element->data, element->data_length);
    digest = digest_add(digest, element->userdata, element->userdata_length);
    /* The finishing steps of splitmix64, so that sums of similar elements do not meet. */
    digest = (digest ^ digest >> 30) * 0xbf58476d1ce4e5b9U;
    digest = (digest ^ digest >> 27) * 0x94d049bb133111ebU;
    return digest ^ digest >> 31;
}

static void tally_add(void *context, const struct bt_element *element)
{
    struct tally *tally = context;
    tally->sum[element->set] += element_digest(element);
    tally->count[element->set]++;
}

int bt_elements_compare(struct bt_kernel *kernel, struct bt_lease_table live)
{
    struct tally expected = {.sum = {0}}, found = {.sum = {0}};
    const struct bt_element_visitor visitor = {tally_add, &expected};
    bt_all_elements(kernel, live, &visitor);
    for (unsigned set = 0; set < BT_SET_COUNTED; set++) {
        int error = bt_set_dump(kernel, (enum bt_set)set, tally_add, &found);
        if (error < 0)
            return error == -ENOENT ? -EUCLEAN : error;
        if (expected.sum[set] != found.sum[set] || expected.count[set] != found.count[set])
            return -EUCLEAN;
    }
    return 0;
}
