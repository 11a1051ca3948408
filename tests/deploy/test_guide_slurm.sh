#!/bin/bash
# The guide to Slurm is true: its commands run on a real Slurm of two nodes (on this host), with tokenizer and data from a hub that
# is here too. Shapes are cut down by the environment, as deploy/slurm reads it; the page's own flags come after and win. Skipped
# where Slurm is missing; `make test-slurm` installs it.
set -euo pipefail
source "$(dirname "$0")/../cli/support.bash"
source "$(dirname "$0")/../cli/guides.bash"
source "$(dirname "$0")/slurm_cluster.bash"
missing=$(slurm_missing)
[[ -z $missing ]] || { echo "skipped: $missing"; exit 77; }
"$fsdp" --version | grep -qw libcurl || { echo "skipped: built without libcurl"; exit 77; }
USER=$(id -un)
export USER
trap 'slurm_stop; [[ -z $(jobs -p) ]] || kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

tokenizer=repositories/models/hf-internal-testing/llama-tokenizer data=repositories/datasets/allenai/c4/en
mkdir -p $tokenizer $data
cp "$source_root/tests/golden/tokenizer_llama2/tokenizer.json" $tokenizer
for i in $(seq 3000); do echo "{\"text\": \"Number $i comes after number $((i - 1)), as everybody knows.\"}"; done >$data/c4-train.00000-of-01024.json
head -n 400 $data/c4-train.00000-of-01024.json >$data/c4-validation.00000-of-00008.json
start_hub
slurm_start
export FSDP=$fsdp GPUS_PER_NODE=0 RANKS_PER_NODE=1 EXTRA_ARGS="--threads 1 --hidden_width 32 --num_layers 2 --num_heads 2 \
--num_key_value_heads 2 --intermediate_size 64 --max_context_width 32 --train_batch_size 2 --validation_batches 2 --comm_timeout 60 --max_steps 20"
follow_page llama-under-slurm
