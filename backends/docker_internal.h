/* What the files backends/docker*.c share: the engine, its API, and the names of everything that berth makes
 * there.
 *
 * Names follow from whose guest it is, so that whoever comes next finds what a killed keeper left: nothing
 * about containers is remembered anywhere but in the engine.
 */
#ifndef BERTH_BACKENDS_DOCKER_INTERNAL_H
#define BERTH_BACKENDS_DOCKER_INTERNAL_H

#include <jansson.h>

#include "backends/backend.h"

#define BT_DOCKER_LABEL_OWNER "berth.owner"
#define BT_DOCKER_LABEL_ENVIRONMENT "berth.environment"
#define BT_DOCKER_LABEL_NAME "berth.name" /* of an agent; "gateway" and "orchestrator" of a pair */
#define BT_DOCKER_LABEL_ROLE "berth.role"
#define BT_DOCKER_LABEL_BRIDGE "berth.bridge" /* of networks */
#define BT_DOCKER_LABEL_IMAGE "berth.image"   /* of images: the digest of what they were made from */

#define BT_DOCKER_GVISOR "runsc" /* gVisor's name among an engine's runtimes */

struct bt_docker {
    char socket_path[256];
    char version[16]; /* of the API, as in paths: "1.41" */
    bool is_podman;   /* see docker_podman.c */
};

/* Who runs in containers. The host's kernel knows no other users than the host's own, so these are no account
 * of anybody: the range is reserved by Debian and unused by systemd, and within what an engine maps that has
 * a user namespace. bt_docker_accounts_check() sees to that. */
#define BT_DOCKER_AGENT_ID 65525U
#define BT_DOCKER_GATEWAY_ID 65526U
#define BT_DOCKER_ORCHESTRATOR_ID 65527U

/* What /info says about an engine. */
struct bt_docker_engine {
    bool is_rootless, is_desktop, is_podman;
    bool is_cni;                                  /* podman with other networks than netavark's */
    bool is_live_restoring;                       /* its containers outlive it ("live-restore") */
    bool has_runsc;                               /* the runtime below */
    bool is_runsc_unlimited;                      /* which holds none of the limits */
    bool has_memory, has_swap, has_pids, has_cpu; /* limits that its host enforces */
};

/* Where the engine of DOCKER_HOST, the current context, or the usual place listens. Anything but a unix
 * socket is refused by name. */
int bt_docker_endpoint(char ret_path[256], struct bt_error *error);
/* Finds the engine and agrees on a version of the API. The error says what is missing and what to do. */
int bt_docker_connect(struct bt_docker *ret_docker, struct bt_error *error);
int bt_docker_engine(const struct bt_docker *docker, struct bt_docker_engine *ret_engine,
                     struct bt_error *error);
/* Whether this engine can run berth's guests at all; names what rules it out. */
int bt_docker_engine_check(const struct bt_docker_engine *engine, struct bt_error *error);

/* Whether the host has given one of the ids above to somebody, who could then reach into containers. */
int bt_docker_accounts_check(struct bt_error *error);

/* One call. path is below the version ("/containers/x/start", "/libpod/info" of podman's own API); body (may
 * be NULL) is taken over. The answer of a success (below 400) goes to *ret_answer when that is not NULL (NULL
 * for an empty one; owned by the caller). Errors: -ENOENT no such object, -EEXIST it is there already or
 * busy, -ENOSPC no space or no free address, -EACCES, -EINVAL refused as wrong, -EIO others; the message
 * holds what the engine said. */
int bt_docker_call(const struct bt_docker *docker, const char *method, const char *path, json_t *body,
                   json_t **ret_answer, struct bt_error *error);
/* One whose bodies are streams: request without a socket, its path below the version. ret_answer: of a
 * success, where take_body is NULL; owned by the caller; NULL: nobody looks. Errors as above, and those of
 * the functions of request. */
struct bt_http_request;
int bt_docker_transfer(const struct bt_docker *docker, const struct bt_http_request *request,
                       struct bt_buffer *ret_answer, struct bt_error *error);
/* The error for a status of 400 or more. doing: "cannot <doing>". */
int bt_docker_fail(long status, const char *answer, size_t length, struct bt_error *error);
/* Turns a call (POST) into a stream. -ENOENT and the like as above. */
int bt_docker_stream(const struct bt_docker *docker, const char *path, const json_t *body, int *ret_fd,
                     struct bt_error *error);

/* The stream of a container or exec without a terminal: an 8-byte header before each piece (type, 3 zeros,
 * u32 big endian length). Zero-initialise; feed what was read; returns how much was used, sets the piece. */
