#!/bin/bash
# One host has the weights, the other downloads them slowly, for longer than the ranks wait for each other: they train together. So
# they do when the other's data comes slowly. When its download fails, both hosts end and say why. Hosts are launchers with caches of
# their own.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
"$fsdp" --version | grep -qw libcurl || { echo "skipped: built without libcurl"; exit 77; }
python3 -c 'import http.server' 2>/dev/null || { echo "skipped: no python3 to run the server"; exit 77; }
steps=2
source "$(dirname "$0")/jobs.bash"
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_TOKEN
servers=()
trap 'kill -9 "${launchers[@]}" "${servers[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir -p repositories/models/org/llama repositories/datasets/org/numbers empty
cp text.txt repositories/datasets/org/numbers
cp "$source_root"/tests/golden/llama_gqa/{config.json,model.safetensors} repositories/models/org/llama

# serve FOLDER: a hub of these repositories; $hub is its address
serve()
{
    python3 "$source_root/tests/cli/hub_server.py" "$1" "$1.requests" >"$1.port" 2>"$1.err" &
    servers+=($!)
    for _ in $(seq 200); do [[ -s $1.port ]] && break; sleep 0.05; done
    [[ -s $1.port ]] || fail "the server does not start: $(cat "$1.err")"
    hub=http://127.0.0.1:$(cat "$1.port")
}
serve empty
nothing=$hub
serve repositories

train=("$fsdp" train --device cpu --threads 1 --max_context_width 32 --train_batch_size 2 --dataset text.txt --max_steps $steps
    --sharding_strategy full --no_async_checkpoint --sample_tokens 0 --comm_timeout 5 --download)
on_node() { HF_ENDPOINT=$hub HF_HOME=$work/cache$1 exec "${@:2}"; }

(on_node 0 "$fsdp" fetch org/llama --dataset org/numbers) >fetch.log 2>&1 || fail "node 0 cannot fetch: $(cat fetch.log)"
echo 7 >repositories/drip
: >repositories.requests
port=$(free_port)
train+=(--init_from org/llama)
launch slow 0 2 "$port"
launch slow 1 2 "$port"
ended slow
[[ $(grep -c 'resolve.*model.safetensors' repositories.requests) == 1 ]] || fail "not one download: $(cat repositories.requests)"
grep -q 'Waiting for rank 1 on .*, still downloading after' slow.0.log || fail "nobody says what is waited for: $(cat slow.0.log)"

echo 7 >repositories/drip
train+=(--dataset org/numbers)
launch text 0 2 "$port"
launch text 1 2 "$port"
ended text
[[ $(grep -c 'resolve.*text.txt' repositories.requests) == 1 ]] || fail "not one download of data: $(cat repositories.requests)"

rm -r cache1
on_node()
{
    [[ $1 == 0 ]] || hub=$nothing
    HF_ENDPOINT=$hub HF_HOME=$work/cache$1 exec "${@:2}"
}
launch refused 0 2 "$port" --max_restarts 0
launch refused 1 2 "$port" --max_restarts 0
until=$((SECONDS + 60))
for node in 0 1; do
    while kill -0 "${launchers[node]}" 2>/dev/null; do
        ((SECONDS < until)) || fail "a download that fails does not end node $node: $(tail -n 5 refused.*.log)"
        sleep 0.05
    done
    ! wait "${launchers[node]}" || fail "node $node succeeds without the weights: $(cat refused.$node.log)"
done
grep -q 'rank 1 on .*org/llama.*HF_TOKEN' refused.0.log || fail "node 0 does not say why: $(cat refused.0.log)"
echo "ranks wait for a slow download, and end with one that fails"
