#!/bin/bash
# A run on conversations shows an answer: its sample's prompt is a user's message, rendered as its data is, on every rank count, at
# validations and at the end.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
export OMP_NUM_THREADS=1
for i in $(seq 60); do echo '{"messages": [{"role": "user", "content": "say"}, {"role": "assistant", "content": "yes yes yes yes"}]}'; done >chat.jsonl
printf '%s' '{% for m in messages %}<{{ m.role }}>{% if m.role == "assistant" %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}' >chat.jinja
shape=(--model_type llama_v2 --hidden_width 32 --num_layers 1 --num_heads 2 --intermediate_size 64)
# train NAME RANKS FLAGS...
train()
{
    local name=$1 ranks=$2
    shift 2
    "$fsdp" run --standalone --nproc-per-node "$ranks" "$fsdp" train --device cpu --threads 1 "${shape[@]}" --train_batch_size 4 --lr 2e-2 \
        --sample_prompt say --output_dir "$name" "$@" >"$name.log" 2>&1 || fail "$name: $(cat "$name.log")"
}
bytes=(--vocab_size 256 --max_context_width 64)
for ranks in 1 2; do
    train "bytes-$ranks" $ranks "${bytes[@]}" --dataset chat.jsonl --chat_template chat.jinja --max_steps 60 --sample_tokens 18
    grep -q "sayyes yes yes" "bytes-$ranks.log" || fail "$ranks ranks answer otherwise: $(tail -20 "bytes-$ranks.log")"
done

# A tokenizer's folder with a template: records with messages are conversations without being told. What a conversation begins with
# decides the answer, so a sample that lacks the template's bos_token answers no.
mkdir words
cat >words/tokenizer.json <<'JSON'
{"added_tokens": [{"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "</s>", "special": true}],
 "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
 "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"<s>": 0, "</s>": 1, "?": 2, "say": 3, "user:": 4, "bot:": 5, "yes": 6, "no": 7, "other": 8}}}
JSON
echo '{"bos_token": "<s>", "eos_token": "</s>"}' >words/tokenizer_config.json
template='{% if messages[0].role != "system" %}{{ bos_token }} {% endif %}{% for m in messages %}{% if m.role == "user" %}user: {{ m.content }} {% elif m.role == "assistant" %}bot: {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}bot: {% endif %}'
turns='{"role": "user", "content": "say"}, {"role": "assistant", "content":'
for i in $(seq 40); do
    echo "{\"messages\": [$turns \"yes yes yes\"}]}"
    echo "{\"messages\": [{\"role\": \"system\", \"content\": \"\"}, $turns \"no no no\"}]}"
done >turns.jsonl
tokens=(--tokenizer words/tokenizer.json --max_context_width 16 --dataset turns.jsonl --max_steps 60 --validation_split 0.2 --validation_freq 40
    --sample_at_validation --sample_tokens 12)
# The sample at the validation and the one at the end; each says yes three times and ends.
answers() { grep -c "say *yes yes yes *$" "$1.log" || true; }
printf '%s' "$template" >named.jinja
train file 1 "${tokens[@]}" --chat_template named.jinja
[[ $(answers file) == 2 ]] || fail "a named template lacks the tokenizer's special tokens: $(cat file.log)"
printf '%s' "$template" >words/chat_template.jinja
for ranks in 1 2; do
    train "folder-$ranks" $ranks "${tokens[@]}"
    [[ $(answers "folder-$ranks") == 2 ]] || fail "$ranks ranks answer otherwise: $(cat "folder-$ranks.log")"
done
echo say >questions.txt
train several 2 "${tokens[@]}" --sample_prompt @questions.txt
[[ $(grep -c "1: say *yes yes yes *$" several.log) == 2 ]] || fail "prompts of a file are asked otherwise: $(cat several.log)"

# Prompts with responses need no template: the prompt begins a text, and the answer ends.
rm words/chat_template.jinja
for i in $(seq 60); do
    echo '{"prompt": "say", "response": "yes yes yes"}'
    echo '{"prompt": "other", "response": "no"}'
done >pairs.jsonl
train pairs 1 "${tokens[@]}" --dataset pairs.jsonl --chat
[[ $(answers pairs) == 2 ]] || fail "a prompt with a response is asked otherwise: $(cat pairs.log)"
