#!/bin/bash
# Ranks over UCX train what ranks over shared memory train, bit for bit: every rank as a host of its own, and, under two
# launchers, two hosts of two ranks.
set -u
fsdp=$FSDP_BUILD/fsdp
"$fsdp" --version | grep -qw UCX || { echo "built without UCX"; exit 77; }
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$folder"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
steps=10

# train NAME FLAGS...: arguments of a short run
train() {
    echo train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 32 --num_layers 2 --num_heads 2 --intermediate_size 64 \
        --max_context_width 32 --train_batch_size 2 --dataset "$FSDP_SOURCE/README.md" --max_steps $steps --logging_freq 100 --lr 1e-2 --grad_clip 1 \
        --no_async_checkpoint --output_dir "$folder/$1" "${@:2}"
}

# launch RANKS ARGS...: one launcher
launch() {
    timeout 120 "$fsdp" run --standalone --nproc-per-node "$1" "$fsdp" "${@:2}" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
}

# same NAME OTHER: both runs ended with the same checkpoint
same() {
    if ! "$fsdp" ckpt diff "$folder/$1/checkpoints/step-000000$steps" "$folder/$2/checkpoints/step-000000$steps" >"$folder/log" 2>&1; then
        echo "FAILED: $2 differs from $1"; cat "$folder/log"; exit 1
    fi
    echo "ok: $2 is $1: $(tail -1 "$folder/log")"
}

for ranks in 2 3; do
    for strategy in full shard_grad_op no_shard; do
        # shellcheck disable=SC2046
        launch $ranks $(train shm-$ranks-$strategy --sharding_strategy $strategy --comm_backend shm)
        # shellcheck disable=SC2046
        launch $ranks $(train ucx-$ranks-$strategy --sharding_strategy $strategy --comm_backend ucx)
        same shm-$ranks-$strategy ucx-$ranks-$strategy
    done
done

# node PORT NUMBER ARGS...: one of two launchers
node() {
    timeout 120 "$fsdp" run --nnodes 2 --node-rank "$2" --nproc-per-node 2 --master-addr 127.0.0.1 --master-port "$1" "$fsdp" "${@:3}" >"$folder/log.$2" 2>&1
}
for strategy in full hybrid; do
    group=$([ $strategy = hybrid ] && echo --shard_group_size 2)
    port=$((20000 + ($$ * 7 + ${#strategy}) % 12000))
    # shellcheck disable=SC2046,SC2086
    launch 4 $(train one-$strategy --sharding_strategy $strategy $group --comm_backend shm)
    # shellcheck disable=SC2046,SC2086
    node $port 1 $(train two-$strategy --sharding_strategy $strategy $group --comm_backend ucx) &
    other=$!
    # shellcheck disable=SC2046,SC2086
    node $port 0 $(train two-$strategy --sharding_strategy $strategy $group --comm_backend ucx) || { cat "$folder"/log.*; exit 1; }
    wait $other || { cat "$folder"/log.*; exit 1; }
    same one-$strategy two-$strategy
done

# A rank that is killed while it trains: the others end soon and name it.
pids=()
for rank in 0 1 2; do
    # shellcheck disable=SC2046
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + ($$ * 7 + 11) % 12000)) \
        FSDP_JOB_TOKEN=lost$$ "$fsdp" $(train lost --comm_backend ucx --comm_timeout 60 --no_checkpoint_at_end) --max_steps 1000000 \
        --logging_freq 5 >"$folder/out.$rank" 2>"$folder/err.$rank" &
    pids+=($!)
done
for _ in $(seq 300); do grep -q "Batch 20 " "$folder/out.0" && break; sleep 0.1; done
kill -KILL "${pids[1]}"
for _ in $(seq 200); do
    kill -0 "${pids[0]}" 2>/dev/null || kill -0 "${pids[2]}" 2>/dev/null || break
    sleep 0.1
done
for rank in 0 2; do
    if kill -0 "${pids[rank]}" 2>/dev/null || wait "${pids[rank]}" || ! grep -q "rank 1 .*last reached" "$folder/err.$rank"; then
        echo "FAILED: rank $rank still runs, ended well or does not name rank 1:"; cat "$folder/err.$rank"; exit 1
    fi
    echo "ok: $(head -1 "$folder/err.$rank")"
done
