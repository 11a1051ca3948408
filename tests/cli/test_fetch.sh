#!/bin/bash
# `fsdp fetch`, and --download of `fsdp generate` and `fsdp tokenize`, against a server that speaks the hub's API. How
# files are fetched is test_download.sh's; this is what the commands ask for, print and refuse.
set -u
source "$(dirname "$0")/support.bash"
golden=${FSDP_GOLDEN_DIR:-$source_root/tests/golden}
python3 -c 'import http.server' 2>/dev/null || { echo "skipped: no python3 to run the server"; exit 77; }
"$fsdp" --version | grep -qw libcurl || { echo "skipped: built without libcurl"; exit 77; }
export OMP_NUM_THREADS=1 HF_HOME=$work/home HF_HUB_DOWNLOAD_TIMEOUT=100
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE FSDP_DATA HF_TOKEN HF_ENDPOINT

refused 2 "nothing is named" fetch
refused 2 "--include is about data sets" fetch org/llama --include '*.json'
refused 2 "/no/path: is no name of the hub" fetch /no/path
refused 2 'revision "../up" is no name' fetch org/llama --revision ../up
refused 2 '"../up" is no name of a configuration' fetch --dataset org/text --dataset_config_name ../up

# Nobody listens there: it gives up after some tries, while the rest goes on here.
(HF_ENDPOINT=http://127.0.0.1:9 timeout 120 "$fsdp" fetch org/llama >away.out 2>away.err; echo $? >away.code) &
away=$!

models=repositories/models/org
data=repositories/datasets/org
mkdir -p $models/{llama,llama@v1,words} $data/{text/en,text/fr,wrong,stall,held}
cp "$golden"/llama_gqa/{config.json,model.safetensors} $models/llama
cp "$golden"/llama_gqa/config.json $models/llama@v1
echo '{"eos_token_id": 1}' >$models/llama@v1/generation_config.json
cp "$golden/tokenizer_words/tokenizer.json" $models/words
printf weights >$models/words/model.safetensors
for i in $(seq 400); do echo "{\"text\": \"record $i\"}"; done >$data/text/en/train.0.jsonl
for i in $(seq 300); do echo "{\"text\": \"more $i\"}"; done >$data/text/en/train.1.jsonl
echo '{"text": "non"}' >$data/text/fr/a.jsonl
cp $data/text/en/train.0.jsonl $data/wrong/wrong.jsonl
cp $data/text/en/train.0.jsonl $data/stall/stall.jsonl
cp $data/text/en/train.1.jsonl $data/stall/after.jsonl
cp $data/text/en/train.0.jsonl $data/held/held.jsonl
python3 "$source_root/tests/cli/hub_server.py" repositories "$work/requests" >port 2>server.err &
for i in $(seq 300); do [[ -s port ]] && break; sleep 0.1; done
[[ -s port ]] || fail "the server does not start: $(cat server.err)"
export HF_ENDPOINT=http://127.0.0.1:$(cat port)
commit=$(printf 'c%.0s' $(seq 40)) other=$(printf 'd%.0s' $(seq 40))

fetch() { timeout 120 "$fsdp" fetch "$@" >out 2>err; }
asked() { wc -l <requests; }

# Whole: what is printed is where it lies, and other commands find it by its name.
fetch org/llama --tokenizer org/words --dataset org/text --dataset_config_name en || fail "fetching: $(cat err)"
hub=$HF_HOME/hub
printf '%s\n' "$hub/models--org--llama/snapshots/$commit" "$hub/models--org--words/snapshots/$commit" \
    "$hub/datasets--org--text/snapshots/$commit/en" | cmp - out || fail "it says that they lie in $(cat out)"
{ read -r llama; read -r words; read -r text; } <out
for file in config.json model.safetensors; do cmp $models/llama/$file "$llama/$file" || fail "$file"; done
[[ $(ls "$words") == tokenizer.json ]] || fail "files of a tokenizer: $(ls "$words")"
diff -r $data/text/en "$text" || fail "the data set did not arrive"
[[ ! -e $text/../fr ]] || fail "more was fetched than was asked for"
grep -q "downloading model.safetensors of org/llama" err || fail "nothing is said while it downloads: $(cat err)"
grep -q "org/llama: 2 files, .* MB downloaded" err || fail "nothing is said in the end: $(cat err)"
"$fsdp" generate --device cpu --model org/llama --prompt x --max_new_tokens 2 >/dev/null 2>err || fail "its name is not found: $(cat err)"
# What the cache has is no answer to `fsdp fetch`: it might be old.
(HF_ENDPOINT=http://127.0.0.1:9 timeout 120 "$fsdp" fetch --tokenizer org/words >old.out 2>old.err; echo $? >old.code) &
old=$!
before=$(asked)
fetch org/llama || fail "fetching again: $(cat err)"
[[ $(asked) == $((before + 1)) ]] && grep -q "(0.0 MB downloaded)" err || fail "it was fetched again: $(cat err)"

# Only some files, and on a terminal a bar.
HF_HOME=$work/some fetch --dataset org/text --include 'x*,en/*.1.jsonl' || fail "some files: $(cat err)"
[[ $(cd "$(cat out)" && find . -type l) == ./en/train.1.jsonl ]] || fail "--include: $(find "$(cat out)")"
HF_HOME=$work/some fetch --dataset org/text --include 'x*' && fail "no file matches, and it is content"
if have_terminal; then
    HF_HOME=$work/third TERM=xterm timeout 60 script -qec "'$fsdp' fetch org/llama" /dev/null >shown </dev/null
    grep -q '\[########################\] 100%' shown || fail "no bar: $(cat shown)"
fi

# Another revision has a name and a folder of its own; main stays what it is.
fetch org/llama --revision v1 || fail "a revision: $(cat err)"
[[ $(cat out) == "$hub/models--org--llama/snapshots/$other" ]] || fail "a revision lies in $(cat out)"
[[ $(ls "$(cat out)") == $'config.json\ngeneration_config.json' ]] || fail "files of a revision: $(ls "$(cat out)")"
[[ $(cat "$hub/models--org--llama/refs/v1") == "$other" && $(cat "$hub/models--org--llama/refs/main") == "$commit" ]] ||
    fail "the names of revisions"
fetch org/llama --revision v2 && fail "a revision that does not exist"
grep -q "revision/v2.*no such thing" err || fail "such a revision: $(cat err)"

# Interrupted, it leaves no snapshot; the next one goes on where it stopped and keeps what was whole.
timeout 120 "$fsdp" fetch --dataset org/stall >out 2>err &
job=$!
part=$hub/datasets--org--stall/blobs/*.incomplete
for i in $(seq 300); do [[ -s $(echo $part) ]] && break; sleep 0.1; done
kill -TERM $job
wait $job
[[ $? == 143 ]] || fail "interrupted, it ended otherwise: $(cat err)"
[[ ! -s out && ! -e $hub/datasets--org--stall/snapshots ]] || fail "half a data set lies somewhere: $(cat out)"
fetch --dataset org/stall || fail "after an interruption: $(cat err)"
diff -r $data/stall "$(cat out)" || fail "after an interruption, other bytes"
grep -q "stall.jsonl bytes=10- " requests || fail "it began again: $(grep stall requests)"
[[ $(grep -c "resolve.*after.jsonl" requests) == 1 ]] || fail "what was whole was fetched again"

# Two at once: one fetches, the other waits, and both say where it lies. The server goes on when it is told.
timeout 120 "$fsdp" fetch --dataset org/held >one.out 2>one.err &
one=$!
part=$hub/datasets--org--held/blobs/*.incomplete
for i in $(seq 300); do [[ -s $(echo $part) ]] && break; sleep 0.1; done
timeout 120 "$fsdp" fetch --dataset org/held >two.out 2>two.err &
two=$!
for i in $(seq 300); do grep -q "another process of this host is downloading it" two.err && break; sleep 0.1; done
grep -q "another process of this host is downloading it" two.err || fail "the second did not wait: $(cat two.err)"
touch repositories/release
wait $one || fail "the first of two: $(cat one.err)"
wait $two || fail "the second of two: $(cat two.err)"
cmp one.out two.out && cmp $data/held/held.jsonl "$(cat one.out)/held.jsonl" || fail "two at once"
[[ $(grep -c "resolve.*held.jsonl - " requests) == 1 ]] || fail "both fetched: $(grep held requests)"

fetch --dataset org/wrong && fail "a wrong hash"
grep -q "the hub says 0000" err && [[ ! -s out && -z $(ls "$hub/datasets--org--wrong/blobs") ]] || fail "a wrong hash: $(cat err)"
fetch org/none
[[ $? == 2 && ! -s out ]] && grep -q "org/none.*does not exist.*HF_TOKEN" err || fail "a name that does not exist: $(cat err)"

# --download of other commands; without it nothing is asked.
export HF_HOME=$work/second
before=$(asked)
refused 2 "add --download, or: fsdp fetch org/llama" generate --device cpu --model org/llama --prompt x
refused 2 "add --download, or: fsdp fetch org/words" tokenize --tokenizer org/words --text x
[[ $(asked) == "$before" ]] || fail "the hub was asked without --download"
timeout 120 "$fsdp" generate --device cpu --model org/llama --prompt x --max_new_tokens 2 --download >out 2>err || fail "generate: $(cat err)"
timeout 120 "$fsdp" tokenize --tokenizer org/words --text x --download >out 2>err || fail "tokenize: $(cat err)"
grep -q "^[0-9 ]*$" out || fail "tokenize --download prints $(cat out)"
timeout 120 "$fsdp" tokenize --download --output tokens.bin org/text --dataset_config_name fr >out 2>err || fail "a data set: $(cat err)"
timeout 120 "$fsdp" tokenize --output paths.bin $data/text/fr/a.jsonl >out 2>err && cmp tokens.bin paths.bin || fail "other tokens: $(cat err)"

wait $away $old
[[ $(cat old.code) == 1 && ! -s old.out ]] || fail "fetched from nowhere: $(cat old.out old.err)"
[[ $(cat away.code) == 1 && ! -s away.out ]] || fail "without a network it ends with $(cat away.code)"
tail -1 away.err | grep -q "127.0.0.1:9/.*5 times in a row; check the network" || fail "without a network: $(cat away.err)"
echo "fetched"
