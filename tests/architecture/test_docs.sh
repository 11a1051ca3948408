#!/bin/bash
# The API reference builds without a warning and every public function has a comment. The comments are checked
# everywhere, the pages where Doxygen is installed. The check is itself checked: one comment less must be refused.
set -euo pipefail
source=${FSDP_SOURCE:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -r "$source/include" "$work/include"
sed -i '/^FSDP_API int fsdp_world_rank(/i \\' "$work/include/fsdp/world.h"
if "$source/scripts/docs" "$work/docs" "$work/include" 2>"$work/refusal"; then
    echo "a function without a comment passes" >&2
    exit 1
fi
grep -q 'world.h:[0-9]*: fsdp_world_rank has no comment' "$work/refusal"

status=0
"$source/scripts/docs" "$work/docs" >"$work/log" 2>&1 || status=$?
if ((status != 0)); then
    cat "$work/log"
    exit $status
fi
for name in $(sed -n 's/^FSDP_API .*[ *]\(fsdp_[a-z0-9_]*\)(.*/\1/p' "$source"/include/fsdp/*.h); do
    grep -q ">$name()" "$work"/docs/html/*_8h.html || { echo "the reference has no $name" >&2; exit 1; }
done
echo "the reference has $(grep -ho '>fsdp_[a-z0-9_]*()<' "$work"/docs/html/*_8h.html | sort -u | wc -l) functions"
