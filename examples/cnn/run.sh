#!/bin/bash
# A two-branch CNN on generated digits, sharded over two ranks by the size of its layers: run.sh [FOLDER]
# The loss must fall below 0.15, and 97 % of the test images must be recognised.
source "$(dirname "$0")/../common.bash"

${CC:-cc} -O2 "$here/digits.c" "$here/draw_digit.c" -o digits -lm
mkdir -p digits_data
./digits digits_data 6000 1000

# Every layer of 512 parameters and more is a unit. Adam, halved learning rate after each epoch, gradients clipped at 0.1,
# a checkpoint after each epoch, validation on the test images (188 steps make an epoch).
train 2 --model_type cnn --dataset digits_data --wrap_policy size --min_num_params 512 --sharding_strategy full \
    --epochs 4 --train_batch_size 16 --optimizer adam --lr 2e-3 --beta2 0.999 --weight_decay 0 --hidden_width 64 \
    --lr_decay_style step --lr_step_size 1 --lr_gamma 0.5 --grad_clip 0.1 \
    --checkpoint_epochs 1 --validation_freq 188 --logging_freq 47 | tee log

loss_below 0.15
[[ $(ls run/checkpoints | grep -c '^step-[0-9]*$') == 4 ]] || { echo "not a checkpoint per epoch" >&2; exit 1; }
awk '/accuracy/ { sub("%.*", "", $NF); right = $NF + 0 }
     END { printf "accuracy %.2f%%, 97%% wanted\n", right; exit !(right >= 97) }' log
