#!/bin/bash
# The llama curve of the golden data through the command itself, on 1, 2 and 4 ranks, every strategy: the loss of every step
# within 1e-4 of PyTorch's.
set -u
fsdp=$FSDP_BUILD/fsdp
golden=${FSDP_GOLDEN_DIR:-$FSDP_SOURCE/tests/golden}/llama_curve
[ -d "$golden" ] || { echo "no llama_curve in $golden"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# number KEY: the first number that the file gives it
number() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$golden/curve.json" | head -1; }

lr=$(number lr) steps=$(number steps) batch=$(number global_batch) width=$(number seq)
betas=($(sed -n '/"betas"/,/]/p' "$golden/curve.json" | grep -o '[0-9][0-9.e-]*'))
min_lr=$(awk -v lr="$lr" 'BEGIN { printf "%.17g", 0.1 * lr }')
# the log of the file: losses in order
sed -n '/"log"/,$p' "$golden/curve.json" | sed -n 's/.*"loss": *\([^,]*\),*/\1/p' >"$folder/wanted"

failures=0
for ranks in 1 2 4; do
    for strategy in full shard_grad_op shard_op no_shard; do
        out=$folder/$ranks-$strategy
        "$fsdp" run --standalone --nproc-per-node $ranks "$fsdp" train --device cpu --threads 1 --model_config "$golden/config.json" --init_from "$golden/model.safetensors" \
            --dataset "$golden/data.safetensors" --max_context_width "$width" --train_batch_size $((batch / ranks)) --max_steps "$steps" --lr "$lr" --min_lr "$min_lr" \
            --lr_decay_style cosine --warmup "$(number warmup_steps)" --grad_clip "$(number clip)" --weight_decay "$(number weight_decay)" --beta1 "${betas[0]}" \
            --beta2 "${betas[1]}" --eps "$(number eps)" --sharding_strategy $strategy --no_checkpoint_at_end --logging_freq 1000 --output_dir "$out" >"$folder/log" 2>&1 ||
            { cat "$folder/log"; exit 1; }
        sed -n 's/.*"loss": *\([^,]*\),.*/\1/p' "$out/metrics.jsonl" >"$folder/got"
        worst=$(paste "$folder/wanted" "$folder/got" | awk 'NF != 2 { bad = 1 } { d = $1 - $2; if (d < 0) d = -d; if (d > w) w = d } END { if (bad || NR == 0) print 1; else printf "%.3g", w }')
        if awk -v w="$worst" 'BEGIN { exit !(w > 1e-4) }'; then echo "FAILED: $strategy on $ranks ranks is off by $worst"; failures=$((failures + 1)); fi
        echo "$strategy on $ranks ranks: $(wc -l <"$folder/got") steps, loss within $worst"
    done
done
exit $((failures > 0))
