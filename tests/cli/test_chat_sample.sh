#!/bin/bash
# A run on conversations shows an answer: its sample's prompt is a user's message, rendered by the chat template, on every rank count.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
export OMP_NUM_THREADS=1
for i in $(seq 60); do echo '{"messages": [{"role": "user", "content": "say"}, {"role": "assistant", "content": "yes yes yes yes"}]}'; done >chat.jsonl
printf '%s' '{% for m in messages %}<{{ m.role }}>{% if m.role == "assistant" %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}' >chat.jinja
shape=(--model_type llama_v2 --vocab_size 256 --hidden_width 32 --num_layers 1 --num_heads 2 --intermediate_size 64 --max_context_width 64)
for ranks in 1 2; do
    "$fsdp" run --standalone --nproc-per-node $ranks "$fsdp" train --device cpu --threads 1 "${shape[@]}" --dataset chat.jsonl --chat_template chat.jinja \
        --train_batch_size 4 --max_steps 60 --lr 2e-2 --sample_tokens 18 --sample_prompt say --output_dir run-$ranks >log-$ranks 2>&1 ||
        fail "$ranks ranks: $(cat log-$ranks)"
    grep -q "sayyes yes yes" log-$ranks || fail "$ranks ranks answer otherwise: $(tail -20 log-$ranks)"
done
# The same question without the template is no question to the model, and prompts with responses need no template.
for i in $(seq 60); do echo '{"prompt": "say", "response": "yes yes yes yes"}'; done >pairs.jsonl
"$fsdp" train --device cpu --threads 1 "${shape[@]}" --dataset pairs.jsonl --chat --train_batch_size 4 --max_steps 2 --sample_tokens 8 \
    --sample_prompt say --output_dir plain >log 2>&1 || fail "without a template: $(cat log)"
