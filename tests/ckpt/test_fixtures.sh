#!/bin/bash
# Checkpoints that an earlier version wrote go on as they did there. tests/ckpt/fixtures has one of each kind and
# precision, with optimizer state, written by 2 ranks after 4 steps; losses.txt has what that version's steps 5 to 7
# came to. They are kept for good: when the format changes, new ones are added.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
fixtures=$source_root/tests/ckpt/fixtures

for ((i = 1; i <= 300; i++)); do
    echo "line $i of $((i * i % 97)) words and $((i * 7919 % 1009)) letters"
done >text.txt

# continue NAME RANKS CHECKPOINT FLAGS...: three steps on from there, in the global batches of the fixtures.
continue_run()
{
    local name=$1 ranks=$2 flag=$3 from=$4
    shift 4
    "$fsdp" run --standalone --nproc-per-node "$ranks" "$fsdp" train --dataset text.txt --device cpu --threads 1 \
        --hidden_width 8 --num_layers 1 --num_heads 2 --intermediate_size 16 --tie_word_embeddings \
        --max_context_width 16 --train_batch_size $((4 / ranks)) --lr 1e-2 --lr_decay_style constant --warmup 0 \
        --seed 3 "$flag" "$from" --no_checkpoint_at_end --output_dir "$name" "$@" >"$name.log" 2>&1 ||
        fail "$name: $(cat "$name.log")"
    grep -o '"loss": [^,]*' "$name/metrics.jsonl" | awk '{ print $2 }' | tr '\n' ' ' >"$name.losses"
}

# same TOLERANCE A B: two lists of three numbers.
same()
{
    awk -v tolerance="$1" -v a="$2" -v b="$3" 'BEGIN {
        n = split(a, x, " "); m = split(b, y, " ")
        for (i = 1; i <= n; i++)
            if (x[i] - y[i] > tolerance || y[i] - x[i] > tolerance)
                exit 1
        exit !(n == 3 && m == 3)
    }'
}

n=0
while read -r name losses; do
    dtype=${name#*-}
    tolerance=$([[ $dtype == fp32 ]] && echo 1e-5 || echo 2e-3) # other processors round differently
    cp -r "$fixtures/$name" "$name.from"
    for run in "2 full" "2 no_shard" "1 full"; do
        read -r ranks strategy <<<"$run"
        [[ $name == local-* && $run != "2 full" ]] && continue # kind local is for the same ranks and layout
        continue_run "$name.$ranks.$strategy" "$ranks" --resume_from_checkpoint "$name.from" --max_steps 7 \
            --param_dtype "$dtype" --sharding_strategy "$strategy"
        same "$tolerance" "$losses" "$(cat "$name.$ranks.$strategy.losses")" ||
            fail "$name on $ranks ranks, $strategy: $(cat "$name.$ranks.$strategy.losses")instead of $losses"
        n=$((n + 1))
    done
done <"$fixtures/losses.txt"
[[ $n -eq 14 ]]

# The comparison sees it when anything but the parameters is lost.
continue_run weights 2 --init_from full-fp32.from/step-00000004 --max_steps 3
same 2e-3 "$(sed -n 's/^full-fp32 //p' "$fixtures/losses.txt")" "$(cat weights.losses)" && fail "weights alone pass"
echo "$n runs from checkpoints of an earlier version go on as they did there"
