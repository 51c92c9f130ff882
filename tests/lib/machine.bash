# A machine of the test's own: qemu with Debian's kernel, in which everything else is this machine's, lent and read-only.
# It has control groups of version 2 with all their controllers, a disk whose file system has project quotas, and no network
# but what is made in it. For world.bash, which sources it: BERTH_TEST_MACHINE=own in front of a script, or
# `export BERTH_TEST_MACHINE=own` before world.bash in it, puts the world there.
#
#   machine_enter "$@"   outside: boots the machine, runs the script again in it, as root, shows what it prints and ends with
#                        its status; returns only inside. The console is the only way out.
#
# Inside: /usr and /etc are this machine's, so is /run/machine/source (the project); /var/tmp is the disk (8 GiB, sparse); the
# rest is empty and in memory. Modules are loaded as they are asked for. Two emulated processors, 2 GiB.
#
# Only root can lend its files: scripts of others are skipped.
# shellcheck shell=bash

MACHINE_MEMORY=2048M
# In load order: with these the initrd finds its files and the disk.
MACHINE_MODULES=(virtio_ring virtio virtio_mmio virtio_blk fuse virtiofs)
MACHINE_PASSED=(CI WORLD_IMAGES BERTH_TEST_BACKEND BERTH_TEST_RUNTIME BERTH_TEST_VARIANT)

