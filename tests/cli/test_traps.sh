#!/bin/bash
# Traps of a first hour: folders that must hold all that they need, exports that count what they wrote, and bytes of a model
# that are no text. (Fields with other names: jobs/test_start.sh.)
set -euo pipefail
source "$(dirname "$0")/support.bash"
golden=${FSDP_GOLDEN_DIR:-$source_root/tests/golden}
seq 1 400 >text.txt

shape=(--device cpu --threads 1 --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32 --memory_report false --logging_freq 1000)
train=("$fsdp" train "${shape[@]}" --model_type llama_v3 --max_context_width 16 --train_batch_size 2)
run() { "${train[@]}" "$@" >log 2>&1 || fail "$*: exit code $?: $(cat log)"; }
says() { grep -qE -- "$1" log || fail "'$1' is not said: $(cat log)"; }

command -v python3 >/dev/null || { echo "skipped from here on: no python3 to make a folder as transformers writes it"; exit 77; }
# Self-contained: the tokenizer and the original config.json travel with checkpoints and exports; numbers beyond 64 bits, as transformers
# writes them, are read and kept.
cp -r "$golden/llama_gqa" model
cp "$golden/tokenizer_llama2/tokenizer.json" model/ 2>/dev/null || fail "no tokenizer to try"
echo '{"model_max_length": 1000000000000000019884624838656, "tokenizer_class": "LlamaTokenizer"}' >model/tokenizer_config.json
python3 - <<'END'
import json
c = json.load(open("model/config.json"))
c["a_field_of_mine"] = {"kept": 1000000000000000019884624838656}
t = json.load(open("model/tokenizer.json"))
c["vocab_size"] = max(max(t["model"]["vocab"].values()) if isinstance(t["model"]["vocab"], dict) else len(t["model"]["vocab"]), 1) + 300
json.dump(c, open("model/config.json", "w"))
END
"$fsdp" train --device cpu --threads 1 --memory_report false --model_config model --tokenizer model --max_context_width 16 --train_batch_size 1 \
    --dataset text.txt --max_steps 1 --output_dir whole --export_dir exported >log 2>&1 || fail "a folder of transformers: $(cat log)"
says 'exported the model to exported: [0-9]+ tensors, .* in fp32'
tensors=$(sed -n 's/^exported the model.*: \([0-9]*\) tensors.*/\1/p' log)
for folder in exported whole/checkpoints/step-00000001; do
    for file in config.json tokenizer.json tokenizer_config.json; do
        [[ -s $folder/$file ]] || fail "$folder lacks $file: $(ls $folder)"
    done
    grep -q a_field_of_mine $folder/config.json || fail "$folder/config.json is not the original"
done
python3 - "$tensors" <<'END'
import json, struct, sys
data = open("exported/model.safetensors", "rb").read()
header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
n = len([k for k in header if k != "__metadata__"])
assert n == int(sys.argv[1]), f"{n} tensors are there, {sys.argv[1]} were said"
END
rm -rf model
"$fsdp" generate --device cpu --model exported --prompt 1 --max_new_tokens 2 >log 2>&1 || fail "the export needs the model it came from: $(cat log)"
"$fsdp" generate --device cpu --model whole --prompt 1 --max_new_tokens 2 >log 2>&1 || fail "the run needs the model it came from: $(cat log)"
"$fsdp" ckpt export whole/checkpoints again >log 2>&1 || fail "ckpt export: $(cat log)"
says "^  $tensors tensors$"

run --dataset text.txt --max_steps 1 --output_dir whole_bytes
# A model that has learned nothing writes bytes that are no UTF-8: a terminal does not get them, a program does.
if have_terminal; then
    TERM=xterm script -qec "'$fsdp' generate --device cpu --model whole_bytes --prompt 1 --max_new_tokens 200 --temperature 3 --no_stop_at_eos" typescript >/dev/null
    tail -n +2 typescript | grep -v '^Script' >shown
    python3 - <<'END'
text = open("shown", "rb").read()
text.decode("utf-8")  # raises where it is not
assert b"\x1b" not in text and b"\xef\xbf\xbd" in text, text
END
fi
echo "ok"
