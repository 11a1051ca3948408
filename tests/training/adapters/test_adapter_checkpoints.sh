#!/bin/bash
# Checkpoints of LoRA runs hold the adapters and refer to their frozen base: they are small, resume only beside that base,
# and are evaluated, generated from and exported like any other. Checkpoints that hold the base still load.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

lines=300
source "$FSDP_SOURCE/tests/training/adapters/adapters.bash"
text() { "$fsdp" generate --device cpu --threads 1 --prompt "line 4" --max_new_tokens 12 "$@" 2>err.log || fail "generate $*: $(cat err.log)"; }
loss() { "$fsdp" eval --device cpu --threads 1 --dataset text.txt --json "$@" 2>err.log | sed 's/.*"loss": *\([0-9]*\.[0-9]\{5\}\).*/\1/' || fail "eval: $(cat err.log)"; }

job base 1 "${shape[@]}" --max_steps 2 --export_dir model --no_checkpoint_at_end
job base-2 1 "${shape[@]}" --seed 7 --max_steps 2 --export_dir other-model --no_checkpoint_at_end
lora=(--init_from model --lora_rank 3 --lora_alpha 6 --lora_targets q_proj,v_proj,mlp.*)
job small 2 "${lora[@]}" --max_steps 8 --checkpoint_freq 4 --export_dir merged
job held 2 "${lora[@]}" --max_steps 8 --checkpoint_freq 4 --checkpoint_base

# The adapters and their moments are all that is there.
works ckpt show small/checkpoints/step-00000008
grep -Eq '(parameter|moment[12]) ' out.log || fail "no tensors: $(cat out.log)"
grep -E '(parameter|moment[12]) ' out.log | grep -qv lora_ && fail "more than adapters: $(cat out.log)"
works ckpt verify small/checkpoints
works ckpt show held/checkpoints/step-00000008
grep -q embed_tokens out.log || fail "--checkpoint_base left the base out"
a=$(du -sb small/checkpoints/step-00000008 | cut -f1) b=$(du -sb held/checkpoints/step-00000008 | cut -f1)
((a < b)) || fail "adapters take $a bytes, with their base $b"

# Resumed at other world sizes and from either kind, in the background or not, the run is the same.
job three 3 "${lora[@]}" --max_steps 8 --resume_from_checkpoint small/checkpoints/step-00000004
same small/checkpoints/step-00000008 three/checkpoints/step-00000008 --tolerance 1e-4
job old 2 "${lora[@]}" --max_steps 8 --resume_from_checkpoint held/checkpoints/step-00000004 --no_async_checkpoint
same small/checkpoints/step-00000008 old/checkpoints/step-00000008
job local 2 "${lora[@]}" --max_steps 4 --checkpoint_kind local
job local 2 "${lora[@]}" --max_steps 8 --checkpoint_kind local --resume_from_checkpoint auto
grep -q "resumed from" local.log || fail "kind local was not resumed: $(cat local.log)"
job full 2 "${lora[@]}" --max_steps 8 --checkpoint_kind full --resume_from_checkpoint small/checkpoints/step-00000004
same held/checkpoints/step-00000008 full/checkpoints/step-00000008
works ckpt reshard small/checkpoints/step-00000004 resharded --world_size 3
job from-reshard 2 "${lora[@]}" --max_steps 8 --resume_from_checkpoint resharded
same small/checkpoints/step-00000008 from-reshard/checkpoints/step-00000008

# A checkpoint that holds another base than --init_from keeps holding it.
job kept 2 --init_from other-model "${lora[@]:2}" --max_steps 8 --resume_from_checkpoint held/checkpoints/step-00000004
grep -q "its base is another" kept.log || fail "no word of the other base: $(cat kept.log)"
same held/checkpoints/step-00000008 kept/checkpoints/step-00000008

# The same base, kept in fewer bits than its file has, is not another one: exports go on adding adapters to the file's weights.
for flags in "--bf16 --checkpoint_base" "--lora_base int8 --checkpoint_base" "--bf16 --checkpoint_kind full"; do
    # shellcheck disable=SC2086
    job whole 2 --init_from model --lora_rank 3 $flags --max_steps 4 --checkpoint_freq 2 --export_dir whole-model --overwrite
    # shellcheck disable=SC2086
    job again 2 --init_from model --lora_rank 3 $flags --max_steps 4 --resume_from_checkpoint whole/checkpoints/step-00000002 \
        --export_dir again-model --overwrite
    ! grep -q "its base is another" again.log || fail "$flags: $(cat again.log)"
    same whole-model again-model
done

# Text, loss and exports are those of the merged model.
text --model merged >a
text --model small/checkpoints >b
cmp a b
[[ $(loss merged) == $(loss held/checkpoints) ]] || fail "held: $(loss merged) $(loss held/checkpoints)"
[[ $(loss small/checkpoints) == $(loss held/checkpoints) ]] || fail "small: $(loss small/checkpoints) $(loss held/checkpoints)"
works ckpt export small/checkpoints exported
same merged exported
works ckpt export small/checkpoints adapter --format peft
works ckpt export model by-adapter --adapter adapter
same merged by-adapter

# A new run may begin with a checkpoint of adapters: it refers to the base itself.
job further 1 --init_from small/checkpoints --max_steps 1 --lr 0 --weight_decay 0
works ckpt export further/checkpoints exported-2
same merged exported-2

# Moved, the base is named; another is refused, and so is none.
mv model moved
refused 2 "name its place with --base" generate --model small/checkpoints --prompt x
refused 2 "name its place with --base" ckpt export small/checkpoints x
text --model small/checkpoints --base moved >b
cmp a b
[[ $(loss small/checkpoints --base moved) == $(loss merged) ]] || fail "eval beside the moved base"
works ckpt export small/checkpoints exported-3 --base moved
same merged exported-3
refused 2 "trained beside another base" generate --model small/checkpoints --base other-model --prompt x
refused 2 "trained beside another base" ckpt export small/checkpoints x --base other-model
refused 2 "trained beside another base" train "${common[@]}" --output_dir refused --init_from other-model "${lora[@]:2}" --max_steps 9 \
    --resume_from_checkpoint small/checkpoints
refused 2 "load the base" train "${common[@]}" --model_config moved --output_dir refused "${lora[@]:2}" --max_steps 9 --resume_from_checkpoint small/checkpoints
works ckpt export small/checkpoints adapter-2 --format peft
cmp adapter/adapter_model.safetensors adapter-2/adapter_model.safetensors
