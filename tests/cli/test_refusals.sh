#!/bin/bash
# A table of what users get wrong: every row gives exit code 2, one line on standard error that names the trouble, nothing
# on standard output, and no file or folder that was not there before.
set -euo pipefail
source "$(dirname "$0")/support.bash"
golden=${FSDP_GOLDEN_DIR:-$source_root/tests/golden}
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FSDP_DATA HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE
export HOME=$work/home XDG_CACHE_HOME=$work/home/.cache

mkdir -p home inputs/folder inputs/t5 inputs/act inputs/odd_type inputs/rope inputs/hub/org/data inputs/idx inputs/idx_short inputs/digits inputs/cifar
cd inputs
head -c 60000 "$source_root/docs/flags.md" >text.txt
: >empty.txt
echo "a short text" >short.txt
head -c 5000 /dev/zero | tr '\0' '\377' >garbage.json
printf '{"text": "good"}\n{"text": 7}\n' >wrong_type.jsonl
printf '{"text": "good"}\n{"body": "no text"}\n' >no_field.jsonl
printf '{"text": "good"}\n{"text": "cut\n' >cut.jsonl
printf '{"text": "only a source", "summary": 1}\n' >pair.jsonl
printf 'lr = 1\nnum_layer = 2\n' >unknown.conf
printf '{"lr": ' >cut.conf
printf 'lr = fast\n' >value.conf
printf '\0\1\2' >binary.conf
printf '{"model": {}}' >no_model_tokenizer.json
sed 's/"hidden_act": "[a-z]*"/"hidden_act": "swish7"/' "$golden/llama_gqa/config.json" >act/config.json
sed 's/"model_type": "[a-z0-9]*"/"model_type": "bloom"/' "$golden/llama_gqa/config.json" >odd_type/config.json
grep -q '"model_type": "bloom"' odd_type/config.json && grep -q swish7 act/config.json
sed 's/"rope_type": "default"/"rope_type": "longrope"/' "$golden/llama_gqa/config.json" >rope/config.json
grep -q longrope rope/config.json
head -c 3000 "$golden/llama_gqa/model.safetensors" >cut.safetensors
# IDX: a magic number that is none, and a header that promises more images than follow. CIFAR: not whole records.
printf '\0\0\7\3\0\0\0\1' >idx/train-images-idx3-ubyte
printf '\0\0\10\1\0\0\0\1\1' >idx/train-labels-idx1-ubyte
printf '\0\0\10\3\0\0\0\11\0\0\0\34\0\0\0\34abc' >idx_short/train-images-idx3-ubyte
printf '\0\0\10\1\0\0\0\11\1\2\3\4\5\6\7\0\1' >idx_short/train-labels-idx1-ubyte
printf '\0\0\10\3\0\0\0\4\0\0\0\34\0\0\0\34' >digits/train-images-idx3-ubyte
head -c 3136 /dev/zero >>digits/train-images-idx3-ubyte
printf '\0\0\10\1\0\0\0\4\1\2\3\4' >digits/train-labels-idx1-ubyte
head -c 4000 /dev/zero >cifar/data_batch_1.bin
printf 'not a token file' >garbage.bin
printf 'garbage' >garbage.txt.gz
mkdir held && echo '{"step": 1}' >held/metrics.jsonl
cd ..

