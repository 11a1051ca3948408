#!/bin/bash
# A job that hangs or loses a rank leaves flight files from which `fsdp debug` names the rank and its collective, even of a rank
# that was stopped or killed; SIGUSR2 writes them while the job goes on.
set -euo pipefail
source "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto has no launcher"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FSDP_FLIGHT_DIR
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
seq 1 4000 >text.txt
job=
trap 'kill -9 $job 2>/dev/null || true; rm -rf "$work"' EXIT

# begin NAME: three ranks that train until they are stopped
begin()
{
    "$fsdp" run --standalone --nproc-per-node 3 --watchdog 3 --grace 3 --report "$1.report" "$fsdp" train --device cpu --threads 1 \
        --model_type llama_v3 --hidden_width 64 --num_layers 2 --num_heads 2 --intermediate_size 128 --max_context_width 64 \
        --train_batch_size 4 --dataset text.txt --max_steps 1000000 --sharding_strategy full --comm_timeout 60 --sample_tokens 0 \
        --output_dir "$1" >"$1.log" 2>&1 </dev/null &
    job=$!
    for _ in $(seq 3000); do
        [[ -s $1/metrics.jsonl && $(wc -l <"$1/metrics.jsonl") -ge 5 ]] && return
        kill -0 $job || break
        sleep 0.02
    done
    fail "$1 does not train: $(tail -5 "$1.log")"
}

of_rank()
{
    local pid
    for pid in $(pgrep -P $job); do
        if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "RANK=$1"; then
            echo "$pid"
        fi
    done
}

# files NAME: waits until all three are there
files()
{
    for _ in $(seq 1500); do
        [[ -s $1/flight-0.bin && -s $1/flight-1.bin && -s $1/flight-2.bin ]] && return
        sleep 0.02
    done
    fail "$1: not all ranks left a file: $(ls "$1"); $(tail -5 "$1.log")"
}

says()
{
    "$fsdp" debug "$1" >said || fail "fsdp debug $1 fails"
    grep -Eq -- "$2" said || fail "$1: '$2' is not in: $(cat said)"
}

# --- a look at a job that runs, which goes on; then a rank that is stopped ----------------------------------------------------
begin hang
kill -USR2 $job
files hang
says hang '3 of 3 ranks left a flight file'
rm hang/flight-*.bin
before=$(wc -l <hang/metrics.jsonl)
for _ in $(seq 1500); do
    [[ $(wc -l <hang/metrics.jsonl) -gt $((before + 3)) ]] && break
    sleep 0.02
done
[[ $(wc -l <hang/metrics.jsonl) -gt $((before + 3)) ]] || fail "SIGUSR2 stopped the job: $(tail -5 hang.log)"
kill -STOP "$(of_rank 1)"
wait $job && fail "a job with a stopped rank ends well"
files hang
says hang 'rank 1: stopped by a signal'
call='[a-z_]+ of [a-z0-9. ]+ \(number [0-9]+ of group [a-z]+, .*, step [0-9]+\)'
says hang "rank 1 is behind: it has not (called|begun|ended) $call|ranks 0, 1 and 2 wait in $call" # it may have stood in it, too
says hang "rank(s 0 and 2| 0|s 0, 1 and 2) waits? in $call"
grep -q 'fsdp debug .*hang. says where every rank was' hang.report || fail "the report does not point at it: $(cat hang.report)"

# --- a rank that is killed ----------------------------------------------------------------------------------------------------
begin dead
kill -KILL "$(of_rank 2)"
wait $job && fail "a job with a killed rank ends well"
files dead
says dead 'rank 2: killed by signal 9'
grep -q 'fsdp debug .*dead. says where every rank was' dead.report || fail "the report does not point at it: $(cat dead.report)"
job=

# --- what it refuses, and what it says of PyTorch's variables -----------------------------------------------------------------
refused 2 'give the folder' debug
refused 2 'no flight-RANK.bin' debug .
refused 2 'cannot look for flight files' debug nowhere
TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_SOMETHING=1 "$fsdp" train --device cpu --threads 1 --model_type llama_v3 \
    --hidden_width 64 --num_layers 1 --num_heads 2 --intermediate_size 64 --max_context_width 32 --dataset text.txt --max_steps 1 \
    --sample_tokens 0 --output_dir one >one.log 2>&1 || fail "$(cat one.log)"
grep -q 'set for PyTorch, without effect here: .*TORCH_NCCL_TRACE_BUFFER_SIZE (the last 4096 events are always kept)' one.log ||
    fail "variables of PyTorch are not named: $(cat one.log)"
[[ $(grep -c 'set for PyTorch' one.log) == 1 ]] || fail "more than one line: $(cat one.log)"
