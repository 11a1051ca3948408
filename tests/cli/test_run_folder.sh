#!/bin/bash
# A run owns its folder: a fresh run does not mix with another's files, the default folder has a name of its own,
# --resume auto starts or goes on, the newest checkpoint is the one that was written last, and every step is in
# metrics.jsonl once.
set -euo pipefail
source "$(dirname "$0")/support.bash"
seq 1 400 >text.txt

train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 16 --num_layers 1 --num_heads 2
    --intermediate_size 32 --max_context_width 16 --train_batch_size 2 --dataset text.txt --memory_report false
    --logging_freq 1000)

run() { "${train[@]}" "$@" >log 2>&1 || fail "$*: exit code $?: $(cat log)"; }
says() { grep -qF -- "$1" log || fail "'$1' is not said: $(cat log)"; }
steps() { sed -n 's/^{"step": \([0-9]*\),.*/\1/p' "$1/metrics.jsonl" | tr '\n' ' '; }

# The default folder: a name per run, and `latest` at the newest. Two runs do not meet, in the same minute either.
mkdir names && cd names && ln -s ../text.txt .
run --max_steps 2
run --max_steps 3
[[ $(ls -d fsdp_runs/2*-llama_v3-* | wc -l) == 2 ]] || fail "folders: $(ls fsdp_runs)"
[[ $(steps fsdp_runs/latest) == "1 2 3 " ]] || fail "latest: $(steps fsdp_runs/latest)"
run --max_steps 5 --resume fsdp_runs/latest
[[ $(ls -d fsdp_runs/2* | wc -l) == 2 && $(steps fsdp_runs/latest) == "1 2 3 4 5 " ]] || fail "resumed: $(find .)"
says "resumed from"
# `latest` moved while a run that was started through it trains: it stays where it is.
first=$(readlink fsdp_runs/latest)
other=fsdp_runs/$(ls fsdp_runs | grep '^2' | grep -vxF "$first") # names of one minute are in no order
"${train[@]}" --max_steps 1000000 --resume fsdp_runs/latest >stays.log 2>&1 &
job=$!
for _ in $(seq 600); do (($(wc -l <"fsdp_runs/$first/metrics.jsonl") > 10)) && break; sleep 0.1; done
ln -sfn "$(basename "$other")" fsdp_runs/latest
kill -TERM $job
code=0
wait $job || code=$?
[[ $code == 143 ]] || fail "stays: exit code $code: $(cat stays.log)"
[[ $(ls "$other/checkpoints" | wc -l) == 1 ]] || fail "a run moved to where latest points: $(ls "$other/checkpoints")"
# `latest` as a folder of the user's is left alone.
rm fsdp_runs/latest && mkdir fsdp_runs/latest && echo mine >fsdp_runs/latest/notes
run --max_steps 1
says "fsdp_runs/latest is no link, so it is left alone"
[[ $(ls fsdp_runs/latest) == notes ]] || fail "latest: $(ls fsdp_runs/latest)"
# A run that does not begin leaves no folder.
n=$(ls fsdp_runs | wc -l)
"${train[@]}" --max_steps 1 --dataset nowhere >log 2>&1 && fail "trains on nothing"
[[ $(ls fsdp_runs | wc -l) == "$n" ]] || fail "left behind: $(ls fsdp_runs)"
mkdir -p ../bare && (cd ../bare && "${train[@]}" --max_steps 1 --dataset nowhere >log 2>&1) && fail "trains on nothing"
[[ $(ls ../bare) == log ]] || fail "left behind: $(find ../bare)"
cd ..

# A folder that holds a run: a choice, and nothing is touched until one is made.
run --output_dir a --max_steps 4 --checkpoint_freq 2
before=$(find a -type f -exec md5sum {} + | sort)
refused 2 "--output_dir=a holds another run (2 checkpoints, up to step 4): go on with it (--resume auto), replace it (--overwrite), or choose another name" \
    "${train[@]:1}" --output_dir a --max_steps 4
