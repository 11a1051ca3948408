#!/bin/bash
# --optimizer_state bf16 in checkpoints: moments lie there in BF16, a resumed run has every bit of one that never stopped,
# at another number of ranks too as far as sums allow, and a checkpoint of either precision goes on in the other, which one
# line says. The plan counts what it saves.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

layers=1
source "$FSDP_SOURCE/tests/training/jobs.bash"

# dtypes FOLDER: the types of moments in the files of a checkpoint
dtypes() { cat "$1"/*.safetensors | grep -aoE '"moment[12]/[^{]*\{"dtype": *"[A-Z0-9]+"' | grep -oE '"[A-Z0-9]+"$' | sort -u | tr -d '"\n'; }

loss() { sed -n 's/.*"step": *6,.*"loss": *\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
for kind in sharded full local; do
    job "whole-$kind" 2 --optimizer_state bf16 --max_steps 6 --checkpoint_freq 3 --checkpoint_kind $kind
    from=whole-$kind/checkpoints/step-00000003 files=$from
    if [[ $kind == local ]]; then
        rm -r whole-local/checkpoints/step-00000006.* # the newest of all is taken
        from=whole-local/checkpoints files=$from/step-00000003.rank-00000
    fi
    [[ $(dtypes "$files") == BF16 ]] || fail "$kind: moments are stored as $(dtypes "$files")"
    job "resumed-$kind" 2 --optimizer_state bf16 --max_steps 6 --checkpoint_kind $kind --resume_from_checkpoint "$from"
    if [[ $kind != local ]]; then
        "$fsdp" ckpt diff whole-$kind/checkpoints/step-00000006 resumed-$kind/checkpoints/step-00000006 >diff.log 2>&1 || fail "$kind: $(cat diff.log)"
        "$fsdp" ckpt verify whole-$kind/checkpoints/step-00000006 >verify.log 2>&1 || fail "$kind: $(cat verify.log)"
    fi
    [[ -n $(loss whole-$kind) && $(loss whole-$kind) == $(loss resumed-$kind) ]] || fail "$kind: losses $(loss whole-$kind) and $(loss resumed-$kind)"
    ! grep -q 'optimizer_state' "resumed-$kind.log" || fail "$kind: it speaks of a conversion: $(cat "resumed-$kind.log")"
done
job three 3 --optimizer_state bf16 --max_steps 6 --resume_from_checkpoint whole-sharded/checkpoints/step-00000003
"$fsdp" ckpt diff whole-sharded/checkpoints/step-00000006 three/checkpoints/step-00000006 --tolerance 0.02 >diff.log 2>&1 || fail "on 3 ranks: $(cat diff.log)"

# Either precision goes on in the other. To fp32 nothing is lost: saved at once, it has the same values.
job plain 2 --max_steps 3
[[ $(dtypes plain/checkpoints/step-00000003) == F32 ]] || fail "moments are stored as $(dtypes plain/checkpoints/step-00000003)"
job narrowed 2 --optimizer_state bf16 --max_steps 4 --resume_from_checkpoint plain/checkpoints
[[ $(grep -c -- '--optimizer_state is bf16, the checkpoint was written with fp32' narrowed.log) == 1 ]] || fail "not one line: $(cat narrowed.log)"
job widened 1 --max_steps 7 --resume_from_checkpoint whole-sharded/checkpoints
[[ $(grep -c -- '--optimizer_state is fp32, the checkpoint was written with bf16' widened.log) == 1 ]] || fail "not one line: $(cat widened.log)"

# PyTorch's folders and back.
"$fsdp" ckpt export whole-sharded/checkpoints dcp --format dcp >export.log 2>&1 || fail "$(cat export.log)"
"$fsdp" ckpt import dcp back >import.log 2>&1 || fail "$(cat import.log)"
"$fsdp" ckpt diff back whole-sharded/checkpoints/step-00000006 >diff.log 2>&1 || fail "through a DCP folder: $(cat diff.log)"

# The plan: 4 bytes a parameter less; over host memory 30 become 22, and 20 with gradients of 16 bits.
plan() { "$fsdp" plan --preset llama3_2_1b --bf16 --cpu_offload --world_size 1 --device h200 --max_context_width 512 --train_batch_size 1 --json "$@" >plan.json || fail "$(cat plan.json)"; }
field() { grep -o "\"$1\": [0-9]*" plan.json | head -1 | grep -o '[0-9]*$'; }
plan
whole=$(field host_update_bytes) host=$(field host_state)
plan --optimizer_state bf16
half=$(field host_update_bytes) saved=$((host - $(field host_state)))
((half * 30 == whole * 22)) || fail "$whole bytes became $half"
((saved * 30 == whole * 4)) || fail "host memory shrank by $saved of $host"
plan --optimizer_state bf16 --gradient_dtype bf16
(($(field host_update_bytes) * 30 == whole * 20)) || fail "$whole bytes became $(field host_update_bytes)"
job halves 2 --optimizer_state bf16 --gradient_dtype bf16 --max_steps 4
grep -q '"reduce_dtype": "bf16"' halves/*.json || fail "gradients are still reduced in fp32: $(cat halves/*.json)"
for flags in "--gradient_accumulation_steps 2" "--reduce_dtype fp32"; do
    code=0
    # shellcheck disable=SC2086
    "$fsdp" train "${tiny[@]}" --output_dir refused --gradient_dtype bf16 $flags >refused.log 2>&1 || code=$?
    [[ $code -eq 2 ]] && grep -q "gradient_dtype" refused.log || fail "$flags: exit code $code: $(cat refused.log)"
done
# A job that goes on with half its ranks has two micro-batches a step, which fp32 gradients add up.
FSDP_FIRST_WORLD_SIZE=2 "$fsdp" train "${tiny[@]}" --output_dir fewer --gradient_dtype bf16 --max_steps 2 >fewer.log 2>&1 ||
    fail "fewer ranks: $(cat fewer.log)"
grep -q "in 2 micro-batches" fewer.log && grep -q "gradients are fp32 here" fewer.log || fail "fewer ranks: $(cat fewer.log)"
code=0
"$fsdp" train "${tiny[@]}" --output_dir refused --optimizer_state fp16 >refused.log 2>&1 || code=$?
[[ $code -eq 2 ]] || fail "fp16: exit code $code: $(cat refused.log)"
echo "ok"
