/* How the host talks to berth-init in a container (backends/docker*.c), where no initrd, no SSH and no serial
 * port exist.
 *
 * "berth-init container ROLE" is the container's first process. On its standard input come, little-endian:
 * u32 magic, u32 length of what follows, then files until that length is used up: u32 mode, u32 length of the
 * name, u32 length of the content, name (relative, no NUL), content. They are placed below /run/berth, a
 * tmpfs: nothing secret is in the container's stored configuration. Then berth-init prints the line
 * BT_CONTAINER_READY. What follows on standard input is its lifeline, in lines of at most 15 bytes:
 *   poweroff   ends the container, as does the end of standard input (the keeper died)
 *   (empty)    the keeper lives; it says so every BT_CONTAINER_BEAT_MS
 *   restored   the engine was started again and left its containers alone (live-restore); the commands'
 * streams have ended with the old one, which only BT_CONTAINER_RESTORED tells them An engine that came again
 * passes no end of a stream on, so silence for BT_CONTAINER_SILENCE_MS ends the container as well. A jump of
 * the clock is no silence.
 *
 * "berth-init relay" (or "relay terminal") is what an exec starts, as the user of the command. Its standard
 * input is frames: u8 type, u32 length (at most BT_RELAY_FRAME_MAX), content. Standard output and error are
 * the command's, unframed. The command is "berth-init run" (vm/run_protocol.h), whose standard input is the
 * content of the frames BT_RELAY_DATA. The end of standard input without BT_RELAY_END before it means that
 * the host has gone: the command gets SIGHUP, and so it does when BT_CONTAINER_RESTORED is touched. So an
 * engine that cannot half-close a stream, tell the size of a terminal in time, or end a command with its
 * connection does no harm.
 *
 * "berth-init address [ROUTER]" is for an engine that puts a container on a bridge and gives it no address:
 * each interface whose MAC is 02:42 and an address (berth-helper lets an address of a bridge have no other)
 * gets that address, and ROUTER is where everything else goes. It needs CAP_NET_ADMIN, which no other process
 * of a container has; it reads nothing but its arguments and the kernel's list of interfaces.
 */
#ifndef BERTH_VM_CONTAINER_PROTOCOL_H
#define BERTH_VM_CONTAINER_PROTOCOL_H

#define BT_CONTAINER_INIT "/berth/bin/berth-init" /* in every image */
#define BT_CONTAINER_MAGIC 0x54435442U            /* "BTCT" */
#define BT_CONTAINER_LENGTH_MAX (64U * 1024 * 1024)
/* Where /etc/ld.so.preload of every image leads: what programs load before all else, if it is there. */
#define BT_CONTAINER_PRELOAD "/run/berth/preload"
#define BT_CONTAINER_READY "berth-init: ready"
#define BT_CONTAINER_POWER_OFF "poweroff"
#define BT_CONTAINER_RESTORE "restored"
#define BT_CONTAINER_BEAT_MS 10000
#define BT_CONTAINER_SILENCE_MS 120000U
#define BT_CONTAINER_RESTORED "/run/berth/restored" /* root's; touched when that line comes */

#define BT_CONTAINER_MAC_FIRST 0x02
#define BT_CONTAINER_MAC_SECOND 0x42
#define BT_CONTAINER_PREFIX_LENGTH 29

#define BT_RELAY_HEADER_LENGTH 5U
#define BT_RELAY_FRAME_MAX 32768U
#define BT_RELAY_DATA 'd'
#define BT_RELAY_END 'e'
#define BT_RELAY_SIZE 'w' /* u16 columns, u16 rows */

#endif
