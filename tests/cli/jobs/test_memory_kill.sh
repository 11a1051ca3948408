#!/bin/bash
# The kernel kills a rank because the memory of its control group ran out: the report says so, and the job ends with the bits of a
# run that nobody disturbed. Skipped where no group with a memory limit can be made.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=200
source "$(dirname "$0")/jobs.bash"
source "$(dirname "$0")/memory_group.bash"
trap 'kill -9 "${launchers[@]}" 2>/dev/null || true; group_close; rm -rf "$work"' EXIT
group_open || exit 77

on_node()
{
    [[ $1 == 0 ]] || enter_group
    exec "${@:2}"
}

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"
port=$(free_port)
launch starved 0 2 "$port"
launch starved 1 2 "$port"
reached starved 15
starve "$(of_rank starved 1)"
ended starved
same calm starved
grep -q 'rank 1 .*killed by signal 9 .*memory ran out' starved.report || fail "the report does not say what happened: $(cat starved.report)"
echo "a rank that the kernel kills for memory: named as such, and the same bits"
