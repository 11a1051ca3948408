#!/bin/bash
# Both libraries give away what the public headers declare, and nothing else: a program that links libfsdp cannot collide
# with, or come to depend on, what is inside. In the shared one every name has the version that scripts/abi gives it.
set -euo pipefail
export LC_ALL=C
build=${FSDP_BUILD:?} source=${FSDP_SOURCE:?}
if nm -D --defined-only "$build/libfsdp.so" | grep -q __asan; then
    echo "a sanitizer adds names of its own"
    exit 77
fi
table=$(CC=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt") "$source/scripts/abi" table)
declared=$(awk '$1 == "function" { print $2 }' <<<"$table")
versioned=$(awk '$1 == "function" { print $2 "@@" $3 }' <<<"$table" | sort)
[[ $(wc -l <<<"$declared") -gt 200 ]]

# exported LIBRARY OPTIONS...: its names, without those of the versions themselves.
exported() { nm --defined-only --extern-only --format=posix "${@:2}" "$build/$1" | awk 'NF >= 2 && $2 !~ /[UA]/ { print $1 }'; }

# compare LIBRARY WANTED FOUND
compare()
{
    if ! diff <(echo "$2") <(sort <<<"$3"); then
        echo "$1 does not export what include/fsdp declares (< declared, > exported)" >&2
        exit 1
    fi
    echo "$1: $(wc -l <<<"$3") public names"
}
compare libfsdp.a "$declared" "$(exported libfsdp.a)"
compare libfsdp.so "$versioned" "$(exported libfsdp.so -D --with-symbol-versions)"
grep -qx 'fsdp_last_error@@FSDP_0.1' <<<"$versioned"
grep -q '^fsdp_train@@FSDP_COMMAND_' <<<"$versioned"
