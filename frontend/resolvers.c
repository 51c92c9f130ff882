/* Which DNS servers a gateway may ask. See resolvers.h. */
#include "frontend/resolvers.h"

#include <errno.h>
#include <string.h>

#include "lib/file.h"

#define RESOLV_CONF "/etc/resolv.conf"
#define RESOLVED_UPSTREAM "/run/systemd/resolve/resolv.conf"
#define RESOLVED_STUB "127.0.0.53"
#define FILE_MAX 65536U

/* The IPv4 servers of one resolv.conf(5). */
static void parse_text(const char *text, struct bt_list *ret_servers)
{
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        const char *end = text + length;
        if (strncmp(text, "nameserver", 10) == 0 && (text[10] == ' ' || text[10] == '\t')) {
            const char *start = text + 10 + strspn(text + 10, " \t");
            bt_auto_free char *server = bt_string_copy_length(start, strcspn(start, " \t\r\n#;"));
            uint32_t address;
            if (bt_ipv4_parse(server, &address) == 0)
                bt_list_add(ret_servers, server);
        }
        text = *end == '\0' ? end : end + 1;
    }
}

static void parse_file(const char *path, struct bt_list *ret_servers)
{
    bt_auto_buffer text = {0};
    if (bt_file_read(path, FILE_MAX, &text, NULL) == 0 && text.data != NULL)
        parse_text(text.data, ret_servers);
}

int bt_resolvers_find(const struct bt_list *configured, struct bt_list *ret_resolvers, struct bt_error *error)
{
    bt_auto_list found = {0};
    for (size_t i = 0; i < configured->count; i++)
        bt_list_add(&found, configured->items[i]);
    if (found.count == 0)
        parse_file(RESOLV_CONF, &found);
    if (bt_list_has(&found, RESOLVED_STUB)) {
        bt_list_free(&found);
        parse_file(RESOLVED_UPSTREAM, &found);
    }
    if (found.count == 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOENT,
                       "set gateway.resolvers in config.yaml to the IPv4 addresses of your DNS servers",
                       "no IPv4 DNS server is set up on this machine (%s)", RESOLV_CONF);
    for (size_t i = 0; i < found.count; i++) {
        if (strncmp(found.items[i], "127.", 4) == 0)
            return bt_fail(
                error, BT_EXIT_INFRASTRUCTURE, EHOSTUNREACH,
                "set gateway.resolvers in config.yaml to DNS servers that other machines can reach",
                "the DNS server %s lives on this machine only, so a gateway cannot reach it", found.items[i]);
    }
    *ret_resolvers = found;
    found = (struct bt_list){0};
    return 0;
}
