#!/bin/bash
# When a run saves, what it keeps, how it ends on a signal, what a failing disk does to it, and what it says on resuming.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

tiny=("$fsdp" train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 16 --num_layers 1 --num_heads 2
    --intermediate_size 32 --max_context_width 16 --train_batch_size 2 --dropout 0 --dataset text.txt --logging_freq 100)

# train NAME FLAGS...: a tiny run, its log in NAME.log, its checkpoints in NAME/checkpoints.
train()
{
    local name=$1
    shift
    "${tiny[@]}" --output_dir "$name" "$@" >"$name.log" 2>&1
}

# has NAME STEP...: these checkpoints are there, and nothing else.
has()
{
    local name=$1 wanted
    shift
    wanted=$(printf 'step-%08d ' "$@")
    [[ "$(ls "$name/checkpoints" | tr '\n' ' ')" == "$wanted" ]] ||
        fail "$name: $(ls "$name/checkpoints" | tr '\n' ' ')instead of $wanted; $(cat "$name.log")"
}

says()
{
    grep -qF -- "$2" "$1.log" || fail "$1: '$2' is not in its log: $(cat "$1.log")"
}

# 33 samples of 16 tokens (a token more is the last label): 16 steps of 2 are an epoch.
head -c $((33 * 16 + 1)) "$source_root/README.md" | tr '\0-\37\200-\377' ' ' >text.txt

# Every so many steps; the newest K and every M-th are kept.
train freq --max_steps 11 --checkpoint_freq 2 --keep_checkpoints 2 --keep_every 4 --no_checkpoint_at_end
has freq 4 8 10
train freq_end --max_steps 5 --checkpoint_freq 3
has freq_end 3 5

# Every epoch; every so many minutes (so few that each step is late); only at the end; not at all.
train epochs --epochs 3 --checkpoint_epochs 1
[[ $(ls epochs/checkpoints | wc -l) == 3 ]] || fail "epochs: $(ls epochs/checkpoints)"
train minutes --max_steps 4 --checkpoint_minutes 0.000001 --no_checkpoint_at_end
has minutes 1 2 3 4
train end --max_steps 4
has end 4
train never --max_steps 4 --no_checkpoint_at_end
[[ ! -e never/checkpoints ]] || fail "never: $(ls never/checkpoints)"

# Each kind; full ones are model folders, in parts under a size, and resume like the others.
for kind in full local; do
    train $kind --max_steps 4 --checkpoint_kind $kind --checkpoint_freq 2 --export_part_size 8KB --keep_checkpoints 1
    train $kind --max_steps 6 --checkpoint_kind $kind --resume_from_checkpoint $kind/checkpoints
    says $kind "at step 4"
done
[[ -e full/checkpoints/step-00000006/config.json ]] || fail "full: no config.json"
[[ -e full/checkpoints/step-00000004/model.safetensors.index.json ]] || fail "full: no index over its parts"
for part in full/checkpoints/step-00000004/model-*.safetensors; do
    (($(stat -c %s "$part") < 24000)) || fail "$part: larger than its largest tensor with a header"
done

# SIGTERM and SIGUSR1: saved at that step, exit code 128 plus the signal, and the run can go on.
for signal in TERM USR1; do
    "${tiny[@]}" --output_dir $signal --max_steps 1000000 --checkpoint_freq 1000000 >$signal.log 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do
        [[ -s $signal/metrics.jsonl ]] && break
        sleep 0.1
    done
    kill -$signal $job
    code=0
    wait $job || code=$?
    [[ $code == $((128 + $(kill -l $signal))) ]] || fail "SIG$signal: exit code $code: $(cat $signal.log)"
    [[ $(ls $signal/checkpoints | wc -l) == 1 ]] || fail "SIG$signal: $(ls $signal/checkpoints)"
    step=$(ls $signal/checkpoints | sed 's/step-0*//')
    train ${signal}2 --max_steps $((step + 2)) --resume_from_checkpoint $signal/checkpoints
    says ${signal}2 "at step $step"
done

# A run that still waits for something, here for a peer that does not come, has nothing to save: it ends at once.
for signal in TERM USR1; do
    RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 12000)) \
        "${tiny[@]}" --output_dir waiting --max_steps 1 >waiting.log 2>&1 &
    job=$!
    sleep 1
    kill -$signal $job
    for ((i = 0; i < 300; i++)); do
        kill -0 $job 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL $job 2>/dev/null || true
    code=0
    wait $job || code=$?
    [[ $code == $((128 + $(kill -l $signal))) ]] || fail "SIG$signal before the first step: exit code $code: $(cat waiting.log)"
done

# A disk that takes no more (files of 16 KiB at most): the last good one stays; training goes on, or stops, as asked.
train full_disk --max_steps 2
cp -r full_disk/checkpoints good
limited() { (trap '' XFSZ && ulimit -f 16 && train "$@"); }
code=0
limited full_disk --max_steps 4 --checkpoint_freq 1 --resume_from_checkpoint full_disk/checkpoints || code=$?
[[ $code == 1 ]] || fail "full_disk: its last checkpoint is not saved, exit code $code: $(cat full_disk.log)"
says full_disk "checkpoint failed, training continues"
says full_disk "training has ended at step 4, but the last checkpoint was not saved"
says full_disk "File too large"
has full_disk 2
diff -r good full_disk/checkpoints || fail "full_disk: the last good checkpoint has changed"
for async in --async_checkpoint --no_async_checkpoint; do
    code=0
    limited stopped --overwrite --max_steps 4 --checkpoint_freq 1 --on_checkpoint_failure stop $async || code=$?
    [[ $code == 1 ]] || fail "stopped $async: exit code $code: $(cat stopped.log)"
    says stopped "File too large"
