#!/bin/bash
# --unit_strategies: a run with replicated, hybrid and sharded units side by side has the losses of one strategy to the
# last digit, goes on from its checkpoint with others, and plans what it takes.
set -u
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
head -c 1500 "$FSDP_SOURCE/README.md" >text

fail() { echo "FAILED: $*"; cat log; exit 1; }

# train NAME FLAGS...: 18 steps, so that the ranks have compared their replicas
train() {
    local name=$1
    shift
    "$fsdp" run --standalone --plain --nproc-per-node 2 "$fsdp" train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 \
        --hidden_width 16 --num_layers 3 --num_heads 2 --intermediate_size 32 --max_context_width 16 --train_batch_size 2 --lr 1e-2 \
        --logging_freq 1000 --dataset text --max_steps 18 --output_dir "$name" "$@" >log 2>&1 || fail "$*"
}

losses() { sed -n 's/.*"step": \([0-9]*\), "loss": \([-+.0-9e]*\), "grad_norm": \([-+.0-9e]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl"; }

train full --sharding_strategy full
[ "$(losses full | wc -l)" = 18 ] || fail "no losses"
train mixed --sharding_strategy full --checkpoint_freq 9 --keep_checkpoints 9 \
    --unit_strategies '*layers.0=no_shard,*layers.1=shard_grad_op,root=shard_op'
cmp <(losses full) <(losses mixed) || fail "a mix of strategies has other losses"
grep -qF 'full over 2 ranks, *layers.0=no_shard, *layers.1=shard_grad_op' log || fail "the start does not tell of the units' strategies"
train other --sharding_strategy no_shard --unit_strategies '*layers.[12]=full' --resume_from_checkpoint mixed/checkpoints/step-00000009
cmp <(losses full | tail -n 9) <(losses other) || fail "another mix goes on with other losses"

"$fsdp" plan --preset llama2_7b --device h100 --world_size 8 --sharding_strategy full >log 2>&1 || fail "the plan"
grep '^total' log >all_sharded
"$fsdp" plan --preset llama2_7b --device h100 --world_size 8 --sharding_strategy full --unit_strategies '*layers.*=hybrid' \
    --shard_group_size 4 >log 2>&1 || fail "the plan with hybrid units"
grep '^total' log >grouped
cmp -s all_sharded grouped && fail "hybrid units take no more memory than sharded ones"
echo ok
