#!/bin/bash
# LoRA from the command line: checkpoints resume at another world size, the adapter goes out in peft's format and comes back,
# the merged exports are one model, whichever way they are made, and what cannot be done is refused by name.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

lines=400
source "$FSDP_SOURCE/tests/training/adapters/adapters.bash"

job base 1 "${shape[@]}" --max_steps 2 --export_dir model --no_checkpoint_at_end
lora=(--init_from model --lora_rank 3 --lora_alpha 6 --lora_targets q_proj,v_proj,mlp.*)
job whole 2 "${lora[@]}" --max_steps 8 --checkpoint_freq 4 --export_dir merged --export_adapter adapter
job three 3 "${lora[@]}" --max_steps 8 --resume_from_checkpoint whole/checkpoints/step-00000004 --sharding_strategy shard_grad_op
same whole/checkpoints/step-00000008 three/checkpoints/step-00000008 --tolerance 1e-4
job again 2 "${lora[@]}" --max_steps 8 --resume_from_checkpoint whole/checkpoints/step-00000004 --sharding_strategy no_shard
same whole/checkpoints/step-00000008 again/checkpoints/step-00000008

# Only adapters have optimizer state, and the base is what it was.
works ckpt show whole/checkpoints/step-00000008
grep -q "moment1 .*lora_B" out.log || fail "no moments of the adapter: $(cat out.log)"
grep "moment1" out.log | grep -qv lora_ && fail "moments of what is frozen: $(cat out.log)"

# Three ways to the merged model.
works ckpt export whole/checkpoints from-checkpoint
same merged from-checkpoint
works ckpt export model from-adapter --adapter adapter
same merged from-adapter
works ckpt export whole/checkpoints adapter-2 --format peft
cmp adapter/adapter_model.safetensors adapter-2/adapter_model.safetensors
diff adapter/adapter_config.json adapter-2/adapter_config.json
"$fsdp" ckpt diff model merged >/dev/null 2>&1 && fail "the adapter changed nothing"
grep -q fsdp_adapter merged/config.json && fail "a merged model that claims to have adapters"

# The same text from the merged model, from the base with the adapter, and from the checkpoint; two adapters are merged one after
# the other, in either order.
text() { "$fsdp" generate --device cpu --threads 1 --prompt "line 4" --max_new_tokens 12 "$@" 2>err.log || fail "generate $*: $(cat err.log)"; }
text --model merged >a
text --model model --adapter adapter >b
text --model whole/checkpoints >c
cmp a b && cmp a c
job second 1 --init_from model --lora_rank 2 --lora_rslora --lora_dropout 0.1 --max_steps 3 --export_adapter other --no_checkpoint_at_end
works ckpt export model both-1 --adapter adapter,other
works ckpt export merged both-2 --adapter other
same both-1 both-2 --tolerance 1e-6
text --model model --adapter adapter,other >a
text --model both-1 >b
cmp a b

# Going on from an adapter: a step that changes nothing gives it back.
job still 2 --init_from model --adapter adapter --lr 0 --weight_decay 0 --max_steps 1 --export_adapter still-adapter --no_checkpoint_at_end
cmp adapter/adapter_model.safetensors still-adapter/adapter_model.safetensors
cmp adapter/adapter_config.json still-adapter/adapter_config.json


refuse() { local text=$1; shift; refused 2 "$text" train "${common[@]}" --output_dir refused "$@"; }
refuse "no linear layer is called" --init_from model --lora_rank 4 --lora_targets nothing
refuse "has rank 3" --init_from model --adapter adapter --lora_rank 4
refuse "there is no adapter" --init_from model --export_adapter x
refuse "adapter_config.json is missing" --init_from model --adapter model
refuse "set --lora_rank" --init_from model --lora_targets q_proj
sed 's/"use_dora": false/"use_dora": true/' adapter/adapter_config.json >adapter-2/adapter_config.json
refuse "use_dora" --init_from model --adapter adapter-2
refused 2 "use_dora" generate --model model --adapter adapter-2 --prompt x
refused 2 "was not trained with adapters" ckpt export model x --format peft
refused 2 "peft the adapter alone" ckpt export whole/checkpoints x --format pt
