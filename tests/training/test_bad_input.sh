#!/bin/bash
# Wrong flags, files and data: one clear line each, exit code 2, nothing written.
set -u
fsdp=$FSDP_BUILD/fsdp
golden=$FSDP_SOURCE/tests/golden
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failures=0

# refused TEXT FLAGS...: exits with 2, one line on stderr that has the text, no run folder
refused() {
    local text=$1 code
    shift
    timeout 60 "$fsdp" train --device cpu ${preset:---preset tiny} --max_steps 1 --output_dir run "$@" >out 2>err
    code=$?
    if [ $code -ne 2 ] || ! grep -qF -- "$text" err || [ "$(wc -l <err)" -ne 1 ] || [ -e run ]; then
        echo "FAILED: $* gave exit code $code and:"; cat err; [ -e run ] && echo "(and left a run folder)"
        failures=$((failures + 1))
        rm -rf run
    fi
}

head -c 100000 "$FSDP_SOURCE/docs/flags.md" >text
: >empty
head -c 4000 "$golden/llama_gqa/model.safetensors" >cut.safetensors
mkdir lying negative missing
sed 's/"num_key_value_heads": 2/"num_key_value_heads": 3/' "$golden/llama_gqa/config.json" >lying/config.json
sed 's/"hidden_size": 64/"hidden_size": -64/' "$golden/llama_gqa/config.json" >negative/config.json
grep -v vocab_size "$golden/llama_gqa/config.json" | sed 's/"use_cache": true,/"use_cache": true/' >missing/config.json

refused "unknown flag" --dataset text --presett tiny
refused "there is no such file" --dataset /nowhere/at/all
refused "empty" --dataset empty
refused "less than one context" --dataset text --max_context_width 1000000
refused "cut.safetensors" --dataset text --init_from cut.safetensors
refused "/nowhere" --dataset text --init_from /nowhere
refused "does not fit the model" --dataset text --init_from "$golden/llama_gqa/model.safetensors"
refused "shard_weights" --dataset text --shard_weights 1,2
refused "no parameter matches" --dataset text --freeze 'nothing.*'
preset=" "
refused "num_key_value_heads" --dataset text --model_config lying
refused "hidden_size" --dataset text --model_config negative
refused "vocab_size" --dataset text --model_config missing
preset=
refused "raise --vocab_size" --dataset text --tokenizer "$golden/tokenizer_llama3" --vocab_size 256
refused "gather_buffers" --dataset text --gather_buffers 0
refused "sharding_strategy" --dataset text --sharding_strategy half
exit $((failures > 0))
