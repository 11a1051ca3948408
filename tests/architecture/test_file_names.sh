#!/bin/bash
# Comments send a reader only to files that exist: every name of a source file in a comment under src, cli and include
# is that of a file of the tree.
set -euo pipefail
cd "${FSDP_SOURCE:-$(dirname "$0")/../..}"

names=$(mktemp)
trap 'rm -f "$names"' EXIT
find src cli include tests examples -type f -printf '%f\n' | sort -u >"$names"

# "file: name" for each name in the comments of the file named or read; folders before a name
# do not count, nor does what stands in angle brackets: that is for programs that include it.
named_files()
{
    grep -HnE '^[[:space:]]*(/\*|\*|//)|/\*' "$@" | grep -v '#[[:space:]]*include' |
        sed -E 's|^([^:]*):[0-9]+:.*(/\*.*)$|\1:\2|; s|^([^:]*):[0-9]+:|\1:|; s|<[^>]*>||g' |
        grep -oE '^[^:]*:|[A-Za-z0-9_]{3,}\.(c|h|cu|cuh)\b' |
        awk '/:$/ {file = $0; next} {print file, $0}' | sort -u
}

unknown()
{
    named_files "$@" | awk -v names="$names" 'BEGIN {while ((getline line <names) > 0) known[line] = 1} !($2 in known)'
}

wrong=$(find src cli include -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z |
    { mapfile -d '' -t files; unknown "${files[@]}"; })
if [[ -n $wrong ]]; then
    printf 'comments name files that do not exist:\n%s\n' "$wrong" >&2
    exit 1
fi

sample=$(mktemp --suffix .c)
trap 'rm -f "$names" "$sample"' EXIT
printf '/* What happens next is nowhere_at_all.c'"'"'s. */\nint x; /* see loop.c */\n' >"$sample"
[[ $(unknown "$sample" /dev/null) == *" nowhere_at_all.c" ]] || { echo "the check does not see a wrong name" >&2; exit 1; }
echo "comments name only files that exist"
