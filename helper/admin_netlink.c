/* A netlink dump, for commands that look at the host's network. Nothing of the engine is used. */
#include <errno.h>
#include <libmnl/libmnl.h>

#include "helper/admin.h"

#define BUFFER_SIZE 65536 /* a dump's part has at most half of it */

static int receive_all(struct mnl_socket *socket, unsigned sequence,
                       int (*visit)(const struct nlmsghdr *message, void *context), void *context)
{
    static uint8_t buffer[BUFFER_SIZE];
    for (;;) {
        ssize_t got =
            mnl_socket_recvfrom(socket, buffer, sizeof(buffer)); /* the kernel makes the next part */
        if (got < 0)
            return -errno;
        int verdict =
            mnl_cb_run(buffer, (size_t)got, sequence, mnl_socket_get_portid(socket), visit, context);
        if (verdict < 0)
            return -errno;
        if (verdict == MNL_CB_STOP)
            return 0;
    }
}

int bt_admin_dump(int protocol, struct nlmsghdr *request,
                  int (*visit)(const struct nlmsghdr *message, void *context), void *context)
{
    struct mnl_socket *socket = mnl_socket_open2(protocol, SOCK_CLOEXEC);
    if (!socket)
        return -errno;
    request->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request->nlmsg_seq = 1;
    int error = 0;
    if (mnl_socket_bind(socket, 0, MNL_SOCKET_AUTOPID) < 0 ||
        mnl_socket_sendto(socket, request, request->nlmsg_len) < 0)
        error = -errno;
    if (error == 0)
        error = receive_all(socket, request->nlmsg_seq, visit, context);
    (void)mnl_socket_close(socket);
    return error;
}
