#!/bin/bash
# The sbatch files without a Slurm: stand-ins for srun and scontrol write down what they are asked. The flags are known and make a
# plan, and what differs from node to node (container, HyperPod) reaches srun only where it should. (test_slurm.sh has the real one.)
set -euo pipefail
source "$(dirname "$0")/../cli/support.bash"
folder=$source_root/deploy/slurm

# The stand-ins: srun writes its arguments, a line each, and ends as SRUN_CODE says; scontrol answers as the job's state is.
mkdir bin
cat >bin/srun <<'SH'
#!/bin/bash
printf '%s\n' "$@" >srun.arguments
exit "${SRUN_CODE:-0}"
SH
cat >bin/scontrol <<'SH'
#!/bin/bash
[[ $1 == requeue ]] && echo "$2" >requeued
[[ $1 == show ]] && echo "JobId=7 JobState=${JOB_STATE:-RUNNING} PreemptTime=${PREEMPT_TIME:-None} Restarts=0"
exit 0
SH
chmod +x bin/*

# job CODE FILE VARIABLES... : runs the file as Slurm would, and ends with CODE
job()
{
    local code=$1 file=$2 got=0
    shift 2
    rm -f requeued srun.arguments
    env PATH="$work/bin:$PATH" SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 "$@" bash "$folder/$file" >job.log 2>&1 || got=$?
    [[ $got == "$code" ]] || fail "$file $*: exit code $got instead of $code: $(cat job.log)"
}
asked() { grep -qxF -- "$1" srun.arguments || fail "srun was not asked for $1: $(cat srun.arguments)"; }

for file in train-fsdp.sbatch train-fsdp-singlegpu.sbatch; do
    for line in --job-name=llama3_2_1b-FSDP --exclusive --output=logs/%x_%j.out --error=logs/%x_%j.err --requeue; do
        grep -qx "#SBATCH $line" "$folder/$file" || fail "$file: no $line"
    done
    job 0 $file
    # What follows `fsdp train`, without data that this machine lacks, is a plan.
    mapfile -t flags < <(sed -e '1,/^train$/d' -e '/^--dataset/d' -e '/^--tokenizer/d' srun.arguments)
    ((${#flags[@]} > 10)) || fail "$file: no flags: $(cat srun.arguments)"
    "$fsdp" plan "${flags[@]}" --vocab_size 32000 --device h100 --world_size 16 --ranks_per_node 8 >plan.log || fail "$file: flags: $(cat plan.log)"
done
job 0 train-fsdp.sbatch
for flag in --nnodes=2 --nproc-per-node=8 --rdzv-id=7 --max_context_width=8192 --num_key_value_heads=2 --hidden_width=2048 --num_layers=16; do
    asked "$flag"
done
[[ ! -e requeued ]] || fail "a job that is done was requeued"
! grep -q container srun.arguments || fail "a container was asked for"
job 0 train-fsdp.sbatch CONTAINER_IMAGE=/images/fsdp.sqsh FSX_MOUNT=/fsx:/fsx
asked --container-image=/images/fsdp.sqsh
asked --container-mounts=/fsx:/fsx
job 0 train-fsdp.sbatch GPUS_PER_NODE=0 RANKS_PER_NODE=3 EXTRA_ARGS="--threads 1"
asked --device=cpu
asked --nproc-per-node=3
asked --threads

job 0 train-fsdp.sbatch SRUN_CODE=138
[[ $(cat requeued) == 7 ]] || fail "not requeued at its time limit"
job 0 train-fsdp.sbatch SRUN_CODE=143 PREEMPT_TIME=2026-01-01T00:00:00
[[ $(cat requeued) == 7 ]] || fail "not requeued when preempted"
job 143 train-fsdp.sbatch SRUN_CODE=143
[[ ! -e requeued ]] || fail "requeued when a user ended it"
job 143 train-fsdp.sbatch SRUN_CODE=143 JOB_STATE=CANCELLED PREEMPT_TIME=2026-01-01T00:00:00
[[ ! -e requeued ]] || fail "requeued when cancelled"
job 1 train-fsdp.sbatch SRUN_CODE=1
[[ ! -e requeued ]] || fail "requeued after a failure"

# The two files differ in shape, not in how a job is run.
rest() { sed -n '/^# The launchers prove/,/^training=/p; /^extra=/,$p' "$folder/$1"; }
diff <(rest train-fsdp.sbatch) <(rest train-fsdp-singlegpu.sbatch) || fail "the two files start their jobs differently"
echo "the sbatch files ask srun for what they say"
