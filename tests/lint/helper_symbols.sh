#!/bin/bash
# What the helper's own code asks of other code: from libc only what is listed here, from libraries only netlink,
# seccomp and capabilities. No allocation, no stdio, no environment, no execution, no name service.
# Not of helper/macos/apply.c: that is the process which runs pfctl there, and part of no engine. And
# not of helper/admin*.c: those are the administrator's commands, run by hand in a process of their own that never
# becomes an engine; they print, and start useradd or systemctl. That no engine object calls them is checked below.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

mapfile -t sources < <(tree_files 'helper/*.c' 'ipc/base/*.c' 'ipc/wire/*.c' 'ipc/chan/*.c' | grep -vE '_macos\.c$|^helper/admin[a-z_]*\.c$|^helper/starter/|^helper/macos/apply\.c$')
objects=()
for source in "${sources[@]}"; do
    object="build/obj/${source%.c}.o"
    if [ -f "$object" ]; then
        objects+=("$object")
    else
        report "$source is compiled" "$object is not there: run make"
    fi
done

libraries='(bt|mnl|nftnl|seccomp|capng)_[a-z0-9_]+'
compiler='__stack_chk_fail|__(explicit_bzero|mem|str|poll|read|recv|FD_|openat|open64|vsnprintf)[a-z0-9_]*_?(chk|2)|_GLOBAL_OFFSET_TABLE_'
memory='mem(cpy|move|set|cmp|chr|mem)|explicit_bzero|str(n?len|n?cmp|r?chr)|qsort|bsearch'
process='abort|_?exit|__errno_location|errno|sigaction|sigemptyset|sigaddset|sigfillset|sigprocmask|raise'
identity='set(res)?[ug]id|setgroups|get(res)?[ug]id|gete[ug]id|getpid|getppid|getgroups|prctl|syscall|capget|capset'
limits='[gs]etrlimit(64)?|umask|chdir|clearenv|close_range|closefrom|kill'
files='open(at)?(64)?|close|read|write|pread(64)?|pwrite(64)?|fstat(at)?(64)?|lstat(64)?|stat(64)?|statx|fsync|fdatasync|posix_fallocate(64)?|ftruncate(64)?|lseek(64)?|unlink(at)?|rename(at)?|mkdir(at)?|fchmod(at)?|fchown(at)?|chmod|chown|dup[23]?|fcntl(64)?|ioctl|flock|readlink(at)?'
sockets='socket|bind|listen|accept4?|connect|sendto|send|sendmsg|recv|recvfrom|recvmsg|getsockopt|setsockopt|getsockname|shutdown|poll|ppoll|epoll_(create1|ctl|wait)|eventfd|signalfd|timerfd_(create|settime)|if_(nametoindex|indextoname)|inet_pton|inet_ntop|hton[sl]|ntoh[sl]'
clocks='clock_gettime|time|nanosleep|getrandom'
# The admin commands of main.c print; nothing after the privilege drop does.
allowed="^($libraries|$compiler|$memory|$process|$identity|$limits|$files|$sockets|$clocks)\$"

findings=""
for object in "${objects[@]}"; do
    while read -r symbol; do
        [[ $symbol =~ $allowed ]] || findings+="$object: $symbol"$'\n'
    done < <(nm -u --format=just-symbols "$object")
done
report "the helper calls nothing outside the allow-list" "${findings%$'\n'}"
# The setuid starter: a list of its own, since it is the one that executes a program.
starter=build/obj/helper/starter/main.o
own='fork|execveat|close_range|dup2|fcntl(64)?|flock|fstat(64)?|open(at)?(64)?|pipe2|poll|read|write|kill|socket|connect|umask|chdir|setsid|_?exit'
own+='|get[ug]id|gete[ug]id|getres[ug]id|setres[ug]id|setgroups|sigfillset|sigprocmask|prctl|prlimit(64)?|personality|syscall|clock_gettime'
own+='|sched_set(affinity|scheduler)|setpriority|__errno_location|bt_fd_(close|take)|bt_trusted_is_roots'
findings=$(nm -u --format=just-symbols "$starter" 2>&1 | grep -vE "^($own|$memory|$compiler)\$" || true)
report "the setuid starter calls nothing outside its own list, and reads no variable" "$findings"
findings=$(nm -u --print-file-name "${objects[@]}" | grep 'bt_admin_' | grep -v '/main\.o:.*bt_admin_run$' || true)
report "nothing of the engine calls an administrator's command" "$findings"
finish
