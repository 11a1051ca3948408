#!/bin/bash
# `fsdp plan`: strategies side by side, as text and as JSON, for flags, presets and Hugging Face configurations, and the
# fastest that fits.
set -u
fsdp=$FSDP_BUILD/fsdp
golden=${FSDP_GOLDEN_DIR:-$FSDP_SOURCE/tests/golden}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# number KEY FILE: the first number that the JSON gives it
number() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$2" | head -1; }

"$fsdp" plan --preset llama3_1_8b --world_size 8 >"$work/text" || fail "the plan of a preset"
for row in parameters gradients optimizer "gathered units" "full gradients" activations workspace communication total \
    "gathered a step" "reduced a step"; do
    grep -q "^$row " "$work/text" || fail "no row \"$row\""
done
for strategy in full shard_grad_op shard_op no_shard; do
    head -3 "$work/text" | grep -qw "$strategy" || fail "no column $strategy"
done

"$fsdp" plan --preset llama3_1_8b --world_size 8 --json >"$work/json" || fail "a plan as JSON"
[ "$(number parameters "$work/json")" = 8030261248 ] || fail "8B has $(number parameters "$work/json") parameters"
[ "$(number ranks "$work/json")" = 8 ] || fail "ranks in JSON"
[ "$(grep -c '"strategy"' "$work/json")" -ge 4 ] || fail "strategies in JSON"
command -v python3 >/dev/null && { python3 -m json.tool "$work/json" >/dev/null || fail "the JSON does not parse"; }

# Without checkpointing the replicated 8B does not fit 80 GB, in halves it does; what is named must be below the limit.
"$fsdp" plan --preset llama3_1_8b --world_size 8 --fit 80GB --json >"$work/fit" || fail "--fit"
"$fsdp" plan --preset llama3_1_8b --world_size 8 --fit 80GB | grep -q "^The fastest that fits: --sharding_strategy" ||
    fail "--fit names no strategy"
"$fsdp" plan --preset llama3_1_8b --world_size 8 --fit 1GB >"$work/none" 2>&1
[ $? -eq 2 ] || fail "what cannot fit must exit with 2"

# A Hugging Face configuration, as a file and as its folder, gives the sizes of the weights beside it.
"$fsdp" plan --model_config "$golden/llama_gqa/config.json" --max_context_width 64 --world_size 2 --json >"$work/file" || fail "a config.json"
"$fsdp" plan --model_config "$golden/llama_gqa" --max_context_width 64 --world_size 2 --json >"$work/folder" || fail "a folder with one"
cmp -s "$work/file" "$work/folder" || fail "file and folder differ"
[ "$(number parameters "$work/file")" -gt 0 ] || fail "no parameters"
exit $((failures > 0))
