#!/bin/bash
# Hosts that nothing can join are refused at once, on each of them: two launchers with --nnodes 2 and neither mpirun nor
# GPUs would otherwise each train a model of their own into the same folder.
set -euo pipefail
source "$(dirname "$0")/support.bash"
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
    not_alone node$node 'mpirun|no mpi backend' "$fsdp" run --nnodes 2 --node_rank $node --master_addr 127.0.0.1 --master_port 29871 "${train[@]}"
    not_alone mpi$node 'mpirun|no mpi backend' env RANK=$node WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "${train[@]}" --comm_backend mpi
    not_alone self$node 'backend self is for one rank' env RANK=$node WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "${train[@]}" --comm_backend self
done
not_alone hydra 'mpirun|no mpi backend' env PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 "${train[@]}"

# What is promised and found is fine: one rank by itself, also through MPI where there is one.
"${train[@]}" >log 2>&1 || fail "one rank: $(cat log)"
if "$fsdp" --version | grep -qw MPI; then
    "${train[@]}" --comm_backend mpi --output_dir mpi >log 2>&1 || fail "one rank of MPI: $(cat log)"
fi
echo "no host trains alone"
