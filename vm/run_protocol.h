/* How a command is started in a guest without a word of it in a command line or a log.
 *
 * The host opens an SSH session as root and executes exactly "/run/berth/bin/berth-init run". That program
 * writes the ready byte, reads one request from its standard input, becomes the user, enters the folder and
 * executes. What follows the request on standard input belongs to the command. On a terminal it first puts
 * the line discipline into raw mode without echo (so that nothing of the request is shown), and restores it
 * before it executes.
 *
 * Ready byte: 0x01. Request, little-endian: u32 magic, u32 length of what follows, u32 uid, u32 gid, u32
 * argument count, u32 environment count, then NUL-terminated strings: folder, arguments, environment
 * ("NAME=value"). The environment is exactly that list. At most 1 MiB. A request that is wrong, or a program
 * that cannot be executed: a line on stderr and exit status 126 or 127.
 */
#ifndef BERTH_VM_RUN_PROTOCOL_H
#define BERTH_VM_RUN_PROTOCOL_H

#define BT_RUN_READY 0x01
#define BT_RUN_MAGIC 0x4e525442U /* "BTRN" */
#define BT_RUN_LENGTH_MAX (1024U * 1024U)

#endif
