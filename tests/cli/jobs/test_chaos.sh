#!/bin/bash
# Rounds of chaos: four ranks of two launchers train, and at a random instant something happens to one of them: a random rank is
# killed, stopped, crashes or is killed by the kernel for its memory, a launcher is killed and started again, or the link between the
# two is cut until somebody notices, loses packets, or is slow. Every time the job ends with the bits of a run that nobody disturbed,
# and no process, no shared memory and no listener is left. Every other round keeps hot snapshots and has no checkpoint before the
# end: there, steps are lost, not the run. The times from the blow to the first word about it, and from there to the next step of a
# round with snapshots, are told. Links and memory are left out, and named, where namespaces, iptables or control groups are missing.
# FSDP_CHAOS_ROUNDS of them (10), drawn from FSDP_CHAOS_SEED; FSDP_CHAOS_BLOWS="cut loss" allows only these. What a failed round leaves
# is kept in FSDP_CHAOS_KEEP. `make chaos` runs many.
set -euo pipefail
# A /dev/shm of our own, where that is possible: what lies there at the end is ours.
if [[ -z ${FSDP_CHAOS_INSIDE:-} ]] && unshare --mount mount -t tmpfs chaos /dev/shm 2>/dev/null; then
    FSDP_CHAOS_INSIDE=1 exec unshare --mount bash -c 'mount -t tmpfs chaos /dev/shm && exec bash "$0"' "$0"
fi
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=40
source "$(dirname "$0")/jobs.bash"
source "$(dirname "$0")/hosts.bash"
source "$(dirname "$0")/memory_group.bash"
leave()
{
    [[ $1 == 0 || -z ${FSDP_CHAOS_KEEP:-} ]] || { mkdir -p "$FSDP_CHAOS_KEEP" && cp -r . "$FSDP_CHAOS_KEEP"; }
    kill -9 "${launchers[@]}" 2>/dev/null || true
    hosts_close
    group_close
    rm -rf "$work"
}
trap 'leave $?' EXIT
trap 'exit 143' TERM
rounds=${FSDP_CHAOS_ROUNDS:-10} seed=${FSDP_CHAOS_SEED:-$(date +%s)}
RANDOM=$seed
blows=(KILL STOP SEGV launcher)
starved= mended=
declare -A struck=()
plain=("${train[@]}") detections=() recoveries=()
if hosts_open >without.log; then
    blows+=(cut loss)
    ! link_through_proxy || blows+=(delay)
    link_directly
    on_node()
    {
        [[ $1 == 0 || -z $starved ]] || enter_group
        exec ip netns exec "$host$1" "${@:2}"
    }
fi
! group_open >>without.log || blows+=(memory)
sed 's/^skipped/without links or memory/' without.log
[[ -z ${FSDP_CHAOS_BLOWS:-} ]] || read -ra blows <<<"$FSDP_CHAOS_BLOWS"

mend_link()
{
    [[ -z $mended ]] || wait "$mended" || true
    mended=
    [[ $endpoint == 127.0.0.1 ]] || link_mend
}

# watch_round NAME STRUCK: until the launchers have ended or nothing more is to be seen, notes milliseconds from the blow to the first
# word about a failure, and from there to the next step. A link that was cut comes back when somebody has noticed.
watch_round()
{
    local found= now
    while kill -0 "${launchers[0]}" 2>/dev/null && kill -0 "${launchers[1]}" 2>/dev/null; do
        now=$(date +%s%3N)
        ((now - $2 < 90000)) || fail "$1 neither ends nor goes on (FSDP_CHAOS_SEED=$seed): $(tail -n 20 "$1".*.log "$1.report" 2>/dev/null)"
        if [[ -z $found ]] && grep -qs . "$1.report"; then
            found=$now
            detections+=($((now - $2)))
            echo "  noticed after $((now - $2)) ms"
            mend_link
        elif [[ -n $found && $(stat -c %.3Y "$1/metrics.jsonl" | tr -d .) -gt $((found + 100)) ]]; then
            ((i % 2)) || recoveries+=($((now - found)))
            echo "  went on after $((now - found)) ms"
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
listens() { (on_node 0 timeout 5 bash -c "exec 3<>/dev/tcp/$endpoint/$1"); }
is_running() { processes_of "$1" | grep .; }
has_segments() { ls /dev/shm | grep .; }

# strike NAME BLOW PORT: false when nobody is there any more
strike()
{
    local pid node=$((RANDOM % 2)) rank=$((RANDOM % 4))
    case $2 in
    launcher)
        kill -9 "${launchers[node]}" 2>/dev/null || return 1
        wait "${launchers[node]}" 2>/dev/null || true
        launch "$1" $node 2 "$3" --nproc-per-node 2 --watchdog 2
        ;;
    cut) link_cut ;;
    loss)
        link_lose 0.$((1 + RANDOM % 4))
        (sleep 2 && link_mend) &
        mended=$!
        ;;
    delay) link_delay ;;
    memory)
        pid=$(of_rank "$1" $((2 + rank % 2)))
        [[ -n $pid ]] && starve "$pid"
        ;;
    *)
        pid=$(of_rank "$1" $rank)
        [[ -n $pid ]] && kill -"$2" "$pid" 2>/dev/null
        ;;
    esac
}

"$fsdp" run --standalone --nproc-per-node 4 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"
for ((i = 1; i <= rounds; i++)); do
    name=round$i blow=${blows[RANDOM % ${#blows[@]}]} at=$((1 + RANDOM % (steps * 3 / 4))) pause=0.0$((RANDOM % 10))
    train=("${plain[@]}")
    ((i % 2)) || train+=(--checkpoint_freq 0 --snapshot_freq 5)
    starved=$([[ $blow != memory ]] || echo yes)
    [[ $blow != delay ]] || link_through_proxy || fail "no proxy: $(cat slow.log)"
    port=$(free_port)
    launch "$name" 0 2 "$port" --nproc-per-node 2 --watchdog 2
    launch "$name" 1 2 "$port" --nproc-per-node 2 --watchdog 2
    reached "$name" "$at"
    sleep "$pause"
    begun=$(date +%s%3N)
    strike "$name" "$blow" "$port" || blow="too late"
    [[ $blow != memory ]] || begun=$(date +%s%3N) # when the kernel has struck
    echo "round $i of seed $seed: $blow at step $at"
    watch_round "$name" "$begun"
    mend_link
    ended "$name"
    same calm "$name"
    gone "a process of $name" is_running "$name"
    gone "a listener of $name" listens "$port"
    [[ -z ${FSDP_CHAOS_INSIDE:-} ]] || gone "shared memory of $name" has_segments
    link_directly
    struck[$blow]=$((${struck[$blow]:-0} + 1))
    rm -rf "$name" "$name".*
done
what=$(for blow in "${!struck[@]}"; do printf '%s %d, ' "$blow" "${struck[$blow]}"; done)
most() { printf '%s\n' "${@:-0}" | sort -n | tail -n 1; }
echo "seed $seed: $rounds rounds (${what%, }), half of them with snapshots, the same bits every time, nothing left;" \
    "noticed at most $(most "${detections[@]}") ms after the blow (${#detections[@]} times), next step from memory at most" \
    "$(most "${recoveries[@]}") ms after that (${#recoveries[@]} times)"
