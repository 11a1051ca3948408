#!/bin/bash
# --download against a server that speaks the hub's API (hub_server.py): cut connections, ranges, wrong hashes, waits,
# redirects, slow answers, servers without ranges; what arrives lies in the cache as the Hugging Face libraries keep it.
set -u
source "$(dirname "$0")/support.bash"
python3 -c 'import http.server' 2>/dev/null || { echo "skipped: no python3 to run the server"; exit 77; }
"$fsdp" --version | grep -qw libcurl || { # says so, and asks nobody
    HF_HOME=$work/home HF_ENDPOINT=http://127.0.0.1:9 "$fsdp" train --device cpu --preset tiny --dataset org/text --download \
        --output_dir run --overwrite >out 2>err && fail "a build without libcurl downloads"
    [ "$(wc -l <err)" -eq 1 ] && grep -q "made without libcurl" err || fail "a build without libcurl: $(cat err)"
    echo "skipped: built without libcurl"
    exit 77
}

data=repositories/datasets/org
models=repositories/models/org
mkdir -p $data/text/en $data/wrong $data/escape $data/stall $models/llama $models/words
for name in cut-1 limited-2 busy-3 slow-4 moved-5 cut-moved-6 cut-rangeless-7; do # more than one write of the server each
    for i in $(seq 400); do printf '{"text": "%s has record %d"}\n' $name $i; done >$data/text/en/$name.jsonl
done
printf '{"text": "small, so that git names it"}\n' >$data/text/en/tiny.jsonl
printf 'not wanted' >$data/text/README.md
mkdir -p $data/text/fr && printf '{"text": "non"}\n' >$data/text/fr/a.jsonl
cp $data/text/en/cut-1.jsonl $data/wrong/wrong.jsonl
cp $data/text/en/tiny.jsonl $data/escape/a.jsonl
cp $data/text/en/cut-1.jsonl $data/stall/stall.jsonl
cp "$FSDP_SOURCE"/tests/golden/llama_gqa/{config.json,model.safetensors} $models/llama
cp $models/llama/model.safetensors $models/llama/consolidated.safetensors
cp "$FSDP_SOURCE/tests/golden/tokenizer_words/tokenizer.json" $models/words
printf weights >$models/words/model.safetensors
python3 "$FSDP_SOURCE/tests/cli/hub_server.py" repositories "$work/requests" >port 2>server.err &
server=$!
for i in $(seq 100); do [ -s port ] && break; sleep 0.1; done
[ -s port ] || fail "the server does not start: $(cat server.err)"
export HF_ENDPOINT=http://127.0.0.1:$(cat port) HF_HOME=$work/home HF_TOKEN=hf_secret HF_HUB_DOWNLOAD_TIMEOUT=1
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE FSDP_DATA

# train NAME FLAGS...
train() {
    local name=$1
    shift
    timeout 120 "$fsdp" train --device cpu --preset tiny --num_layers 1 --max_context_width 64 --max_steps 1 --output_dir run --overwrite \
        --sample_tokens 0 --dataset "$name" "$@" >out 2>err
}
snapshot=home/hub/datasets--org--text/snapshots/$(printf 'c%.0s' $(seq 40))

train org/text --dataset_config_name en && fail "something was trained on before it was fetched"
grep -q -- "--download" err || fail "the message does not say how to fetch: $(cat err)"
[ ! -e requests ] || fail "the hub was asked without --download"

