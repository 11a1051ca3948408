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

# What cannot be offloaded is planned all the same, with its details; layers that fp8 cannot have are said without a search.
for optimizer in muon adafactor; do
    "$fsdp" plan --preset tiny --device h200 --world_size 4 --optimizer $optimizer --units >"$work/text" 2>&1 || fail "$optimizer: $(cat "$work/text")"
    grep -q "^model.layers.0 " "$work/text" || fail "$optimizer has no details: $(cat "$work/text")"
done
"$fsdp" plan --preset llama3_1_8b --device a100 --world_size 1 --optimizer muon >"$work/text" 2>&1 || fail "8B on an A100: $(cat "$work/text")"
grep -q "nothing fits" "$work/text" && ! grep -q "does not update units" "$work/text" || fail "what does not fit: $(cat "$work/text")"
"$fsdp" plan --preset llama3_2_1b --device h200 --world_size 1 --fp8 --gradient_accumulation_steps 8 --fit 100GiB >"$work/text" || fail "1B in 8 bits"
grep -q "^The fastest that fits: .* --fp8_weights step, " "$work/text" || fail "the choice of fp8_weights is not named: $(tail -1 "$work/text")"
"$fsdp" plan --preset gpt2_124m --fp8 --world_size auto --device h200 >"$work/text" 2>&1 && fail "GPT-2 in 8 bits"
grep -q "fsdp plan: fp8: no linear layer here has 8-bit products" "$work/text" || fail "GPT-2 in 8 bits: $(cat "$work/text")"

"$fsdp" plan --preset llama3_1_8b --world_size 8 --json >"$work/json" || fail "a plan as JSON"
[ "$(number parameters "$work/json")" = 8030261248 ] || fail "8B has $(number parameters "$work/json") parameters"
[ "$(number ranks "$work/json")" = 8 ] || fail "ranks in JSON"
[ "$(grep -c '"strategy"' "$work/json")" -ge 4 ] || fail "strategies in JSON"
command -v python3 >/dev/null && { python3 -m json.tool "$work/json" >/dev/null || fail "the JSON does not parse"; }

# Presets of the other families have the published numbers of parameters.
while read -r preset parameters; do
    "$fsdp" plan --preset "$preset" --world_size 2 --json >"$work/preset" || fail "the plan of $preset"
    [ "$(number parameters "$work/preset")" = "$parameters" ] || fail "$preset has $(number parameters "$work/preset") parameters"
done <<END
gpt2_124m 124439808
qwen2_5_1_5b 1543714304
qwen3_0_6b 596049920
gemma3_1b 999885952
phi3_mini 3821079552
END

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

# A GPU that is not here: its traits (4 bytes a bf16 parameter instead of 6, a workspace of its own) and its memory.
"$fsdp" plan --preset llama3_2_1b --world_size 1 --device h200 --json >"$work/h200" || fail "a described GPU"
"$fsdp" plan --preset llama3_2_1b --world_size 1 --device cpu --json >"$work/cpu" || fail "the CPU"
[ "$(number parameters "$work/h200")" = "$(number parameters "$work/cpu")" ] || fail "another model on a GPU"
grep -q '"device": "NVIDIA H200"' "$work/h200" || fail "the GPU is not named"
[ "$(number total "$work/h200")" -lt "$(number total "$work/cpu")" ] || fail "a GPU keeps masters as halves"
"$fsdp" plan --preset llama3_2_1b --world_size 1 --device h200 |
    grep -q '^The fastest that fits: --sharding_strategy no_shard --activation_checkpointing none, ' ||
    fail "a billion parameters are not at ease on an H200"
"$fsdp" plan --preset tiny --device tpu >"$work/none" 2>&1
[ $? -eq 2 ] || fail "a device that does not exist"

# A strategy that was named is planned where another would be the same: hybrid on a single node.
"$fsdp" plan --preset tiny --world_size 4 --sharding_strategy hybrid --fit 80GB >"$work/single" 2>&1 || fail "hybrid on one node: $(cat "$work/single")"
grep -q '^The fastest that fits: --sharding_strategy hybrid ' "$work/single" || fail "hybrid on one node: $(cat "$work/single")"

# The fewest ranks; planned again with that number it fits, with one less it does not.
"$fsdp" plan --preset llama3_1_8b --device h100 --world_size auto --json >"$work/auto" || fail "--world_size auto"
ranks=$(number ranks "$work/auto")
"$fsdp" plan --preset llama3_1_8b --device h100 --world_size "$ranks" --no_cpu_offload |
    grep -q '^The fastest that fits' || fail "$ranks ranks do not fit"
"$fsdp" plan --preset llama3_1_8b --device h100 --world_size $((ranks - 1)) --no_cpu_offload |
    grep -q '^nothing fits' || fail "fewer than $ranks ranks fit"

# The closing table has every rank's own plan, which is what it took.
"$fsdp" run --standalone --nproc-per-node 2 --plain "$fsdp" train --preset tiny --dataset "$FSDP_SOURCE/README.md" --device cpu \
    --threads 1 --max_steps 2 --sample_tokens 0 --sharding_strategy full --shard_weights 3,1 --validation_split 0.2 \
    --val_batch_size 48 --output_dir "$work/run" >"$work/table" || fail "a run of unequal ranks: $(cat "$work/table")"
rows=$(grep -A2 '^rank .*planned .*measured' "$work/table" | tail -2)
[ "$(awk '$2 == $4 && $3 == $5' <<<"$rows" | wc -l)" = 2 ] || fail "planned is not measured: $rows"
[ "$(awk '{print $2}' <<<"$rows" | sort -u | wc -l)" = 2 ] || fail "both ranks have one plan: $rows"

