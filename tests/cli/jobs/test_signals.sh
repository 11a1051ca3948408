#!/bin/bash
# Signals that ask a job to end: one request counts once however often it arrives, the run saves and exits with 128 plus
# the signal, and `fsdp run` passes that on without starting the ranks again.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
seq 1 400 >text.txt

train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 16 --num_layers 1 --num_heads 2
    --intermediate_size 32 --max_context_width 16 --train_batch_size 2 --dataset text.txt --max_steps 1000000
    --logging_freq 1000 --checkpoint_freq 1000000)

# start NAME COMMAND...: runs it in the background until ten steps are done; $job is its process
start()
{
    local name=$1
    shift
    "$@" --output_dir "$name" >"$name.log" 2>&1 &
    job=$!
    for _ in $(seq 600); do
        [[ -s $name/metrics.jsonl && $(wc -l <"$name/metrics.jsonl") -gt 10 ]] && return
        sleep 0.05
    done
    fail "$name: no steps: $(cat "$name.log")"
}

# ended NAME CODE: the job has ended with CODE and left one checkpoint
ended()
{
    local code=0
    wait "$job" || code=$?
    [[ $code == "$2" ]] || fail "$1: exit code $code instead of $2: $(cat "$1.log")"
    [[ $(ls "$1/checkpoints") == step-* ]] || fail "$1: checkpoints: $(ls "$1/checkpoints" 2>&1): $(cat "$1.log")"
    [[ $(ls "$1/checkpoints" | wc -l) == 1 ]] || fail "$1: $(ls "$1/checkpoints")"
    if grep -q "starting all ranks again" "$1.log"; then fail "$1: was started again: $(cat "$1.log")"; fi
}

ranks_of() { pgrep -P "$1" -f '^[^ ]*fsdp train '; }

# One process: the same request several times in a row.
start once "${train[@]}"
for _ in 1 2 3; do kill -TERM "$job"; done
ended once 143
for signal in INT HUP USR1; do
    start $signal "${train[@]}"
    kill -$signal "$job"
    kill -$signal "$job"
    ended $signal $((128 + $(kill -l $signal)))
done

# To every process of a job, as systemd and Slurm do; to the launcher alone; to one rank.
run=("$fsdp" run --standalone --nproc-per-node 2 --max_restarts 3)
start every "${run[@]}" "${train[@]}"
mapfile -t ranks < <(ranks_of "$job")
((${#ranks[@]} == 2)) || fail "every: ${#ranks[@]} ranks"
kill -TERM "${ranks[@]}" "$job" "${ranks[@]}"
ended every 143
start launcher "${run[@]}" "${train[@]}"
kill -TERM "$job"
ended launcher 143
start one "${run[@]}" "${train[@]}"
kill -TERM "$(ranks_of "$job" | tail -n 1)"
ended one 143
start usr1 "${run[@]}" "${train[@]}"
kill -USR1 "$job"
ended usr1 138
start hup "${run[@]}" "${train[@]}"
kill -HUP "$job"
ended hup 129
# `train && deploy` does not deploy after an interruption.
start and bash -c '"$@" && touch deployed' -- "${train[@]}"
kill -TERM "$(pgrep -P "$job" -f '^[^ ]*fsdp train ')"
wait "$job" && fail "and: an interrupted run is a success"
[[ ! -e deployed ]] || fail "and: deployed"
# nohup stays nohup.
(trap '' HUP; exec "${train[@]}" --output_dir nohup >nohup.log 2>&1) &
job=$!
for _ in $(seq 600); do [[ -s nohup/metrics.jsonl ]] && break; sleep 0.05; done
kill -HUP "$job"
lines=$(wc -l <nohup/metrics.jsonl)
for _ in $(seq 600); do (($(wc -l <nohup/metrics.jsonl) > lines + 50)) && break; sleep 0.05; done
kill -TERM "$job"
ended nohup 143

# timeout(1) sends its signal to the launcher and then to its group: still one request.
start twice "${run[@]}" "${train[@]}"
kill -INT "$job"
kill -INT "$job"
ended twice 130
[[ $(grep -c "Ctrl-C: the ranks are asked to save and end; Ctrl-C again kills them at once" twice.log) == 1 ]] || fail "twice: $(cat twice.log)"
[[ $(grep -c "Ctrl-C" twice.log) == 1 ]] || fail "twice: ranks speak, too: $(cat twice.log)"
grep -qF "Ctrl-C: this step is finished and saved; Ctrl-C again ends at once, unsaved" INT.log || fail "INT: no answer: $(cat INT.log)"

# A second Ctrl-C some time after the first ends what does not end by itself: here a run that waits in the middle of a
# step, because its other rank stands still.
start second "${run[@]}" "${train[@]}"
mapfile -t ranks < <(ranks_of "$job")
kill -STOP "${ranks[0]}"
kill -INT "$job"
for _ in $(seq 600); do grep -q "Ctrl-C: the ranks are asked" second.log && break; sleep 0.05; done
sleep 1.1 # what comes sooner is the same request
kill -0 "$job" || fail "second: ended by the first"
kill -INT "$job"
code=0
wait "$job" || code=$?
[[ $code == 137 ]] || fail "second: exit code $code: $(cat second.log)"
grep -qF "second Ctrl-C: all ranks are killed, nothing more is saved" second.log || fail "second: says nothing: $(cat second.log)"

# Before the first step there is nothing to save: the first request ends the run. This one waits for its second rank.
RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_PORT=29876 FSDP_JOB_TOKEN=early-$$ "${train[@]}" --output_dir early >early.log 2>&1 &
job=$!
caught() { [[ $((0x$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status") >> ($2 - 1) & 1)) == 1 ]]; } # caught PID NUMBER
for _ in $(seq 600); do caught "$job" 15 && break; sleep 0.05; done
caught "$job" 15 || fail "early: takes no signals: $(cat early.log)"
kill -TERM "$job"
code=0
wait "$job" || code=$?
[[ $code == 143 ]] || fail "early: exit code $code: $(cat early.log)"
echo "signals are asked once, saved, and passed on"
