/* A library that is loaded into every program of a container whose kernel does not know AT_NO_AUTOMOUNT
 * (vm/init/statx.c): statx(2) without it. Nothing is mounted automatically there, so that it asks for
 * nothing.
 *
 * Linked with no library: syscall is that of the program's own C library,
 * and the names of the arguments are its.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *buf)
{
    return (int)syscall(SYS_statx, dirfd, path, flags & ~AT_NO_AUTOMOUNT, mask, buf);
}
