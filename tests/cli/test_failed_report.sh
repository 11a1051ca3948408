#!/bin/bash
# However a job of several ranks ends, its folder has a report that says so: a rank that was killed is named with the reason, rank 0 too;
# a job that was started again and finished did well.
set -euo pipefail
. "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto has no launcher"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FSDP_FLIGHT_DIR
export OMP_NUM_THREADS=1
seq 1 4000 >text.txt
run=("$fsdp" run --standalone --nproc-per-node 2 --plain)
train=(bash -c 'echo $$ >pid.$RANK; exec "$@"' bash "$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 32 --num_layers 2
    --num_heads 2 --intermediate_size 64 --max_context_width 32 --train_batch_size 4 --dataset text.txt --sharding_strategy full --sample_tokens 0)

# wait_for_steps FOLDER: it trains
wait_for_steps()
{
    for _ in $(seq 600); do
        [[ -s $1/metrics.jsonl && $(wc -l <"$1/metrics.jsonl") -gt 2 ]] && return
        kill -0 "$job" || fail "the run ended: $(tail -3 "$1.log")"
        sleep 0.1
    done
    fail "no steps in a minute: $(tail -3 "$1.log")"
}

# verdict FOLDER: what its report says about the end
verdict() { "$fsdp" report "$1" | grep '^  Ended well?'; }

for rank in 0 1; do
    rm -f pid.?
    "${run[@]}" "${train[@]}" --max_steps 100000 --output_dir "killed$rank" >"killed$rank.log" 2>&1 &
    job=$!
    wait_for_steps "killed$rank"
    kill -KILL "$(cat "pid.$rank")"
    code=0
    wait "$job" || code=$?
    [[ $code == 137 ]] || fail "rank $rank killed: exit code $code: $(tail -3 "killed$rank.log")"
    page=killed$rank/report.html
    [[ -s $page ]] || fail "no report.html after rank $rank was killed"
    grep -q "rank $rank: killed by signal 9" "$page" || fail "report.html does not say why: $(grep -o 'It failed after[^"]*' "$page")"
    grep -q "It failed after step" "$page" || fail "report.html does not say that it failed"
    verdict "killed$rank" | grep "bad      It failed after step [0-9]*" | grep "rank $rank has ended" | grep -q "rank $rank: killed by signal 9" || fail "$(verdict "killed$rank")"
done

# --- started again: what the first session left does not count --------------------------------------------------------
rm -f pid.?
"${run[@]}" --max_restarts 1 "${train[@]}" --max_steps 400 --checkpoint_freq 20 --output_dir again >again.log 2>&1 &
job=$!
wait_for_steps again
kill -KILL "$(cat pid.1)"
wait "$job" || fail "after a restart: $(tail -3 again.log)"
verdict again | grep -q 'good     It finished after step 400' || fail "$(verdict again)"
python3 - <<'PYTHON' || fail "$(cat again/run.json)"
import json
sessions = json.load(open("again/run.json"))["sessions"]
assert len(sessions) == 2 and sessions[-1]["ended"]["how"] == "finished" and sessions[-1]["ended"]["last_step"] == 400, sessions
assert sessions[0].get("ended", {"how": "failed"})["how"] == "failed", sessions
PYTHON

# --- asked to stop; failed by itself -----------------------------------------------------------------------------------
"${run[@]}" "${train[@]}" --max_steps 100000 --output_dir stopped >stopped.log 2>&1 &
job=$!
wait_for_steps stopped
kill -TERM "$job"
wait "$job" || true
verdict stopped | grep -q 'good     It was asked to stop after step' || fail "$(verdict stopped)"
! "${run[@]}" "${train[@]}" --max_steps 100 --lr 1000 --output_dir wild >wild.log 2>&1 || fail "a learning rate of 1000 trains"
verdict wild | grep -q 'bad      It failed after step [0-9]*: rank 0: step .*is not finite' || fail "$(verdict wild)"

# --- a stranger's words -------------------------------------------------------------------------------------------------
mkdir evil
printf '{"step": 1, "loss": 2}\n' >evil/metrics.jsonl
printf '{"sessions": [{"began": "%%s%%n", "ranks": 99999999, "ended": {"how": 5, "reason": "\\u001b[2J"}}]}' >evil/run.json
head -c 526208 /dev/urandom >evil/flight-0.bin
ln -s /dev/zero evil/flight-1.bin
"$fsdp" report evil >evil.out || fail "a stranger's folder: $(cat evil.out)"
! grep -q $'\033' evil.out evil/report.html || fail "a stranger's escape sequence came through"