# Prints the folder with the kernel and its modules: those of the package that berth's own guests boot, kept in build/machine.
machine_kernel() {
    local package folder version
    package=$(find "${XDG_CACHE_HOME:-$HOME/.cache}/berth/packages" -name 'linux-image-*.deb' -printf '%T@ %p\n' 2>/dev/null |
        sort -n | sed -n '$s/^[^ ]* //p')
    if [ -z "$package" ]; then
        echo "no package of a kernel is in the cache: berth image build kernel downloads it" >&2
        return 1
    fi
    folder=$WORLD_SOURCE/build/machine/$(basename "$package" .deb)
    mkdir -p "${folder%/*}"
    (
        flock 9
        [ -d "$folder" ] && exit
        rm -rf "$folder.new"
        mkdir "$folder.new"
        dpkg-deb --fsys-tarfile "$package" | tar -x --no-same-owner -C "$folder.new" ./boot ./lib &&
            version=$(basename "$folder.new"/lib/modules/*) &&
            mv "$folder.new/boot/vmlinuz-$version" "$folder.new/vmlinuz" &&
            mv "$folder.new/lib/modules/$version" "$folder.new/modules" &&
            mkdir -p "$folder.new/lib/modules" && ln -s ../../modules "$folder.new/lib/modules/$version" &&
            busybox depmod -b "$folder.new" "$version" &&
            mv "$folder.new" "$folder"
    ) 9>"${folder%/*}/lock"
    [ -d "$folder" ] && echo "$folder"
}

# What is lent: nothing but this, and nothing of it can be written.
machine_share() {
    local source
    mkdir share
    mount -t tmpfs -o mode=755 machine share || return
    for source in usr=/usr etc=/etc source="$WORLD_SOURCE"; do
        mkdir "share/${source%%=*}"
        mount --bind "${source#*=}" "share/${source%%=*}" && mount -o remount,bind,ro "share/${source%%=*}" || return
    done
    {
        declare -p "${MACHINE_PASSED[@]}" 2>/dev/null | sed 's/^declare -[-x]* /export /'
        echo "export BERTH_MACHINE=inside HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        echo "export BERTH_WORLD_IMAGES=/run/machine/source/$(realpath --relative-to="$WORLD_SOURCE" "$MACHINE_IMAGES")"
        printf '%q ' exec bash /run/machine/source/tests/lib/machine_start "$@"
    } >share/start
    mount -o remount,ro share
}

machine_initrd() {
    local number=10 module
    mkdir -p initrd/bin initrd/modules
    cp "$(command -v busybox)" initrd/bin/
    cp "$WORLD_SOURCE/tests/lib/machine_init" initrd/init
    for module in "${MACHINE_MODULES[@]}"; do
        find "$1/modules" -name "$module.ko" -exec cp {} "initrd/modules/$((number++)).ko" \;
    done
    (cd initrd && find . | busybox cpio -o -H newc) >initrd.cpio 2>/dev/null
}

machine_run() {
    local kernel=$1 words
    /usr/lib/qemu/virtiofsd --socket-path=files -o source="$PWD/share" -o cache=always -o announce_submounts -f >files.log 2>&1 &
    while [ ! -S files ]; do
        kill -0 $! 2>/dev/null || { cat files.log; return; }
        sleep 0.05
    done
    # A counter whose frequency is told: measuring it takes long under emulation, and may not end.
    words="console=ttyS0 quiet loglevel=1 panic=-1 audit=0 apparmor=0 lsm=landlock,yama cryptomgr.notests=1 8250.nr_uarts=1"
    words+=" random.trust_cpu=on no_timer_check lpj=1000000 mitigations=off nokaslr noreplace-smp tsc=reliable"
    words+=" tsc_early_khz=$("$WORLD_SOURCE/build/tests/tools/time_stamp_tool")"
    words+=" MACHINE_TIME=$(date +%s) MACHINE_MODULES=/run/machine/source/${kernel#"$WORLD_SOURCE/"}/modules"
    qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
        -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny \
        -machine microvm,acpi=on,usb=off,memory-backend=memory -global virtio-mmio.force-legacy=false \
        -object memory-backend-memfd,id=memory,size=$MACHINE_MEMORY,share=on -m $MACHINE_MEMORY -smp 2 \
        -cpu max,la57=off -accel tcg,thread=multi,tb-size=256 \
        -kernel "$kernel/vmlinuz" -initrd initrd.cpio -append "$words" \
        -chardev stdio,id=console,signal=off -serial chardev:console \
        -chardev socket,id=files,path=files -device vhost-user-fs-device,chardev=files,tag=machine \
        -drive if=none,id=disk,file=disk,format=raw,cache=unsafe,discard=unmap -device virtio-blk-device,drive=disk \
        </dev/null 2>&1
}

machine_boot() {
    local kernel=$1 status
    shift
    cd "$MACHINE_WORK" && machine_share "$@" && machine_initrd "$kernel" || return
    truncate -s 8G disk
    mke2fs -q -t ext4 -O quota,project -E quotatype=prjquota,lazy_itable_init=1,lazy_journal_init=1 disk || return
    machine_run "$kernel" | tee console | sed -u 's/\r$//; /^machine: status /d'
    status=$(sed -n 's/^machine: status \([0-9]*\)\r*$/\1/p' console)
    [ -n "$status" ] || echo "Bail out! the machine ended before the script did"
    return "${status:-1}"
}

machine_enter() {
    [ "${BERTH_MACHINE:-}" = inside ] && return
    local script kernel status
    script=$(realpath --relative-to="$WORLD_SOURCE" "$0")
    if [ "${BERTH_MACHINE:-}" = mounts ]; then
        machine_boot "$MACHINE_KERNEL" "$script" "$@"
        exit
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "1..0 # skip impossible: only root can lend a machine its files"
        exit 0
    fi
    # shellcheck disable=SC2086
    if ! MACHINE_IMAGES=$(world_images shell ${WORLD_IMAGES:-}) || ! kernel=$(machine_kernel); then
        echo "Bail out! the files of the machine cannot be made"
        exit 1
    fi
    MACHINE_WORK=$(mktemp -d)
    BERTH_MACHINE=mounts MACHINE_IMAGES=$MACHINE_IMAGES MACHINE_KERNEL=$kernel MACHINE_WORK=$MACHINE_WORK \
        unshare --mount --pid --fork --kill-child --mount-proc bash "$0" "$@"
    status=$?
    rm -rf "$MACHINE_WORK"
    exit $status
}
