#!/bin/bash
# Two launchers make one job: with as many ranks on one host they train what one launcher trains, bit for bit, in whatever
# order they start. Ranks that nothing can join are refused at once, each of them: they would otherwise each train a model of
# their own into the same folder.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export ASAN_OPTIONS=detect_leaks=0
seq 1 400 >text.txt
train=("$fsdp" train --device cpu --model_type llama_v3 --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32
    --max_context_width 16 --dataset text.txt --max_steps 3 --output_dir shared)

# not_alone NAME WHAT COMMAND...: refused with exit code 2 within seconds, saying WHAT; nothing is written
not_alone()
{
    local name=$1 what=$2 code=0
    shift 2
    timeout 30 "$@" >"$name.log" 2>&1 </dev/null || code=$?
    [[ $code == 2 ]] || fail "$name: exit code $code: $(cat "$name.log")"
    grep -qE -- "$what" "$name.log" || fail "$name: does not say '$what': $(cat "$name.log")"
    [[ ! -e shared/metrics.jsonl && ! -e shared/checkpoints ]] || fail "$name: has trained"
}

for node in 0 1; do
    not_alone mpi$node 'mpirun|no mpi backend' env RANK=$node WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "${train[@]}" --comm_backend mpi
    not_alone self$node 'backend self is for one rank' env RANK=$node WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "${train[@]}" --comm_backend self
done
not_alone hydra 'mpirun|no mpi backend' env PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 "${train[@]}"

# What is promised and found is fine: one rank by itself, also through MPI where there is one.
"${train[@]}" >log 2>&1 || fail "one rank: $(cat log)"
if "$fsdp" --version | grep -qw MPI; then
    "${train[@]}" --comm_backend mpi --output_dir mpi >log 2>&1 || fail "one rank of MPI: $(cat log)"
fi

# --- two launchers -----------------------------------------------------------------------------------------------------------
# pair NAME FIRST SECOND: two launchers of two ranks each, the second a little later
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])' 2>/dev/null || echo 29871)
four=(--train_batch_size 1 --threads 1 --no_async_checkpoint)
pair()
{
    local name=$1 first=$2 second=$3 code=0
    shift 3
    timeout 120 "$fsdp" run --nnodes 2 --node_rank "$first" --nproc-per-node 2 --master_addr 127.0.0.1 --master_port "$port" \
        "${train[@]}" "${four[@]}" --output_dir "$name" "$@" >"$name.$first.log" 2>&1 &
    local other=$!
    sleep "${late:-0.5}"
    timeout 120 "$fsdp" run --nnodes 2 --node_rank "$second" --nproc-per-node 2 --master_addr 127.0.0.1 --master_port "$port" \
        "${train[@]}" "${four[@]}" --output_dir "$name" "$@" >"$name.$second.log" 2>&1 || code=$?
    wait "$other" || code=$?
    [[ $code == 0 ]] || fail "$name: exit code $code: $(cat "$name".*.log)"
}
"$fsdp" run --standalone --nproc-per-node 4 "${train[@]}" "${four[@]}" --output_dir one >one.log 2>&1 || fail "one launcher: $(cat one.log)"
pair two 0 1
pair turned 1 0
late=${FSDP_TEST_LATE:-5} pair late 0 1 # seconds; 60 is worth trying by hand
late=${FSDP_TEST_LATE:-5} pair early 1 0 # nobody listens at the endpoint yet
pair hybrid 0 1 --sharding_strategy hybrid # one host, so one shard group
for run in two turned late early; do
    "$fsdp" ckpt diff one/checkpoints/step-00000003 "$run/checkpoints/step-00000003" >diff.log || fail "$run differs: $(cat diff.log)"
done
echo "two launchers train together, no rank trains alone"
