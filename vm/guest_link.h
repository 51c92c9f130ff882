/* The way into a guest: commands, copies and terminals over SSH (libssh2), as root with the agent's own key,
 * the host key pinned. Used by the keeper and by the commands of the owner; it never runs a shell on either
 * side.
 */
#ifndef BERTH_VM_GUEST_LINK_H
#define BERTH_VM_GUEST_LINK_H

#include "lib/error.h"
#include "lib/memory.h"

/* Ed25519 keys made per agent, as the programs on both ends want them. */
struct bt_guest_keys {
    char *private_key;         /* OpenSSH private key text for libssh2; secret */
    char *public_key;          /* "ssh-ed25519 AAAA..." line for authorized_keys */
    struct bt_buffer host_key; /* dropbear's binary format (dropbear_ed25519_host_key); secret */
    char *host_public_key;     /* "ssh-ed25519 AAAA..." that the client pins */
};
int bt_guest_keys_make(struct bt_guest_keys *ret_keys, struct bt_error *error);
void bt_guest_keys_free(struct bt_guest_keys *keys); /* wipes secrets */

struct bt_guest_address {
    uint32_t address; /* host byte order */
    uint16_t port;    /* 22 */
    const char *private_key;
    const char *host_public_key;
};

struct bt_guest_link; /* one SSH connection */

/* Connects, retrying until deadline_ms from now (a booting guest), checks the host key and authenticates.
 * wait_fd: when >= 0 and it becomes readable, gives up at once with -ECANCELED (the VMM died). */
int bt_guest_connect(const struct bt_guest_address *address, int deadline_ms, int wait_fd,
                     struct bt_guest_link **ret_link, struct bt_error *error);
struct bt_guest_link *bt_guest_close(struct bt_guest_link *link); /* returns NULL, accepts NULL */

/* The user agent of every image, uid and gid. Where the host's kernel sees a guest's users (a container), the
 * link runs its commands as another number. */
#define BT_GUEST_AGENT_ID 1000U

/* Which user reads what the agent wrote: root, or the agent (uid and gid agent_id) where root in the guest
 * has no capability and could not. */
uint32_t bt_guest_reader(const struct bt_guest_link *link, uint32_t agent_id);

struct bt_guest_command {
    const char *const *arguments;   /* NULL-terminated; [0] found in the environment's PATH */
    const char *const *environment; /* NULL-terminated; secrets may be here */
    const char *folder;
    uint32_t uid, gid;
    /* Standard input: bytes, then a descriptor (-1 = none), both optional; closed for the command after that.
     */
    const void *input;
    size_t input_length;
    int input_fd;
    /* Where output goes; called as data comes, with back-pressure. Return non-zero to end the command. */
    int (*on_output)(void *context, bool is_stderr, const char *data, size_t length);
    void *context;
    int timeout_ms; /* 0 = none */
};

/* One command at a time runs over a link. A command that is given up before its end (time out, the receiver
 * of its output, a detached terminal) may cost the link: calls after that are -ENOTCONN, connect again. The
 * end of the connection is a SIGHUP for the command. A file copy that fails leaves the link usable where it
 * can. */

/* Runs a command to its end. *ret_status: exit status 0..255, 128 + signal number when a signal ended it. */
int bt_guest_run(struct bt_guest_link *link, const struct bt_guest_command *command, int *ret_status,
                 struct bt_error *error);

/* Runs and collects, each stream bounded by limit bytes (-EFBIG). The caller frees both buffers. */
int bt_guest_run_collect(struct bt_guest_link *link, const struct bt_guest_command *command, size_t limit,
                         struct bt_buffer *ret_output, struct bt_buffer *ret_errors, int *ret_status,
                         struct bt_error *error);

/* An interactive terminal: puts the local terminal (fd 0 and 1) into raw mode, restores it on every way out,
 * follows its window size. Detach: the bytes of detach_keys typed in a row (e.g. "\x10\x11" = ctrl-p ctrl-q)
 * end it with *ret_is_detached. */
int bt_guest_terminal(struct bt_guest_link *link, const struct bt_guest_command *command,
                      const char *detach_keys, int *ret_status, bool *ret_is_detached,
                      struct bt_error *error);

/* Copies. The host side is a folder or file; owners on the guest side become uid:gid. Both use tar streams:
 * no temporary archive. From a guest: names are checked (no .., no absolute, nothing through a symbolic
 * link), set-id bits are dropped, at most maximum_bytes are written. */
int bt_guest_copy_in(struct bt_guest_link *link, const char *host_path, const char *guest_path, uint32_t uid,
                     uint32_t gid, struct bt_error *error);
int bt_guest_copy_out(struct bt_guest_link *link, const char *guest_path, const char *host_path,
                      uint64_t maximum_bytes, struct bt_error *error);

/* A chosen list of files below host_folder (NUL-separated relative names), as one tar stream into
 * guest_folder. */
int bt_guest_copy_list_in(struct bt_guest_link *link, const char *host_folder, const char *names,
                          size_t names_length, const char *guest_folder, uint32_t uid, uint32_t gid,
                          void (*on_progress)(void *context, uint64_t bytes), void *context,
                          struct bt_error *error);

#endif
