#!/bin/bash
# MPI across two hosts, in effect: two network namespaces joined by a veth pair, each with a host name of its own, so that
# messages between them go over TCP. The ranks run the cases of test_mpi_collectives, and train: the same bits as over
# shared memory on one host. Needs root, ip and mpirun; exits with 77 (skipped) without.
set -u
program="${FSDP_BUILD:?}/tests/comm_test_mpi_collectives"
[ -x "$program" ] || { echo "no MPI test program"; exit 77; }
for tool in mpirun ip unshare; do
    command -v "$tool" >/dev/null || { echo "no $tool"; exit 77; }
done

work=$(mktemp -d)
id="fs$$"
left="$id"l right="$id"r
cleanup() {
    ip netns del "$left" 2>/dev/null
    ip netns del "$right" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT

subnet=$((RANDOM % 200 + 20))
if ! ip netns add "$left" 2>/dev/null || ! ip netns add "$right" 2>/dev/null ||
    ! ip link add "v$id"a netns "$left" type veth peer name "v$id"b netns "$right" 2>/dev/null; then
    echo "network namespaces are not possible here"
    exit 77
fi
ip -n "$left" addr add "10.231.$subnet.1/24" dev "v$id"a
ip -n "$right" addr add "10.231.$subnet.2/24" dev "v$id"b
for side in "$left:v${id}a" "$right:v${id}b"; do
    ip -n "${side%%:*}" link set lo up
    ip -n "${side%%:*}" link set "${side##*:}" up
done

# Stands in for ssh: mpirun calls it with a host's address and a command line.
cat >"$work/agent" <<AGENT
#!/bin/bash
host=\$1
shift
exec ip netns exec "$right" unshare --uts sh -c 'hostname "$right"; exec sh -c "\$*"' sh "\$@"
AGENT
chmod +x "$work/agent"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export ASAN_OPTIONS=detect_leaks=0 FSDP_TEST_NODES=2
net="10.231.$subnet.0/24"
# on_two_hosts PROGRAM ARGS...: four ranks, two on each
on_two_hosts() {
    timeout 120 ip netns exec "$left" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "$left" \
        mpirun -n 4 --host "$left:2,10.231.$subnet.2:2" --bind-to none --oversubscribe \
        --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca pml ob1 \
        --mca btl_tcp_if_include "$net" --mca oob_tcp_if_include "$net" \
        -x FSDP_TEST_NODES -x ASAN_OPTIONS "$@" >"$work/output" 2>&1 || { cat "$work/output"; exit 1; }
}
on_two_hosts "$program" cases
echo "4 ranks on two hosts: all cases passed"

fsdp=$FSDP_BUILD/fsdp
# train NAME FLAGS...: arguments of a short run
train() {
    echo train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 32 --num_layers 2 --num_heads 2 \
        --intermediate_size 64 --max_context_width 32 --train_batch_size 2 --dataset "${FSDP_SOURCE:?}/README.md" --max_steps 8 \
        --lr 1e-2 --grad_clip 1 --no_async_checkpoint --output_dir "$work/$1" "${@:2}"
}
for strategy in full hybrid; do
    group=$([ $strategy = hybrid ] && echo --shard_group_size 2)
    # shellcheck disable=SC2046,SC2086
    on_two_hosts "$fsdp" $(train "far-$strategy" --sharding_strategy $strategy $group --comm_backend mpi)
    # shellcheck disable=SC2046,SC2086
    "$fsdp" run --standalone --nproc-per-node 4 "$fsdp" $(train "near-$strategy" --sharding_strategy $strategy $group \
        --comm_backend shm) >"$work/output" 2>&1 || { cat "$work/output"; exit 1; }
    if ! "$fsdp" ckpt diff "$work/near-$strategy/checkpoints/step-00000008" "$work/far-$strategy/checkpoints/step-00000008" \
        >"$work/output" 2>&1; then
        echo "FAILED: $strategy over two hosts differs"
        cat "$work/output"
        exit 1
    fi
    echo "4 ranks on two hosts, $strategy: $(tail -1 "$work/output")"
done
