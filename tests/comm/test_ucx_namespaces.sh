#!/bin/bash
# `fsdp run` across hosts without MPI, in effect: two, then four network namespaces on one bridge, each with an address of
# its own and a launcher, so that UCX is chosen and its messages go over TCP. The same bits as one launcher with as many
# ranks, in any order of starting. Needs root and ip; exits with 77 (skipped) without.
set -u
fsdp=${FSDP_BUILD:?}/fsdp
"$fsdp" --version | grep -qw UCX || { echo "built without UCX"; exit 77; }
command -v ip >/dev/null || { echo "no ip"; exit 77; }
work=$(mktemp -d)
id="fu$$"
cleanup() {
    local name
    kill $(jobs -p) 2>/dev/null
    for name in b 0 1 2 3; do ip netns del "$id$name" 2>/dev/null; done
    rm -rf "$work"
}
trap cleanup EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT

subnet=10.232.$((RANDOM % 200 + 20))
if ! ip netns add "${id}b" 2>/dev/null || ! ip -n "${id}b" link add bridge type bridge 2>/dev/null; then
    echo "network namespaces are not possible here"
    exit 77
fi
ip -n "${id}b" link set bridge up
for host in 0 1 2 3; do
    ip netns add "$id$host" && ip link add "v$id$host" netns "${id}b" type veth peer name eth0 netns "$id$host" || exit 1
    ip -n "${id}b" link set "v$id$host" master bridge up
    ip -n "$id$host" addr add "$subnet.$((host + 1))/24" dev eth0
    ip -n "$id$host" link set lo up
    ip -n "$id$host" link set eth0 up
done

# train NAME FLAGS...: arguments of a short run
train() {
    echo train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 32 --num_layers 2 --num_heads 2 \
        --intermediate_size 64 --max_context_width 32 --train_batch_size 2 --dataset "${FSDP_SOURCE:?}/README.md" --max_steps 8 \
        --lr 1e-2 --grad_clip 1 --no_async_checkpoint --output_dir "$work/$1" "${@:2}"
}
port=$((20000 + $$ % 12000)) job=only
export FSDP_RDZV_SECRET=secret-of-$$ UCX_TLS=tcp,self

# on_hosts NODES RANKS "ORDER" ARGS...: a launcher with RANKS ranks in each of NODES namespaces, started in that order
on_hosts() {
    local nodes=$1 ranks=$2 order=$3 host pids=() code=0 pid
    shift 3
    for host in $order; do
        ip netns exec "$id$host" timeout 120 "$fsdp" run --nnodes "$nodes" --node-rank "$host" --nproc-per-node "$ranks" \
            --master-addr "$subnet.1" --master-port $port "$fsdp" "$@" >"$work/log.$job.$host" 2>&1 &
        pids+=($!)
        sleep 0.3
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=1; done
    ((code == 0)) || { cat "$work/log.$job".*; exit 1; }
}

# sent HOST: bytes that have left it
sent() { ip netns exec "$id$1" cat /sys/class/net/eth0/statistics/tx_bytes; }

# same NAME OTHER WHAT
same() {
    if ! "$fsdp" ckpt diff "$work/$1/checkpoints/step-00000008" "$work/$2/checkpoints/step-00000008" >"$work/output" 2>&1; then
        echo "FAILED: $3 differs"; cat "$work/output"; exit 1
    fi
    echo "$3: $(tail -1 "$work/output")"
}

for strategy in full hybrid; do
    group=$([ $strategy = hybrid ] && echo --shard_group_size 2)
    # shellcheck disable=SC2046,SC2086
    timeout 120 "$fsdp" run --standalone --nproc-per-node 4 "$fsdp" $(train "near-$strategy" --sharding_strategy $strategy $group) \
        >"$work/output" 2>&1 || { cat "$work/output"; exit 1; }
    # shellcheck disable=SC2046,SC2086
    before=$(sent 0)
    # shellcheck disable=SC2046,SC2086
    on_hosts 2 2 "1 0" $(train "two-$strategy" --sharding_strategy $strategy $group)
    moved=$(($(sent 0) - before))
    # In a step of `full`, 37 thousand parameters are gathered at most twice, half of them from each host, and summed once:
    # if what is gathered crossed the link for each rank there, it would be 3 MB.
    if [ $strategy = full ] && ! ((moved > 1000000 && moved < 2500000)); then
        echo "FAILED: $moved bytes left the first host"
        exit 1
    fi
    same "near-$strategy" "two-$strategy" "two hosts of two ranks, $strategy"
done
# shellcheck disable=SC2046
on_hosts 4 1 "2 0 3 1" $(train four --sharding_strategy full)
same near-full four "four hosts of one rank"

# Two jobs at once on the same hosts, with secrets of their own.
# shellcheck disable=SC2046
(job=first port=$((port + 1)) && FSDP_RDZV_SECRET=first-$$ && on_hosts 2 1 "0 1" $(train first)) &
other=$!
# shellcheck disable=SC2046
(job=second port=$((port + 2)) && FSDP_RDZV_SECRET=second-$$ && on_hosts 2 1 "1 0" $(train second)) || exit 1
wait $other || exit 1
# shellcheck disable=SC2046
timeout 120 "$fsdp" run --standalone --nproc-per-node 2 "$fsdp" $(train pair) >"$work/output" 2>&1 || { cat "$work/output"; exit 1; }
same pair first "two jobs at once, the first"
same pair second "two jobs at once, the second"
