#!/bin/bash
# Comments send a reader only to files that exist: every name of a source file in a comment under src, cli and include
# is that of a file of the tree. And no folder of code holds more files than a reader takes in.
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

most=40
crowded=$(find src cli include tests examples scripts -path tests/fuzz/corpus -prune -o -path tests/golden -prune -o \
    -type f -printf '%h\n' | sort | uniq -c | awk -v most=$most '$1 > most {print $2 ": " $1 " files"}')
if [[ -n $crowded ]]; then
    printf 'more than %d files in one folder; give a part of them a folder of its own:\n%s\n' "$most" "$crowded" >&2
    exit 1
fi

sample=$(mktemp --suffix .c)
trap 'rm -f "$names" "$sample"' EXIT
printf '/* What happens next is nowhere_at_all.c'"'"'s. */\nint x; /* see loop.c */\n' >"$sample"
[[ $(unknown "$sample" /dev/null) == *" nowhere_at_all.c" ]] || { echo "the check does not see a wrong name" >&2; exit 1; }
echo "comments name only files that exist"
