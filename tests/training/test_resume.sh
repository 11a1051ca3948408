#!/bin/bash
# kill -9 of the whole job at random instants, resumed each time until it ends: the loss of every step equals that of a run
# that was never killed, to the last digit. FSDP_KILLS says how often (8; docs/kill-test.md has a run with 200).
set -u
fsdp=$FSDP_BUILD/fsdp
kills=${FSDP_KILLS:-8}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
steps=60

# train NAME FLAGS...: two ranks, checkpoints every third step
train() {
    local name=$1
    shift
    "$fsdp" run --standalone --nproc-per-node 2 "$fsdp" train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 32 \
        --num_layers 2 --num_heads 2 --intermediate_size 64 --max_context_width 32 --train_batch_size 2 --dropout 0 --dataset "$FSDP_SOURCE/README.md" \
        --max_steps $steps --logging_freq 100 --lr 1e-2 --warmup 5 --lr_decay_style cosine --grad_clip 1 --gradient_accumulation_steps 2 \
        --output_dir "$folder/$name" --checkpoint_dir "$folder/$name/ckpt" --checkpoint_freq 3 --keep_checkpoints 2 \
        --resume_from_checkpoint "$folder/$name/ckpt" "$@" >>"$folder/$name.log" 2>&1
}

# losses NAME: "step loss" once for every step; fails when a step was seen with two losses
losses() {
    sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*/\1 \2/p' "$folder/$1/metrics.jsonl" | sort -n -u
}

# compare: the killed run, now at its end, against the whole one
compared=0
compare() {
    losses whole >"$folder/a"
    losses killed >"$folder/b"
    if [ "$(wc -l <"$folder/a")" -ne $steps ]; then echo "FAILED: $(wc -l <"$folder/a") steps instead of $steps"; exit 1; fi
    if ! diff "$folder/a" "$folder/b"; then echo "FAILED: the killed run lost its way"; exit 1; fi
    compared=$((compared + 1))
}

train whole --sharding_strategy full || { cat "$folder/whole.log"; exit 1; }
started=$(date +%s%N)
train timing --sharding_strategy full || { cat "$folder/timing.log"; exit 1; }
span=$((($(date +%s%N) - started) / 1000000))

done_kills=0
while [ $done_kills -lt "$kills" ]; do
    setsid bash -c "$(declare -f train); fsdp='$fsdp' folder='$folder' steps=$steps; train killed --sharding_strategy shard_grad_op" &
    job=$!
    instant=$(awk -v r=$RANDOM -v m=$span 'BEGIN { printf "%.3f", (0.1 + 0.8 * r / 32768) * m / 1000 }')
    sleep "$instant"
    if kill -0 $job 2>/dev/null; then
        kill -KILL -- -$job
        done_kills=$((done_kills + 1))
        echo "kill $done_kills after $instant s: step $(tail -qn 1 "$folder/killed/metrics.jsonl" 2>/dev/null | sed -n 's/.*"step": *\([0-9]*\).*/\1/p'), checkpoints: $(ls "$folder/killed/ckpt" 2>/dev/null | tr '\n' ' ')"
        wait $job 2>/dev/null
    else
        wait $job || { cat "$folder/killed.log"; exit 1; }
        compare
        rm -rf "$folder/killed" # it ended: begin again
    fi
done
train killed --sharding_strategy full || { cat "$folder/killed.log"; exit 1; }
compare
echo "ok: $steps steps, $done_kills kills, $compared runs resumed to their end, the same losses to the last digit"
