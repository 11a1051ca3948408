#!/bin/bash
# A rank that dies of a fatal signal says which one it was and what it was doing; the launcher passes its signal on.
set -euo pipefail
source "$(dirname "$0")/support.bash"
if grep -q -e __asan_init -e __tsan_init "$fsdp"; then
    echo "skipped: the sanitizer reports crashes itself"
    exit 77
fi
seq 1 400 >text.txt
"$fsdp" run --standalone --nproc-per-node 2 "$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 16 --num_layers 1 \
    --num_heads 2 --intermediate_size 32 --max_context_width 16 --train_batch_size 2 --dataset text.txt --max_steps 1000000 \
    --sharding_strategy full --logging_freq 1000 --output_dir run >log 2>&1 &
job=$!
for _ in $(seq 600); do
    [[ -s run/metrics.jsonl && $(wc -l <run/metrics.jsonl) -gt 10 ]] && break
    sleep 0.05
done
victim=$(pgrep -P "$job" -f '^[^ ]*fsdp train ' | tail -n 1)
kill -SEGV "$victim"
code=0
wait "$job" || code=$?
[[ $code == 139 ]] || fail "exit code $code: $(cat log)"
grep -Eq '^\[rank [01]\] fsdp: rank [01] of 2 died of signal 11 \(SIGSEGV\) from process [0-9]+; step [0-9]+, phase [a-z]+, last operation [a-z_.]+, last unit [a-z_.0-9]+$' log ||
    fail "no last words: $(cat log)"
grep -Eq '^\[rank [01]\] .*\(.*\) ?\[0x[0-9a-f]+\]' log || fail "no backtrace: $(cat log)"
echo "a crash says what it was"
