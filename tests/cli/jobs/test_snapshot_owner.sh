#!/bin/bash
# A snapshot in memory is taken by the run that made it, and by no other that the same launcher runs after it. Where it is damaged and
# nothing else is there, a run does not go on with the half that could be read.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
steps=20
source "$(dirname "$0")/jobs.bash"
train+=(--checkpoint_freq 0)

# Two trainings, one after the other: the second is what it is alone.
cat >both.sh <<'END'
"$@" --snapshot_freq 4 --output_dir first && exec "$@" --snapshot_freq 4 --seed 7 --output_dir second
END
"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --seed 7 --output_dir alone >alone.log 2>&1 || fail "alone: $(cat alone.log)"
"$fsdp" run --standalone --nproc-per-node 2 -- bash both.sh "${train[@]}" >both.log 2>&1 || fail "both: $(cat both.log)"
! grep 'resumed from' both.log || fail "a run took the snapshot of another"
same alone second
[[ $(grep '"run"' first/run.json) != "$(grep '"run"' second/run.json)" ]] || fail "both have one name"

# A run that was told to go back to an earlier step does not come to the later ones that it had before.
back=("${train[@]}" --output_dir back --max_steps 400 --checkpoint_freq 100 --keep_checkpoints 9)
"$fsdp" run --standalone --nproc-per-node 2 "${back[@]}" >back.0.log 2>&1 || fail "back: $(cat back.0.log)"
"$fsdp" run --standalone --nproc-per-node 2 --max_restarts 1 "${back[@]}" --checkpoint_freq 0 --snapshot_freq 4 \
    --resume_from_checkpoint back/checkpoints/step-00000100 >back.1.log 2>&1 </dev/null &
launchers=($!)
for _ in $(seq 1200); do
    tail -n 1 back/metrics.jsonl | grep -q '"step": \(1[2-9]\|[23][0-9]\)[0-9],' && break
    sleep 0.02
done
kill -9 "$(of_rank back 1)"
wait "${launchers[0]}" || fail "back: $(grep -v Batch back.1.log | tail -n 20)"
grep -q 'resumed from the snapshot in memory' back.1.log || fail "back: $(grep -v Batch back.1.log | tail -n 20)"

# A part that is damaged. Both ranks stand still meanwhile, so that no newer one comes and none gets its final name.
stand_still() { # PID: until every thread of it has stopped
    kill -STOP "$1"
    while awk '{ print $3 }' /proc/"$1"/task/*/stat | grep -qv T; do sleep 0.01; done
}
"$fsdp" run --standalone --nproc-per-node 2 --max_restarts 1 "${train[@]}" --max_steps 5000 --output_dir torn --snapshot_freq 4 \
    >torn.0.log 2>&1 </dev/null &
launchers=($!)
reached torn 20
pids=("$(of_rank torn 0)" "$(of_rank torn 1)")
stand_still "${pids[0]}"
stand_still "${pids[1]}"
for file in /dev/shm/fsdp-snapshots-"${launchers[0]}"-*/step-*.rank-00001*/*.safetensors; do
    printf 'damage' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 64)) conv=notrunc status=none
done
kill -9 "${pids[1]}"
kill -CONT "${pids[0]}"
code=0
wait "${launchers[0]}" || code=$?
[[ $code == 1 ]] || fail "torn: exit code $code: $(grep -v Batch torn.0.log | tail -n 20)"
grep -q 'snapshots in memory cannot be loaded' torn.0.log || fail "torn: $(grep -v Batch torn.0.log | tail -n 20)"
echo "snapshots are their run's"
