#!/bin/bash
# Rounds of chaos: four ranks of two launchers train, and at a random instant a random rank is killed, stopped or crashes, or a
# launcher is killed and started again. Every time the job ends with the bits of a run that nobody disturbed, and no process, no
# shared memory and no listener is left. Every other round keeps hot snapshots and has no checkpoint before the end: there, steps
# are lost, not the run, and the time from the detection to the next step is told.
# FSDP_CHAOS_ROUNDS of them (10), drawn from FSDP_CHAOS_SEED; `make chaos` runs many.
set -euo pipefail
# A /dev/shm of our own, where that is possible: what lies there at the end is ours.
if [[ -z ${FSDP_CHAOS_INSIDE:-} ]] && unshare --mount mount -t tmpfs chaos /dev/shm 2>/dev/null; then
    FSDP_CHAOS_INSIDE=1 exec unshare --mount bash -c 'mount -t tmpfs chaos /dev/shm && exec bash "$0"' "$0"
fi
source "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=40
source "$(dirname "$0")/jobs.bash"
rounds=${FSDP_CHAOS_ROUNDS:-10} seed=${FSDP_CHAOS_SEED:-$(date +%s)}
RANDOM=$seed
blows=(KILL STOP SEGV launcher)
declare -A struck=()
plain=("${train[@]}") recoveries=()

# recovery NAME: milliseconds from the first word about a failure to the next step; nothing where either is not seen
recovery()
{
    local found= now
    while kill -0 "${launchers[0]}" 2>/dev/null || kill -0 "${launchers[1]}" 2>/dev/null; do
        now=$(date +%s%3N)
        if [[ -z $found ]] && grep -qs . "$1.report"; then
            found=$now
        elif [[ -n $found && $(stat -c %.3Y "$1/metrics.jsonl" | tr -d .) -gt $((found + 100)) ]]; then
            recoveries+=($((now - found)))
            return
        fi
        sleep 0.02
    done
}

# gone WHAT COMMAND...: waits until the command fails
gone()
{
    local what=$1
    shift
    for _ in $(seq 200); do
        "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    fail "$what is left (FSDP_CHAOS_SEED=$seed): $("$@" 2>&1)"
}
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }
has_segments() { ls /dev/shm | grep .; }

# strike NAME BLOW PORT: false when nobody is there any more
strike()
{
    local pid node=$((RANDOM % 2))
    if [[ $2 == launcher ]]; then
        kill -9 "${launchers[node]}" 2>/dev/null || return 1
        wait "${launchers[node]}" 2>/dev/null || true
        launch "$1" $node 2 "$3" --nproc-per-node 2 --watchdog 2
        return
    fi
    pid=$(of_rank "$1" $((RANDOM % 4)))
    [[ -n $pid ]] && kill -"$2" "$pid" 2>/dev/null
}

"$fsdp" run --standalone --nproc-per-node 4 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"
for ((i = 1; i <= rounds; i++)); do
    name=round$i blow=${blows[RANDOM % 4]} at=$((1 + RANDOM % (steps * 3 / 4))) pause=0.0$((RANDOM % 10))
    train=("${plain[@]}")
    ((i % 2)) || train+=(--checkpoint_freq 0 --snapshot_freq 5)
    port=$(free_port)
    launch "$name" 0 2 "$port" --nproc-per-node 2 --watchdog 2
    launch "$name" 1 2 "$port" --nproc-per-node 2 --watchdog 2
    reached "$name" "$at"
    sleep "$pause"
    strike "$name" "$blow" "$port" || blow="too late"
    echo "round $i of seed $seed: $blow at step $at"
    ((i % 2)) || recovery "$name"
    ended "$name"
    same calm "$name"
    gone "a process of $name" pgrep -f -- "--output_dir $name "
    gone "a listener of $name" listens "$port"
    [[ -z ${FSDP_CHAOS_INSIDE:-} ]] || gone "shared memory of $name" has_segments
    struck[$blow]=$((${struck[$blow]:-0} + 1))
    rm -rf "$name" "$name".*
done
what=$(for blow in "${!struck[@]}"; do printf '%s %d, ' "$blow" "${struck[$blow]}"; done)
slowest=$(printf '%s\n' "${recoveries[@]:-0}" | sort -n | tail -n 1)
echo "seed $seed: $rounds rounds (${what%, }), half of them with snapshots, the same bits every time, nothing left;" \
    "from detection to the next step at most $slowest ms in ${#recoveries[@]} recoveries from memory that were timed"
