#!/bin/bash
# `fsdp generate`: models from Hugging Face folders and from checkpoints, prompts from everywhere, the same text every time.
set -euo pipefail
source "$(dirname "$0")/support.bash"
export OMP_NUM_THREADS=1 # the models are tiny: threads would only wait for each other
golden=${FSDP_GOLDEN_DIR:-$source_root/tests/golden}
generate=("$fsdp" generate --device cpu)

refused 2 "no model" generate --prompt x
refused 2 "no prompt" generate --model nowhere
refused 2 "contradict" generate --model nowhere --prompt x --prompt_file y
refused 2 "nowhere" generate --model nowhere --prompt x
refused 2 "missing.txt" generate --model nowhere --prompt_file missing.txt
refused 2 "temperature" generate --model nowhere --prompt x --temperature -1
refused 2 "did you mean" generate --model nowhere --prompt x --temprature 1
mkdir empty
refused 2 "empty" generate --model empty --prompt x

# A byte-level model that has seen little but letters, so that what it writes is text; bf16 and sharded ranks write on too.
for i in $(seq 300); do echo "one two three four five six seven eight nine ten"; done >data.txt
"$fsdp" train --device cpu --preset tiny --dataset data.txt --hidden_width 32 --num_layers 2 --num_heads 4 --intermediate_size 64 \
    --max_context_width 64 --max_steps 120 --lr 1e-2 --sample_tokens 0 --checkpoint_freq 60 --export_dir exported >log
model=fsdp_runs/latest/checkpoints
text=$("${generate[@]}" --model $model --prompt "one two three four" --max_new_tokens 40 --stats 2>stats)
[[ $text == " five six seven eight nine ten"* ]] || fail "the model writes '$text'"
grep -q '^loaded in .*; read 18 tokens in .*; wrote 40 in .* s (.* tokens/s)$' stats || fail "stats: $(cat stats)"

# The newest of a folder, that one itself, and the exported folder are one model.
[[ $("${generate[@]}" --model $model/step-00000120 --prompt "one two three four" --max_new_tokens 40) == "$text" ]]
[[ $("${generate[@]}" --model fsdp_runs/latest --prompt "one two three four" --max_new_tokens 40) == "$text" ]] || fail "a run's folder is not its newest checkpoint"
[[ $("${generate[@]}" --model exported --prompt "one two three four" --max_new_tokens 40) == "$text" ]]
# Prompts from a file, from standard input, and in front of the text. A prompt longer than the context leaves its end.
printf 'one two three four\n' >prompt.txt
[[ $("${generate[@]}" --model $model --prompt_file prompt.txt --max_new_tokens 40) == "$text" ]]
[[ $("${generate[@]}" --model $model --prompt_file - --max_new_tokens 40 <prompt.txt) == "$text" ]]
[[ $("${generate[@]}" --model $model --prompt "one two three four" --max_new_tokens 40 --echo) == "one two three four$text" ]]
long=$(head -n 4 data.txt)
[[ $("${generate[@]}" --model $model --prompt "$long"$'\none two three four' --max_new_tokens 11) == " five six s" ]] ||
    fail "a long prompt is continued with '$("${generate[@]}" --model $model --prompt "$long"$'\none two three four' --max_new_tokens 11)'"
# Past the context.
"${generate[@]}" --model $model --prompt one --max_new_tokens 200 --no_stop_at_eos >long.txt
[[ $(wc -c <long.txt) -ge 200 ]] || fail "200 tokens gave $(wc -c <long.txt) bytes"

# A seed is a text; another seed is another.
draw=("${generate[@]}" --model $model --prompt one --max_new_tokens 60 --temperature 3 --top_k 50 --top_p 0.95)
[[ $("${draw[@]}" --seed 1 | md5sum) == $("${draw[@]}" --seed 1 | md5sum) ]]
[[ $("${draw[@]}" --seed 1 | md5sum) != $("${draw[@]}" --seed 2 | md5sum) ]]
[[ $("${generate[@]}" --model $model --prompt "one two three four" --max_new_tokens 40 --temperature 2 --top_k 1) == "$text" ]]

# Over two ranks, each with half the model; only one of them speaks.
sharded=$("$fsdp" run --standalone --nproc-per-node 2 "${generate[@]}" --model $model --prompt "one two three four" --max_new_tokens 40 |
    sed 's/^\[rank 0\] //')
