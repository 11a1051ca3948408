#!/bin/bash
# --lora_base int8: the frozen base is kept in 8 bits, narrowed alike at every world size; checkpoints refer to the base's file,
# and adapters are merged into what that file has, whichever way the merged model is made.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

lines=300
source "$FSDP_SOURCE/tests/training/adapters/adapters.bash"

job base 1 "${shape[@]}" --max_steps 2 --export_dir model --no_checkpoint_at_end
lora=(--init_from model --lora_rank 3 --lora_alpha 6 --lora_targets q_proj,v_proj,mlp.* --lora_base int8)
job whole 2 "${lora[@]}" --max_steps 8 --checkpoint_freq 4 --export_dir merged --export_adapter adapter
job three 3 "${lora[@]}" --max_steps 8 --resume_from_checkpoint whole/checkpoints/step-00000004 --sharding_strategy shard_grad_op
same whole/checkpoints/step-00000008 three/checkpoints/step-00000008 --tolerance 1e-4
job again 2 "${lora[@]}" --max_steps 8 --resume_from_checkpoint whole/checkpoints/step-00000004 --sharding_strategy no_shard
same whole/checkpoints/step-00000008 again/checkpoints/step-00000008
works ckpt show whole/checkpoints/step-00000008
grep -E '(parameter|moment[12]) ' out.log | grep -qv lora_ && fail "more than adapters: $(cat out.log)"

# The base is not what it would be in fp32, and a base that a checkpoint holds is narrowed to the same blocks again.
job wide 2 "${lora[@]}" --lora_base param_dtype --max_steps 8 --export_adapter wide-adapter --no_checkpoint_at_end
cmp -s adapter/adapter_model.safetensors wide-adapter/adapter_model.safetensors && fail "8 bits changed nothing"
job held 2 "${lora[@]}" --max_steps 4 --checkpoint_base
job from-held 3 "${lora[@]}" --max_steps 4 --lr 0 --weight_decay 0 --init_from held/checkpoints --checkpoint_base
works ckpt export held/checkpoints held-model
works ckpt export from-held/checkpoints from-held-model
same held-model from-held-model --tolerance 1e-6

# Files that are cut for another number of ranks are cut between blocks.
works ckpt reshard held/checkpoints resharded --world_size 5
works ckpt import model imported --world_size 5
for from in held/checkpoints resharded; do
    job "on-from-${from%/*}" 2 "${lora[@]}" --max_steps 6 --checkpoint_base --resume_from_checkpoint "$from"
done
same on-from-held/checkpoints on-from-resharded/checkpoints
job from-imported 2 "${lora[@]}" --init_from imported --max_steps 8 --export_dir from-imported-model --no_checkpoint_at_end
same merged from-imported-model --tolerance 1e-6

# Ways to the merged model; in bf16, too, it is the file's weights that adapters are added to.
works ckpt export whole/checkpoints from-checkpoint
same merged from-checkpoint
works ckpt export model from-adapter --adapter adapter
same merged from-adapter
job half 2 "${lora[@]}" --lora_base param_dtype --bf16 --max_steps 4 --export_dir half-merged
works ckpt export half/checkpoints half-from-checkpoint
same half-merged half-from-checkpoint

refused 2 "all weights are trained" train "${common[@]}" --output_dir refused --init_from model --lora_base int8
refused 2 "all weights are trained" plan "${shape[@]}" --lora_base int8
refused 2 "one of param_dtype, int8" train "${common[@]}" --output_dir refused --init_from model --lora_rank 2 --lora_base int4
