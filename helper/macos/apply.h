/* The process that runs pfctl: on macOS the only part of the helper that stays root.
 *
 * Started before the engine gives root up, as its child, with one end of a socket pair. It takes orders of
 * numbers (order.h), makes the rules' text itself (anchor.h), hands it to /sbin/pfctl on standard input,
 * reads back what is in force, and answers. Rules of other anchors it neither reads nor changes. Uses POSIX
 * alone, so it is compiled and tested on every system; on Linux no program of berth has it.
 *
 * pfctl, not the ioctls of /dev/pf: their structures are in no public header of macOS and differ between its
 * releases.
 */
#ifndef BERTH_HELPER_MACOS_APPLY_H
#define BERTH_HELPER_MACOS_APPLY_H

#include "helper/macos/anchor.h"

#define BT_APPLY_PFCTL "/sbin/pfctl"
#define BT_APPLY_REPLY_SIZE 4U
#define BT_APPLY_DEADLINE_MS 10000 /* for one run of pfctl */

/* Switches pf on and looks whether the main rules refer to all anchors below com.apple, without which no
 * anchor of ours is asked. -ENOENT: they do not. */
int bt_apply_prepare(void) BT_MUST_CHECK;

/* Serves orders until order_fd (borrowed, a stream socket) ends: 0. Each is answered by BT_APPLY_REPLY_SIZE
 * bytes, little-endian: 0 or an errno. EUCLEAN: the rules read back are others; ETIMEDOUT, ECHILD: pfctl did
 * not end, or failed; another one: it could not be run. pfctl changes an anchor as a whole or not at all, so
 * after a failure the rules are those before or those ordered; the engine grants nothing and orders again.
 * Something that is no order ends it with -EBADMSG, and the rules stay as they are. */
int bt_apply_serve(const struct bt_kernel_config *config, int order_fd) BT_MUST_CHECK;

#endif
