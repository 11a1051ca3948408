#!/bin/bash
# A rank that is killed, stopped or crashes, and a launcher that is killed, cost a restart and nothing else: the job ends with
# the bits of a run that nobody disturbed. When a host stays away, the job goes on with fewer ranks as a run resumed there would.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=100
source "$(dirname "$0")/jobs.bash"

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"

# --- ranks -------------------------------------------------------------------------------------------------------------------
for blow in KILL STOP SEGV; do
    port=$(free_port)
    watchdog=$([[ $blow != STOP ]] || echo "--watchdog 5") # only a rank that is stopped needs one to be noticed
    launch "$blow" 0 2 "$port" $watchdog
    launch "$blow" 1 2 "$port" $watchdog
    strike "$blow" 1 15 "$blow"
    struck=$(date +%s%N)
    ended "$blow"
    same calm "$blow"
    grep -q 'rank 1 ' "$blow.report" || fail "$blow: the report does not name rank 1: $(cat "$blow.report")"
    grep -q 'step ' "$blow.report" || fail "$blow: the report does not say where it was: $(cat "$blow.report")"
    grep -q 'starting all ranks again (1 of 3)' "$blow.0.log" || fail "$blow: nobody says that it starts again"
    case $blow in
    STOP) grep -q 'made no progress for' "$blow.report" || fail "not known as a hang: $(cat "$blow.report")"
        grep -q 'backtrace' "$blow.1.log" || fail "no backtrace of the rank that hung: $(tail -20 "$blow.1.log")" ;;
    SEGV) grep -q 'backtrace' "$blow.1.log" || fail "no backtrace of the rank that crashed" ;;
    esac
    echo "SIG$blow of a rank: the same bits, $((($(date +%s%N) - struck) / 1000000)) ms to the end"
done

# --- launchers ---------------------------------------------------------------------------------------------------------------
for node in 0 1; do # node 0 holds the store
    port=$(free_port)
    launch lost$node 0 2 "$port"
    sleep 0.3
    launch lost$node 1 2 "$port"
    find_rank lost$node $node
    reached lost$node 15
    lose lost$node $node
    outlives=1
    for _ in $(seq 200); do
        [[ -d /proc/$victim ]] && ! grep -q '^State:.*[ZX]' "/proc/$victim/status" 2>/dev/null || { outlives=0; break; }
        sleep 0.1
    done
    [[ $outlives == 0 ]] || fail "a rank outlived its launcher"
    launch lost$node $node 2 "$port"
    ended lost$node
    same calm lost$node
    echo "SIGKILL of launcher $node: the same bits"
done

# --- a host that stays away --------------------------------------------------------------------------------------------------
port=$(free_port)
launch less 0 1:2 "$port"
launch less 1 1:2 "$port"
reached less 25
lose less 1
wait "${launchers[0]}" || fail "one node left: $(tail -20 less.0.log)"
grep -q '1 rank instead of 2: a step still has 8 samples, in 2 micro-batches of 4' less.0.log || fail "the batch is not kept: $(tail -20 less.0.log)"
step=$(sed -n 's/.*resumed from .* at step \([0-9]*\).*/\1/p' less.0.log | tail -1)
[[ ${step:-0} -ge 10 ]] || fail "not resumed: $(tail -20 less.0.log)"
mkdir first
cp -r "calm/checkpoints/step-$(printf %08d "$step")" first/
"$fsdp" run --standalone "${train[@]}" --output_dir then --gradient_accumulation_steps 2 --resume_from_checkpoint first \
    >then.log 2>&1 || fail "$(cat then.log)"
same then less
echo "with one host less: the bits of a run resumed at step $step on one rank"
