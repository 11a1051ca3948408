#!/bin/bash
# No two objects of the layers define the same name: a linker takes one of two archives' and says nothing, so a program
# could run a function that its author never saw. Inline functions of C++ (weak) may stand in several.
set -euo pipefail
export LC_ALL=C
build=${FSDP_BUILD:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# defined ARCHIVES...: a line "NAME ARCHIVE[OBJECT]:" for every name that other objects can link to.
defined()
{
    nm --defined-only --extern-only --format=posix --print-file-name "$@" | awk '$3 ~ /^[TDBRSGC]$/ { print $2, $1 }'
}

# twice: the names among those lines that are defined more than once, each with all its places.
twice()
{
    awk '{ n[$1]++; where[$1] = where[$1] " " $2 } END { for (name in n) if (n[name] > 1) print name ":" where[name] }' | sort
}

# The net itself: two archives that define the same function and the same variable are caught, static ones are not.
for i in 1 2; do
    echo 'int shared_value = 1; int shared_name(void) { return 0; } static int own; int *own_'$i'(void) { return &own; }' \
        >"$work/$i.c"
    ${CC:-cc} -c "$work/$i.c" -o "$work/$i.o"
    ar rc "$work/lib$i.a" "$work/$i.o"
done
[[ $(defined "$work"/lib[12].a | twice | cut -d: -f1 | xargs) == "shared_name shared_value" ]]

archives=("$build"/liblayer_*.a)
names=$(defined "${archives[@]}")
[[ ${#archives[@]} -gt 20 && $(wc -l <<<"$names") -gt 1000 ]] # it looked at something
found=$(twice <<<"$names")
if [[ $found ]]; then
    echo "defined more than once:" >&2
    echo "${found//$build\//}" >&2
    exit 1
fi
echo "${#archives[@]} layers, $(wc -l <<<"$names") names, each defined once"
