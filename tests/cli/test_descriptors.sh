#!/bin/bash
# Standard descriptors that were closed are not taken by files of the run: nothing that is meant for the terminal may get
# into one.
set -euo pipefail
source "$(dirname "$0")/support.bash"
seq 1 400 >text.txt
train=("$fsdp" train --device cpu --model_type llama_v3 --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32
    --max_context_width 16 --dataset text.txt --max_steps 5 --logging_freq 1)

# whole NAME: metrics.jsonl has five records and nothing else, and the checkpoint is whole
whole()
{
    [[ $(grep -c '^{"step": .*} *$' "$1/metrics.jsonl") == 5 ]] || fail "$1: $(cat "$1/metrics.jsonl")"
    [[ $(wc -l <"$1/metrics.jsonl") == 5 ]] || fail "$1: $(cat "$1/metrics.jsonl")"
    "$fsdp" ckpt verify "$1/checkpoints" >verified 2>&1 || fail "$1: $(cat verified)"
}

"${train[@]}" --output_dir all <&- >&- 2>&- || fail "all closed: exit code $?"
whole all
"${train[@]}" --output_dir out >&- 2>stderr || fail "output closed: exit code $?: $(cat stderr)"
whole out
"${train[@]}" --output_dir err >stdout 2>&- || fail "errors closed: exit code $?"
whole err
"$fsdp" run --nproc-per-node 2 "${train[@]}" --output_dir run <&- >&- 2>&- || fail "fsdp run, all closed: exit code $?"
whole run
echo "closed descriptors stay out of files"
