#!/bin/bash
# A rank that is killed, stopped or crashes, and a launcher that is killed, cost a restart and nothing else: the job ends with
# the bits of a run that nobody disturbed. When a host stays away, the job goes on with fewer ranks as a run resumed there would.
set -euo pipefail
source "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
seq 1 4000 >text.txt
train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 64 --num_layers 2 --num_heads 2
    --intermediate_size 128 --max_context_width 64 --train_batch_size 4 --dataset text.txt --max_steps 60 --checkpoint_freq 10
    --sharding_strategy full --no_async_checkpoint --comm_timeout 60 --sample_tokens 0)
launchers=()
trap 'kill -9 "${launchers[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

free_port()
{
    local port
    for _ in $(seq 50); do
        port=$((20000 + RANDOM % 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# launch NAME NODE NNODES PORT FLAGS...: one launcher with one rank, in the background
launch()
{
    local name=$1 node=$2 nodes=$3 port=$4
    shift 4
    "$fsdp" run --nnodes "$nodes" --node_rank "$node" --rdzv_endpoint "127.0.0.1:$port" --rdzv_conf last_call_timeout=2 \
        --max_restarts 3 --report "$name.report" "$@" "${train[@]}" --output_dir "$name" --resume_from_checkpoint "$name/checkpoints" \
        >>"$name.$node.log" 2>&1 </dev/null &
    launchers[node]=$!
}

# of_rank NAME RANK: the process of a rank
of_rank()
{
    local pid
    for pid in $(pgrep -f -- "--output_dir $1 "); do
        if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "RANK=$2" && grep -qa train "/proc/$pid/cmdline"; then
            echo "$pid"
        fi
    done
}

# reached NAME STEP: waits until the run has made this step
reached()
{
    for _ in $(seq 1200); do
        [[ -s $1/metrics.jsonl && $(wc -l <"$1/metrics.jsonl") -ge $2 ]] && return
        sleep 0.02
    done
    fail "$1 does not reach step $2: $(tail -5 "$1".*.log)"
}

ended()
{
    local name=$1 code=0
    wait "${launchers[0]}" || code=$?
    wait "${launchers[1]}" || code=$?
    [[ $code == 0 ]] || fail "$name: exit code $code: $(tail -20 "$name".*.log)"
}

same()
{
    "$fsdp" ckpt diff "$1/checkpoints/step-00000060" "$2/checkpoints/step-00000060" >diff.log || fail "$2 differs: $(head -3 diff.log)"
}

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"

# --- ranks -------------------------------------------------------------------------------------------------------------------
for blow in KILL STOP SEGV; do
    port=$(free_port)
    launch "$blow" 0 2 "$port" --watchdog 2
    launch "$blow" 1 2 "$port" --watchdog 2
    reached "$blow" 15
    struck=$(date +%s%N)
    kill -"$blow" "$(of_rank "$blow" 1)"
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
    reached lost$node 15
    victims=$(of_rank lost$node $node)
    kill -9 "${launchers[node]}"
    wait "${launchers[node]}" 2>/dev/null || true
    for pid in $victims; do
        for _ in $(seq 200); do
            [[ -d /proc/$pid ]] && ! grep -q '^State:.*[ZX]' "/proc/$pid/status" 2>/dev/null || continue 2
            sleep 0.1
        done
        fail "a rank outlived its launcher"
    done
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
kill -9 "${launchers[1]}"
wait "${launchers[0]}" || fail "one node left: $(tail -20 less.0.log)"
grep -q '1 ranks instead of 2: 2 micro-batches a step' less.0.log || fail "the batch is not kept: $(tail -20 less.0.log)"
step=$(sed -n 's/.*resumed from .* at step \([0-9]*\).*/\1/p' less.0.log | tail -1)
[[ ${step:-0} -ge 10 ]] || fail "not resumed: $(tail -20 less.0.log)"
mkdir first
cp -r "calm/checkpoints/step-$(printf %08d "$step")" first/
"$fsdp" run --standalone "${train[@]}" --output_dir then --gradient_accumulation_steps 2 --resume_from_checkpoint first \
    >then.log 2>&1 || fail "$(cat then.log)"
same then less
echo "with one host less: the bits of a run resumed at step $step on one rank"
