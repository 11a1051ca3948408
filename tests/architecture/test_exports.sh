#!/bin/bash
# Both libraries give away public names only, all of them with our prefix: a program that links libfsdp cannot collide
# with, or come to depend on, what is inside.
set -euo pipefail
build=${FSDP_BUILD:?}
if nm -D --defined-only "$build/libfsdp.so" | grep -q __asan; then
    echo "a sanitizer adds names of its own"
    exit 77
fi
for library in libfsdp.so libfsdp.a; do
    options=(--defined-only --extern-only --format=posix)
    [[ $library == *.so ]] && options+=(-D)
    names=$(nm "${options[@]}" "$build/$library" | awk 'NF >= 2 && $2 != "U" { print $1 }')
    foreign=$(grep -v '^fsdp_' <<<"$names" || true)
    if [[ -n $foreign ]]; then
        echo "$library exports names without the prefix fsdp_:" $foreign >&2
        exit 1
    fi
    grep -qx fsdp_last_error <<<"$names"
    echo "$library: $(wc -l <<<"$names") public names"
done
