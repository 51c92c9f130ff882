/* A part of the library of statx.c: poll(2) that leaves alone what the program asked for. Where the kernel
 * adds POLLERR and POLLHUP to it (gVisor of 2022), libevent takes no descriptor that is closed out of its
 * list, and tmux, which polls by it, is told of that at once and for ever: a terminal without work would take
 * a whole processor.
 */
#include <poll.h>
#include <stddef.h>

#define KEPT_MAX 1024U /* of more descriptors the rest is left as the kernel leaves it */

/* By other names than the header's, by which what is asked would only be written to. */
int poll_of_library(struct pollfd *descriptors, nfds_t count, int timeout_ms) __asm__("__poll");
int poll_for_program(struct pollfd *descriptors, nfds_t count, int timeout_ms) __asm__("poll");

int poll_for_program(struct pollfd *descriptors, nfds_t count, int timeout_ms)
{
    short asked[KEPT_MAX];
    nfds_t kept = descriptors == NULL ? 0 : count < KEPT_MAX ? count : KEPT_MAX;
    for (nfds_t i = 0; i < kept; i++)
        asked[i] = descriptors[i].events;
    int result = poll_of_library(descriptors, count, timeout_ms);
    for (nfds_t i = 0; i < kept; i++)
        descriptors[i].events = asked[i];
    return result;
}
