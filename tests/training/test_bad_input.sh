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
mkdir lying negative missing broken weightless images
printf '{"model_type":\n llama}' >broken/config.json
cp "$golden/llama_gqa/config.json" weightless
# One image of 28 x 28 in the form of MNIST, class 3; and one of 4 x 4.
printf '\0\0\10\3\0\0\0\1\0\0\0\34\0\0\0\34' >images/train-images-idx3-ubyte
head -c 784 /dev/zero >>images/train-images-idx3-ubyte
printf '\0\0\10\1\0\0\0\1\3' >images/train-labels-idx1-ubyte
mkdir small
printf '\0\0\10\3\0\0\0\1\0\0\0\4\0\0\0\4' >small/train-images-idx3-ubyte
head -c 16 /dev/zero >>small/train-images-idx3-ubyte
cp images/train-labels-idx1-ubyte small
printf '{"text": "a", "summary": "b"}\n' >pairs.jsonl
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
refused "broken/config.json: line 2" --dataset text --init_from broken
refused "broken/config.json: line 2" --dataset text --model_config broken
refused "weightless" --dataset text --init_from weightless --max_context_width 64
refused "needs a tokenizer and a model that reads tokens" --model_type cnn --dataset images --validation_dataset text
refused "the validation data: images of 1 x 4 x 4 do not fit" --model_type cnn --dataset images --validation_dataset small
refused "the validation data: images of 16 values do not fit" --model_type mlp --dataset images --validation_dataset small
refused "the data set has 4 classes, the model 3" --model_type cnn --dataset images --num_classes 3
refused "works on pairs, the validation data holds" --model_type t5 --tokenizer "$golden/tokenizer_t5" --dataset pairs.jsonl --validation_dataset images
preset=
refused "a llama model works on text, the validation data holds images" --dataset text --validation_dataset images
refused "raise --vocab_size" --dataset text --tokenizer "$golden/tokenizer_llama3" --vocab_size 256
refused "gather_buffers" --dataset text --gather_buffers 0
refused "sharding_strategy" --dataset text --sharding_strategy half
exit $((failures > 0))
