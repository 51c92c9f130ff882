# The files of a Debian host with systemd, Docker, firewalld, ufw and nftables, for scripts that boot it (host.bash) or take one
# of its programs. Made once and kept in build/hosts, which needs the network and some minutes.
# shellcheck shell=bash

HOST_PACKAGES=systemd,systemd-sysv,dbus,passwd,procps,iproute2,nftables,iptables,python3
HOST_PACKAGES+=,docker.io,firewalld,ufw,libmnl0,libnftnl11,libseccomp2,libcap-ng0
HOST_SUITE=bookworm

# Prints the folder with the host's files.
host_image() {
    local key folder source
    source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    key=$(sha256sum <<<"$HOST_SUITE $HOST_PACKAGES" | head -c 16)
    folder=$source/build/hosts/$key
    mkdir -p "$source/build/hosts"
    (
        flock 9
        [ -d "$folder" ] && exit
        rm -rf "$folder.new"
        mkdir "$folder.new"
        mmdebstrap --quiet --mode=unshare --format=tar --variant=minbase --include="$HOST_PACKAGES" \
            --aptopt='APT::Install-Recommends "false"' --dpkgopt=force-unsafe-io \
            --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
            --dpkgopt='path-exclude=/usr/share/locale/*' "$HOST_SUITE" - 2>"$folder.log" |
            tar -x --numeric-owner -C "$folder.new" &&
            systemctl --root="$folder.new" --quiet disable docker.service docker.socket containerd.service \
                firewalld.service ufw.service nftables.service 2>>"$folder.log" &&
            mv "$folder.new" "$folder"
    ) 9>"$source/build/hosts/lock"
    [ -d "$folder" ] || { tail -5 "$folder.log" >&2; return 1; }
    echo "$folder"
}