done

# One save fails, in the background or not (a file is where its folder should go): the next is made all the same, and exit
# code 0 says that the last one is there. When that fails, exit code 1 says so.
for async in --async_checkpoint --no_async_checkpoint; do
    for end in "--max_steps 5" "--max_steps 4" "--max_steps 5 --no_checkpoint_at_end"; do
        rm -rf hindered && mkdir -p hindered/checkpoints && touch hindered/checkpoints/step-00000002
        train hindered --checkpoint_freq 2 $async $end || fail "hindered $async $end: exit code $?: $(cat hindered.log)"
        says hindered "checkpoint failed, training continues"
        [[ -e hindered/checkpoints/step-00000004/COMMIT ]] || fail "hindered $async $end: $(ls hindered/checkpoints)"
    done
    for end in "--max_steps 2" "--max_steps 3 --no_checkpoint_at_end"; do
        rm -rf lost && mkdir -p lost/checkpoints && touch lost/checkpoints/step-00000002
        code=0
        train lost --checkpoint_freq 2 $async $end || code=$?
        [[ $code == 1 ]] || fail "lost $async $end: exit code $code: $(cat lost.log)"
        says lost "but the last checkpoint was not saved"
    done
    rm -rf stops && mkdir -p stops/checkpoints && touch stops/checkpoints/step-00000002
    code=0
    train stops --checkpoint_freq 2 --max_steps 9 --on_checkpoint_failure stop $async || code=$?
    [[ $code == 1 ]] || fail "stops $async: exit code $code: $(cat stops.log)"
    [[ $async == --no_async_checkpoint || -e stops/checkpoints/step-00000004/COMMIT ]] ||
        fail "stops: what there was when the failure showed is not saved: $(ls stops/checkpoints)"
done

# What resuming says: this run's own folder may be missing or empty, anything else that cannot be resumed is refused.
train scratch --max_steps 1 --resume_from_checkpoint scratch/checkpoints
says scratch "no checkpoint in scratch/checkpoints yet: starting from scratch"
mkdir own
ln -s own link
train linked --max_steps 1 --checkpoint_dir link/steps --resume_from_checkpoint ./own//steps
says linked "no checkpoint in ./own//steps yet: starting from scratch"
mkdir -p scratch2/checkpoints/step-00000003.tmp-0123456789abcdef
train scratch2 --max_steps 1 --resume_from_checkpoint "$PWD/scratch2/checkpoints"
says scratch2 "yet: starting from scratch"

# refuses TEXT PATH
refuses()
{
    local code=0
    train refused --max_steps 1 --resume_from_checkpoint "$2" || code=$?
    [[ $code == 2 ]] || fail "resuming from $2: exit code $code: $(cat refused.log)"
    says refused "$1"
    [[ ! -e refused ]] || fail "resuming from $2: left a run folder"
}
mkdir empty
refuses "there is no such folder; only this run's own checkpoint folder, refused/checkpoints, may be missing" nowhere
refuses "there is no such folder" end/checkpoints/step-00000001
refuses "no checkpoint there" empty
refuses "--init_from starts a new run from its weights" "$FSDP_SOURCE/tests/golden/llama_gqa"
refuses "name the folder that holds them, local/checkpoints" local/checkpoints/step-00000006

# The newest is damaged.
shard=freq/checkpoints/step-00000010/rank-00000.safetensors
printf 'x' | dd of=$shard bs=1 seek=$(($(stat -c %s $shard) - 9)) conv=notrunc 2>/dev/null
mkdir freq/checkpoints/step-00000011.tmp-0123456789abcdef
train freq --max_steps 9 --lr 0.5 --resume_from_checkpoint freq/checkpoints
says freq "step-00000010 is corrupt and was skipped"
says freq "step-00000011.tmp-0123456789abcdef is incomplete and was skipped"
says freq "resumed from freq/checkpoints/step-00000008 at step 8"
says freq "--lr is 0.5, the checkpoint was written with 0.0003"
grep -q "^--seed\|^--output_dir" freq.log && fail "differences that are none: $(cat freq.log)"

# A folder of the user's is refused before training, not after it, and stays as it is; an export of ours is replaced.
mkdir precious && echo mine >precious/config.json
code=0
train exports --max_steps 2 --export_dir precious || code=$?
[[ $code == 2 && ! -e exports/checkpoints && "$(cat precious/config.json)" == mine ]] || fail "precious: exit code $code: $(cat exports.log)"
says exports "--export_dir: precious: is not empty and not marked as an export of ours"
for steps in 2 3; do
    train exports --max_steps $steps --export_dir exported --overwrite
    echo notes >exported/notes
done
[[ -e exported/model.safetensors && -e exported/notes ]] || fail "exported: $(ls exported)"

# Another model's checkpoint is an error that names what does not fit.
code=0
train other --max_steps 9 --hidden_width 32 --resume_from_checkpoint end/checkpoints || code=$?
[[ $code == 2 ]] || fail "another model: exit code $code: $(cat other.log)"
says other "is a checkpoint of another model: --hidden_width is 32 and was 16, --head_dim is 16 and was 8"
[[ $(wc -l <other.log) == 1 ]] || fail "another model: more than one line: $(cat other.log)"
echo "ok"
