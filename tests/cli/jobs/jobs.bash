# A job of two launchers with a rank each that tests disturb: its command, its start, who is who in it, and its end. For
# tests that have sourced support.bash; they may set `steps` before, `endpoint` after, and define on_node anew.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
seq 1 4000 >text.txt
train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 64 --num_layers 2 --num_heads 2
    --intermediate_size 128 --max_context_width 64 --train_batch_size 4 --dataset text.txt --max_steps "${steps:=60}" --checkpoint_freq 10
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

endpoint=127.0.0.1
on_node() { exec "${@:2}"; } # on_node NODE COMMAND...: in the background, as if on this node

# launch NAME NODE NNODES PORT FLAGS...: one launcher with one rank, in the background. Where fewer nodes are enough, the first round
# waits long for the others: nobody is to begin alone because the machine is busy.
launch()
{
    local name=$1 node=$2 nodes=$3 port=$4
    shift 4
    on_node "$node" "$fsdp" run --nnodes "$nodes" --node_rank "$node" --rdzv_endpoint "$endpoint:$port" --rdzv_conf last_call_timeout=20 \
        --max_restarts 3 --report "$name.report" "$@" "${train[@]}" --output_dir "$name" --resume_from_checkpoint "$name/checkpoints" \
        >>"$name.$node.log" 2>&1 </dev/null &
    launchers[node]=$!
}

# processes_of NAME: all of a job of this test; others may run jobs of the same name
processes_of()
{
    local pid
    for pid in $(pgrep -f -- "--output_dir $1 "); do
        [[ ! /proc/$pid/cwd -ef $work ]] || echo "$pid"
    done
}

# of_rank NAME RANK: the process of a rank
of_rank()
{
    local pid
    for pid in $(processes_of "$1"); do
        if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "RANK=$2" && grep -qa train "/proc/$pid/cmdline"; then
            echo "$pid"
        fi
    done
}

# find_rank NAME RANK: waits for the process of a rank; $victim is it. Who strikes it at a step looks for it before: that takes time in
# which the run goes on.
find_rank()
{
    local until=$((SECONDS + 120))
    while ((SECONDS < until)); do
        victim=$(of_rank "$1" "$2")
        [[ -z $victim ]] || return 0
        sleep 0.05
    done
    fail "$1 has no rank $2: $(tail -n 5 "$1".*.log "$1.log" 2>/dev/null)"
}

# hit NAME [SIGNAL]: strikes $victim, KILL where no signal is given
hit() { kill -"${2:-KILL}" "$victim" 2>/dev/null || fail "$1: the rank ended before it was struck: more steps are needed"; }

# strike NAME RANK STEP [SIGNAL]: once the run has made this step
strike()
{
    find_rank "$1" "$2"
    reached "$1" "$3"
    hit "$1" "${4:-KILL}"
}

# lose NAME NODE: kills a launcher, and with it its ranks
lose()
{
    kill -9 "${launchers[$2]}" 2>/dev/null || fail "$1: launcher $2 ended before it was killed: more steps are needed"
    wait "${launchers[$2]}" 2>/dev/null || true
}

# reached NAME STEP: waits until the run has made this step
reached()
{
    local until=$((SECONDS + 120)) # a loaded machine takes long to start four ranks
    while ((SECONDS < until)); do
        [[ -s $1/metrics.jsonl && $(wc -l <"$1/metrics.jsonl") -ge $2 ]] && return
        sleep 0.02
    done
    fail "$1 does not reach step $2: $(tail -n 5 "$1".*.log)"
}

ended()
{
    local name=$1 code=0 until=$((SECONDS + 300))
    while kill -0 "${launchers[0]}" 2>/dev/null || kill -0 "${launchers[1]}" 2>/dev/null; do
        ((SECONDS < until)) || fail "$name does not end: $(tail -n 20 "$name".*.log "$name.report" 2>/dev/null)"
        sleep 0.02
    done
    wait "${launchers[0]}" || code=$?
    wait "${launchers[1]}" || code=$?
    [[ $code == 0 ]] || fail "$name: exit code $code: $(tail -n 20 "$name".*.log "$name.report" 2>/dev/null)"
}

same()
{
    local last
    last=checkpoints/step-$(printf %08d "$steps")
    "$fsdp" ckpt diff "$1/$last" "$2/$last" >diff.log || fail "$2 differs: $(head -3 diff.log)"
}
