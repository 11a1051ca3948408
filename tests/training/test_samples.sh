#!/bin/bash
# --sample_prompt @FILE: a text for every line of the file, written side by side by all ranks, at validations and at the end;
# training is what it is without them.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

for ((i = 1; i <= 200; i++)); do echo "line $i of $((i * i % 97)) words"; done >text.txt
printf 'line 1\n\nwords of\r\nabc' >prompts.txt
shape=(--model_type llama_v2 --vocab_size 256 --hidden_width 16 --num_layers 2 --num_heads 2 --intermediate_size 32)
train()
{
    local name=$1 ranks=$2
    shift 2
    "$fsdp" run --standalone --nproc-per-node "$ranks" "$fsdp" train "${shape[@]}" --device cpu --threads 1 --max_context_width 64 \
        --dataset text.txt --validation_split 0.2 --validation_freq 2 --train_batch_size $((6 / ranks)) --max_steps 4 --warmup 0 \
        --output_dir "$name" "$@" >"$name.log" 2>&1 || fail "$name: $(cat "$name.log")"
}
texts() { sed -n '/A sample of what/,$p' "$1.log" | grep -aE '(^|\] )[123]: ' || true; }
train plain 2 --sample_tokens 0
train two 2 --sample_tokens 6 --sample_prompt @prompts.txt --sample_at_validation
train one 1 --sample_tokens 6 --sample_prompt @prompts.txt
[[ $(grep -c "A sample of what" two.log) == 2 ]] || fail "not a sample at the validation and one at the end: $(cat two.log)"
for text in "1: line 1" "2: words of" "3: abc"; do
    grep -aqF "$text" two.log || fail "no text for \"$text\": $(cat two.log)"
done
"$fsdp" ckpt diff plain/checkpoints two/checkpoints >/dev/null || fail "samples changed the training"
[[ $(texts one | wc -l) == 3 ]] || fail "not three texts: $(cat one.log)"
: >empty.txt
refused 2 "there is no such file" train "${shape[@]}" --device cpu --dataset text.txt --sample_tokens 4 --sample_prompt @missing.txt --output_dir refused
"$fsdp" train "${shape[@]}" --device cpu --threads 1 --max_context_width 64 --dataset text.txt --max_steps 1 --sample_tokens 4 \
    --sample_prompt @empty.txt --output_dir refused >empty.log 2>&1 && fail "an empty file of prompts was taken"
grep -q "has no prompt" empty.log || fail "an empty file is not named: $(cat empty.log)"