# On a CPU, what a step takes depends on threads and products; a plan has those of the run.
for flags in "--threads 1" "--threads 3" "--threads 1 --products portable" ""; do
    small=(--model_type llama_v2 --vocab_size 256 --hidden_width 32 --num_layers 2 --num_heads 2 --intermediate_size 48 --device cpu
        --max_context_width 64 --train_batch_size 3 --max_steps 2 --sharding_strategy full --json)
    # shellcheck disable=SC2086
    "$fsdp" plan "${small[@]}" --world_size 2 $flags >"$work/planned" || fail "plan $flags"
    # shellcheck disable=SC2086
    "$fsdp" run --standalone --nproc-per-node 2 --plain "$fsdp" train "${small[@]}" --dry_run --dataset "$FSDP_SOURCE/README.md" $flags \
        >"$work/dry" || fail "train --dry_run $flags"
    for what in workspace total; do
        [ "$(number $what "$work/planned")" = "$(number $what "$work/dry")" ] ||
            fail "$flags: the plan has $(number $what "$work/planned") bytes of $what, the run $(number $what "$work/dry")"
    done
done

# On a CPU nothing is offloaded: the plan says so, and is that of the run; what cannot be offloaded is then no matter.
small+=(--threads 1)
for optimizer in adamw muon; do
    "$fsdp" plan "${small[@]}" --world_size 1 --sharding_strategy full --cpu_offload --optimizer $optimizer >"$work/planned" 2>"$work/warned" ||
        fail "plan --cpu_offload --optimizer $optimizer: $(cat "$work/warned")"
    grep -q 'no effect on the CPU' "$work/warned" || fail "no word of --cpu_offload"
    "$fsdp" train "${small[@]}" --dry_run --sharding_strategy full --cpu_offload --optimizer $optimizer --dataset "$FSDP_SOURCE/README.md" \
        >"$work/dry" || fail "train --dry_run --cpu_offload"
    for what in total host; do
        [ "$(number $what "$work/planned")" = "$(number $what "$work/dry")" ] || fail "--cpu_offload: another $what is planned than taken"
    done
done

# Groups that cannot be are an error, however the plan is printed.
for flags in "" "--json"; do
    code=0
    # shellcheck disable=SC2086
    "$fsdp" plan --preset tiny --device h200 --world_size 7 --sharding_strategy hybrid --shard_group_size 3 $flags >"$work/out" 2>&1 || code=$?
    [ $code = 2 ] && grep -q 'shard_group_size 3 does not divide the 7 ranks' "$work/out" || fail "groups of 3 of 7 $flags: exit code $code"
done

# Where nothing limits them, both keep weights in 8 bits, too, for several micro-batches: also where the strategy is open.
small+=(--fp8 --gradient_accumulation_steps 2)
"$fsdp" plan "${small[@]}" --sharding_strategy auto --world_size 1 >"$work/planned" || fail "plan --fp8, strategy open"
"$fsdp" train "${small[@]}" --sharding_strategy auto --dry_run --dataset "$FSDP_SOURCE/README.md" >"$work/dry" || fail "train --dry_run --fp8"
[ "$(number total "$work/planned")" = "$(number total "$work/dry")" ] || fail "8-bit weights, strategy open: another total is planned"
"$fsdp" plan "${small[@]}" --world_size 1 >"$work/planned" || fail "plan --fp8"
"$fsdp" train "${small[@]}" --dry_run --dataset "$FSDP_SOURCE/README.md" >"$work/dry" || fail "train --dry_run --fp8"
[ "$(number total "$work/planned")" = "$(number total "$work/dry")" ] ||
    fail "8-bit weights: $(number total "$work/planned") bytes are planned, the run takes $(number total "$work/dry")"

# Ranks differ in what Muon keeps, and where weights do not divide blocks evenly: the plan is of the one that holds most.
for flags in "--optimizer muon" "--shard_weights 3,3" "--optimizer muon --shard_weights 1,2"; do
    small=(--model_type llama_v2 --vocab_size 256 --hidden_width 48 --num_layers 1 --num_heads 2 --intermediate_size 96 --device cpu --threads 1
        --max_context_width 32 --train_batch_size 1 --max_steps 1 --sharding_strategy full --no_async_checkpoint)
    # shellcheck disable=SC2086
    "$fsdp" plan "${small[@]}" --json --world_size 2 $flags >"$work/planned" || fail "plan $flags"
    # shellcheck disable=SC2086
    "$fsdp" run --standalone --nproc-per-node 2 --plain "$fsdp" train "${small[@]}" --overwrite --output_dir "$work/largest" \
        --dataset "$FSDP_SOURCE/README.md" $flags >"$work/dry" 2>&1 || fail "$flags: $(cat "$work/dry")"
    most=$(sed -n 's/.*"measured": *\([0-9]*\).*/\1/p' "$work/largest/ranks.json" | sort -n | tail -1)
    planned=$(($(number total "$work/planned") + $(number host "$work/planned")))
    [ "$planned" = "$most" ] || fail "$flags: $planned bytes are planned, a rank took $most"
done

# A field of config.json that nobody knows is named, on one line of standard error.
sed '1s/{/{"resid_pdrop": 0.1,/' "$golden/llama_gqa/config.json" >"$work/config.json"
"$fsdp" plan --model_config "$work/config.json" --max_context_width 16 >/dev/null 2>"$work/warned" || fail "$(cat "$work/warned")"
[ "$(grep -c 'fsdp plan: warning: .*config.json.*"resid_pdrop"' "$work/warned")" = 1 ] || fail "no warning: $(cat "$work/warned")"
exit $((failures > 0))
