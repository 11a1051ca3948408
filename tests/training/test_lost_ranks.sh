#!/bin/bash
# A rank that is killed, stopped, leaves early or was started differently: the others end in time and name it, and nothing
# is left behind.
set -u
fsdp=$FSDP_BUILD/fsdp
folder=$(mktemp -d)
trap 'kill -CONT $(jobs -p) 2>/dev/null; kill -KILL $(jobs -p) 2>/dev/null; rm -rf "$folder"' EXIT
failures=0

# files that a job might leave behind in shared memory or in the folder for temporary ones, which is the test's own; snapshots are
# a launcher's, which these ranks have not: another job's
export TMPDIR=$folder/tmp
mkdir "$TMPDIR"
list_left() { { ls -A /dev/shm | grep -i fsdp | grep -v '^fsdp-snapshots-'; ls -A "$TMPDIR"; } | sort; }
list_left >"$folder/before"
pids=()

# start RANK WORLD FLAGS...: a rank in the background; its pid in $!
start() {
    local rank=$1 world=$2
    shift 2
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$world LOCAL_WORLD_SIZE=$world MASTER_ADDR=127.0.0.1 MASTER_PORT=29555 FSDP_JOB_TOKEN=$token \
        "$fsdp" train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 32 --num_layers 2 --num_heads 2 --intermediate_size 64 \
        --max_context_width 32 --train_batch_size 2 --dataset "$FSDP_SOURCE/README.md" --max_steps 1000000 --logging_freq 20 --sharding_strategy full \
        --no_checkpoint_at_end --output_dir "$folder/$token-$rank" --comm_timeout 4 "$@" >"$folder/out-$rank" 2>"$folder/err-$rank" &
    pids+=($!)
}

# until the job has made a few steps
await_steps() {
    for _ in $(seq 200); do
        grep -q "Batch 20 " "$folder/out-0" && return 0
        sleep 0.1
    done
    echo "FAILED: no steps were made"; cat "$folder"/err-*; failures=$((failures + 1)); return 1
}

# expect NAME RANK TEXT: the rank ends within 10 seconds, not with 0, and its message has the text
expect() {
    local pid=$2 rank=$3 text=$4 code
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    if kill -0 "$pid" 2>/dev/null; then echo "FAILED $1: rank $rank still runs"; failures=$((failures + 1)); return; fi
    wait "$pid" 2>/dev/null; code=$?
    if [ $code -eq 0 ] || ! grep -q "$text" "$folder/err-$rank"; then
        echo "FAILED $1: exit code $code, message:"; cat "$folder/err-$rank"; failures=$((failures + 1))
    else
        echo "ok $1: $(head -1 "$folder/err-$rank")"
    fi
}

token=kill$$; start 0 3; a=$!; start 1 3; b=$!; start 2 3; c=$!
await_steps && kill -KILL $b
expect "a killed rank is named" $a 0 "rank 1"; expect "a killed rank is named by all" $c 2 "rank 1"

token=stop$$; start 0 2; a=$!; start 1 2; b=$!
await_steps && kill -STOP $b
expect "a stopped rank is named" $a 0 "rank 1"
kill -KILL $b 2>/dev/null

token=early$$; start 0 2; a=$!; start 1 2 --max_steps 10; b=$! # before ranks compare their numbers
expect "a rank that leaves early is named" $a 0 "rank 1 called exchange of agreement"
token=sooner$$; start 0 2; a=$!; start 1 2 --max_steps 30; b=$!
expect "a rank that would leave early is named" $a 0 "rank 1 has another learning rate.*do all ranks have the same --max_steps"

token=other$$; start 0 2; a=$!; start 1 2 --hidden_width 48; b=$!
expect "a rank with another model is told" $a 0 "rank 1 was started with --hidden_width 48, rank 0 with 32"

