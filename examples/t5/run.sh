#!/bin/bash
# T5 learns to summarise 1000 made articles in one epoch, on two ranks: run.sh [FOLDER]
# The shape is that of t5-small, cut down by flags so that it runs anywhere. The loss must fall below 0.4.
source "$(dirname "$0")/../common.bash"

awk -v n=1000 -v seed=1 -f "$here/pairs.awk" >pairs.jsonl
awk -v n=40 -v seed=2 -f "$here/pairs.awk" >validation.jsonl

# Leave out the second line of flags, and give a tokenizer, for t5-small itself:
#   --tokenizer google-t5/t5-small --init_from google-t5/t5-small
train 2 --preset t5-small --dataset pairs.jsonl --validation_dataset validation.jsonl --source_prefix "summarize: " \
    --vocab_size 256 --hidden_width 128 --num_layers 2 --num_decoder_layers 2 --num_heads 4 --head_dim 32 --intermediate_size 256 \
    --max_context_width 128 --max_target_width 40 --dropout 0 --epochs 1 --train_batch_size 2 \
    --lr 3e-3 --warmup 20 --lr_decay_style linear --sharding_strategy full --logging_freq 50

loss_below 0.4
article="Few visitors heard it. On Sunday Grace painted the station. Most people liked it."
echo "$article"
"$fsdp" generate --model run/checkpoints --prompt "summarize: $article" --max_new_tokens 40
