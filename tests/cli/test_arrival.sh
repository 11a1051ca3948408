#!/bin/bash
# A data set of the hub that is read file by file as it arrives (hub_server.py): training begins with the first file, the next
# comes meanwhile, order and samples are those of the whole data set on disk, and a file that fails is tried again or named.
set -u
source "$(dirname "$0")/support.bash"
python3 -c 'import http.server' 2>/dev/null || { echo "skipped: no python3 to run the server"; exit 77; }
"$fsdp" --version | grep -qw libcurl || { echo "skipped: built without libcurl"; exit 77; }

# Five files of training data, more than a window together, in an order that is not that of their whole paths; and five
# that are longer than what is made ahead.
data=repositories/datasets/org
mkdir -p $data/{text/en/a,long,wrong,held}
write() { awk -v seed="$2" -v n="$3" 'BEGIN { srand(seed); for (i = 0; i < n; i++) {
    printf "{\"text\": \"record %d of %d:", i, seed; for (k = 0; k < 60; k++) printf " %d", int(rand() * 100000); print "\"}" } }' >"$1"; }
i=0
for name in a/cut-train-0 a-train-1 busy-train-2 moved-train-3 train-4; do write "$data/text/en/$name.jsonl" $((++i)) 400; done
for i in 0 1 2 3 4; do write "$data/long/train-$i.jsonl" $((40 + i)) 2500; done
gzip "$data/text/en/train-4.jsonl"
write $data/text/en/b-validation.jsonl 9 200
ln $data/text/en/a-train-1.jsonl $data/text/en/again-train.jsonl # the same blob, the same file: read once
printf 'not wanted' >$data/text/README.md
write $data/held/train-0.jsonl 20 2500
write $data/held/train-1.held.jsonl 21 400
write $data/wrong/train-0.jsonl 30 400
write $data/wrong/train-1.wrong.jsonl 31 400
python3 "$FSDP_SOURCE/tests/cli/hub_server.py" repositories "$work/requests" >port 2>server.err &
server=$!
for i in $(seq 100); do [ -s port ] && break; sleep 0.1; done
[ -s port ] || fail "the server does not start: $(cat server.err)"
export HF_ENDPOINT=http://127.0.0.1:$(cat port) HF_HUB_DOWNLOAD_TIMEOUT=5 FSDP_CACHE_DIR=$work/cache
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE FSDP_DATA

# train RUN RANKS FLAGS...: 96 samples of 256 tokens a step
train() {
    local run=$1 ranks=$2
    shift 2
    timeout 200 "$fsdp" run --standalone --nproc-per-node "$ranks" "$fsdp" train --device cpu --preset tiny --stream on \
        --num_layers 1 --hidden_width 16 --num_heads 2 --intermediate_size 16 --max_context_width 256 --threads 1 \
        --train_batch_size $((96 / ranks)) --output_dir "$run" --log_samples "$run.samples" --sample_tokens 0 "$@" >"$run.out" 2>"$run.err"
}
samples() { sort -n -k1,1 -k2,2 "$1.samples" | awk '{ printf "%s%s", $1 == last ? "" : "\n" $1 ":", ""; last = $1
    for (i = 3; i <= NF; i++) printf " %s", $i } END { print "" }'; }
losses() { sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" | sort -n -u; }
came() { grep -c "resolve/.*/$1" requests; }

# Few steps need the first files; the last has not been asked for.
export HF_HOME=$work/home-1
train few 2 --dataset org/long --download --max_steps 4 || fail "the first file: $(cat few.err few.out)"
[ "$(came train-0)" -eq 1 ] || fail "the first file was not fetched once: $(cat requests)"
[ "$(came train-4)" -eq 0 ] || fail "the last file was fetched for four steps: $(cat requests)"
[ ! -e home-1/hub/datasets--org--long/snapshots ] || fail "some files are taken for the whole data set"
train few-2 1 --dataset org/long --max_steps 4 && fail "trained on some of the files"
grep -q -- "--download" few-2.err || fail "the remedy is not named: $(cat few-2.err)"

# All of it, stopped and resumed at other world sizes, where the cache is another's and empty. One epoch and more.
steps=40
train part 3 --dataset org/text --dataset_config_name en --download --max_steps 14 || fail "the first part: $(cat part.err)"
export HF_HOME=$work/home-2
train part 2 --dataset org/text --dataset_config_name en --download --max_steps 24 --resume_from_checkpoint part/checkpoints ||
    fail "resumed elsewhere: $(cat part.err)"
train part 1 --dataset org/text --dataset_config_name en --download --max_steps $steps --resume_from_checkpoint part/checkpoints ||
    fail "to the end: $(cat part.err)"
[ "$(came README)" -eq 0 ] || fail "more was fetched than was asked for"
snapshot=home-2/hub/datasets--org--text/snapshots/$(printf 'c%.0s' $(seq 40))
for file in $(cd $data/text/en && find . -type f); do
    cmp -s "$data/text/en/$file" "$snapshot/en/$file" || fail "$file is not in the snapshot"
done
asked=$(wc -l <requests)
train whole 2 --dataset org/text --dataset_config_name en --max_steps $steps || fail "from the cache: $(cat whole.err)"
[ "$(wc -l <requests)" -eq "$asked" ] || fail "the hub was asked without --download"
cmp -s <(samples whole) <(samples part) || fail "samples differ from those of the whole data set"
[ "$(losses whole | wc -l)" -ge 10 ] || fail "no losses to compare"
train plain 2 --dataset $data/text/en --max_steps $steps || fail "from a folder: $(cat plain.err)"
cmp -s <(samples plain) <(samples part) || fail "samples differ from those of a plain folder"
cmp -s <(losses plain) <(losses whole) || fail "tokens differ from those of a plain folder"
train after 1 --dataset org/text --dataset_config_name en --max_steps $((steps + 2)) --resume_from_checkpoint part/checkpoints ||
    fail "what was saved while files came does not go on from the cache: $(cat after.err)"

# Training goes on while a file is held back, and ends at once when asked to; a wrong file ends it, by name.
export HF_HOME=$work/home-3 HF_HUB_DOWNLOAD_TIMEOUT=60
train held 1 --dataset org/held --download --max_steps 2 || fail "while a file is held back: $(cat held.err)"
train wrong 1 --dataset org/wrong --download --max_steps $steps && fail "a wrong file was trained on"
grep -q "the hub says 0000" wrong.err || fail "a wrong hash is not named: $(cat wrong.err)"
echo "files arrive in order"
