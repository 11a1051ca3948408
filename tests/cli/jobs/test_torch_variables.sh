#!/bin/bash
# PyTorch's variables that we take over: NCCL_TIMEOUT is --comm_timeout, the heartbeat's timeout is `fsdp run --watchdog`. The flags win,
# and what makes no sense is named and left alone. Others are named once, by rank 0 or by the launcher.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
steps=2
source "$(dirname "$0")/jobs.bash"
train=("${train[@]:0:${#train[@]}-4}" --sample_tokens 0 --no_checkpoint_at_end --checkpoint_freq 0)
timeout_of() { grep -o '"comm_timeout": *[0-9.]*' "$1/settings.json" | grep -o '[0-9.]*$'; }

NCCL_TIMEOUT=77 "${train[@]}" --output_dir taken >taken.log 2>&1 || fail "$(cat taken.log)"
[[ $(timeout_of taken) == 77* ]] || fail "NCCL_TIMEOUT is not taken: $(timeout_of taken)"
! grep -q 'NCCL_TIMEOUT' taken.log || fail "it has an effect: $(cat taken.log)"
NCCL_TIMEOUT=77 "${train[@]}" --output_dir given --comm_timeout 55 >given.log 2>&1 || fail "$(cat given.log)"
[[ $(timeout_of given) == 55* ]] || fail "the flag does not win: $(timeout_of given)"
NCCL_TIMEOUT=soon "${train[@]}" --output_dir bad >bad.log 2>&1 || fail "$(cat bad.log)"
[[ $(timeout_of bad) == 600* ]] || fail "not left alone: $(timeout_of bad)"
grep -q 'NCCL_TIMEOUT=soon is ignored' bad.log || fail "not named: $(cat bad.log)"

TORCH_NCCL_BLOCKING_WAIT=1 TORCHELASTIC_ENABLE_FILE_TIMER=1 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=never \
    "$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir named >named.log 2>&1 || fail "$(cat named.log)"
[[ $(grep -c 'TORCH_NCCL_BLOCKING_WAIT (every wait' named.log) == 1 ]] || fail "not named once by a rank: $(cat named.log)"
[[ $(grep -c 'fsdp run: .*TORCHELASTIC_ENABLE_FILE_TIMER (--watchdog' named.log) == 1 ]] || fail "not named by the launcher: $(cat named.log)"

# torchrun's own variables are obeyed, and nobody calls them useless: ranks are bound, and one signal is passed on, another is not.
export PET_SIGNALS_TO_HANDLE=SIGUSR1
timeout 60 "$fsdp" run --standalone sh -c 'trap "echo heard; exit 0" USR1; kill -USR1 $PPID; while :; do sleep 0.05; done' >passed.log 2>&1 </dev/null ||
    fail "PET_SIGNALS_TO_HANDLE: $(cat passed.log)"
grep -q heard passed.log || fail "PET_SIGNALS_TO_HANDLE: not passed on: $(cat passed.log)"
code=0
timeout 60 "$fsdp" run --standalone sh -c 'trap "echo heard; exit 0" TERM; kill -TERM $PPID; while :; do sleep 0.05; done' >kept.log 2>&1 </dev/null || code=$?
[[ $code == 143 ]] && ! grep -q heard kept.log || fail "PET_SIGNALS_TO_HANDLE: another signal is passed on: exit code $code: $(cat kept.log)"
unset PET_SIGNALS_TO_HANDLE
if "$fsdp" --version | grep -qw hwloc; then
    CUDA_VISIBLE_DEVICES=-1 PET_NUMA_BINDING=node "$fsdp" run --standalone sh -c 'echo bound=${FSDP_RANKS_ON_CORES-no}.' >bound.log 2>&1 </dev/null ||
        fail "PET_NUMA_BINDING: $(cat bound.log)"
    grep -q 'bound=1\.' bound.log || fail "PET_NUMA_BINDING: not bound: $(cat bound.log)"
fi
! grep 'without effect' passed.log kept.log bound.log 2>/dev/null || fail "what has an effect is named as useless"

# A rank that stands still is found without a flag.
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=5 "$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir still --max_steps 100000 \
    >still.log 2>&1 </dev/null &
launchers=($!)
strike still 1 5 STOP
wait "${launchers[0]}" && fail "a rank that stands still is not found"
grep -q 'rank 1 made no progress for' still.log || fail "the watchdog did not look: $(tail -n 5 still.log)"
echo "PyTorch's variables: taken over, or named once"
