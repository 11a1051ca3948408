#!/bin/bash
# Files and checkpoints of PyTorch through the command: imported, compared, refused; and trained from.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
fixtures=$source_root/tests/ckpt/fixtures/pytorch

for name in plain.pt stream.pt training.pth; do
    "$fsdp" ckpt diff "$fixtures/$name" "$fixtures/expected.safetensors" >diff.log 2>&1 || fail "$name: $(cat diff.log)"
    "$fsdp" ckpt import "$fixtures/$name" "from-$name" --world_size 3 >import.log 2>&1 || fail "$name: $(cat import.log)"
    "$fsdp" ckpt verify "from-$name" >verify.log 2>&1 || fail "$name: $(cat verify.log)"
    "$fsdp" ckpt diff "from-$name" "$fixtures/expected.safetensors" >diff.log 2>&1 || fail "$name: $(cat diff.log)"
done
grep -q "left out: optimizer, epoch" import.log || fail "nothing says what was left out: $(cat import.log)"

code=0
"$fsdp" ckpt import "$fixtures/module.pt" refused >refused.log 2>&1 || code=$?
[[ $code -eq 2 ]] || fail "a pickled module ends with $code"
grep -q "asks for torch.nn.modules.linear.Linear" refused.log || fail "$(cat refused.log)"
[[ ! -e refused ]] || fail "a refused import left something"

# Counters are left out by name; other types that are not read are refused before anything is written.
"$fsdp" ckpt import "$fixtures/counted.pt" counted >import.log 2>&1 || fail "$(cat import.log)"
grep -q "left out: num_batches_tracked holds whole numbers (I64)" import.log || fail "$(cat import.log)"
code=0
"$fsdp" ckpt import "$fixtures/types.pt" types >refused.log 2>&1 || code=$?
[[ $code -eq 2 && ! -e types ]] && grep -q "element type BOOL is not supported" refused.log || fail "$code: $(cat refused.log)"

# A run goes on from what it exported for PyTorch: weights from the file, weights and optimizer from the folder, on 3 ranks.
for ((i = 1; i <= 300; i++)); do
    echo "line $i of $((i * i % 97)) words and $((i * 7919 % 1009)) letters"
done >text.txt
tiny=(train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 16 --num_layers 1 --num_heads 2
    --intermediate_size 32 --max_context_width 16 --train_batch_size 6 --dropout 0 --dataset text.txt --lr 1e-2 --lr_decay_style constant
    --warmup 0 --weight_decay 0.1 --no_checkpoint_at_end)
"$fsdp" "${tiny[@]}" --output_dir one --max_steps 3 --checkpoint_freq 2 >one.log 2>&1 || fail "$(cat one.log)"
"$fsdp" ckpt export one/checkpoints model.pt --format pt >export.log 2>&1 || fail "$(cat export.log)"
"$fsdp" ckpt export one/checkpoints folder --format dcp --world_size 2 >export.log 2>&1 || fail "$(cat export.log)"
"$fsdp" ckpt import folder two/checkpoints >import.log 2>&1 || fail "$(cat import.log)"
"$fsdp" ckpt diff two/checkpoints one/checkpoints >diff.log 2>&1 || fail "$(cat diff.log)"
"$fsdp" "${tiny[@]}" --output_dir file --max_steps 1 --init_from model.pt >file.log 2>&1 || fail "$(cat file.log)"
"$fsdp" run --standalone --nproc-per-node 3 "$fsdp" "${tiny[@]}" --train_batch_size 2 --output_dir two --max_steps 3 \
    --resume_from_checkpoint two/checkpoints >two.log 2>&1 || fail "$(cat two.log)"
grep -q '"step": 3' two/metrics.jsonl || fail "not resumed at step 2: $(cat two/metrics.jsonl)"

code=0
"$fsdp" ckpt export one/checkpoints model.pt --format pt >again.log 2>&1 || code=$?
[[ $code -eq 2 ]] && grep -q "is there already" again.log || fail "an export over a file: $code: $(cat again.log)"
"$fsdp" ckpt import "$fixtures/dcp" three --world_size 3 >import.log 2>&1 || fail "$(cat import.log)"
"$fsdp" ckpt verify three >verify.log 2>&1 || fail "$(cat verify.log)"
echo "ok"
