#!/bin/bash
# Validation packs documents as training does: none sees another, so their order changes nothing, and the loss that training
# reports is the one that fsdp eval measures.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
export FSDP_CACHE_DIR=$PWD/cache
awk 'BEGIN { srand(3); for (i = 0; i < 120; i++) { printf "{\"text\": \"%d:", i; n = 2 + int(rand() * 20)
    for (k = 0; k < n; k++) printf " %d", int(rand() * 1000); print "\"}" } }' >docs.jsonl
tac docs.jsonl >reversed.jsonl
"$fsdp" run --standalone --nproc-per-node 2 "$fsdp" train --device cpu --threads 1 --model_type llama_v2 --vocab_size 257 --hidden_width 16 \
    --num_layers 1 --num_heads 2 --intermediate_size 16 --max_context_width 128 --train_batch_size 2 --dataset docs.jsonl --packing best_fit \
    --max_steps 6 --lr 1e-2 --sample_tokens 0 --validation_dataset docs.jsonl --validation_freq 3 --checkpoint_freq 3 --output_dir run >run.log 2>&1 ||
    fail "training: $(cat run.log)"
measure() { "$fsdp" eval --device cpu --threads 1 --json run/checkpoints/step-00000003 "$@" 2>err.log || fail "eval $*: $(cat err.log)"; }
field() { sed "s/.*\"$1\": *\([0-9.]*\).*/\1/"; }
short() { awk '{ printf "%.5f\n", $1 }'; }
measure --dataset docs.jsonl >packed
measure --dataset reversed.jsonl >turned
measure --dataset docs.jsonl --packing row >rows
[[ $(field loss <packed | short) == $(field loss <turned | short) ]] || fail "the order of documents counts: $(cat packed turned)"
[[ $(field tokens <packed) == $(field tokens <turned) ]] || fail "tokens were lost: $(cat packed turned)"
[[ $(field loss <packed | short) != $(field loss <rows | short) ]] || fail "packing changes nothing: $(cat packed rows)"
# Every byte of a document but its first is predicted, and its end.
wanted=$(sed 's/{"text": "//; s/"}$//' docs.jsonl | awk '{ n += length($0) } END { print n }')
[[ $(field tokens <packed) == "$wanted" ]] || fail "$(field tokens <packed) predictions of $wanted"
said=$(sed -n 's/.*step 3: validation loss \([0-9.]*\),.*/\1/p' run.log)
[[ $said == $(field loss <packed | awk '{ printf "%.4f\n", $1 }') ]] || fail "training says $said, eval $(cat packed)"
# Some batches of it are the first ones.
measure --dataset docs.jsonl --validation_batches 1 --val_batch_size 2 >some
(($(field tokens <some) < wanted)) || fail "one batch is all of it: $(cat some)"
