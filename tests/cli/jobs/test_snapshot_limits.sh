#!/bin/bash
# What hot snapshots promise at their limits: training does not run ahead of a snapshot that cannot become whole, a newer checkpoint
# on disk wins, data that changed is named, and memory that is short refuses a new job and not one that has lost a node.
set -euo pipefail
# A /dev/shm of our own, whose size is ours to choose.
if [[ -z ${FSDP_LIMITS_INSIDE:-} ]]; then
    unshare --mount mount -t tmpfs limits /dev/shm 2>/dev/null || { echo "skipped: no /dev/shm of our own can be had"; exit 77; }
    FSDP_LIMITS_INSIDE=1 exec unshare --mount bash -c 'mount -t tmpfs limits /dev/shm && exec bash "$0"' "$0"
fi
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=130
source "$(dirname "$0")/jobs.bash"
plain=("${train[@]}" --checkpoint_freq 0)
start() { for node in 0 1; do launch "$1" $node 2 "$2" --nproc-per-node "${3:-1}"; done; }
lines() { wc -l <"$1/metrics.jsonl"; }
says() { grep -qh -- "$2" "$1".*.log || fail "$1 does not say '$2': $(tail -n 20 "$1".*.log)"; }
calm() { "$fsdp" run --standalone --nproc-per-node "$2" "${plain[@]}" --output_dir "$1" >"$1.log" 2>&1 || fail "$1: $(cat "$1.log")"; }
calm calm 2

# The launcher that takes the copies is stopped: no snapshot becomes whole, so training waits when the newest is 20 steps old. Then
# that launcher dies with its memory.
train=("${plain[@]}" --snapshot_freq 20)
port=$(free_port)
start ahead "$port"
reached ahead 40
kill -STOP "${launchers[1]}"
for _ in $(seq 100); do # until it stands still
    before=$(lines ahead)
    sleep 0.5
    [[ $(lines ahead) != "$before" ]] || break
done
[[ $before -lt $steps ]] || fail "training did not wait for a snapshot that could not be made"
lose ahead 1
launch ahead 1 2 "$port" --nproc-per-node 1
ended ahead
same calm ahead
at=$(cat ahead.*.log | sed -n 's/.*snapshot in memory at step \([0-9]*\).*/\1/p' | head -n 1)
[[ -n $at && $at -ge $((before - 20)) ]] || fail "ahead stood at step $before and went on from step $at"

# Every other step is saved to disk, few to memory: what was saved last wins. The snapshot of step 60 is whole at step 80, that of step
# 120 at some step after it.
train=("${plain[@]}" --checkpoint_freq 2 --keep_checkpoints 2 --snapshot_freq 80)
port=$(free_port)
start newer "$port"
strike newer 1 81
ended newer
same calm newer
says newer 'resumed from newer/checkpoints/step-[0-9]* at step [0-9]*, newer than the snapshot in memory of step \(60\|120\)$'

# The data changes while the job runs.
seq 1 4000 >changing.txt
train=("${plain[@]}" --snapshot_freq 8 --dataset changing.txt)
port=$(free_port)
start changed "$port"
seq 4001 8000 >other.txt
find_rank changed 0
reached changed 20
mv other.txt changing.txt
hit changed
ended changed
says changed 'the data is not what the snapshot was trained on'

# One node holds two snapshots, two nodes on a host hold two copies more.
train=("${plain[@]}" --snapshot_freq 8)
mount -o remount,size=64k /dev/shm
code=0
"$fsdp" run --standalone --nproc-per-node 2 --max-restarts 3 "${train[@]}" --output_dir none >none.log 2>&1 || code=$?
[[ $code == 2 ]] || fail "short memory: exit code $code: $(cat none.log)"
# A line of each rank that its launcher does not end before it has spoken.
grep -q 'snapshots of 2 ranks and copies for 0 take .* of /dev/shm, which has room for 0.1 MiB' none.log || fail "not refused in a line: $(cat none.log)"
kib=$(sed -n 's/.*copies for 0 take \([0-9.]*\) MiB.*/\1/p' none.log | head -n 1 | awk '{ printf "%d", $1 * 1024 * 1.5 }')
mount -o remount,size="${kib}k" /dev/shm
"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir one >one.log 2>&1 || fail "one node: $(cat one.log)"
same calm one
port=$(free_port)
start two "$port"
for node in 0 1; do
    code=0
    wait "${launchers[node]}" || code=$?
    [[ $code == 2 ]] || fail "two nodes: exit code $code: $(cat two.*.log)"
done
says two 'snapshots of 2 ranks and copies for 2 take .* of /dev/shm'

# It was enough when the job began.
mount -o remount,size=100m /dev/shm
port=$(free_port)
start shrunk "$port"
find_rank shrunk 1
reached shrunk 20
for _ in $(seq 1000); do # refused while more than that is in use
    ! mount -o remount,size="${kib}k" /dev/shm 2>/dev/null || break
    sleep 0.01
done
hit shrunk
ended shrunk
same calm shrunk
says shrunk 'no more snapshots are kept in this round: '
says shrunk 'resumed from the snapshot in memory'
echo "snapshots at their limits: no more steps lost than promised, refused in one line"
