#!/bin/bash
# What a run says before its first step, and the traps of data and tokenizers: truncated pairs, other field names, other
# data at a resume, a vocabulary that is not the model's, and folders that hold all that they need.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
golden=${FSDP_GOLDEN_DIR:-$source_root/tests/golden}
seq 1 400 >text.txt
seq 500 900 >other.txt

shape=(--device cpu --threads 1 --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32 --memory_report false --logging_freq 1000)
train=("$fsdp" train "${shape[@]}" --model_type llama_v3 --max_context_width 16 --train_batch_size 2)
run() { "${train[@]}" "$@" >log 2>&1 || fail "$*: exit code $?: $(cat log)"; }
says() { grep -qE -- "$1" log || fail "'$1' is not said: $(cat log)"; }

# One block: model, data, tokenizer, steps, sharding and why, memory, folder; before the first step.
run --dataset text.txt --max_steps 3 --output_dir block
for row in '^model  .* parameters in [0-9]+ units$' '^data  .*[0-9]+ samples of 16 tokens' '^tokenizer  .*every byte, 25[0-9] tokens$' \
    '^steps  .*3, of 2 samples \(2 per rank\)$' '^sharding  .* over 1 rank; .*the fastest that fits' '^memory  .* planned for rank 0$' '^folder  .*block$'; do
    says "$row"
done
[[ $(grep -n '^folder ' log | cut -d: -f1) -lt $(grep -n '^Batch' log | head -n 1 | cut -d: -f1) ]] || fail "the block comes late: $(cat log)"

# Pairs that do not fit are counted; records that lack a field say which there are and what to give.
for i in $(seq 40); do
    echo "{\"article\": \"$(seq -s ' ' 1 $((i * 2)))\", \"highlights\": \"short\"}"
done >pairs.jsonl
pairs=("$fsdp" train "${shape[@]}" --model_type t5 --max_context_width 64 --max_target_width 16 --train_batch_size 2 --max_steps 1)
"${pairs[@]}" --dataset pairs.jsonl --output_dir lacks >log 2>&1 && fail "trains on fields that are not there"
says 'no string under "text"; there is "article", "highlights": name one with --source_field'
"${pairs[@]}" --dataset pairs.jsonl --output_dir lacks --source_field article >log 2>&1 && fail "trains without targets"
says 'no string under "summary"; there is "article", "highlights": name one with --target_field'
echo '{"article": 3}' >>pairs.jsonl
"${pairs[@]}" --dataset pairs.jsonl --output_dir pairs --source_field article --target_field highlights >log 2>&1 || fail "$(cat log)"
says '^data  .*40 samples from "article" \(64 tokens\) to "highlights" \(16\), 7[0-9.]+% of them truncated, 1 record skipped'

# So are records of text that cannot be used.
{ for i in $(seq 40); do echo "{\"text\": \"line $i of the text\"}"; done; echo '{"text": 3}'; } >text.jsonl
run --dataset text.jsonl --max_steps 1 --output_dir skipped
says '^data  .*, 1 record skipped'

# Other data at a resume is said; the same data is not.
run --dataset text.txt --max_steps 4 --output_dir block --resume auto
grep -q "fingerprint" log && fail "the same data is taken for other data: $(cat log)"
run --dataset other.txt --max_steps 5 --output_dir block --resume auto
says 'the data is not what the checkpoint was trained on \(fingerprint [0-9a-f]{16}, then [0-9a-f]{16}\)'

# The data set's own validation part is used at the end, without a flag.
mkdir parts && cp text.txt parts/train.txt && head -n 100 other.txt >parts/validation.txt
run --dataset parts --max_steps 2 --output_dir validated
says 'step 2: validation loss'
run --dataset text.txt --max_steps 2 --output_dir plain
grep -q "validat" log && fail "validates what is not there: $(cat log)"

# A vocabulary far from the tokenizer's is said, by size.
run --dataset text.txt --max_steps 1 --vocab_size 5000 --output_dir vast
says 'the model has 5000 rows of embedding, the tokenizer only 25[0-9] tokens \(none was given: bytes\)'

# The tiny preset outside of this repository has a text of its own, also where some of its paths exist, and goes on with it.
mkdir elsewhere && cd elsewhere && echo "another project" >README.md
tiny=(--preset tiny --device cpu --hidden_width 24 --num_layers 1 --num_heads 2 --sample_tokens 8 --output_dir tiny)
"$fsdp" train "${tiny[@]}" --max_steps 2 >../log 2>&1 || fail "the tiny preset elsewhere: $(cat ../log)"
grep -q '^Batch 2 ' ../log || fail "the tiny preset elsewhere: $(cat ../log)"
"$fsdp" run --standalone --plain --nproc-per-node 2 "$fsdp" train "${tiny[@]}" --max_steps 4 --resume auto >../log 2>&1 || fail "resumed: $(cat ../log)"
cd ..
says '^data  .*the built-in text'
says 'resumed from'
grep -q "/proc/" elsewhere/tiny/settings.json && fail "settings name a file of a process that is gone"
grep -E "fingerprint|dataset" log && fail "the built-in text is taken for other data"
echo "ok"
