#!/bin/bash
# What is said about a run's beginning holds for its first round: after a restart, a run that began from another's checkpoint, or with
# --overwrite, goes on with what it has saved itself, from disk or from memory, and is refused nothing.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
steps=80
source "$(dirname "$0")/jobs.bash"

# job NAME KILL_AT FLAGS...: a rank is killed after so many steps of this run
job()
{
    local name=$1 at=$2
    shift 2
    : >"$name.log"
    "$fsdp" run --standalone --nproc-per-node 2 --max_restarts 2 "${train[@]}" --output_dir "$name" "$@" >"$name.log" 2>&1 </dev/null &
    launchers=($!)
    if ((at > 0)); then # metrics.jsonl may be another run's yet
        find_rank "$name" 1
        for _ in $(seq 6000); do
            (($(grep -c 'Batch ' "$name.log") < at)) || break
            sleep 0.02
        done
        hit "$name"
    fi
    wait "${launchers[0]}" || fail "$name: exit code $?: $(tail -n 5 "$name.log")"
}
says() { grep -q -- "$2" "$1.log" || fail "$1 does not say '$2': $(grep -v Batch "$1.log" | tail -n 20)"; }
field() { grep -o "\"$2\": *\"[^\"]*\"" "$1/run.json" | head -n 1; }

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --max_steps 20 --output_dir old >old.log 2>&1 || fail "$(cat old.log)"
job calm 0 --resume_from_checkpoint old/checkpoints

# After its first own checkpoint, and before.
job saved 15 --resume_from_checkpoint old/checkpoints
says saved 'resumed from saved/checkpoints/step-'
same calm saved
job unsaved 3 --resume_from_checkpoint old/checkpoints --checkpoint_freq 0
[[ $(grep -c 'resumed from old/checkpoints/step-00000020 at step 20' unsaved.log) == 2 ]] || fail "unsaved: $(grep -v Batch unsaved.log)"
same calm unsaved
for name in calm saved unsaved; do # all began from the same run, which is not theirs
    [[ $(grep -o '"run": *"[^"]*"' $name/run.json | tail -n 1) == "$(field old run)" ]] || fail "$name forgets where it began: $(cat $name/run.json)"
    [[ $(field $name run) != "$(field old run)" ]] || fail "$name took the name of another run"
done
[[ $(wc -l <unsaved/metrics.jsonl) == $((steps - 20)) ]] || fail "unsaved: steps are missing or there twice: $(wc -l <unsaved/metrics.jsonl)"

# From memory.
job held 15 --resume_from_checkpoint old/checkpoints --checkpoint_freq 0 --snapshot_freq 4
says held 'resumed from the snapshot in memory'
same calm held

# A run that went back to an earlier step of its own, and has saved since: it does not go back each time.
cp -r old straight
cp -r old back
job straight 0 --resume_from_checkpoint straight/checkpoints/step-00000010 --checkpoint_freq 5
job back 8 --resume_from_checkpoint back/checkpoints/step-00000010 --checkpoint_freq 5
[[ $(grep -c 'resumed from back/checkpoints/step-00000010 at step 10' back.log) == 1 ]] || fail "back: $(grep -v Batch back.log)"
[[ $(grep -c 'resumed from back/checkpoints/step-' back.log) == 2 ]] || fail "back: not from what it saved: $(grep -v Batch back.log)"
same straight back

# What was to be replaced has been.
cp -r old over
job over 25 --overwrite
says over 'resumed from over/checkpoints/step-'
job fresh 0
same fresh over
[[ $(wc -l <over/metrics.jsonl) == "$steps" ]] || fail "over: steps are missing or there twice"
cp -r old twice
job twice 5 --overwrite --checkpoint_freq 0 # before it has saved: from the beginning, not from what lay there
! grep -q 'resumed from' twice.log || fail "twice resumes what it was to replace: $(cat twice.log)"
same fresh twice
echo "a run's beginning is its first round's"