[[ $(echo $sharded) == $(echo $text) ]] || fail "sharded: '$sharded'"
[[ $("${generate[@]}" --model $model --prompt "one two three four" --max_new_tokens 8 --dtype bf16) == " five si"* ]]

# Many prompts from a file: each gives the text that it gives alone, whatever the batch, over ranks too, in their order.
printf '{"prompt": "one two three four", "id": 7}\n\n"six seven"\n"nine"\n{"prompt": "ten\\none"}\n"two three four five six"\n' >prompts.jsonl
many=("${generate[@]}" --model exported --prompts prompts.jsonl --max_new_tokens 12)
"${many[@]}" --batch_size 4 --stats >many-4 2>stats
grep -q "; wrote 60 in .* tokens/s" stats || fail "stats of many: $(cat stats)"
[[ $(wc -l <many-4) == 5 ]] || fail "five prompts gave $(cat many-4)"
i=0
while read -r prompt; do
    alone=$("${generate[@]}" --model exported --prompt "$(printf %b "$prompt")" --max_new_tokens 12)
    line=$(sed -n "$((i + 1))p" many-4)
    [[ $line == "{\"index\": $i, \"prompt\": \"$prompt\", \"text\": \"${alone//$'\n'/\\n}\", \"tokens\": 12, \"ended\": false}" ]] ||
        fail "prompt $i: '$line', alone '$alone'"
    i=$((i + 1))
done < <(printf '%s\n' 'one two three four' 'six seven' 'nine' 'ten\none' 'two three four five six')
"${many[@]}" --batch_size 1 | cmp - many-4 || fail "one at a time they differ"
"$fsdp" run --standalone --nproc-per-node 2 "${many[@]}" | sed 's/^\[rank 0\] //' | grep '^{' | cmp - many-4 || fail "over two ranks they differ"
"${many[@]}" --prompts - <prompts.jsonl | cmp - many-4 || fail "from standard input they differ"
{ printf '\xef\xbb\xbf' && cat prompts.jsonl; } | "${many[@]}" --prompts - | cmp - many-4 || fail "behind a byte order mark they differ"
draws=(--temperature 2 --top_k 20 --seed 3)
"${many[@]}" "${draws[@]}" --batch_size 5 >drawn
[[ $(sed -n 's/.*"text": "\(.*\)", "tokens.*/\1/p' drawn | sed -n 2p) == "$("${generate[@]}" --model exported --prompt "six seven" --max_new_tokens 12 "${draws[@]}" | sed ':a;N;$!ba;s/\n/\\n/g')" ]] ||
    fail "drawn texts depend on their neighbours: $(cat drawn)"
long=$(printf '%0100d' 0) # past the positions of the model: written alone
printf '"%s"\n"six seven"\n' "$long" | "${many[@]}" --prompts - | grep -q '"index": 1, "prompt": "six seven", "text": " eight nine "' ||
    fail "beside a long prompt: $(printf '"%s"\n"six seven"\n' "$long" | "${many[@]}" --prompts -)"
printf '"x"\n{"text": "y"}\n' >bad.jsonl
refused 2 "bad.jsonl:2" generate --model exported --prompts bad.jsonl
: >none.jsonl
printf '"two"\n\0\n"three"\n' >zero.jsonl # what follows the zero would be lost
refused 2 "byte of 0" generate --model exported --prompts zero.jsonl
refused 2 "no prompts" generate --model exported --prompts none.jsonl
refused 2 "contradict" generate --model exported --prompts none.jsonl --prompt x

# A chat template puts its words around the prompt.
echo "one {% for m in messages %}{{ m.content }} three{% endfor %}{% if add_generation_prompt %} four{% endif %}" | tr -d '\n' >chat.jinja
[[ $("${generate[@]}" --model exported --prompt two --chat_template chat.jinja --max_new_tokens 10) == " five six " ]] || fail "a chat template is not used"
echo '"two"' | "${many[@]}" --prompts - --chat_template chat.jinja | grep -q '"prompt": "two", "text": " five six se"' || fail "chat of many"
refused 2 "no chat template" generate --model exported --prompt two --chat

# Whatever a model of random weights writes is UTF-8.
for folder in "$golden"/llama_* "$golden"/t5_*; do
    [[ -e $folder/config.json ]] || continue
    "${generate[@]}" --model "$folder" --prompt "Hello" --max_new_tokens 30 --temperature 1 --no_stop_at_eos >out
    iconv -f utf-8 -t utf-8 out >/dev/null || fail "$folder: not UTF-8"
done