refused 2 "--output_dir=a holds another run" "${train[@]:1}" --output_dir a --max_steps 4 --resume b/none
run --output_dir b --max_steps 2
refused 2 "--output_dir=a holds another run" "${train[@]:1}" --output_dir a --max_steps 4 --resume b
refused 2 "--checkpoint_dir=a/checkpoints holds another run" "${train[@]:1}" --output_dir c --checkpoint_dir a/checkpoints --max_steps 4
refused 2 "--overwrite=true and --resume_from_checkpoint=auto contradict" "${train[@]:1}" --output_dir a --overwrite --resume auto
refused 2 "nowhere" "${train[@]:1}" --output_dir a --overwrite --dataset nowhere
[[ $(find a -type f -exec md5sum {} + | sort) == "$before" ]] || fail "a refused run changed the folder"
[[ ! -e c ]] || fail "a refused run left its folder"
echo mine >a/notes
touch a/fp8_check.jsonl # of a run with --fp8_check
run --output_dir a --max_steps 3 --overwrite
[[ ! -e a/fp8_check.jsonl ]] || fail "--overwrite leaves the former run's fp8_check.jsonl"
[[ $(ls a/checkpoints) == step-00000003 && $(steps a) == "1 2 3 " && -e a/notes ]] || fail "overwritten: $(find a)"
# What a run left that died before its first step is no run.
mkdir -p early && echo '{"format": "fsdp-run", "run": "x"}' >early/run.json && touch early/metrics.jsonl early/.lock
run --output_dir early --max_steps 1

# --resume auto: starts, goes on, and is refused where the folder's name would not last.
run --output_dir auto --max_steps 2 --resume auto
says "no checkpoint in auto/checkpoints yet: starting from scratch"
run --output_dir auto --max_steps 4 --resume auto
says "resumed from auto/checkpoints/step-00000002 at step 2"
[[ $(steps auto) == "1 2 3 4 " ]] || fail "auto: $(steps auto)"
refused 2 "--resume auto needs --output_dir" "${train[@]:1}" --resume auto
refused 2 "there is no such folder" "${train[@]:1}" --output_dir new --resume gone/checkpoints
refused 2 "there is no such folder" "${train[@]:1}" --resume gone
[[ $(sed -n '/"sessions"/,$p' auto/run.json | grep -o '"step": *[0-9]*' | grep -o '[0-9]*$' | xargs) == "0 2" ]] || fail "sessions: $(cat auto/run.json)"

# Killed between metrics and the next checkpoint, with a torn last line: each step is there once, in the order of steps.
"${train[@]}" --output_dir killed --max_steps 1000000 --checkpoint_freq 20 --validation_split 0.2 --validation_freq 7 >killed.log 2>&1 &
job=$!
for _ in $(seq 600); do [[ -e killed/checkpoints/step-00000040 ]] && break; sleep 0.05; done
kill -KILL $job
wait $job 2>/dev/null || true
newest=$(ls killed/checkpoints | grep -E '^step-[0-9]+$' | tail -n 1 | sed 's/step-0*//')
printf '{"step": 99999999, "loss": 1.5, "gra' >>killed/metrics.jsonl
run --output_dir killed --max_steps $((newest + 10)) --resume auto --validation_split 0.2 --validation_freq 7
[[ $(steps killed) == "$(seq -s ' ' 1 $((newest + 10))) " ]] || fail "killed at $newest: $(steps killed)"
[[ $(grep -o '"step": [0-9]*' killed/validation.jsonl | sort | uniq -d) == "" ]] || fail "validations twice: $(cat killed/validation.jsonl)"

# Back to an earlier step: the newest is what was written last, for resuming, for generating and for retention.
run --output_dir back --max_steps 8 --checkpoint_freq 2
run --output_dir back --max_steps 5 --lr 1e-3 --resume back/checkpoints/step-00000004 --keep_checkpoints 3
says "--lr is 0.001, the checkpoint was written with 0.0003"
[[ $(ls back/checkpoints | tr '\n' ' ') == "step-00000005 step-00000006 step-00000008 " ]] || fail "retention: $(ls back/checkpoints)"
[[ $(steps back) == "1 2 3 4 5 " ]] || fail "back: $(steps back)"
run --output_dir back --max_steps 6 --resume auto
says "resumed from back/checkpoints/step-00000005 at step 5"
run --output_dir back --max_steps 7 --resume auto --lr_groups 'lm_head.*=0.5'
says '--lr_groups is ["lm_head.*=0.5"], the checkpoint was written with none'
run --output_dir back --max_steps 8 --resume auto
says '--lr_groups is none, the checkpoint was written with ["lm_head.*=0.5"]'
refused 2 "holds the state of --optimizer adamw, which muon cannot go on from" "${train[@]:1}" --output_dir back --resume auto --optimizer muon
"$fsdp" ckpt show back/checkpoints >/dev/null || fail "ckpt show"

