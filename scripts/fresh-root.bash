# A system that has nothing of ours, for the scripts that try what a newcomer does. Sourced; wants root, debootstrap and a network.

# fresh_root SUITE [PACKAGES]: a Debian or Ubuntu with these packages (a,b) and no others, in $root, until the script ends.
# FSDP_FRESH_CACHE=FOLDER keeps it there as an archive for the next time.
fresh_root()
{
    local suite=$1 packages=${2:-} mirror=http://deb.debian.org/debian archive=${FSDP_FRESH_CACHE:-} rules=
    local how=(--variant=minbase ${packages:+--include=$packages})
    ((EUID == 0)) || { echo "${0##*/}: wants root: it makes a system of its own with debootstrap and enters it" >&2; exit 1; }
    if [[ $suite == noble ]]; then
        # Debian's debootstrap knows neither this suite nor its keys; nothing of it outlives this script.
        mirror=http://archive.ubuntu.com/ubuntu rules=/usr/share/debootstrap/scripts/gutsy
        how+=(--no-check-gpg)
    fi
    root=$(mktemp -d)
    chmod 755 "$root" # it becomes /, through which everybody may pass
    trap fresh_root_remove EXIT
    archive=${archive:+$archive/$suite-${packages:-plain}.tar}
    if [[ -n $archive && -e $archive ]]; then
        tar xf "$archive" -C "$root"
    else
        debootstrap "${how[@]}" "$suite" "$root" "$mirror" $rules >"$root.log" 2>&1 || { tail "$root.log" >&2; exit 1; }
        [[ -z $archive ]] || { mkdir -p "${archive%/*}" && tar cf "$archive.part" -C "$root" . && mv "$archive.part" "$archive"; }
    fi
    cp /etc/resolv.conf /etc/hosts "$root/etc/" # this host keeps its name, which must be known there
    mount --rbind /sys "$root/sys"
    mount --make-rslave "$root/sys" # what is unmounted there stays mounted here
    mount --bind /proc "$root/proc"
    mount --bind /dev "$root/dev"
    mount --bind /dev/pts "$root/dev/pts"
}

fresh_root_remove()
{
    umount "$root/dev/pts" "$root/dev" "$root/proc" 2>/dev/null || true
    umount -R "$root/sys" 2>/dev/null || true
    rm -rf --one-file-system "$root" "$root.log"
}

# fresh_tree: the tree as it is, without what git ignores, as /root/fsdp
fresh_tree()
{
    mkdir "$root/root/fsdp"
    git ls-files -co --exclude-standard -z | tar c --null --ignore-failed-read -T - | tar x -C "$root/root/fsdp"
}

# inside COMMANDS [NAME=VALUE...]: run by bash in the home of the new system's root, with nothing of this environment
inside()
{
    local commands=$1
    shift
    chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        "$@" bash -euo pipefail -c "cd && $commands"
}
