#!/bin/bash
# The first command of the README: what `make train` builds compiles with that preset's options, under which compilers warn of other
# things than in the other builds, and trains.
set -euo pipefail
source=${FSDP_SOURCE:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

(cd "$source" && cmake --preset command -B "$work/build") >"$work/log" 2>&1 || fail "cmake --preset command: $(cat "$work/log")"
cmake --build "$work/build" --target fsdp -j 1 >"$work/log" 2>&1 || fail "$(grep -A8 'error:' "$work/log" || tail -20 "$work/log")"
cd "$work"
build/fsdp run --standalone --nproc-per-node 2 --plain build/fsdp train --preset tiny --sharding_strategy full --device cpu \
    --dataset "$source/README.md" --max_steps 2 --output_dir run >out 2>&1 || fail "$(cat out)"
grep -q '^Memory of each rank' out || fail "no table of memory: $(cat out)"
echo "ok: the command is built and trains"
