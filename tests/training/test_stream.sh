#!/bin/bash
# Text that is streamed: the first step does not wait for a long file, memory stays small, ranks and stops change
# nothing, and the text may not change between.
set -u
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
export FSDP_CACHE_DIR=$work/cache

# train RUN RANKS FLAGS...: six samples a step in all, whatever the ranks
train() {
    local run=$1 ranks=$2
    shift 2
    timeout 200 "$fsdp" run --standalone --nproc-per-node "$ranks" "$fsdp" train --device cpu --preset tiny --stream on \
        --num_layers 1 --hidden_width 32 --num_heads 2 --intermediate_size 32 --max_context_width 512 \
        --train_batch_size $((6 / ranks)) --output_dir "$run" --log_samples "$run.samples" --sample_tokens 0 "$@" \
        >"$run.out" 2>"$run.err" || return 1
}
# samples RUN: the steps with all their samples, in the order of ranks
samples() { sort -n -k1,1 -k2,2 "$1.samples" | awk '{ printf "%s%s", $1 == last ? "" : "\n" $1 ":", ""; last = $1
    for (i = 3; i <= NF; i++) printf " %s", $i } END { print "" }'; }

mkdir text
# Less than a window, whatever the pages have grown to: both files are among the first samples.
for i in $(seq 4); do cat "$FSDP_SOURCE"/docs/*.md; done | head -c 480000 >text/a.txt
for i in $(seq 400); do printf '{"text": "record %d of a file that is streamed, which goes on with number %d"}\n' $i $((i * i)); done |
    gzip >text/b.jsonl.gz
train one 1 --dataset text --max_steps 24 || fail "one rank: $(cat one.err)"
grep -q "Text is streamed" one.out || fail "streaming is not said"
[ ! -e cache/tokens ] || fail "a stream left something in the token cache"
train two 2 --dataset text --max_steps 24 || fail "two ranks: $(cat two.err)"
cmp -s <(samples one) <(samples two) || fail "two ranks got other samples than one"

train part 3 --dataset text --max_steps 13 || fail "the first part: $(cat part.err)"
train part 2 --dataset text --max_steps 24 --resume_from_checkpoint part/checkpoints || fail "resuming: $(cat part.err)"
cmp -s <(samples one) <(samples part) || fail "a run that was stopped got other samples"

# Sources with weights, on two ranks and on one; and documents packed whole.
train mix 2 --dataset text/a.txt=3,text/b.jsonl.gz=1 --max_steps 8 || fail "two sources: $(cat mix.err)"
train mix1 1 --dataset text/a.txt=3,text/b.jsonl.gz=1 --max_steps 8 || fail "two sources: $(cat mix1.err)"
cmp -s <(samples mix) <(samples mix1) || fail "a mix depends on the number of ranks"
grep -q "text/a.txt: 75.000% of the samples, 36 so far" mix.out || fail "shares are not reported: $(cat mix.out)"
train half 1 --dataset text/a.txt=3,text/b.jsonl.gz --max_steps 8 && fail "half of the weights"
grep -q "1 of 2 sources have a weight" half.err || fail "weights: $(cat half.err)"
train packed 2 --dataset text --packing best_fit --max_steps 4 || fail "packing: $(cat packed.err)"
grep -q "best fit: [0-9.]*% of the tokens are padding" packed.out || fail "padding is not reported: $(cat packed.out)"

# losses RUN: "step loss" of every step
losses() { sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" | sort -n -u; }
pack=(--dataset text --packing best_fit --lr_decay_style constant --lr 1e-2)
train whole 2 "${pack[@]}" --max_steps 9 || fail "packing: $(cat whole.err)"
train halves 2 "${pack[@]}" --max_steps 4 || fail "packing, the first part: $(cat halves.err)"
train halves 2 "${pack[@]}" --max_steps 9 --resume_from_checkpoint halves/checkpoints || fail "packing: $(cat halves.err)"
[ "$(losses whole | wc -l)" = 9 ] || fail "9 steps have $(losses whole | wc -l) losses"
cmp <(losses whole) <(losses halves) || fail "packed rows that were stopped and resumed have other losses"
train rows 2 "${pack[@]}" --packing row --max_steps 9 || fail "rows: $(cat rows.err)"
cmp -s <(losses whole) <(losses rows) && fail "packing changes no loss"
"$fsdp" train --device cpu --model_type t5 --vocab_size 256 --dataset text/b.jsonl.gz --source_field text --target_field text \
    --packing best_fit --max_steps 2 --output_dir pairs 2>pairs.err && fail "packed pairs"
grep -q "only documents of text can be packed, not pairs" pairs.err || fail "packed pairs: $(cat pairs.err)"

touch -d 2001-01-01 text/a.txt
train part 1 --dataset text --max_steps 26 --resume_from_checkpoint part/checkpoints && fail "a file changed unnoticed"
grep -q "a.txt: changed since" part.err || fail "the changed file is not named: $(cat part.err)"
train part 1 --dataset text --max_steps 26 --stream off --resume_from_checkpoint part/checkpoints && fail "another order"
grep -q -- "--stream on" part.err || fail "the remedy is not named: $(cat part.err)"
train bad 1 --dataset text --epochs 1 && fail "--epochs of a stream"
grep -q -- "--max_steps" bad.err || fail "no remedy: $(cat bad.err)"

# Ten gigabytes, of which ten steps need little (the rest is a hole): by default a stream, in little memory.
yes "a line that repeats itself, so that the file has text as far as anybody reads" | head -c 20000000 >long.txt
truncate -s 10G long.txt
/usr/bin/env bash -c 'ulimit -v 4000000; exec "$@"' - timeout 200 "$fsdp" train --device cpu --preset tiny --num_layers 1 \
    --hidden_width 32 --num_heads 2 --intermediate_size 32 --max_context_width 128 --dataset long.txt --max_steps 10 \
    --output_dir long >long.out 2>long.err || fail "the long file: $(cat long.err)"
grep -q "Text is streamed" long.out || fail "a long file is not streamed"
# The last table's row of rank 0: planned, measured, unsharded plan, resident, resident peak, proportional, each with its unit.
awk '$1 == "rank" && /resident peak/ { table = 1 } table && $1 == "0" { peak = $10 " " $11 } END { print peak }' long.out >peak
grep -Eq '^[0-9.]+ (KiB|MiB)$' peak || fail "no resident peak: $(cat long.out)"
awk '{ exit !($2 == "KiB" || $1 < 300) }' peak || fail "the long file takes $(cat peak)"
echo "streams agree"
