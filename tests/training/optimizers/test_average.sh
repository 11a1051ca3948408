#!/bin/bash
# --ema: the average is in checkpoints, goes on from them at another world size, begins where a checkpoint has none, and is what
# validation sees; and options of parameters by name (--lr_groups, --weight_decay_groups) reach the run and are refused by name.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

layers=1
source "$FSDP_SOURCE/tests/training/jobs.bash"
head -c 2000 text.txt >held.txt
tiny+=(--validation_dataset held.txt)

job whole 2 --ema 0.5 --max_steps 8 --checkpoint_freq 4 --validation_freq 8
job three 3 --ema 0.5 --max_steps 8 --validation_freq 8 --resume_from_checkpoint whole/checkpoints/step-00000004
"$fsdp" ckpt show whole/checkpoints/step-00000008 >show.log
grep -q "average .*model.norm.weight" show.log || fail "no average in the checkpoint: $(cat show.log)"
"$fsdp" ckpt diff whole/checkpoints/step-00000008 three/checkpoints/step-00000008 --tolerance 1e-4 >diff.log 2>&1 ||
    fail "resumed on 3 ranks: $(cat diff.log)"

# Training is the same without it, validation is not.
job plain 2 --max_steps 8 --checkpoint_freq 4 --validation_freq 8
"$fsdp" ckpt diff plain/checkpoints/step-00000008 whole/checkpoints/step-00000008 >diff.log 2>&1 || true
grep -q "average" diff.log && ! grep -Eq "^ *(parameter|moment[12]) " diff.log || fail "the weights differ: $(cat diff.log)"
loss_of() { grep -o 'validation loss .*' "$1.log" | head -1; }
[[ $(loss_of plain) != $(loss_of whole) ]] || fail "validation saw no average"
[[ -n $(loss_of whole) ]] || fail "no validation loss"

# A checkpoint without an average begins one; one with an average may be resumed without.
job begun 2 --ema 0.5 --max_steps 5 --resume_from_checkpoint plain/checkpoints/step-00000004
"$fsdp" ckpt show begun/checkpoints/step-00000005 >show.log
grep -q "average .*model.norm.weight" show.log || fail "no average was begun: $(cat show.log)"
"$fsdp" ckpt export begun/checkpoints begun-last >export.log 2>&1 || fail "$(cat export.log)"
"$fsdp" ckpt export begun/checkpoints begun-average --average >export.log 2>&1 || fail "$(cat export.log)"
"$fsdp" ckpt diff begun-last begun-average >diff.log 2>&1 || fail "the average did not begin with the first step: $(cat diff.log)"
job dropped 1 --max_steps 5 --resume_from_checkpoint whole/checkpoints/step-00000004

# PyTorch's folders carry it both ways.
"$fsdp" ckpt export whole/checkpoints dcp --format dcp >export.log 2>&1 || fail "$(cat export.log)"
"$fsdp" ckpt import dcp back >import.log 2>&1 || fail "$(cat import.log)"
"$fsdp" ckpt diff back whole/checkpoints/step-00000008 >diff.log 2>&1 || fail "through a DCP folder: $(cat diff.log)"

# The average is exported in the place of the weights.
"$fsdp" ckpt export whole/checkpoints last >export.log 2>&1 || fail "$(cat export.log)"
"$fsdp" ckpt export whole/checkpoints average --average >export.log 2>&1 || fail "$(cat export.log)"
"$fsdp" ckpt diff last average >diff.log 2>&1 && fail "the export is not the average"
code=0
"$fsdp" ckpt export plain/checkpoints none --average >none.log 2>&1 || code=$?
[[ $code -eq 2 ]] && grep -q "has no average" none.log || fail "an average of nothing: $code: $(cat none.log)"

# By name: norms stand still and nothing decays; a pattern that matches nothing is refused.
job still 2 --lr_groups '*norm*=0' --weight_decay_groups '*=0' --max_steps 2
"$fsdp" ckpt export still/checkpoints still-model >export.log 2>&1 || fail "$(cat export.log)"
job start 2 --max_steps 2 --lr 1e-30
"$fsdp" ckpt diff still/checkpoints start/checkpoints >diff.log 2>&1 || true
! grep -q "parameter .*norm" diff.log || fail "norms moved: $(cat diff.log)"
grep -q "parameter .*q_proj" diff.log || fail "nothing moved: $(cat diff.log)"
code=0
"$fsdp" bench step tiny --device cpu --threads 1 --lr_groups 'nothing*=1' >bench.log 2>&1 || code=$?
[[ $code -eq 2 ]] && grep -q "nothing" bench.log || fail "bench: exit code $code: $(cat bench.log)"
for flags in "--lr_groups nothing*=1" "--lr_groups *norm*" "--weight_decay_groups *norm*=-1" "--lr_groups *norm*=x"; do
    code=0
    # shellcheck disable=SC2086
    (set -f; "$fsdp" train "${tiny[@]}" --output_dir refused --max_steps 1 $flags >refused.log 2>&1) || code=$?
    [[ $code -eq 2 ]] || fail "$flags: exit code $code: $(cat refused.log)"
done
echo "ok"