# libcurl is opened for --download only. Files that are no libraries stand for a machine without it.
ldd "$fsdp" "$FSDP_BUILD/libfsdp.so" | grep curl && fail "libcurl is linked"
mkdir absent && touch absent/libcurl.so.4 absent/libcurl-gnutls.so.4
export LD_LIBRARY_PATH=$work/absent${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
train org/text --dataset_config_name en --download && fail "downloaded without libcurl"
[ "$(wc -l <err)" -eq 1 ] && grep -q "apt install libcurl4" err || fail "without libcurl: $(cat err)"
mkdir -p texts && cp $data/text/en/cut-1.jsonl texts/a.jsonl
train texts/a.jsonl || fail "training needs libcurl: $(cat err)"
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH#"$work"/absent}
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH#:}

timeout 200 "$fsdp" run --standalone --nproc-per-node 2 "$fsdp" train --device cpu --preset tiny --num_layers 1 \
    --max_context_width 64 --max_steps 1 --output_dir run --overwrite --sample_tokens 0 --dataset org/text --dataset_config_name en \
    --download >out 2>err || fail "downloading: $(cat err)"
grep -q downloading out || fail "nothing was said about the download: $(cat out)"
for file in $data/text/en/*; do
    cmp -s "$file" "$snapshot/en/$(basename "$file")" || fail "$(basename "$file") did not arrive"
    [ -L "$snapshot/en/$(basename "$file")" ] || fail "$(basename "$file") is not a link to a blob"
done
[ ! -e "$snapshot/fr" ] && [ ! -e "$snapshot/README.md" ] || fail "more was fetched than was asked for"
[ "$(cat home/hub/datasets--org--text/refs/main)" = "$(basename "$snapshot")" ] || fail "refs/main names another snapshot"
ls home/hub/datasets--org--text/blobs | grep -q incomplete && fail "something is left incomplete"
[ "$(grep -c resolve.*busy-3 requests)" -eq 3 ] || fail "two ranks fetched the same file: $(cat requests)"
grep -q "cut-1.* bytes=[1-9]" requests || fail "a cut download began again: $(cat requests)"
grep elsewhere requests | grep -q " token" && fail "the token went to another host"
grep resolve requests | grep -v elsewhere | grep -q " -\$" && fail "the token was not sent to the hub"
grep -rq hf_secret out err run && fail "the token was written down"
[ "$(find . -name token -o -name '*.secret' | wc -l)" -eq 0 ] || fail "the token was kept"

asked=$(wc -l <requests)
train org/text --dataset_config_name en || fail "the cache is not enough: $(cat err)"
train org/text --dataset_config_name fr && fail "trained on another configuration than the one asked for"
train 'texts/*.jsonl' --download || fail "a pattern of files: $(cat err)"
[ "$(wc -l <requests)" -eq "$asked" ] || fail "the hub was asked for what is here: $(tail -1 requests)"

hub=home/hub/models--org--
train texts/a.jsonl --tokenizer org/words --download || fail "a tokenizer: $(cat err)"
cmp -s $models/words/tokenizer.json ${hub}words/snapshots/*/tokenizer.json || fail "the tokenizer did not arrive"
[ "$(ls ${hub}words/snapshots/*)" = tokenizer.json ] || fail "weights were fetched for a tokenizer"
timeout 120 "$fsdp" train --device cpu --init_from org/llama --download --max_context_width 32 --max_steps 1 --output_dir run --overwrite \
    --sample_tokens 0 --dataset org/text=1,texts/a.jsonl=1 --dataset_config_name en >out 2>err || fail "a model: $(cat err)"
[ "$(ls ${hub}llama/snapshots/*)" = $'config.json\nmodel.safetensors' ] || fail "files of a model: $(ls ${hub}llama/snapshots/*)"

# Interrupted while it downloads, it ends at once, and the next run goes on where it stopped.
HF_HUB_DOWNLOAD_TIMEOUT=100 timeout 120 "$fsdp" train --device cpu --preset tiny --max_steps 1 --output_dir run --overwrite \
    --dataset org/stall --download >out 2>err &
job=$!
part=home/hub/datasets--org--stall/blobs/*.incomplete
for i in $(seq 300); do [ -s "$(echo $part)" ] && break; sleep 0.1; done
kill -TERM $job
wait $job
[ $? -eq 143 ] || fail "interrupted, it ended otherwise: $(cat err)"
[ ! -e home/hub/datasets--org--stall/snapshots ] || fail "half a data set has a snapshot"
train org/stall && fail "half a data set was trained on"
train org/stall --download || fail "after an interruption: $(cat err)"
grep -q "stall.jsonl bytes=10- " requests || fail "the download began again: $(grep stall requests)"
train org/none --download && fail "a data set that does not exist"
grep -q "HF_TOKEN" err || fail "no remedy for what the hub refuses: $(cat err)"
train org/wrong --download && fail "a wrong hash"
grep -q "the hub says 0000" err || fail "a wrong hash is not named: $(cat err)"
[ -z "$(ls home/hub/datasets--org--wrong/blobs)" ] || fail "wrong bytes were kept"
train org/escape --download && fail "a name that leads out of the cache"
grep -q "impossible name" err || fail "such a name: $(cat err)"
mkdir -p home/hub/datasets--org--down/snapshots/1 && cp texts/a.jsonl home/hub/datasets--org--down/snapshots/1
train org/down --download || fail "while the hub is down, the cache is not used: $(cat err)"
kill "$server"
wait "$server" 2>/dev/null
HF_HOME=$work/empty timeout 120 "$fsdp" train --device cpu --preset tiny --max_steps 1 --output_dir other --dataset org/other \
    --download >other.out 2>other.err &
job=$!
train org/text --dataset_config_name en --download || fail "without the hub, the cache is not used: $(cat err)"
grep -q "is used as it is" out err || fail "the cache was used and nothing said so: $(cat out err)"
wait $job && fail "without the hub"
grep -q "127.0.0.1" other.err || fail "who cannot be reached: $(cat other.err)"
echo "downloads arrive whole"