token=batch$$; start 0 2; a=$!; start 1 2 --train_batch_size 3; b=$!
expect "a rank with another batch is told" $a 0 "rank 1 was started with --train_batch_size 3, rank 0 with 2"
expect "and says the same itself" $b 1 "rank 1 was started with --train_batch_size 3, rank 0 with 2"

token=path$$; start 0 2; a=$!; start 1 2 --gradient_accumulation_steps 2; b=$!
expect "a rank on another path is told" $a 0 "rank 1 was started with --gradient_accumulation_steps 2, rank 0 with 1"

# What changes no shape and no schedule, by a flag and by the model's own file.
token=skip$$; start 0 2 --sharding_strategy no_shard --fp8; a=$!; start 1 2 --sharding_strategy no_shard --fp8 --fp8_skip 'model.layers.0.*'; b=$!
expect "a rank that computes otherwise is told" $a 0 "rank 1 was started with --fp8_skip model.layers.0.\*, rank 0 with none"

for eps in 1e-5 0.5; do
    echo '{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 256,
        "max_position_embeddings": 32, "rms_norm_eps": '$eps'}' >"$folder/$eps.json"
done
token=file$$; start 0 2 --model_config "$folder/1e-5.json"; a=$!; start 1 2 --model_config "$folder/0.5.json"; b=$!
expect "a rank with another config.json is told" $a 0 "rank 1 was started with --norm_eps 0.5, rank 0 with 1e-05"

sed 's/0.5}/1e-5, "attention_dropout": 0.5}/' "$folder/0.5.json" >"$folder/drops.json"
token=drop$$; start 0 2 --model_config "$folder/1e-5.json"; a=$!; start 1 2 --model_config "$folder/drops.json"; b=$!
expect "a rank whose model differs in what no flag names is told" $a 0 "rank 1 was started with a model's config.json, hashed"

# Two flags whose values look the same one after the other, and one that only says when ranks come together.
token=pair$$; start 0 2 --lr_decay_iters 1 --warmup 10; a=$!; start 1 2 --lr_decay_iters 11 --warmup 0; b=$!
expect "values are compared one by one" $a 0 "rank 1 was started with --lr_decay_iters 11, rank 0 with 1"
token=minutes$$; start 0 2; a=$!; start 1 2 --checkpoint_minutes 5; b=$!
expect "a rank that meets others by the clock is told" $a 0 "rank 1 was started with --checkpoint_minutes 5, rank 0 with 0"
token=export$$; start 0 2; a=$!; start 1 2 --export_dir "$folder/exported"; b=$!
expect "a rank that exports alone is told" $a 0 "rank 1 was started with --export_dir something, rank 0 with none"

# The same files in other shares, and other contents of the same length.
cp "$FSDP_SOURCE/README.md" "$folder/a.md"; tr a-y b-z <"$folder/a.md" >"$folder/b.md"
token=mix$$; start 0 2 --dataset "$folder/a.md=1,$folder/b.md=9"; a=$!; start 1 2 --dataset "$folder/a.md=9,$folder/b.md=1"; b=$!
expect "a rank that mixes otherwise is told" $a 0 "rank 1 was started with --dataset, "
token=content$$; start 0 2 --dataset "$folder/a.md"; a=$!; start 1 2 --dataset "$folder/b.md"; b=$!
expect "a rank with other data is told" $a 0 "rank 1 was started with --dataset, contents, hashed"

# Two names of one thing are no difference.
token=names$$; start 0 2 --bf16; a=$!; start 1 2 --param_dtype bf16; b=$!
await_steps && kill -KILL $b
expect "two spellings train together" $a 0 "rank 1 has ended\|rank 1.*connection\|killed"

wait 2>/dev/null
for pid in "${pids[@]}"; do
    if kill -0 "$pid" 2>/dev/null; then echo "FAILED: process $pid is left"; failures=$((failures + 1)); fi
done
left=$(comm -13 "$folder/before" <(list_left))
if [ -n "$left" ]; then echo "FAILED: files are left: $left"; failures=$((failures + 1)); fi
exit $((failures > 0))
