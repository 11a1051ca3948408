#!/bin/bash
# The binary interface does not change by accident: functions with their versions and prototypes, sizes and offsets of
# structs, values of enums are those of abi.txt. A change on purpose is recorded with `scripts/abi update`. The check is
# itself checked: copies of the headers with one change each must give another table.
set -euo pipefail
build=${FSDP_BUILD:?} source=${FSDP_SOURCE:?}
export CC
CC=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
if [[ $(uname -m) != x86_64 ]]; then
    echo "the table is that of x86_64"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$source/scripts/abi" table >"$work/table"
if ! diff "$source/cmake/abi.txt" "$work/table"; then
    echo "the binary interface has changed (< recorded, > now). If it was meant: scripts/abi update" >&2
    echo "Programs built before go on working when only functions were added, or fields behind the last of a struct" >&2
    echo "with size, or in place of reserved ones." >&2
    exit 1
fi

# notices HEADER SED EXPECTED: a change of the header shows in the table, in a line that has EXPECTED.
notices()
{
    rm -rf "$work/include"
    cp -r "$source/include" "$work/include"
    sed -i "$2" "$work/include/fsdp/$1"
    cmp -s "$source/include/fsdp/$1" "$work/include/fsdp/$1" && { echo "nothing to change in $1: $2" >&2; exit 1; }
    "$source/scripts/abi" table "$work/include" >"$work/changed"
    { diff "$work/table" "$work/changed" || true; } >"$work/difference"
    grep -q "$3" "$work/difference" || { echo "$1 with $2 goes unnoticed" >&2; exit 1; }
}
notices shard.h 's/^    uint64_t seed;/    bool added; uint64_t seed;/' 'struct fsdp_config .* added'
notices shard.h 's/^    uint64_t seed;/    uint32_t seed;/' 'struct fsdp_config .* seed uint32_t'
notices status.h 's/^    FSDP_ERR_IO,/    FSDP_ERR_NEW, FSDP_ERR_IO,/' 'enum fsdp_status 000003 FSDP_ERR_IO'
notices module.h 's/size_t bytes);/int bytes);/' 'function fsdp_module_new .*int bytes'
notices world.h 's/^FSDP_API int fsdp_world_rank/int fsdp_world_rank/' '< function fsdp_world_rank '
notices module.h 's/void (\*destroy)(fsdp_module \*self)/int (*destroy)(fsdp_module *self)/' 'fsdp_module_class .* destroy int'
echo "$(grep -c ^function "$work/table") functions, $(grep -c '^struct .* size [0-9]*$' "$work/table") structs as recorded"
