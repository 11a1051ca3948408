#!/bin/bash
# Ranks that something else has started find each other as those of `fsdp run` do, and train the same bits: a pod each, tasks of
# a plain srun, mpirun; several such jobs at once on one host and at one port, too. (make test-torchrun has torchrun itself.)
set -euo pipefail
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
seq 1 400 >text.txt
train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32
    --max_context_width 16 --dataset text.txt --max_steps 4 --sharding_strategy full --no_async_checkpoint --comm_timeout 60)
port=$((20000 + RANDOM % 9000))

# ranks NAME COMMAND...: the command for rank 1 and, a moment later, for rank 0, with RANK_OF set
ranks()
{
    local name=$1 code=0
    shift
    RANK_OF=1 "$@" --output_dir "$name" >"$name.1.log" 2>&1 &
    local other=$!
    sleep 0.2
    RANK_OF=0 "$@" --output_dir "$name" >"$name.0.log" 2>&1 || code=$?
    wait "$other" || code=$?
    [[ $code == 0 ]] || fail "$name: exit code $code: $(cat "$name".*.log)"
    same "$name"
}

same()
{
    "$fsdp" ckpt diff own/checkpoints/step-00000004 "$1/checkpoints/step-00000004" >diff.log || fail "$1 differs: $(head -3 diff.log)"
}

as_pod()
{
    env RANK=$RANK_OF WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" FSDP_RDZV_SECRET=pods "$@"
}

as_task()
{
    env SLURM_STEP_ID=0 SLURM_JOB_ID="$port" SLURM_PROCID=$RANK_OF SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID=$RANK_OF SLURM_NNODES=2 \
        SLURM_TASKS_PER_NODE='1(x2)' SLURM_STEP_NODELIST=localhost "$@"
}

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir own >own.log 2>&1 || fail "fsdp run: $(cat own.log)"
ranks pods as_pod "${train[@]}"
ranks tasks as_task "${train[@]}"
echo "pods and tasks of Slurm: the bits of fsdp run"

jobs=()
for job in 1 2 3; do
    (FSDP_JOB_TOKEN=$job ranks "at_once$job" as_pod "${train[@]}") &
    jobs+=($!)
done
for job in "${jobs[@]}"; do
    wait "$job" || fail "one of three jobs at one port failed"
done
echo "three jobs at once at one port: the bits of fsdp run"

if command -v mpirun >/dev/null && "$fsdp" --version | grep -qw MPI; then
    timeout 120 mpirun -n 2 --oversubscribe --bind-to none "${train[@]}" --output_dir mpirun >mpirun.log 2>&1 || fail "mpirun: $(cat mpirun.log)"
    same mpirun
    echo "mpirun: the bits of fsdp run"
fi

# Who does not know the secret is named on both sides.
code=0
(RANK_OF=0 as_pod "${train[@]}" --comm_timeout 6 --output_dir refused >refused.0.log 2>&1) &
first=$!
sleep 1
RANK_OF=1 as_pod env FSDP_RDZV_SECRET=wrong "${train[@]}" --output_dir refused >refused.1.log 2>&1 || code=$?
[[ $code == 1 ]] || fail "a wrong secret: exit code $code: $(cat refused.1.log)"
grep -q "our secret is not this job's" refused.1.log || fail "a wrong secret: $(cat refused.1.log)"
wait "$first" && fail "a rank trained alone"
grep -q 'rank 1 of 2 did not come' refused.0.log || fail "rank 0 does not say who is missing: $(cat refused.0.log)"
[[ ! -e refused/checkpoints ]] || fail "something was trained"
echo "a wrong secret is refused"
