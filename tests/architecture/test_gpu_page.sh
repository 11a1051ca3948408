#!/bin/bash
# scripts/gpu-page, with which `make test` ends, says in one line when GPU code is newer than the page of its figures,
# says nothing otherwise, and never fails. Shown on a small tree of its own.
set -euo pipefail
source=${FSDP_SOURCE:?}
command -v git >/dev/null || { echo "no git here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

tree=$work/tree
mkdir -p "$tree/src/device/cuda" "$tree/src/comm/nccl" "$tree/src/optim" "$tree/docs"
git="git -C $tree -c user.name=test -c user.email=test@localhost"
commit() { $git add -A && $git commit -qm "$1" && $git rev-parse --short=9 HEAD; }
says() { "$source/scripts/gpu-page" "$tree" || fail "it fails"; }
quiet() { [[ -z $(says) ]] || fail "$1, and it says: $(says)"; }
speaks() # WHY WORD...
{
    local why=$1 word
    shift
    [[ $(says | wc -l) == 1 ]] || fail "$why: one line is expected, not: $(says)"
    for word; do
        [[ $(says) == *"$word"* ]] || fail "$why: no \"$word\" in: $(says)"
    done
}

quiet "there is no history"
git init -q "$tree"
quiet "there is no commit"
echo one >"$tree/src/device/cuda/kernel.cu"
first=$(commit first)
speaks "there is no page" "names no commit"
echo "Commit $first, one card." >"$tree/docs/benchmarks-gpu.md"
commit page >/dev/null
quiet "the page has the newest"
echo two >"$tree/src/optim/update.c"
commit other >/dev/null
quiet "only other code is newer"
echo two >"$tree/src/device/cuda/kernel.cu"
speaks "a file that is not committed is newer" "changed files: 1)" "$first"
second=$(commit second)
echo two >"$tree/src/comm/nccl/nccl.c"
commit third >/dev/null
speaks "two files are newer" "changed files: 2)" "$first"
echo "Later: commit $second." >>"$tree/docs/benchmarks-gpu.md"
speaks "one file is newer than the newest of two commits" "changed files: 1)" "$second"
echo "And commit deadbeef1, of another tree." >>"$tree/docs/benchmarks-gpu.md"
speaks "a commit that is not there counts for nothing" "$second"

make --no-print-directory -n -C "$source" test JOBS=1 2>/dev/null | tail -1 | grep -q 'scripts/gpu-page' || fail "make test does not end with it"
echo "the page of figures from GPUs is watched"
