#!/bin/bash
# The kernel kills a rank because the memory of its control group ran out: the report says so, and the job ends with the bits of a
# run that nobody disturbed. Skipped where no group with a memory limit can be made.
set -euo pipefail
source "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=200
source "$(dirname "$0")/jobs.bash"
group=/sys/fs/cgroup/memory/fsdp-test-$$ limit=memory.limit_in_bytes
[[ -d /sys/fs/cgroup/memory ]] || group=/sys/fs/cgroup/fsdp-test-$$ limit=memory.max
hog=
cleanup()
{
    kill -9 "${launchers[@]}" $hog 2>/dev/null || true
    for _ in $(seq 100); do # a group goes when its last process has
        [[ -d $group ]] && ! rmdir "$group" 2>/dev/null || break
        sleep 0.1
    done
    rm -rf "$work"
}
trap cleanup EXIT
if ! mkdir "$group" 2>/dev/null || ! echo $((256 << 20)) 2>/dev/null >"$group/$limit"; then
    echo "skipped: no memory control group can be made here"
    exit 77
fi
[[ ! -e $group/memory.swap.max ]] || echo 0 >"$group/memory.swap.max"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }

on_node()
{
    [[ $1 == 0 ]] || echo "$BASHPID" >"$group/cgroup.procs"
    exec "${@:2}"
}

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"
port=$(free_port)
launch starved 0 2 "$port"
launch starved 1 2 "$port"
reached starved 15
victim=$(of_rank starved 1)
echo 1000 >"/proc/$victim/oom_score_adj"
# Somebody else in the group takes all of its memory, until the rank is gone: by its score the kernel chooses the rank first.
(
    echo "$BASHPID" >"$group/cgroup.procs"
    exec python3 -c 'import os, sys
held = []
while os.path.exists("/proc/" + sys.argv[1]):
    held.append(b"x" * (1 << 20))' "$victim"
) >hog.log 2>&1 &
hog=$!
for _ in $(seq 1200); do
    [[ -d /proc/$victim ]] || break
    sleep 0.05
done
[[ ! -d /proc/$victim ]] || fail "the kernel killed nobody: $(tail -n 3 "$group"/memory.*events 2>/dev/null)"
wait "$hog" 2>/dev/null || true # he may be next: until the launcher has looked, the rank seems to be there
ended starved
same calm starved
grep -q 'rank 1 .*killed by signal 9 .*memory ran out' starved.report || fail "the report does not say what happened: $(cat starved.report)"
echo "a rank that the kernel kills for memory: named as such, and the same bits"
