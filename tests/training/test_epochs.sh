#!/bin/bash
# --epochs is a matter of the data, not of steps: a run that is stopped and goes on with more or fewer ranks reads every
# sample exactly so often, saves where epochs end, and comes to the end of its learning rate.
set -u
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
head -c 1500 "$FSDP_SOURCE/README.md" >text # 93 samples

fail() { echo "FAILED: $*"; cat log; exit 1; }

# train RANKS FLAGS...
train() {
    local ranks=$1
    shift
    "$fsdp" run --standalone --plain --nproc-per-node "$ranks" "$fsdp" train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 \
        --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32 --max_context_width 16 --train_batch_size 4 --lr 1e-2 --min_lr 0 \
        --lr_decay_style linear --warmup 0 --logging_freq 1000 --dataset text --output_dir run --log_samples samples --epochs 2 "$@" >>log 2>&1 ||
        fail "$ranks ranks $*"
}

# rate N: the learning rate in line N of the metrics (negative: from the end)
rate() { sed -n 's/.*"lr": *\([-+.0-9e]*\).*/\1/p' run/metrics.jsonl | tail -n "${1#-}" | head -n 1; }

for ranks in "2 1" "1 2" "1 3" "2 2"; do
    read -r first second <<<"$ranks"
    rm -rf run samples log
    train "$first" --max_steps 5
    train "$second" --resume_from_checkpoint run/checkpoints --checkpoint_epochs 1 --keep_checkpoints 9
    counts=$(cut -d ' ' -f 3- samples | tr ' ' '\n' | grep . | sort -n | uniq -c | awk '{ print $1 }' | sort -u | tr '\n' ' ')
    [ "$counts" = "2 " ] || fail "$first then $second ranks: samples were read $counts times instead of 2"
    # Five steps, the rest of the first epoch, the second epoch.
    per_step=$((4 * second))
    one=$((5 + (93 - 5 * 4 * first + per_step - 1) / per_step))
    two=$((one + (93 + per_step - 1) / per_step))
    saved=$(ls run/checkpoints | tr '\n' ' ')
    [ "$saved" = "$(printf 'step-%08d step-%08d step-%08d ' 5 $one $two)" ] ||
        fail "$first then $second ranks: checkpoints $saved instead of those of steps 5, $one and $two"
    # The rate falls linearly to 0 at the end, one step behind the last: its last value is that of one step before the end.
    awk -v last="$(rate -1)" -v steps=$((2 * ((93 + per_step - 1) / per_step))) \
        'BEGIN { want = 1e-2 / steps; exit !(last > 0.99 * want && last < 1.01 * want) }' ||
        fail "$first then $second ranks: the last learning rate is $(rate -1)"
done

# A run that is at its end has nothing to do.
train 1 --resume_from_checkpoint run/checkpoints
[ "$(wc -l <run/metrics.jsonl)" = $two ] || fail "a run that was at its end went on"
echo "ok"
