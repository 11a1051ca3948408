#!/bin/bash
# What comes with a model goes with it: every field of config.json, generation_config.json, the tokenizer's files and the chat
# template are in the checkpoint of an import and in the export of that, as they were, but for the element type.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
python=$(command -v python3) || { echo "skipped: no python3 to compare JSON"; exit 77; }

mkdir model
cp "$source_root/tests/ckpt/fixtures/pytorch/plain.pt" model/pytorch_model.bin
cat >model/config.json <<'EOF'
{"model_type": "something-new", "architectures": ["SomethingNew"], "torch_dtype": "float16", "dtype": "float16", "odd field": [1, 2.5, null, true],
 "rope_scaling": {"type": "yarn", "factor": 4.0}, "big": 9007199254740993, "é": "\ud83d\ude00", "eos_token_id": [1, 2],
 "text_config": {"dtype": "float16", "deep": {"torch_dtype": "float16", "x": 1}}, "quiet": {"dtype_of_nothing": 3}, "temperature": 1e-05}
EOF
echo '{"eos_token_id": [1, 2], "do_sample": true, "temperature": 0.6, "transformers_version": "5.0.0"}' >model/generation_config.json
echo '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}' >model/tokenizer.json
echo '{"chat_template": "{{ messages }}", "bos_token": "<s>"}' >model/tokenizer_config.json
printf '{%% for m in messages %%}\n  {{ m.content }}\n{%% endfor %%}' >model/chat_template.jinja
printf 'a\nb\n' >model/vocab.txt
echo '{"<x>": 5}' >model/added_tokens.json
echo '{"bos_token": "<s>"}' >model/special_tokens_map.json

same_but_dtype()
{
    "$python" - "$1" "$2" "$3" <<'EOF'
import json, sys
old, new, dtype = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), sys.argv[3]
expected = dict(old, dtype=dtype, torch_dtype=dtype)
expected["text_config"] = {"dtype": dtype, "deep": {"torch_dtype": dtype, "x": 1}}
assert new == expected and list(new) == list(old), (new, expected)
EOF
}

"$fsdp" ckpt import model run --world_size 2 >import.log 2>&1 || fail "$(cat import.log)"
for dtype in fp32:float32 bf16:bfloat16 fp16:float16; do
    "$fsdp" ckpt export run "out-${dtype%:*}" --dtype "${dtype%:*}" >export.log 2>&1 || fail "$(cat export.log)"
    same_but_dtype model/config.json "out-${dtype%:*}/config.json" "${dtype#*:}" || fail "config.json of $dtype is not as it was"
    for file in generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja vocab.txt added_tokens.json special_tokens_map.json; do
        cmp "model/$file" "out-${dtype%:*}/$file" || fail "$file is not as it was"
    done
done

# Without a tokenizer the rest is kept all the same.
rm model/tokenizer* model/chat_template.jinja model/vocab.txt model/added_tokens.json model/special_tokens_map.json
"$fsdp" ckpt import model bare >import.log 2>&1 || fail "$(cat import.log)"
"$fsdp" ckpt export bare out-bare >export.log 2>&1 || fail "$(cat export.log)"
cmp model/generation_config.json out-bare/generation_config.json || fail "generation_config.json is gone"
echo "ok"
