#!/bin/bash
# What ranks leave behind ends with them, also processes that went into a session of their own: when the job ends well, when it
# fails, and before another round starts.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
export ASAN_OPTIONS=detect_leaks=0
trap 'xargs -r kill -9 <left 2>/dev/null || true; rm -rf "$work"' EXIT

# The rank's program: a daemon that detached itself and has a child, in the background, and a plain one. It waits until they are
# written down in `left`, then ends with the given status.
cat >leave.sh <<'SH'
setsid bash -c 'sleep 6001 & echo "$! $$" >>left; wait' </dev/null >/dev/null 2>&1 &
(setsid bash -c 'echo "$$" >>left; exec sleep 6002' </dev/null &)
for _ in $(seq 600); do
    (($(wc -l <left) >= 2 * ($1 + 1))) && break
    sleep 0.05
done
(($(wc -l <left) >= 2 * ($1 + 1))) || exit 99
[[ $2 != again ]] || { (($1 == 0)) && exit 3; alive=$(head -n 2 left | xargs -n 1 | while read -r pid; do [[ ! -d /proc/$pid ]] || echo "$pid"; done); [[ -z $alive ]] || exit 98; exit 0; }
exit "$2"
SH

# none_left NAME: whoever is written down is gone, within a moment
none_left()
{
    local pid
    [[ -s left ]] || fail "$1: nobody was left behind"
    for pid in $(cat left); do
        [[ ! -d /proc/$pid ]] || grep -q '^State:.*[ZX]' "/proc/$pid/status" 2>/dev/null || fail "$1: process $pid is still there"
    done
}

for status in 0 5; do
    : >left
    code=0
    timeout 60 "$fsdp" run --standalone --nproc-per-node 1 bash leave.sh 0 $status >log 2>&1 || code=$?
    [[ $code == "$status" ]] || fail "exit code $code instead of $status: $(cat log)"
    none_left "status $status"
done

: >left
code=0
timeout 60 "$fsdp" run --standalone --nproc-per-node 1 --max_restarts 1 bash -c 'exec bash leave.sh "$FSDP_RESTART_COUNT" again' >log 2>&1 || code=$?
[[ $code == 0 ]] || fail "a second round: exit code $code: $(cat log)"
none_left "two rounds"
echo "nothing outlives the ranks"
