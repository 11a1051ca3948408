#!/bin/bash
# A small LLaMA reads the sources of this repository byte by byte, on two ranks: tiny.sh [FOLDER]
# It stops half way, goes on from its checkpoint, and then writes. The loss must fall below 3.2.
source "$(dirname "$0")/../common.bash"

flags=(--preset tiny --dataset "$root/src,$root/include" --hidden_width 128 --num_layers 4 --num_heads 4 --num_key_value_heads 2
    --intermediate_size 344 --max_context_width 128 --train_batch_size 8 --sharding_strategy full --activation_checkpointing selective
    --lr 3e-3 --lr_decay_iters 80 --checkpoint_freq 40 --resume auto
    --logging_freq 10 --sample_tokens 0)
train 2 "${flags[@]}" --max_steps 40
train 2 "${flags[@]}" --max_steps 80

loss_below 3.2
"$fsdp" generate --model run --prompt "static int " --echo --max_new_tokens 120 --temperature 0.7 --top_k 40 --seed 1