# A folder of checkpoints that holds another run's, too, more of them and further: this run goes on with its own, and
# retention removes nothing else.
run --output_dir far --max_steps 9 --checkpoint_freq 1
run --output_dir near --checkpoint_dir apart --max_steps 2 --checkpoint_freq 1
cp -r far/checkpoints/step-00000009 apart/
run --output_dir near --checkpoint_dir apart --max_steps 4 --checkpoint_freq 1 --keep_checkpoints 1 --resume auto
says "resumed from apart/step-00000002 at step 2"
[[ $(ls apart | tr '\n' ' ') == "step-00000004 step-00000009 " ]] || fail "another run's checkpoint was removed: $(ls apart)"

# The ckpt commands take the run's own there, too, although another's is newer; and one that is gone is named.
run --output_dir near --checkpoint_dir apart --max_steps 6 --checkpoint_freq 1 --keep_checkpoints 9 --resume auto
"$fsdp" ckpt show near >log || fail "ckpt show of a run: $(cat log)"
grep -q "3 checkpoints" log && ! grep -q step-00000009 log || fail "ckpt show lists another run's: $(cat log)"
"$fsdp" ckpt export near exported >log 2>&1 && grep -q "step-00000006" log || fail "ckpt export takes another run's: $(cat log)"
"$fsdp" ckpt prune near --keep_checkpoints 1 >log || fail "ckpt prune of a run: $(cat log)"
[[ $(ls apart | tr '\n' ' ') == "step-00000006 step-00000009 " ]] || fail "ckpt prune removed another run's: $(ls apart)"
mv apart gone
refused 2 "/apart, which is not there any more" ckpt prune near
mv gone apart

# Two jobs in one folder at once: the second is refused and the first goes on.
"${train[@]}" --output_dir busy --max_steps 1000000 --checkpoint_freq 10 >busy.log 2>&1 &
job=$!
for _ in $(seq 600); do [[ -e busy/checkpoints/step-00000010 ]] && break; sleep 0.05; done
refused 2 "busy: another job trains in this folder (process $job on" "${train[@]:1}" --output_dir busy --resume auto
"${train[@]}" --output_dir busy --overwrite >log 2>&1 && fail "a folder in use is overwritten"
says "another job trains in this folder"
kill -0 $job || fail "the first job has ended: $(cat busy.log)"
kill -TERM $job
code=0
wait $job || code=$?
[[ $code == 143 ]] || fail "busy: exit code $code: $(cat busy.log)"
run --output_dir busy --resume auto --max_steps $(($(ls busy/checkpoints | tail -n 1 | sed 's/step-0*//') + 1))

# Another number of ranks: one line says what becomes of the batch.
"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir auto --max_steps 5 --resume auto >log 2>&1 || fail "$(cat log)"
says "2 ranks instead of 1: a step has 4 samples instead of 2"
run --output_dir auto --max_steps 6 --gradient_accumulation_steps 2 --resume auto
says "1 rank instead of 2: a step still has 4 samples, in 2 micro-batches of 2 per rank instead of 1 of 2"

# A folder that this user cannot write: said before anything is read.
if [[ $(id -u) == 0 ]] && command -v setpriv >/dev/null && setpriv --reuid=65534 --clear-groups test -x "$fsdp"; then
    mkdir theirs && chmod 755 . theirs
    code=0
    setpriv --reuid=65534 --clear-groups "${train[@]}" --output_dir theirs/run --max_steps 1 >log 2>&1 || code=$?
    [[ $code == 2 && ! -e theirs/run ]] || fail "unwritable: exit code $code: $(cat log)"
    says "cannot be made"
    (cd theirs && setpriv --reuid=65534 --clear-groups "${train[@]}" --dataset ../text.txt --max_steps 1 >../log 2>&1) && fail "wrote into a folder of another's"
    says "fsdp_runs"
fi

# The launcher starts a job again: without a word it goes on where the job was, in the same folder.
"$fsdp" run --standalone --nproc-per-node 1 --max_restarts 2 "${train[@]}" --max_steps 1000000 --checkpoint_freq 5 >again.log 2>&1 &
job=$!
for _ in $(seq 600); do [[ -e fsdp_runs/latest/checkpoints/step-00000010 ]] && break; sleep 0.05; done
rank=$(pgrep -P $job -f '^[^ ]*fsdp train ')
kill -KILL "$rank"
for _ in $(seq 600); do grep -q "resumed from" again.log && break; sleep 0.1; done
grep -q "resumed from" again.log || fail "the restarted job does not go on: $(cat again.log)"
kill -TERM $job
code=0
wait $job || code=$?
[[ $code == 143 && $(ls -d fsdp_runs/2* | wc -l) == 1 ]] || fail "again: exit code $code: $(ls fsdp_runs) $(cat again.log)"
echo "ok"
