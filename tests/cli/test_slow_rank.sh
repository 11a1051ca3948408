#!/bin/bash
# Nobody is called slow in quiet runs (`make quiet-runs` makes 200); a rank that a control group leaves little of a core is named with its
# phase within ten steps. tests/train/test_slow_rank.c has the rank that sleeps in its loader.
set -euo pipefail
. "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto has no launcher"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
FSDP_QUIET_SIZES=32 bash "$source_root/scripts/quiet-runs" "$build" 5 || fail "a rank of a quiet run was named"

# --- a rank that is given a fortieth of a core ---------------------------------------------------------------------------
# Where so many want a core that nobody gets much more of it, there is nothing to tell apart.
if awk -v cores="$(nproc)" '{exit !($1 > 5 * cores)}' /proc/loadavg; then
    echo "this machine is crowded: a limited rank is not tested"
    exit 0
fi
group=/sys/fs/cgroup/cpu/fsdp-test-$$
[[ -d /sys/fs/cgroup/cpu ]] || group=/sys/fs/cgroup/fsdp-test-$$
trap 'kill -KILL $(jobs -p) $(cat pid.? 2>/dev/null) 2>/dev/null || true; wait 2>/dev/null; for _ in $(seq 100); do [[ ! -d $group ]] || rmdir "$group" 2>/dev/null || { sleep 0.1; continue; }; break; done; rm -rf "$work"' EXIT
limit()
{
    if [[ -e $group/cpu.cfs_quota_us ]]; then
        echo 40000 >"$group/cpu.cfs_period_us" && echo 1000 >"$group/cpu.cfs_quota_us"
    else
        echo "1000 40000" >"$group/cpu.max"
    fi
}
if ! mkdir "$group" 2>/dev/null || ! limit 2>/dev/null; then
    echo "no control group with a limit of CPU time can be made here: a limited rank is not tested"
    exit 0
fi
export OMP_NUM_THREADS=1
seq 1 4000 >text.txt
"$fsdp" run --standalone --nproc-per-node 2 bash -c 'echo $$ >pid.$RANK; exec "$@"' bash "$fsdp" train --device cpu --threads 1 \
    --model_type llama_v3 --hidden_width 128 --num_layers 2 --num_heads 4 --intermediate_size 384 --max_context_width 64 --train_batch_size 4 \
    --dataset text.txt --sharding_strategy full --sample_tokens 0 --no_checkpoint_at_end --max_steps 100000 --output_dir run >log 2>&1 &
job=$!
# until COMMAND...: it succeeds, within a minute and while the job lives
until_true()
{
    for _ in $(seq 600); do
        ! "$@" || return 0
        kill -0 "$job" 2>/dev/null || fail "the run ended: $(tail -3 log)"
        sleep 0.1
    done
    fail "not within a minute: $*: $(tail -2 log)"
}
trained() { [[ -s run/metrics.jsonl && $(wc -l <run/metrics.jsonl) -gt 3 ]]; }
until_true trained
for task in /proc/"$(cat pid.1)"/task/*; do echo "${task##*/}" >>"$group/$([[ -e $group/tasks ]] && echo tasks || echo cgroup.procs)"; done 2>/dev/null
from=$(wc -l <run/metrics.jsonl)
until_true grep -q slow_rank run/metrics.jsonl
line=$(grep -m1 slow_rank run/metrics.jsonl)
grep -Eq '"slow_rank": \{"rank": 1, "phase": "(forward|backward|optimizer)"' <<<"$line" || fail "named: $line"
step=$(sed 's/^{"step": \([0-9]*\).*/\1/' <<<"$line")
((step <= from + 12)) || fail "limited after step $from, named at $step" # ten, and two that passed meanwhile
grep -q 'slow: rank 1 (' log || fail "the progress line does not say so: $(tail -2 log)"
echo "limited after step $from, named at step $step: $(grep -o '"slow_rank": {[^}]*}' <<<"$line")"
