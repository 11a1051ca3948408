#!/bin/bash
# A job that is ended at random instants and resumed each time until it ends: the loss of every step equals that of a run
# that was never ended, to the last digit. It is ended in turn by kill -9 and by SIGTERM to every process (as systemd and
# Slurm do), to the launcher alone and to one rank. After a SIGTERM no step is lost: the job exits with 143, and its newest
# checkpoint is that of the last step it made. FSDP_KILLS says how often (8; docs/kill-test.md has the long runs).
set -u
kills=${FSDP_KILLS:-8}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
steps=60
# Of a long run in the background, neither the program nor the text may change on the way.
fsdp=$folder/fsdp
cp "$FSDP_BUILD/fsdp" "$fsdp" && cp "$FSDP_SOURCE/README.md" "$folder/text.txt" || exit 1
work=$folder
source "$FSDP_SOURCE/tests/training/on_device.bash"

# compose NAME FLAGS...: two ranks, checkpoints every third step
compose() {
    local name=$1
    shift
    command=("$fsdp" run --standalone --nproc-per-node 2 "$fsdp" train "${device[@]}" --threads 1 --model_type llama_v2 --vocab_size 256
        --hidden_width 32 --num_layers 2 --num_heads 2 --intermediate_size 64 --max_context_width 32 --train_batch_size 2 --dropout 0
        --dataset "$folder/text.txt" --max_steps $steps --logging_freq 100 --lr 1e-2 --warmup 5 --lr_decay_style cosine --grad_clip 1
        --gradient_accumulation_steps 2 --output_dir "$folder/$name" --checkpoint_dir "$folder/$name/ckpt" --checkpoint_freq 3
        --keep_checkpoints 2 --resume_from_checkpoint "$folder/$name/ckpt" "$@")
}

train() {
    compose "$@"
    "${command[@]}" >>"$folder/$1.log" 2>&1
}

fail() {
    echo "FAILED: $*"
    tail -n 40 "$folder/killed.log"
    exit 1
}

# losses NAME: "step loss" once for every step; a step that was seen with two losses is there twice
losses() {
    sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*/\1 \2/p' "$folder/$1/metrics.jsonl" | sort -n -u
}

# compare: the run that was ended again and again, now at its end, against the whole one
compared=0
compare() {
    losses whole >"$folder/a"
    losses killed >"$folder/b"
    [ "$(wc -l <"$folder/a")" -eq $steps ] || fail "$(wc -l <"$folder/a") steps instead of $steps"
    diff "$folder/a" "$folder/b" || fail "the killed run lost its way"
    compared=$((compared + 1))
}

records() { cat "$folder/killed/metrics.jsonl" 2>/dev/null | wc -l; }
last_step() { tail -qn 1 "$folder/killed/metrics.jsonl" 2>/dev/null | sed -n 's/.*"step": *\([0-9]*\).*/\1/p'; }
checkpoints() { ls "$folder/killed/ckpt" 2>/dev/null; }

# end KIND: "KILL" leaves the ranks to the launcher's end
end() {
    local ranks
    mapfile -t ranks < <(pgrep -P $job -f '^[^ ]*fsdp train ')
    case $1 in
    KILL) kill -KILL $job ;;
    "TERM to all") kill -TERM $job "${ranks[@]}" 2>/dev/null ;;
    "TERM to the launcher") kill -TERM $job ;;
    "TERM to a rank") [ ${#ranks[@]} -gt 0 ] && kill -TERM "${ranks[RANDOM % ${#ranks[@]}]}" 2>/dev/null ;;
    esac
}

# ended_well KIND CODE BEFORE: after SIGTERM, saved and said so; BEFORE records were there when the job began. A job that is
# asked before its first step is through has nothing to save.
ended_well() {
    [ "$2" -eq $([ "$1" = KILL ] && echo 137 || echo 143) ] || fail "$1: exit code $2"
    [ "$1" = KILL ] && return
    [ $(($(records) - $3)) -gt 1 ] || return
    local newest
    newest=$(checkpoints | sed -n 's/^step-0*\([0-9]*\)$/\1/p' | tail -n 1)
    [ "$newest" = "$(last_step)" ] || fail "$1: step $(last_step) was made, but the newest checkpoint is that of step $newest"
}

train whole --sharding_strategy full || { cat "$folder/whole.log"; exit 1; }
started=$(date +%s%N)
train timing --sharding_strategy full || { cat "$folder/timing.log"; exit 1; }
span=$((($(date +%s%N) - started) / 1000000))

kinds=("KILL" "TERM to all" "TERM to the launcher" "TERM to a rank")
declare -A count=()
done_kills=0 unfinished=0
while [ $done_kills -lt "$kills" ]; do
    before=$(records)
    compose killed --sharding_strategy shard_grad_op
    setsid "${command[@]}" >>"$folder/killed.log" 2>&1 &
    job=$!
    instant=$(awk -v r=$RANDOM -v m=$span 'BEGIN { printf "%.3f", (0.1 + 0.8 * r / 32768) * m / 1000 }')
    sleep "$instant"
    kind=${kinds[done_kills % 4]}
    code=0
    if kill -0 $job 2>/dev/null && end "$kind"; then
        for ((i = 0; i < 600; i++)); do kill -0 $job 2>/dev/null || break; sleep 0.1; done
        kill -0 $job 2>/dev/null && fail "$kind: still running after a minute"
    fi
    { wait $job || code=$?; } 2>/dev/null
    if [ $code -eq 0 ]; then # it was through already
        compare
        rm -rf "$folder/killed"
        continue
    fi
    ended_well "$kind" $code "$before"
    done_kills=$((done_kills + 1))
    count[$kind]=$((${count[$kind]:-0} + 1))
    checkpoints | grep -q '\.' && unfinished=$((unfinished + 1))
    echo "$done_kills $kind after $instant s: step $(last_step); $(checkpoints | sed 's/^step-0*//; s/-[0-9a-f]*$//' | tr '\n' ' ')"
done
train killed --sharding_strategy full || fail "the last run did not end"
compare
summary=""
for kind in "${kinds[@]}"; do summary+="$kind ${count[$kind]:-0}, "; done
echo "ok: $done_kills kills (${summary}$unfinished with a save or a removal under way), $compared runs resumed to their end, $steps steps each, the same losses to the last digit"
