/* `berth-helper status`: what the helper says, and whether anything else in the host drops what it lets
 * through.
 *
 * Run by an administrator; as a normal user it tells what the status socket tells. It only looks.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "helper/admin.h"
#include "ipc/chan/chan.h"
#include "ipc/wire/frame.h"

#define ANSWER_SECONDS 10

static int connect_to(const char *path, int *ret_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    memcpy(address.sun_path, path, strlen(path) + 1);
    bt_auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
        connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

static int ask(int fd, const struct bt_request *request, struct bt_reply *ret_reply)
{
    uint8_t frame[BT_FRAME_SIZE];
    int passed_fd = -1;
    int error = bt_frame_encode_request(request, frame);
    if (error == 0)
        error = bt_chan_send(fd, frame, -1);
    if (error == 0)
        error = bt_chan_receive_reply(fd, frame, &passed_fd);
    bt_fd_close(&passed_fd);
    if (error == 0)
        error = bt_frame_decode_reply(frame, ret_reply);
    if (error == 0 && ret_reply->status != BT_STATUS_OK)
        error = bt_status_errno(ret_reply->status);
    return error;
}

static int query(int fd, struct bt_reply *ret_hello, struct bt_reply *ret_status)
{
    struct bt_request request = {.verb = BT_VERB_HELLO, .sequence = 1};
    request.body.hello.version_min = BT_PROTOCOL_VERSION_MIN;
    request.body.hello.version_max = BT_PROTOCOL_VERSION_MAX;
    int error = ask(fd, &request, ret_hello);
    if (error < 0)
        return error;
    request = (struct bt_request){
        .verb = BT_VERB_STATUS, .sequence = 2, .version = ret_hello->version, .epoch = ret_hello->epoch};
    return ask(fd, &request, ret_status);
}

/* What to do about a helper that does not answer. */
static const char *find_hint(int error)
{
    if (error == -ENOENT || error == -ECONNREFUSED)
        return "; start it: systemctl start berth-helper.socket, or berth-helper listen";
    if (error == -EAGAIN || error == -ECONNRESET || error == -EPIPE)
        return "; why not, says: journalctl -u berth-helper.service";
    return "";
}

int bt_admin_tell_engine(void)
{
    bt_auto_fd fd = -1;
    struct bt_reply hello = {0}, status = {0};
    const char *path = BT_INSTALLED_SOCKET;
    int error = connect_to(path, &fd);
    if (error < 0) {
        int status_error = connect_to(BT_INSTALLED_STATUS_SOCKET, &fd);
        path = status_error == 0 ? BT_INSTALLED_STATUS_SOCKET : path;
        error = status_error == 0 ? 0 : error;
    }
    if (error == 0)
        error = query(fd, &hello, &status);
    if (error < 0) {
        bt_admin_tell("helper: does not answer on %s: %s%s", path,
                      error == -EAGAIN ? "nothing came in ten seconds" : strerror(-error), find_hint(error));
        return 1;
    }
    const struct bt_reply_status *now = &status.body.status;
    char base[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(hello.body.hello.tap_base, base);
    bt_admin_tell("helper: answers on %s; protocol %u to %u, %u slots from %s, %u a user", path,
                  hello.body.hello.version_min, hello.body.hello.version_max, hello.body.hello.slots, base,
                  hello.body.hello.quota);
    bt_admin_tell("slots: %u live, %u wait for adoption, %u being deleted, %u free", now->live, now->reserved,
                  now->dead, now->free);
    bt_admin_tell("rules: %s", now->is_healthy
                                   ? "as they should be"
                                   : "NOT as they should be; interfaces are down and nothing is granted");
    return now->is_healthy ? 0 : 1;
}

static int tell_firewalls(void)
{
    int blocking = bt_admin_find_blocking_chains();
    if (blocking == 0)
        bt_admin_tell("other firewalls: no chain drops what the helper lets through");
    else if (blocking < 0)
        bt_admin_tell("other firewalls: cannot be read: %s%s", strerror(-blocking),
                      blocking == -EPERM ? "; ask as root" : "");
    return blocking > 0 ? 1 : 0;
}

int bt_admin_status(const struct bt_admin *admin)
{
    struct bt_config config;
    if (bt_admin_read_config(admin, &config) < 0)
        return 1;
    int bad = bt_admin_tell_engine();
    bad += tell_firewalls();
    bad += bt_admin_check_blocks(&config);
    bt_admin_tell("audit log: %s", config.audit_folder[0] == '\0' ? "switched off" : config.audit_folder);
    return bad == 0 ? 0 : 1;
}
