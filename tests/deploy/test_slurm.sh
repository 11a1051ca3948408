#!/bin/bash
# A real Slurm of two nodes takes the sbatch files: they train, `scancel` saves, and a job that is interrupted at its time limit,
# preempted or requeued goes on where it was, with the bits of a run that nobody disturbed. Tasks of srun, with PMIx and without,
# find each other. Skipped where Slurm is missing; `make test-slurm` installs it.
set -euo pipefail
source "$(dirname "$0")/../cli/support.bash"
source "$(dirname "$0")/slurm_cluster.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
missing=$(slurm_missing)
[[ -z $missing ]] || { echo "skipped: $missing"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
USER=$(id -un)
export USER OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
trap 'slurm_stop; rm -rf "$work"' EXIT
slurm_start

# The shapes of a CPU, by the environment; the last of several flags counts.
export FSDP=$fsdp GPUS_PER_NODE=0 RANKS_PER_NODE=1
seq 1 4000 >text.txt
export EXTRA_ARGS="--threads 1 --hidden_width 64 --num_layers 2 --num_heads 2 --num_key_value_heads 2 --intermediate_size 128 \
--max_context_width 64 --train_batch_size 4 --dataset $work/text.txt --tokenizer= --dataset_config_name= --checkpoint_freq 1000000 --no_async_checkpoint \
--sample_tokens 0 --comm_timeout 60 --max_steps 400"
sbatch_folder=$source_root/deploy/slurm

# submit NAME FILE SBATCH_FLAGS... -- FLAGS...: in a folder of its own; $job is its number
submit()
{
    local name=$1 file=$2 options=()
    shift 2
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    mkdir -p "$name/logs"
    job=$(cd "$name" && sbatch --parsable "${options[@]}" "$sbatch_folder/$file" "$@")
}

said() { cat "$1"/logs/*.out "$1"/logs/*.err 2>/dev/null; }
says() { grep -q -- "$2" "$1"/logs/*; }
state() { scontrol show job --oneliner "$job" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p'; }
is_in() { [[ $(state) == "$1" ]]; }
restarts() { scontrol show job --oneliner "$job" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p'; }
steps() { cat "$1"/*/metrics.jsonl 2>/dev/null | wc -l; }
has_steps() { (($(steps "$1") >= $2)); }
has_step_of() { ls -d "$1/checkpoints/step-"* >/dev/null 2>&1; }

# ended NAME STATE: the job comes to this end
ended()
{
    local at=
    for _ in $(seq 1200); do
        at=$(state)
        case $at in COMPLETED | CANCELLED | FAILED | TIMEOUT | PREEMPTED | NODE_FAIL) break ;; esac
        sleep 0.1
    done
    [[ $at == "$2" ]] || fail "$1: the job is $at instead of $2: $(said "$1" | tail -n 30; tail -n 20 "$slurm/slurmctld.log")"
}

same() { "$fsdp" ckpt diff calm/checkpoints/step-00000400 "$1/checkpoints/step-00000400" >diff.log || fail "$1 differs: $(head -n 3 diff.log)"; }

# running NAME: the job has made its first sixty steps, and its ranks stand still: however fast the machine, what is done to the job
# comes before its end. Slurm sends SIGCONT with what ends a job; `go_on` does it for other signals.
running()
{
    until_true "$1 makes no steps: $(said "$1" | tail -n 20)" has_steps "$1" 60
    ranks=$(pgrep -f "^$fsdp train .*$work/text.txt") || fail "$1: was over before it was disturbed"
    kill -STOP $ranks
}
# SIGUSR1 waits for a rank that stands still, or Slurm has woken it up and it is all over.
is_warned() { grep -q '^ShdPnd:.*[2367abef]..$' "/proc/${ranks%%$'\n'*}/status" 2>/dev/null || [[ $(restarts) == 1 ]]; }
go_on() { kill -CONT $ranks 2>/dev/null || true; }

# resumed NAME: it went on, once, and the end is that of the undisturbed run
resumed()
{
    ended "$1" COMPLETED
    [[ $(restarts) == 1 ]] || fail "$1: requeued $(restarts) times: $(said "$1" | tail -n 30)"
    says "$1" 'resumed from' || fail "$1: started from nothing: $(said "$1" | tail -n 40)"
    same "$1"
}

# --- the sbatch files --------------------------------------------------------------------------------------------------------
submit calm train-fsdp.sbatch --
ended calm COMPLETED
says calm 'full over 2 ranks' || fail "not one job of two nodes: $(said calm)"
submit single train-fsdp-singlegpu.sbatch -- --max_steps 20
ended single COMPLETED
[[ -e single/checkpoints/step-00000020 ]] || fail "single: no checkpoint: $(said single)"
echo "both files train"

submit cancelled train-fsdp.sbatch --
running cancelled
scancel "$job"
ended cancelled CANCELLED
until_true "cancelled: not saved: $(said cancelled | tail -n 20)" has_step_of cancelled
[[ ! -e cancelled/checkpoints/step-00000400 ]] || fail "cancelled: was over before it was cancelled"
until_true "the nodes are not free again" slurm_is_idle
submit cancelled train-fsdp.sbatch --
ended cancelled COMPLETED
says cancelled 'resumed from' || fail "cancelled: the next job starts from nothing: $(said cancelled | tail -n 40)"
same cancelled
echo "scancel saves, and the next job goes on: the same bits"

submit requeued train-fsdp.sbatch --
running requeued
scontrol requeue "$job"
resumed requeued
submit warned train-fsdp.sbatch --
running warned
scancel --signal=USR1 "$job" # what Slurm sends before the time limit
go_on
resumed warned
submit limited train-fsdp.sbatch --time=10 --
running limited
scontrol update JobId="$job" TimeLimit=2 # Slurm warns two minutes before: at its next look
until_true "limited: Slurm does not warn: $(tail -n 5 "$slurm/slurmctld.log")" is_warned
scontrol update JobId="$job" TimeLimit=10 # for the rest of it
go_on
resumed limited
submit preempted train-fsdp.sbatch --
running preempted
sbatch --parsable --partition=high --nodes=2 --exclusive --output=/dev/null --wrap 'sleep 0.1' >/dev/null
resumed preempted
echo "requeued, warned by a user, at its time limit and preempted, a job goes on: the same bits"

# --- srun --------------------------------------------------------------------------------------------------------------------
read -ra train <<<"$EXTRA_ARGS"
train=("$fsdp" train --device cpu --model_type llama_v3 --sharding_strategy full --offload_activations "${train[@]}" --validation_freq 100)
for kind in none pmix; do
    if [[ $kind == pmix ]] && ! srun --mpi=list 2>&1 | grep -qw pmix; then
        echo "srun has no PMIx here"
        continue
    fi
    timeout 300 srun --mpi=$kind -N2 -n2 "${train[@]}" --output_dir srun.$kind >srun.$kind.log 2>&1 || fail "srun --mpi=$kind: $(tail -n 30 srun.$kind.log)"
    same srun.$kind
    echo "srun --mpi=$kind: the same bits"
done
slurm_stop
! pgrep -f "^$fsdp .*$work" >/dev/null || fail "left running: $(pgrep -af "$work")"