struct bt_docker_demux {
    uint8_t header[8];
    size_t header_length;
    size_t left; /* of the current piece */
};
/* Takes from data[0..length). *ret_data is then a part of the current piece of *ret_length bytes (maybe 0) on
 * stream 1 or 2 (*ret_stream). Returns the bytes used, or -EBADMSG. */
ssize_t bt_docker_demux(struct bt_docker_demux *demux, const char *data, size_t length, int *ret_stream,
                        const char **ret_data, size_t *ret_length);

/* See bt_backend.vet. */
int bt_docker_vet(const struct bt_docker *docker, const struct bt_docker_engine *engine,
                  const struct bt_guest_limits *limits, struct bt_list *notes, struct bt_error *error);

/* ---- names ---- */
/* Of the user who calls and a state folder: 12 hex digits. */
void bt_docker_owner(const char *state, char ret_owner[13]);
#define BT_DOCKER_NAME_SIZE 160
/* "berth-<owner>-<environment>-<name>": of container and network; volumes have a suffix. */
void bt_docker_name(const struct bt_guest_identity *identity, char ret_name[BT_DOCKER_NAME_SIZE]);
json_t *bt_docker_labels(const struct bt_guest_identity *identity);
/* "berth-<owner>/<recipe>:<digest>" of an image with the programs of this build. Users of one engine have
 * names of their own for it (the engine keeps equal content once): old ones can be removed without asking. */
int bt_docker_image_name(const char *state, const struct bt_image *image, char ret_name[BT_DOCKER_NAME_SIZE],
                         struct bt_error *error);

/* ---- parts of a launch ---- */
/* Makes sure that the engine has the image for the owner of these folders; long the first time. */
int bt_docker_image_provide(const struct bt_docker *docker, const struct bt_paths *paths,
                            const struct bt_image *image, const struct bt_progress *progress,
                            struct bt_error *error);
/* Points the engine at the leased bridge, after removing whatever an earlier lease of the slot or an earlier
 * guest of the name left. */
int bt_docker_network_make(const struct bt_docker *docker, const struct bt_guest_plan *plan,
                           struct bt_error *error);
/* Gives a container an address in a network of another guest. */
int bt_docker_network_join(const struct bt_docker *docker, const struct bt_guest_identity *network,
                           const struct bt_guest_identity *container, uint32_t address,
                           struct bt_error *error);
/* The one MAC that berth-helper lets an address of a bridge have: 02:42 and the address. */
#define BT_DOCKER_MAC_SIZE 18
void bt_docker_mac(uint32_t address, char ret_mac[BT_DOCKER_MAC_SIZE]);
/* Whether the engine put a port into the bridge that this process sees under the name: the proof that it
 * works in this network namespace. */
bool bt_docker_bridge_has_port(const char *bridge);
/* An agent's home and workspace, with the plan's size where the engine can hold one. */
int bt_docker_volumes_make(const struct bt_docker *docker, const struct bt_guest_plan *plan,
                           struct bt_error *error);
/* Makes sure that the volumes of an agent are there. BT_EXIT_NO_TARGET, -ENOENT: one is not. */
int bt_docker_volumes_check(const struct bt_docker *docker, const struct bt_guest_identity *identity,
                            struct bt_error *error);
/* See bt_backend.freeze, and what plan->home_folder says put into the home of a container that was created
 * and not yet started. */
int bt_docker_home_save(const struct bt_docker *docker, const struct bt_freeze *freeze,
                        struct bt_error *error);
int bt_docker_home_fill(const struct bt_docker *docker, const struct bt_guest_plan *plan,
                        struct bt_error *error);
/* The container, never started, through which homes are read: it is there for that long. */
void bt_docker_home_reader_name(const struct bt_guest_identity *identity, char ret_name[BT_DOCKER_NAME_SIZE]);
/* See bt_backend.build. */
int bt_docker_build(const struct bt_docker *docker, const struct bt_build *build, struct bt_error *error);
/* The lock that a user's builds hold, one after the other. */
int bt_docker_build_lock(const struct bt_paths *paths, const struct bt_progress *progress, int *ret_lock_fd,
                         struct bt_error *error);
/* Removes what a killed build left: containers that do not run, images without a name. The lock must be held.
 * With ret_found that is only listed. */
int bt_docker_build_sweep(const struct bt_docker *docker, const char *state, struct bt_list *ret_found,
                          struct bt_error *error);
