#!/bin/bash
# The lecture's program: three epochs on two workers; killed in the third and resumed on one, two and three workers it
# ends with the same validation loss, on two with the same bits. It reads MNIST's files, and its lean variant learns.
set -euo pipefail
build=${FSDP_BUILD:?} source_root=${FSDP_SOURCE:?}
fsdp=$build/fsdp
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_NUM_THREADS=1

fail()
{
    echo "FAILED: $*" >&2
    tail -n 20 ./*.log >&2
    exit 1
}

# lecture WORKERS FOLDER FLAGS...: becomes the program on so many workers, small enough for a test
lecture()
{
    local workers=$1 folder=$2
    shift 2
    exec "$fsdp" run --standalone --nproc-per-node "$workers" --plain "$build/examples/lecture" --checkpoint "$folder" \
        --training 1000 --validation 300 --batch 50 "$@"
}

# learn WORKERS FOLDER FLAGS...: runs it to its end; what it says is in FOLDER.log
learn()
{
    (lecture "$@") >"$2.log" 2>&1 || fail "$2: exit code $?"
}

says() { grep -q -- "$2" "$1.log" || fail "$1 does not say '$2'"; }
final_loss() { sed -n 's/^Final validation loss \([^,]*\),.*/\1/p' "$1.log"; }
checkpoints() { find "$1" -maxdepth 1 -name 'step-*' | sort; }

# close_to A B LIMIT
close_to() { awk -v a="$1" -v b="$2" -v limit="$3" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < limit && -d < limit) }'; }

learn 2 whole --epochs 3
for epoch in 1 2 3; do
    says whole "Worker 1 / 2 begins Epoch $epoch / 3"
    says whole "Worker 2 / 2 begins Epoch $epoch / 3"
    says whole "^Epoch $epoch: training average loss [0-9.]*, validation loss [0-9.]*, accuracy [0-9.]* %, [0-9.]* s, peak memory"
done
[[ $(checkpoints whole | wc -l) == 3 ]] || fail "not a checkpoint per epoch: $(checkpoints whole)"
for kind in full sharded local; do
    "$fsdp" ckpt verify "whole/final_$kind" >verify.log 2>&1 || fail "no good final save of the kind $kind"
done
final=$(final_loss whole)
close_to "$final" 0 0.6 || fail "the final validation loss is $final"

# Killed in the third epoch; should the kill have come late, what it saved after the second is gone all the same.
(lecture 2 killed --epochs 99) >killed.log 2>&1 &
job=$!
for ((i = 0; i < 1200; i++)); do
    grep -q "begins Epoch 3" killed.log && break
    sleep 0.05
done
kill -KILL $job
wait $job 2>/dev/null && fail "the killed job ended well"
checkpoints killed | tail -n +3 | xargs -r rm -rf
[[ $(checkpoints killed | wc -l) == 2 ]] || fail "killed in the third epoch, but these are its checkpoints: $(checkpoints killed)"

for workers in 1 2 3; do
    cp -r killed "resumed$workers"
    learn $workers "resumed$workers" --epochs 3
    says "resumed$workers" "Resuming training from checkpoint at epoch 2"
    says "resumed$workers" "Worker $workers / $workers begins Epoch 3 / 3"
    ! grep -q "begins Epoch [12] /" "resumed$workers.log" || fail "resumed$workers begins again"
    close_to "$(final_loss "resumed$workers")" "$final" 1e-4 ||
        fail "on $workers workers the final validation loss is $(final_loss "resumed$workers") instead of $final"
done
[[ $(final_loss resumed2) == "$final" ]] || fail "resumed on two workers: $(final_loss resumed2) instead of $final"
"$fsdp" ckpt diff whole/final_sharded resumed2/final_sharded >diff.log 2>&1 ||
    fail "resumed on two workers: other bits"

learn 2 resumed2 --epochs 3
says resumed2 "Resuming training from checkpoint at epoch 3"
[[ $(final_loss resumed2) == "$final" ]] || fail "a run that had ended gives another loss"

learn 2 lean --epochs 2 --lean --accumulation 2 --checkpoint_interval 2
[[ $(checkpoints lean | wc -l) == 1 ]] || fail "not a checkpoint every second epoch: $(checkpoints lean)"
close_to "$(final_loss lean)" 0 1.2 || fail "the lean variant does not learn: $(final_loss lean)"

mkdir mnist
${CC:-cc} -O2 "$source_root"/examples/cnn/{digits,draw_digit}.c -o digits -lm
./digits mnist 500 100
learn 2 files --epochs 1 --data mnist
says files "^Epoch 1: training average loss"

code=0
"$build/examples/lecture" --epochs none --checkpoint refused >refused.log 2>&1 || code=$?
[[ $code == 2 ]] || fail "--epochs none: exit code $code"
says refused "lecture: --epochs wants a positive number, not 'none'"
echo "final validation loss: 2 workers $final, resumed on 1 $(final_loss resumed1), on 3 $(final_loss resumed3), lean $(final_loss lean)"
