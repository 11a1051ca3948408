#!/bin/bash
# `fsdp ckpt`: every subcommand, for people and as one JSON object; exit codes.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

# both TEXT KEY ARGUMENTS...: the report for people holds TEXT; --json gives an object that has KEY.
both()
{
    local text=$1 key=$2
    shift 2
    "$fsdp" ckpt "$@" >out || fail "fsdp ckpt $*: exit code $?"
    grep -qF -- "$text" out || fail "fsdp ckpt $*: '$text' is not in: $(cat out)"
    "$fsdp" ckpt "$@" --json >out || fail "fsdp ckpt $* --json: exit code $?"
    [[ $(head -c 1 out) == "{" && $(tail -c 2 out) == "}" ]] || fail "fsdp ckpt $* --json: no object: $(cat out)"
    grep -qF -- "\"$key\"" out || fail "fsdp ckpt $* --json: no $key in: $(cat out)"
}

head -c 2000 "$source_root/README.md" | tr '\0-\37\200-\377' ' ' >text.txt
"$fsdp" train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 16 --num_layers 1 --num_heads 2 \
    --intermediate_size 32 --max_context_width 16 --train_batch_size 2 --dataset text.txt --max_steps 4 --checkpoint_freq 1 \
    --output_dir job >log 2>&1 || fail "$(cat log)"
run=job/checkpoints

both "step-00000004" checkpoints show $run
both "moment1" tensors show $run/step-00000003
grep -qF '"flags"' out || fail "the flags of the run are not in its checkpoint"
both "good" good verify $run
both "all tensors are the same" same diff $run $run/step-00000004
both "model folder" path export $run model --dtype bf16 --max_file_size 8KB
[[ -e model/model.safetensors.index.json && -e model/config.json ]] || fail "no folder in parts: $(ls model)"
both "sharded" path import model imported
both "sharded" path reshard $run eight --world_size 8
[[ $(ls eight/step-00000004/rank-*.safetensors | wc -l) == 8 ]] || fail "$(ls eight/step-00000004)"
both "all tensors are the same" same diff $run eight
both "BF16" tensors show model
both "step-00000001" removed prune $run --keep_checkpoints 2 --keep_every 3 --dry_run
both "would" removed prune $run --keep_checkpoints 2 --keep_every 3 --dry_run
[[ $(ls $run | wc -l) == 4 ]] || fail "a dry run removed something: $(ls $run)"
"$fsdp" ckpt prune $run --keep_checkpoints 1 --keep_every 3 >out
[[ "$(ls $run | tr '\n' ' ')" == "step-00000003 step-00000004 " ]] || fail "prune: $(ls $run)"

# Differences and damage: named, and exit codes say so.
code=0
"$fsdp" ckpt diff $run/step-00000003 $run/step-00000004 >out || code=$?
[[ $code == 1 ]] || fail "diff of two steps: exit code $code"
grep -q 'model.norm.weight: .* elements, .* by up to' out || fail "diff: $(cat out)"
shard=$run/step-00000004/rank-00000.safetensors
printf 'x' | dd of=$shard bs=1 seek=$(($(stat -c %s $shard) - 9)) conv=notrunc 2>/dev/null
code=0
"$fsdp" ckpt verify $run >out 2>err || code=$?
[[ $code == 1 ]] || fail "verify of a damaged one: exit code $code"
grep -q "the checksum does not hold" out || fail "verify: $(cat out)"
grep -q "step-00000004: 1 problem$" out && grep -q ": 1 problem: see the report" err || fail "one problem: $(cat out err)"
mkdir whole && mv $run whole/checkpoints # as the folder of a run
code=0
"$fsdp" ckpt verify whole >out 2>err || code=$?
[[ $code == 1 ]] || fail "verify of a run: exit code $code: $(cat err)"
grep -q "step-00000003: good" out && grep -q "step-00000004: 1 problem$" out || fail "verify of a run: $(cat out)"
both "2 checkpoints" checkpoints show whole
both "would remove whole/checkpoints/step-00000003" removed prune whole --dry_run
refused 2 "nowhere: there is no such checkpoint" ckpt verify nowhere
refused 2 "nowhere" ckpt show nowhere
refused 2 "nowhere" ckpt export nowhere folder
echo "ok"
