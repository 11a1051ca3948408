#!/bin/bash
# Nodes with different numbers of ranks, three and one: the bits of four ranks on one node. When either node is lost, the other goes
# on with its ranks, whatever their number, with the batch of four; when it comes back, all four do.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=100
source "$(dirname "$0")/jobs.bash"
sizes=(3 1)
node() { launch "$1" "$2" "$3" "$4" --nproc-per-node "${sizes[$2]}"; }
pair() { for n in 0 1; do node "$1" $n "$2" "$3"; done; }
says() { grep -qh -- "$2" "$1".*.log || fail "$1 does not say '$2': $(tail -n 20 "$1".*.log)"; }
# heard NAME TEXT: waits for a line
heard()
{
    for _ in $(seq 3000); do
        grep -qsh -- "$2" "$1".*.log && return
        sleep 0.02
    done
    says "$1" "$2"
}
# losses NAME: of every step, the newest of those that were made twice
losses()
{
    sed -n 's/.*"step": *\([0-9]*\),.*"loss": *\([0-9.e+-]*\).*/\1 \2/p' "$1/metrics.jsonl" |
        awk '{ loss[$1] = $2 } END { for (i = 1; i <= '"$steps"'; i++) print i, loss[i] }'
}
# close A B: the same samples in other sums
close()
{
    paste <(losses "$1") <(losses "$2") | awk 'NF != 4 || ($2 - $4) ^ 2 > (1e-3 * $2) ^ 2 { print; bad = 1 } END { exit bad }' >apart ||
        fail "the losses of $1 and $2 differ: $(head -n 3 apart)"
}

"$fsdp" run --standalone --nproc-per-node 4 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"

# A rank of either node dies: the same bits.
port=$(free_port)
pair both 2 "$port"
strike both 3 25
ended both
same calm both

# The small node is lost: three ranks share what four had. Then it comes back.
train+=(--snapshot_freq 4)
port=$(free_port)
pair back 1:2 "$port"
reached back 15
lose back 1
heard back '3 ranks instead of 4: a step still has 16 samples, in 2 micro-batches of 8'
node back 1 1:2 "$port"
ended back
says back 'resumed from the snapshot in memory'
says back 'has come: going on with 2 nodes'
close calm back

# The large node is lost, with the rendezvous: one rank makes up for four.
port=$(free_port)
pair alone 1:2 "$port"
reached alone 15
lose alone 0
wait "${launchers[1]}" || fail "alone: $(tail -n 20 alone.1.log)"
says alone '1 rank instead of 4: a step still has 16 samples, in 4 micro-batches of 4'
close calm alone

# What three ranks make of it are the bits of three ranks that anybody else started there.
train=("${train[@]:0:${#train[@]}-2}" --checkpoint_freq 10)
port=$(free_port)
pair fewer 1:2 "$port"
reached fewer 25
lose fewer 1
wait "${launchers[0]}" || fail "fewer: $(tail -n 20 fewer.0.log)"
from=$(sed -n 's/.*resumed from \(fewer\/checkpoints\/[^ ]*\) at.*/\1/p' fewer.0.log | head -n 1)
port=$(free_port) pids=()
for rank in 0 1 2; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port FSDP_FIRST_WORLD_SIZE=4 \
        "${train[@]}" --output_dir again --resume_from_checkpoint "$from" >"again.$rank.log" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || fail "again: $(cat again.*.log)"; done
same fewer again
echo "uneven nodes: the same bits together, the same batch apart"
