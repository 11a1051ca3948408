#!/bin/bash
# --fp8_check: shadow steps change no bit of a run whose layers stay within their bounds, report every layer, take the memory
# that was planned, and put layers that leave their bounds back into --param_dtype: on all ranks, in checkpoints, and after a
# resume with the same bits. CPUs compute 8-bit products by way of fp32.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

batch=4
source "$FSDP_SOURCE/tests/training/jobs.bash"
tiny=("${device[@]}" --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 32 --num_layers 2 --num_heads 2 --intermediate_size 48
    --max_context_width 16 --dropout 0 --dataset text.txt --lr 1e-2 --lr_decay_style constant --warmup 0 --bf16 --fp8 --checkpoint_freq 4)
# same A B: the checkpoints of step 8 have the same bits
same() { "$fsdp" ckpt diff "$1"/checkpoints/step-00000008 "$2"/checkpoints/step-00000008 >diff.log 2>&1; }
as_planned()
{
    awk '/planned +measured/ { inside = 1; next } inside && $3 == 0 { if ($4 $5 != $6 $7) exit 1; found = 1 } END { exit !found }' "$1.log" ||
        fail "$1: the plan is not what was taken: $(tail -6 "$1.log")"
}

for ranks in 1 2; do
    for flags in "" "--sharding_strategy full --activation_checkpointing full" "--cpu_offload --sharding_strategy shard_grad_op" \
        "--sharding_strategy shard_op --fp8_weights step"; do
        # shellcheck disable=SC2086
        job plain $ranks --max_steps 8 --overwrite $flags
        # shellcheck disable=SC2086
        job checked $ranks --max_steps 8 --overwrite --fp8_check 3 $flags
        same plain checked || fail "$ranks ranks, $flags: shadow steps changed the run: $(cat diff.log)"
        as_planned checked
        [[ $(grep -c 'step [036]: 8 bits in 8 layers' checked.log) == 3 ]] || fail "not three checks: $(cat checked.log)"
        [[ $(wc -l <checked/fp8_check.jsonl) == 3 ]] || fail "not three lines: $(cat checked/fp8_check.jsonl)"
        ! grep -q 'leaves 8 bits' checked.log || fail "a layer fell back: $(cat checked.log)"
    done
done
python3 - <<'PYTHON' || fail "$(cat checked/fp8_check.jsonl)"
import json
for line in open("checked/fp8_check.jsonl"):
    check = json.loads(line)
    assert len(check["layers"]) == 8, check
    for layer in check["layers"]:
        # Three bits of mantissa round by 2.6 % on average, two by 5.2 %; both operands are rounded.
        assert 0.01 < layer["output_error"] < 0.08, layer
        assert 0.01 < layer["gradient_error"] < 0.12, layer
        assert layer["saturated"] == [0, 0, 0] and max(layer["flushed"]) < 0.5, layer
        assert not layer["falls_back"], layer
PYTHON

# Rows that are no multiple of 16 are filled up, and measured like others. A loss scale that fp16 cannot hold decides nothing.
for flags in "--max_context_width 13" "--bf16 off --fp16 --loss_scale 1e12"; do
    # shellcheck disable=SC2086
    job odd 2 --max_steps 8 --overwrite --fp8_check 3 $flags
    as_planned odd
    ! grep -q 'leaves 8 bits' odd.log || fail "$flags: a layer fell back: $(cat odd.log)"
    [[ $(grep -cE 'step [036]: (8 bits in 8|products of 8 of 8) layers' odd.log) == 3 ]] || fail "$flags: not three checks: $(cat odd.log)"
done
grep -q 'products of 8 of 8 layers are not finite' odd.log || fail "no overflow: $(cat odd.log)"

# Weights rounded once a step have the bits of rounding at each use, also from a checkpoint that either wrote.
job each_use 2 --max_steps 8 --sharding_strategy full --fp8_weights use
job each_step 2 --max_steps 8 --sharding_strategy full --fp8_weights step
same each_use each_step || fail "rounding once a step: $(cat diff.log)"
for strategy in full no_shard; do
    job again 2 --max_steps 8 --overwrite --sharding_strategy $strategy --fp8_weights step --resume_from_checkpoint each_use/checkpoints/step-00000004
    same each_use again || fail "$strategy, resumed: $(cat diff.log)"
done

# A bound that no layer keeps: all of them compute in bf16 from then on, as in a run without --fp8.
job strict 2 --max_steps 8 --fp8_check 3 --fp8_max_error 1e-4
job bf16 2 --max_steps 8 --fp8 off
same strict bf16 || fail "not the bits of bf16: $(cat diff.log)"
[[ $(grep -c 'leaves 8 bits' strict.log) == 8 ]] || fail "not eight layers: $(cat strict.log)"
grep -q 'every layer has left 8 bits' strict.log || fail "not said: $(cat strict.log)"
as_planned strict

# Some layers: their fall is in the checkpoint, and the run goes on from there as it would have.
bound=$(python3 -c '
import json
errors = sorted(max(l["output_error"], l["gradient_error"]) for l in json.loads(open("checked/fp8_check.jsonl").readline())["layers"])
print((errors[3] + errors[4]) / 2)')
job some 2 --max_steps 8 --fp8_check 2 --fp8_max_error "$bound"
fallen=$(grep -c 'leaves 8 bits' some.log)
((fallen >= 4 && fallen < 8)) || fail "$fallen layers fell back: $(cat some.log)"
! same some bf16 && ! same some plain || fail "some layers make no difference"
grep -q fp8_fell_back some/checkpoints/step-00000004/checkpoint.json || fail "the checkpoint does not say which layers fell back"
job resumed 2 --max_steps 8 --fp8_check 2 --fp8_max_error "$bound" --resume_from_checkpoint some/checkpoints/step-00000004
same some resumed || fail "resumed: $(cat diff.log)"

# Lines of steps that are made again go, and with them one that was not written to its end.
cp -r some torn
rm -r torn/checkpoints/step-00000008
sed -i '$d' torn/fp8_check.jsonl
printf '{"step":5,"lay' >>torn/fp8_check.jsonl
job torn 2 --max_steps 8 --fp8_check 3 --resume_from_checkpoint auto
[[ $(sed 's/,.*//' torn/fp8_check.jsonl | tr -d '\n') == '{"step":0{"step":2{"step":6' ]] || fail "torn: $(cat torn/fp8_check.jsonl)"

for flags in "--fp8 off --fp8_check 2" "--fp8_check -1"; do
    code=0
    # shellcheck disable=SC2086
    "$fsdp" train "${tiny[@]}" --output_dir refused $flags >refused.log 2>&1 || code=$?
    [[ $code -eq 2 ]] || fail "$flags: exit code $code: $(cat refused.log)"
done
echo "ok"
