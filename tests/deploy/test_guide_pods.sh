#!/bin/bash
# The guide to Kubernetes is true: its manifests are rendered by the real kubectl and checked, and what the four pods would run trains
# here, with weights and data from a hub that is here too. kubectl.py stands in for a cluster; shapes are cut down. (scripts/test-k8s
# gives pods roots, users and names of their own.)
set -euo pipefail
source "$(dirname "$0")/../cli/support.bash"
source "$(dirname "$0")/../cli/guides.bash"
command -v kubectl >/dev/null || { echo "skipped: there is no kubectl (Debian: apt-get install kubernetes-client)"; exit 77; }
python3 -c 'import yaml, jsonschema' 2>/dev/null || { echo "skipped: python3 has no yaml or jsonschema"; exit 77; }
"$fsdp" --version | grep -qw libcurl || { echo "skipped: built without libcurl"; exit 77; }
REAL_KUBECTL=$(command -v kubectl)
mkdir bin data
ln -s "$source_root/tests/deploy/kubectl.py" kubectl.py
printf '#!/bin/sh\nexec python3 %s/kubectl.py "$@"\n' "$work" >bin/kubectl
printf '#!/bin/sh\necho "$@"\n' >bin/podman # builds no image: test-container does
chmod +x bin/*

# What the job asks the hub for: a small T5 with its tokenizer, and articles.
example=$source_root/examples/t5 model=repositories/models/google-t5/t5-small articles=repositories/datasets/abisee/cnn_dailymail/3.0.0
mkdir -p $articles
awk -f "$example/words.awk" -f "$example/tokenizer.awk" >tokenizer.json
awk -v n=256 -v seed=1 -f "$example/words.awk" -f "$example/pairs.awk" | sed 's/"text"/"article"/; s/"summary"/"highlights"/' >$articles/train.jsonl
head -n 16 $articles/train.jsonl >$articles/validation.jsonl
small="--hidden_width 32 --num_layers 1 --num_decoder_layers 1 --num_heads 2 --head_dim 16 --intermediate_size 64 --max_context_width 32 \
--max_target_width 8 --dropout 0 --vocab_size 0 --device cpu --threads 1"
"$fsdp" train --preset t5-small $small --tokenizer tokenizer.json --dataset $articles/train.jsonl --source_field article \
    --target_field highlights --max_steps 1 --output_dir made --export_dir $model >made.log 2>&1 || fail "$(cat made.log)"
start_hub
export REAL_KUBECTL PATH=$work/bin:$PATH KUBECTL_STATE=$work/applied.json POD_DATA=$work/data POD_FLAGS="$small --comm_timeout 60 --logging_freq 8 --metrics_port 0"
POD_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export POD_PORT
follow_page t5-on-four-pods
