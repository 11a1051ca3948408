#!/bin/bash
# Ranks started by mpirun over MPI give the same bits as ranks over shared memory.
set -u
command -v mpirun >/dev/null || { echo "no mpirun"; exit 77; }
fsdp=$FSDP_BUILD/fsdp
"$fsdp" --version | grep -qi mpi || { echo "built without MPI"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1

flags() {
    echo train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 32 --num_layers 2 --num_heads 2 --intermediate_size 64 \
        --max_context_width 32 --train_batch_size 2 --dataset "$FSDP_SOURCE/README.md" --max_steps 20 --logging_freq 100 --lr 1e-2 --grad_clip 1 \
        --no_async_checkpoint --output_dir "$folder/$1" "${@:2}"
}

for ranks in 2 4; do
    for strategy in full shard_grad_op no_shard; do
        name=$ranks-$strategy
        "$fsdp" run --standalone --nproc-per-node $ranks "$fsdp" $(flags shm-$name --sharding_strategy $strategy --comm_backend shm) >"$folder/log" 2>&1 ||
            { cat "$folder/log"; exit 1; }
        # Open MPI leaves memory of its own behind: a leak checker would blame the ranks for it.
        ASAN_OPTIONS=detect_leaks=0 timeout 120 mpirun --oversubscribe --bind-to none -n $ranks "$fsdp" $(flags mpi-$name --sharding_strategy $strategy --comm_backend mpi) >"$folder/log" 2>&1 ||
            { cat "$folder/log"; exit 1; }
        if ! "$fsdp" ckpt diff "$folder/shm-$name/checkpoints/step-00000020" "$folder/mpi-$name/checkpoints/step-00000020" >"$folder/log" 2>&1; then
            echo "FAILED: $strategy on $ranks ranks differs"; cat "$folder/log"; exit 1
        fi
        echo "ok: $strategy on $ranks ranks: $(tail -1 "$folder/log")"
    done
done