/* What the builder says, a JSON document a line, in any pieces. Zero-initialise. */
struct bt_docker_build_log {
    struct bt_buffer line;
    char image_id[80]; /* "sha256:<64 hex digits>"; empty: none was made */
    char failure[512]; /* empty: none */
    char last[160];    /* what it did last, without control bytes */
};
/* 0, or -EBADMSG, -EFBIG. */
int bt_docker_build_log_take(struct bt_docker_build_log *log, const char *data, size_t length);
/* Text for a query; the caller frees it. */
char *bt_docker_encode(const char *text);
/* Creates (not starts) the container. */
int bt_docker_container_create(const struct bt_docker *docker, const struct bt_guest_plan *plan,
                               const struct bt_docker_engine *engine, struct bt_error *error);
/* The stream to a container's first process: what it must know goes in by it, its console comes out of it.
 * See vm/container_protocol.h. */
struct bt_docker_lifeline;
/* Attaches it to a container that is not started yet. container: its name. is_restored: the engine leaves its
 * containers alone when it goes, so that the lifeline waits for it to come again. docker is borrowed until
 * close; of plan, the console and the name of the bridge are copied. */
int bt_docker_lifeline_open(const struct bt_docker *docker, const char *container,
                            const struct bt_guest_plan *plan, bool is_restored,
                            struct bt_docker_lifeline **ret_lifeline, struct bt_error *error);
/* Of a container that was started: hands it its files, waits until all is in place, then keeps it by a thread
 * of its own. */
int bt_docker_lifeline_start(struct bt_docker_lifeline *lifeline, const struct bt_guest_plan *plan,
                             struct bt_error *error);
/* Readable once the container has ended, or cannot be held any longer. */
int bt_docker_lifeline_end_fd(const struct bt_docker_lifeline *lifeline);
/* Whether the engine went away while the lifeline held. */
bool bt_docker_lifeline_has_lost_engine(const struct bt_docker_lifeline *lifeline);
/* Asks the container to end and waits for that, at most so long. */
void bt_docker_lifeline_ask_end(struct bt_docker_lifeline *lifeline, int grace_ms);
/* Lets go, which ends the container if it still runs, and frees. Returns NULL; accepts NULL. */
struct bt_docker_lifeline *bt_docker_lifeline_close(struct bt_docker_lifeline *lifeline);
/* Removes container, network and (has_volumes) volumes of a guest, whatever of them is there. */
int bt_docker_remove(const struct bt_docker *docker, const struct bt_guest_identity *identity,
                     bool has_volumes, struct bt_error *error);

/* ---- commands in a container ---- */
#define BT_DOCKER_EXEC_SIZE 80
/* body is taken over. */
int bt_docker_exec_create(const struct bt_docker *docker, const char *container, json_t *body,
                          char ret_exec[BT_DOCKER_EXEC_SIZE], struct bt_error *error);
int bt_docker_exec_start(const struct bt_docker *docker, const char *exec, int *ret_fd,
                         struct bt_error *error);
/* Of one whose stream has ended; -ESRCH when nobody knows. */
int bt_docker_exec_status(const struct bt_docker *docker, const char *exec);

/* ---- podman ---- */
/* A network without addresses on the bridge; labels is taken over. */
json_t *bt_podman_network(const char *name, const char *bridge, bool is_internal, json_t *labels);
/* Has berth-init in a container that runs set the addresses of its interfaces, and (router != 0) its way to
 * everything else: the one command of berth's that has a capability. Nothing of an agent may run there. */
int bt_podman_set_addresses(const struct bt_docker *docker, const char *container, uint32_t router,
                            struct bt_error *error);
/* The same container as that document of Docker's says, for podman's own API. */
json_t *bt_podman_container(const struct bt_guest_plan *plan, const char *name, const char *profile_path,
                            const json_t *docker);
/* Those of that document that are not there yet. */
int bt_podman_volumes_make(const struct bt_docker *docker, const json_t *container, struct bt_error *error);
/* After a failed disconnection: removes the container if podman can say nothing of it any more. */
void bt_podman_remove_broken(const struct bt_docker *docker, const char *container);
/* Where an image of that name is imported, with that query; the caller frees it. */
char *bt_podman_import_path(const char *name, const char *query);
/* Whether podman means by text the image that berth calls name. */
bool bt_podman_is_name(const char *text, const char *name);
/* What only its own API tells. */
int bt_podman_engine(const struct bt_docker *docker, struct bt_docker_engine *engine, struct bt_error *error);

/* See bt_backend.enumerate. */
int bt_docker_enumerate(const struct bt_docker *docker, const char *state, const char *environment,
                        bool has_data,
                        void (*on_guest)(void *context, const struct bt_guest_identity *identity),
                        void *context, struct bt_error *error);

/* The link's transport over exec. See vm/guest_link.h for the meaning of the others. */
int bt_docker_link(const struct bt_guest_access *access, struct bt_guest_link **ret_link,
                   struct bt_error *error);

#endif
