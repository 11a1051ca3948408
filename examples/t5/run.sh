#!/bin/bash
# T5 learns to summarise 1000 made articles in one epoch, on two ranks: run.sh [FOLDER]
# The shape is that of t5-small, cut down by flags so that it runs anywhere in a minute. The loss must fall below 0.1, and of 20
# articles that it has not seen at least 16 must be summarised word for word.
source "$(dirname "$0")/../common.bash"

awk -v n=1000 -v seed=1 -f "$here/words.awk" -f "$here/pairs.awk" >pairs.jsonl
awk -v n=40 -v seed=2 -f "$here/words.awk" -f "$here/pairs.awk" >validation.jsonl
awk -f "$here/words.awk" -f "$here/tokenizer.awk" >tokenizer.json

# For t5-small itself leave the third line of flags out, and take its tokenizer and weights:
#   --tokenizer google-t5/t5-small --init_from google-t5/t5-small
train 2 --preset t5-small --dataset pairs.jsonl --validation_dataset validation.jsonl --source_prefix "summarize: " \
    --epochs 1 --train_batch_size 1 --lr 1e-3 --warmup 20 --lr_decay_style linear --sharding_strategy full --logging_freq 50 \
    --tokenizer tokenizer.json --hidden_width 128 --num_layers 2 --num_decoder_layers 2 --num_heads 4 --head_dim 32 \
    --intermediate_size 256 --max_context_width 32 --max_target_width 8 --dropout 0

loss_below 0.1
right=0
while IFS='|' read -r article summary; do
    written=$("$fsdp" generate --model run/checkpoints --tokenizer tokenizer.json --prompt "summarize: $article" --max_new_tokens 8)
    [[ $written == "$summary" ]] && right=$((right + 1))
    printf '%s\n  -> %s\n' "$article" "$written"
done < <(sed -n '1,20s/{"text": "\(.*\)", "summary": "\(.*\)"}/\1|\2/p' validation.jsonl)
echo "$right of 20 summaries are right, 16 wanted"
((right >= 16))