# NAME=VALUE... or -|what the line says|arguments
table=$(cat <<'END'
-|unknown command 'trian'; did you mean `fsdp train`?|trian
-|unknown flag --num_layer; did you mean --num_layers?|train --num_layer 3
-|unknown flag -lr; did you mean --lr?|train -lr 3
-|unexpected word 'data.txt'|train data.txt
-|--num_layers=many: a whole number is expected|train --num_layers many
-|--num_layers=0|train --num_layers 0
-|--threads=100000: must be at most 4096|train --threads 100000
-|--threads=100000: must be at most 4096|bench step --threads 100000
-|--threads=100000: must be at most 4096|tokenize --threads 100000 inputs/text.txt
-|--loader_threads=65: must be at most 64|train --loader_threads 65
-|--lr=fast: a number is expected|train --lr fast
-|--lr=nan|train --lr nan
-|--grad_clip=-1|train --grad_clip=-1
-|--validation_split=1.5|train --validation_split 1.5
-|--dropout=1|train --dropout 1
-|--beta2=1|train --beta2 1
-|--warmup=2.5: from 1 on it counts steps|train --warmup 2.5
-|--shuffle=maybe: true or false is expected|train --shuffle=maybe
-|--no_shuffle takes no value; write --shuffle=1|train --no_shuffle=1
-|--lr wants a value|train --lr
-|--fit belongs to `fsdp plan`|train --fit 80GB
-|--json goes with --dry_run|train --json
-|--sharding_strategy=half: one of full|train --sharding_strategy half
-|sharding strategy "half": full|train --unit_strategies root=half
-|"root" is not GLOB=STRATEGY|train --unit_strategies root
-|unit_strategies: no unit matches "layer.*"; the units are|train --preset tiny --dataset inputs/text.txt --unit_strategies layer.*=no_shard
-|did you mean cosine?|train --lr_decay_style cosin
-|--model_type=gpt5|train --model_type gpt5
-|--preset=llama9: one of none, tiny|train --preset llama9
-|--optimizer=lion|train --optimizer lion
-|--nan_policy=ignore|train --nan_policy ignore
-|--device=tpu|train --device tpu
-|--bf16=true and --fp16=true contradict each other|train --bf16 --fp16
-|--bf16=true and --param_dtype=fp32 contradict each other|train --bf16 --param_dtype fp32
-|--hidden_width=100 and --num_heads=12 contradict each other|train --hidden_width 100
-|--num_heads=12 and --num_key_value_heads=5|train --num_key_value_heads 5
-|--preset=t5-small and --model_type=mistral contradict each other|train --preset t5-small --model_type mistral
-|--lr=0.0001 and --min_lr=0.001 contradict each other|train --lr 1e-4 --min_lr 1e-3
-|--warmup=20 and --max_steps=10 contradict each other|train --warmup 20 --max_steps 10
-|--offload_activations=true and --activation_checkpointing=none contradict|train --offload_activations --activation_checkpointing none
-|--shard_group_size=2 and --sharding_strategy=full contradict|train --shard_group_size 2 --sharding_strategy full
-|--validation_split=0.1 and --validation_dataset=b contradict each other|train --validation_split 0.1 --validation_dataset b
-|--gather_buffers=3 and --limit_all_gathers=false contradict|train --gather_buffers 3 --limit_all_gathers 0
-|--shard_weights: 'x' is not a weight|train --shard_weights 1,x
-|/no/such/file|train --config /no/such/file
-|inputs/folder|train --config inputs/folder
-|inputs/unknown.conf:2: unknown setting num_layer; did you mean num_layers?|train --config inputs/unknown.conf
-|inputs/cut.conf|train --config inputs/cut.conf
-|inputs/value.conf:1: --lr=fast|train --config inputs/value.conf
-|inputs/binary.conf: not a text file|train --config inputs/binary.conf
-|no data: name files|train
-|cpu_offload_units: no unit matches "layer.*"; the units are|train --preset tiny --dataset inputs/text.txt --cpu_offload_units layer.*
-|/no/such/data: there is no such file or folder|train --preset tiny --dataset /no/such/data
-|inputs/*.nothing: no file matches|train --preset tiny --dataset inputs/*.nothing
-|inputs/empty.txt|train --preset tiny --dataset inputs/empty.txt
-|less than one context|train --preset tiny --dataset inputs/short.txt
-|less than one context|train --preset tiny --dataset inputs/text.txt --max_context_width 1000000
-|inputs/folder: there are no data files|train --preset tiny --dataset inputs/folder
-|inputs/garbage.bin|train --preset tiny --dataset inputs/garbage.bin
-|inputs/garbage.txt.gz|train --preset tiny --dataset inputs/garbage.txt.gz
-|one data set must be of one kind|train --preset tiny --dataset inputs/text.txt,inputs/garbage.bin
-|inputs/wrong_type.jsonl:2: no string under "text"|train --preset tiny --dataset inputs/wrong_type.jsonl --strict_data
-|inputs/no_field.jsonl:2: no string under "text"|train --preset tiny --dataset inputs/no_field.jsonl --strict_data
-|inputs/cut.jsonl:2: not JSON|train --preset tiny --dataset inputs/cut.jsonl --strict_data
-|inputs/pair.jsonl:1: no string under "summary"|train --preset t5-small --dataset inputs/pair.jsonl --strict_data
-|a llama model trains on text, the data set holds images|train --preset tiny --dataset GOLDEN_IMAGES
-|inputs/text.txt holds text, which needs a tokenizer|train --preset cnn --dataset inputs/text.txt
-|inputs/idx/train-images-idx3-ubyte|train --preset cnn --dataset inputs/idx
-|inputs/idx_short/train-images-idx3-ubyte|train --preset cnn --dataset inputs/idx_short
-|inputs/cifar/data_batch_1.bin|train --preset cnn --dataset inputs/cifar
-|org/none: there is no such data set: not as a path, not in $FSDP_DATA (not set)|train --preset tiny --dataset org/none
FSDP_DATA=inputs/hub|not in $FSDP_DATA = inputs/hub, not in the Hugging Face cache|train --preset tiny --dataset org/none
HF_HOME=inputs/hf|cache inputs/hf/hub; to fetch it: add --download, or: fsdp fetch --dataset allenai/c4 --dataset_config_name en|train --preset tiny --dataset allenai/c4 --dataset_config_name en
-|to fetch it: add --download, or: fsdp fetch org/tokenizer|train --preset tiny --dataset inputs/text.txt --tokenizer org/tokenizer
-|there is no such model|train --preset tiny --dataset inputs/text.txt --init_from org/weights
-|inputs/garbage.json|train --preset tiny --dataset inputs/text.txt --tokenizer inputs/garbage.json
-|inputs/no_model_tokenizer.json|train --preset tiny --dataset inputs/text.txt --tokenizer inputs/no_model_tokenizer.json
-|the tokenizer or data has|train --preset tiny --dataset inputs/text.txt --tokenizer GOLDEN/tokenizer_llama3 --vocab_size 256
-|hidden_act "swish7"|train --dataset inputs/text.txt --model_config inputs/act
-|model_type "bloom"|train --dataset inputs/text.txt --model_config inputs/odd_type
-|rope_type "longrope"|train --dataset inputs/text.txt --model_config inputs/rope
-|--model_type=t5 contradicts the model's config.json|train --dataset inputs/text.txt --model_config GOLDEN/llama_gqa --model_type t5
-|--hidden_width=96 contradicts the 64 of the model's config.json|train --dataset inputs/text.txt --model_config GOLDEN/llama_gqa --hidden_width 96 --max_context_width 32
-|inputs/cut.safetensors|train --preset tiny --dataset inputs/text.txt --init_from inputs/cut.safetensors
-|does not fit the model|train --preset tiny --dataset inputs/text.txt --init_from GOLDEN/llama_gqa/model.safetensors
-|no parameter matches|train --preset tiny --dataset inputs/text.txt --freeze nothing.*
-|--fp8=hybrid and --fp8_skip=* contradict each other|train --preset tiny --dataset inputs/text.txt --output_dir RUN --fp8 --fp8_skip *
-|no linear layer here has 8-bit products|train --preset tiny --dataset inputs/text.txt --output_dir RUN --fp8 --fp8_skip model.*
-|no linear layer here has 8-bit products|train --preset tiny --dataset inputs/text.txt --output_dir RUN --fp8 --fp8_skip model.* --tie_word_embeddings
-|no linear layer here has 8-bit products|train --model_type gpt2 --dataset inputs/text.txt --output_dir RUN --max_context_width 64 --fp8
-|no linear layer here has 8-bit products|plan --preset gpt2_124m --fp8
-|fp8_check: a shadow step's batch would count twice in cnn_stack1|plan --preset cnn --hidden_width 32 --fp8 --fp8_check 2
-|fp8_check: a shadow step's batch would count twice in cnn_stack1|train --preset cnn --hidden_width 32 --dataset inputs/digits --output_dir RUN --fp8 --fp8_check 2
-|Muon does not update units in host memory|plan --preset llama3_2_1b --device h100 --world_size 8 --optimizer muon --cpu_offload
-|fp8_skip: no parameter matches "layers.0.*"|train --preset tiny --dataset inputs/text.txt --output_dir RUN --fp8 --fp8_skip model.layers.0.*,layers.0.*
-|--shard_weights has 2 numbers for 1 ranks|train --preset tiny --dataset inputs/text.txt --shard_weights 1,2 --sharding_strategy full
-|--output_dir=inputs/text.txt/run cannot be made: inputs/text.txt is not a folder|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir inputs/text.txt/run
-|--metrics=inputs is a folder; a file is expected|train --preset tiny --dataset inputs/text.txt --max_steps 1 --metrics inputs
-|--log_samples=inputs/text.txt/samples cannot be made|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --log_samples inputs/text.txt/samples
-|--tensorboard_dir=/dev/null/board cannot be made|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --tensorboard_dir /dev/null/board
-|--metrics=/dev/null/m cannot be made|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --metrics /dev/null/m
-|--checkpoint_dir=/dev/null/ckpt cannot be made|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --checkpoint_dir /dev/null/ckpt
-|inputs/text.txt|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --resume_from_checkpoint inputs/text.txt
-|--resume auto needs --output_dir|train --preset tiny --dataset inputs/text.txt --max_steps 1 --resume auto
-|inputs/nowhere: there is no such folder|train --preset tiny --dataset inputs/text.txt --max_steps 1 --resume inputs/nowhere
-|inputs/folder: no checkpoint there|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --resume inputs/folder
-|--output_dir=inputs/held holds another run (metrics.jsonl): go on with it (--resume auto), replace it (--overwrite)|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir inputs/held
-|--overwrite: name the folder|train --preset tiny --dataset inputs/text.txt --max_steps 1 --overwrite
-|--overwrite=true and --resume_from_checkpoint=auto contradict|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --overwrite --resume auto
-|--max_steps=0 trains nothing|train --preset tiny --dataset inputs/text.txt --max_steps 0
-|--epochs=0 trains nothing|train --preset tiny --dataset inputs/text.txt --epochs 0
-|--export_dir=/proc/none/export cannot be made: /proc|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --export_dir /proc/none/export
-|--trace=/proc/none/trace cannot be made: /proc|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --trace /proc/none/trace
-|--trace=/dev/null/trace cannot be made|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --trace /dev/null/trace
-|--export_dir=/dev/null/export cannot be made|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --export_dir /dev/null/export
CUDA_VISIBLE_DEVICES=-1|--device auto takes the CPU where there is no GPU|train --preset tiny --dataset inputs/text.txt --max_steps 1 --output_dir RUN --device cuda
RANK=2 WORLD_SIZE=2|rank 2 of 2; ranks count from 0|train --preset tiny --dataset inputs/text.txt
RANK=0|WORLD_SIZE|train --preset tiny --dataset inputs/text.txt
RANK=zero WORLD_SIZE=2|RANK is 'zero'|train --preset tiny --dataset inputs/text.txt
WORLD_SIZE=0 RANK=0|WORLD_SIZE is '0'|train --preset tiny --dataset inputs/text.txt
-|unknown flag --presett; did you mean --preset?|plan --presett tiny
-|--world_size=10000000: must be at most 65536|plan --preset tiny --device h200 --world_size 10000000
-|--fit=big|plan --preset tiny --fit big
-|--fit=80 is a number of bytes, and no model is that small: write --fit 80GB|plan --preset tiny --fit 80
-|no model to plan for: give --preset NAME|plan
-|no model to plan for: give --preset NAME|plan --device h100 --world_size 8
-|--world_size=0 leaves nobody to plan for|plan --preset tiny --world_size 0
-|--device=h900: one of auto, cpu|plan --preset tiny --device h900
-|--world_size belongs to `fsdp plan`|train --preset tiny --world_size 2
-|--nproc_per_node 0: give a number from 1|run --nproc-per-node 0 true
-|no program is named|run
-|--standalone and --nnodes contradict|run --standalone --nnodes 2 true
-|/no/such/file: cannot open|tokenize /no/such/file
-|/no/such/tokenizer|tokenize --tokenizer /no/such/tokenizer --text x
-|'x' is no id|tokenize --decode --text '1 x'
-|--output wants the files|tokenize --output tokens.bin
-|inputs/wrong_type.jsonl:2|tokenize --jsonl --strict inputs/wrong_type.jsonl --output tokens.bin
-|/no/such/folder|tokenize --output /no/such/folder/tokens.bin inputs/text.txt
-|no model|generate --prompt x
-|no prompt|generate --model nowhere
-|nowhere|generate --model nowhere --prompt x
-|--temperature=-1|generate --model nowhere --prompt x --temperature -1
-|/no/such/checkpoint|ckpt show /no/such/checkpoint
-|say what to do: show, verify|ckpt
-|/no/such/run: there is no such checkpoint|ckpt verify /no/such/run
-|usage: fsdp ckpt export CHECKPOINT FOLDER|ckpt export inputs/folder
-|no model: name a model folder, a run or a checkpoint|eval
-|/no/such/run|eval /no/such/run --dataset inputs/text.txt
-|give the folders of 1 to 12 runs|report
-|/no/such/run: no such folder; give the folder of a run|report /no/such/run
-|/no/such/run|top /no/such/run
-|give the folder with the flight files|debug
-|name what to measure|bench
-|--emulate belongs to `fsdp bench step`|bench kernel tiny --emulate 4@450GBs
-|--steps belongs to `fsdp bench step`|bench comm --steps 3
-|--sizes belongs to `fsdp bench comm`|bench step --sizes 1MB
-|comm takes at most 16 sizes|bench comm --sizes 4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
-|no workload is named "nope"; there are|bench step nope
-|nothing is named|fetch
-|unknown flag --strategy; did you mean --sharding_strategy?|explain --strategy full
END
)
images=$(find "$golden" -name 'train-images*' -printf '%h\n' -quit)
spoken=$(mktemp -u) n=0 failures=0
before=$(find . | sort)
while IFS='|' read -r environment text arguments; do
    [[ $arguments == *GOLDEN_IMAGES* && -z $images ]] && continue
    arguments=${arguments//GOLDEN_IMAGES/$images}
    arguments=${arguments//GOLDEN/$golden}
    arguments=${arguments//RUN/run}
    [[ $environment == - ]] && environment=
    set -f
    eval "words=($arguments)"
    set +f
    code=0
    [[ ${words[0]} != train || $arguments == *--device* ]] || words+=(--device cpu)
    # shellcheck disable=SC2086
    env $environment timeout 60 "$fsdp" "${words[@]}" >/tmp/out.$$ 2>/tmp/err.$$ </dev/null || code=$?
    out=$(</tmp/out.$$) err=$(</tmp/err.$$)
    rm -f /tmp/out.$$ /tmp/err.$$
    wrong=
    [[ $code == 2 ]] || wrong="exit code $code"
    [[ $(wc -l <<<"$err") == 1 && -n $err ]] || wrong+=", not one line"
    [[ $err == *"$text"* ]] || wrong+=", does not say '$text'"
    [[ $err == fsdp* || $err == *"rank "* ]] || wrong+=", does not say who speaks"
    [[ -z $out ]] || wrong+=", prints '${out:0:200}'"
    after=$(find . | sort)
    [[ $after == "$before" ]] || wrong+=", leaves $(comm -13 <(echo "$before") <(echo "$after") | tr '\n' ' ')"
    if [[ -n $wrong ]]; then
        echo "fsdp $arguments: ${wrong#, }: $err" >&2
        failures=$((failures + 1))
        comm -13 <(echo "$before") <(echo "$after") | sort -r | while read -r left; do rm -rf "$left"; done
    fi
    n=$((n + 1))
done <<<"$table"
((failures == 0)) || fail "$failures of $n mistakes are not answered as they should be"
echo "$n mistakes: one line each, exit code 2, nothing left behind"
