#!/bin/bash
# Hot snapshots: four ranks of two launchers are killed, one, twice in a row, in the middle of a snapshot, and with a launcher; they
# go on from memory without a checkpoint on disk, lose no more steps than --snapshot_freq says, and end with the bits of a run that
# nobody disturbed. With fewer nodes the parts of all ranks are read. What cannot be held is refused in one line.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=140
source "$(dirname "$0")/jobs.bash"
every=5
# No checkpoint before the end: what is resumed comes from memory.
train+=(--checkpoint_freq 0 --snapshot_freq $every)
calm=("${train[@]:0:${#train[@]}-2}")
nodes=2
start() { for node in 0 1; do launch "$1" $node "$nodes" "$2" --nproc-per-node 2 --watchdog 20; done; }
left() { ls /dev/shm 2>/dev/null | grep "fsdp-snapshots-\(${launchers[0]}\|${launchers[1]}\)-"; }

# resumed NAME TIMES: every restart went on from memory, and from close enough
resumed()
{
    local n
    n=$(cat "$1".*.log | grep -c 'resumed from the snapshot in memory') || true
    [[ $n -ge $2 ]] || fail "$1 resumed $n times from memory instead of $2: $(tail -n 20 "$1".*.log)"
    ! grep -h 'a snapshot failed\|was skipped' "$1".*.log || fail "$1: a snapshot was not whole"
    for _ in $(seq 200); do
        left >/dev/null || return 0
        sleep 0.1
    done
    fail "$1 leaves snapshots in memory: $(left)"
}

# fell_back NAME BEFORE: the newest resumption lost no more steps than --snapshot_freq says
fell_back()
{
    local at
    at=$(cat "$1".*.log | sed -n 's/.*snapshot in memory at step \([0-9]*\).*/\1/p' | tail -n 1)
    [[ -n $at && $at -ge $(($2 - every)) ]] || fail "$1 was killed after step $2 and went on from step $at"
}

"$fsdp" run --standalone --nproc-per-node 4 "${calm[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"

# A rank, and another one right after the restart.
port=$(free_port)
start twice "$port"
strike twice 1 33
for _ in $(seq 2400); do
    grep -qs 'resumed from the snapshot' twice.*.log && break
    sleep 0.05
done
find_rank twice 2
hit twice
ended twice
same calm twice
resumed twice 2

# A node with its memory: the other one has the copies.
port=$(free_port)
start node "$port"
reached node 43
lose node 1
launch node 1 2 "$port" --nproc-per-node 2 --watchdog 20
ended node
same calm node
resumed node 1
fell_back node 43

# While a snapshot is being written: every step has one.
every=1
train+=(--snapshot_freq 1)
port=$(free_port)
start often "$port"
strike often $((RANDOM % 4)) $((20 + RANDOM % 60))
ended often
same calm often
resumed often 1

# A node that does not come back: two ranks go on where four were, with the same batch.
train+=(--snapshot_freq 5)
nodes=1:2
port=$(free_port)
start fewer "$port"
reached fewer 33
lose fewer 1
wait "${launchers[0]}" || fail "fewer: $(tail -n 20 fewer.0.log)"
grep -q 'resumed from the snapshot in memory' fewer.0.log || fail "fewer does not resume from memory: $(tail -n 20 fewer.0.log)"
grep -q '2 ranks instead of 4' fewer.0.log || fail "fewer has as many ranks: $(tail -n 20 fewer.0.log)"

# Without a launcher that holds memory.
code=0
env -u FSDP_SNAPSHOTS "${train[@]}" --output_dir alone >alone.log 2>&1 || code=$?
[[ $code == 2 ]] && grep -q 'snapshots lie in memory that `fsdp run` holds' alone.log || fail "alone: $code: $(cat alone.log)"
echo "snapshots: the same bits from memory"
