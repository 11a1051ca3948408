#!/bin/bash
# Every example runs as its reader would run it and reaches what it states; own_model builds against what was installed.
set -euo pipefail
build=${FSDP_BUILD:?}
source_root=${FSDP_SOURCE:?}
examples=$source_root/examples
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FSDP=$build/fsdp

# timed NAME COMMAND...: its last lines, and all of them when it fails.
timed()
{
    local name=$1 began=$SECONDS
    shift
    if ! "$@" >"$work/$name.log" 2>&1; then
        cat "$work/$name.log" >&2
        echo "$name failed" >&2
        exit 1
    fi
    echo "$name: $((SECONDS - began)) s"
    tail -n 3 "$work/$name.log"
}

timed cnn "$examples/cnn/run.sh" "$work/cnn"
timed t5 "$examples/t5/run.sh" "$work/t5"
timed llama "$examples/llama/tiny.sh" "$work/llama"

# A program of the build. Guessing by frequency alone gives a loss of about 3.3.
timed gpt "$FSDP" run --standalone --nproc-per-node 2 --plain "$build/examples/gpt" "$source_root/README.md" 200
awk '/^step/ { loss = $NF } END { exit !(loss < 2.7) }' "$work/gpt.log"

# Without its last checkpoint, own_model goes on after the one before, and ends with the same bits.
own_model=("$FSDP" run --standalone --nproc-per-node 2 --plain "$build/examples/own_model" "$work/saved")
timed own_model_whole "${own_model[@]}"
mv "$work/saved/step-00000300" "$work/whole"
timed own_model_resumed "${own_model[@]}"
grep -q '^resumed after step 199$' "$work/own_model_resumed.log"
"$FSDP" ckpt diff "$work/whole" "$work/saved/step-00000300" >/dev/null

if grep -q '^FSDP_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt"; then
    echo "own_model: built with sanitizers, linking from outside is tested in other builds"
    exit 0
fi
cmake --install "$build" --prefix "$work/installed" >/dev/null
cp -r "$examples/own_model" "$work/own_model"
timed own_model make -C "$work/own_model" PREFIX="$work/installed" FSDP="$work/installed/bin/fsdp" run
[[ $(grep -c '^.*step .*loss' "$work/own_model.log") == 7 ]]
