#!/bin/bash
# `fsdp eval`: the numbers of training's own validation to the bit, those of PyTorch for golden weights, any number of
# ranks, several models side by side, and what it refuses.
set -euo pipefail
source "$(dirname "$0")/support.bash"
export OMP_NUM_THREADS=1 # the models are tiny: threads would only wait for each other
golden=${FSDP_GOLDEN_DIR:-$source_root/tests/golden}
eval=("$fsdp" eval --device cpu)
ranks() { "$fsdp" run --standalone --nproc-per-node "$1" "${@:2}" | sed 's/^\[rank 0\] //'; }
# field NAME: of the JSON lines on standard input
field() { sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p"; }
# The same bits: 17 digits say them all, however a number is spelled.
same() { near "$1" "$2" 0; }
near() { [[ -n $1 && -n $2 ]] && awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(d <= t && -d <= t) }'; }

refused 2 "no model" eval --dataset x
refused 2 "no data" eval nowhere
refused 2 "nowhere" eval nowhere --dataset x
refused 2 "unknown flag --lr" eval nowhere --dataset x --lr 1
mkdir empty
refused 2 "empty: neither a checkpoint" eval empty --dataset x

for i in $(seq 300); do echo "one two three four five six seven eight nine ten $i"; done >data.txt
for i in $(seq 37); do echo "one two three five six $((i * i))"; done >val.txt
small=(--device cpu --preset tiny --dataset data.txt --validation_dataset val.txt --hidden_width 32 --num_layers 2 --num_heads 4
       --intermediate_size 64 --max_context_width 64 --lr 1e-2 --sample_tokens 0 --val_batch_size 3)

# One rank: two checkpoints, each with its own validation; the newest is the run's; the exported folder is the same model.
"$fsdp" train "${small[@]}" --max_steps 20 --checkpoint_freq 10 --validation_freq 10 --output_dir one --export_dir exported >log
for step in 10 20; do
    want=$(sed -n "s/^{\"step\": $step, \"validation_loss\": \([^,]*\),.*/\1/p" one/validation.jsonl)
    got=$("${eval[@]}" one/checkpoints/step-000000$step --dataset val.txt --json | field loss)
    same "$got" "$want" || fail "step $step: evaluated $got, validated $want"
done
"${eval[@]}" one --dataset val.txt --json >run.json
same "$(field loss <run.json)" "$want" && [[ $(field step <run.json) == 20 ]] || fail "the run's newest: $(cat run.json)"
"${eval[@]}" exported --dataset val.txt --json --val_batch_size 3 --max_context_width 64 >exported.json
same "$(field loss <exported.json)" "$want" || fail "exported: $(cat exported.json)"
tokens=$(field tokens <run.json)

# Ranks that share 14 samples unevenly count each token once, and agree with one rank but for the order of sums.
for n in 2 3; do
    ranks $n "${eval[@]}" one --dataset val.txt --json >ranks.json
    [[ $(field tokens <ranks.json) == "$tokens" && $(field world_size <ranks.json) == "$n" ]] || fail "$n ranks: $(cat ranks.json)"
    [[ $(field accuracy <ranks.json) == "$(field accuracy <run.json)" ]] || fail "$n ranks are right elsewhere: $(cat ranks.json)"
    near "$(field loss <ranks.json)" "$want" 1e-5 || fail "$n ranks: $(cat ranks.json), one: $want"
done

# Two ranks, bf16 and an average of the weights: still the bits of the run.
ranks 2 "$fsdp" train "${small[@]}" --max_steps 12 --bf16 --ema 0.9 --output_dir two --sharding_strategy full >log
want=$(field validation_loss <two/validation.jsonl)
ranks 2 "${eval[@]}" two --dataset val.txt --json >two.json
same "$(field loss <two.json)" "$want" && [[ $(field average <two.json) == true ]] || fail "two ranks: $(cat two.json), validated $want"
ranks 2 "${eval[@]}" two --dataset val.txt --json --param_dtype fp32 >fp32.json
! same "$(field loss <fp32.json)" "$want" || fail "--param_dtype has no effect"

# A table of several, the best marked; --validation_batches reads the first ones only.
"${eval[@]}" one/checkpoints/step-00000010 one --dataset val.txt >table
[[ $(wc -l <table) == 4 && $(grep -c '  \*$' table) == 1 ]] || fail "table: $(cat table)"
grep -q '^one  .*  20  .*%.*  \*$' table || fail "table: $(cat table)"
[[ $("${eval[@]}" one --dataset val.txt --validation_batches 2 --json | field samples) == 6 ]] || fail "batches are not counted"

# PyTorch's loss of golden weights, and a model whose weights were changed has another.
curve=$golden/llama_curve
rows=(--dataset "$curve/data.safetensors" --val_batch_size 8 --validation_batches 1 --max_context_width 32 --json)
want=$(sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$curve/curve.json" | head -n 1)
got=$("${eval[@]}" "$curve" "${rows[@]}" | field loss)
near "$got" "$want" 1e-5 || fail "golden: $got instead of $want"
mkdir other
cp "$curve/config.json" "$curve/model.safetensors" other/
dd if=/dev/zero of=other/model.safetensors bs=4096 seek=20 count=8 conv=notrunc 2>/dev/null
changed=$("${eval[@]}" other "${rows[@]}" | field loss)
[[ -n $changed ]] && ! near "$changed" "$want" 1e-4 || fail "other weights have the loss $changed, the golden ones $want"

# Images: the accuracy that training reported.
images() # NAME COUNT
{
    { printf '\0\0\10\3\0\0\0'; printf "\\x$(printf %x "$2")"; printf '\0\0\0\34\0\0\0\34'; head -c $((784 * $2)) /bin/sh; } >images/$1-images-idx3-ubyte
    { printf '\0\0\10\1\0\0\0'; printf "\\x$(printf %x "$2")"; for ((i = 0; i < $2; i++)); do printf "\\x0$((i % 10))"; done; } >images/$1-labels-idx1-ubyte
}
mkdir images
images train 50
images t10k 33
"$fsdp" train --device cpu --preset cnn --dataset images --epochs 2 --validation_freq 1000 --output_dir cnn >log
"${eval[@]}" cnn --dataset images --json >cnn.json
said=$(cat cnn.json cnn/validation.jsonl)
same "$(field loss <cnn.json)" "$(field validation_loss <cnn/validation.jsonl)" || fail "cnn: $said"
same "$(field accuracy <cnn.json)" "$(sed -n 's/.*accuracy": \([^,}]*\).*/\1/p' cnn/validation.jsonl)" || fail "cnn: $said"
[[ $(field images <cnn.json) == 33 ]] || fail "cnn: $said"
refused 2 "val.txt holds text" eval cnn --dataset val.txt --device cpu
