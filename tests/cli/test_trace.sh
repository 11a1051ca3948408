#!/bin/bash
# One trace for all ranks on one clock, even where their clocks differ: its spans add up to the steps, which take as long as the
# metrics say; arrows lead from gathers to operations; `fsdp trace summary` sums it up and compares two.
set -euo pipefail
source "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto has no launcher"; exit 77; }
command -v python3 >/dev/null || { echo "no python3 to read traces"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1
seq 1 20000 >text.txt
train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 192 --num_layers 4 --num_heads 4 --intermediate_size 512
    --max_context_width 128 --train_batch_size 4 --dataset text.txt --max_steps 16 --sharding_strategy full --sample_tokens 0
    --trace_first 3 --trace_steps 12)

cat >check.py <<'PYTHON'
import json, statistics, sys
events = json.load(open(sys.argv[1]))
metrics = {l["step"]: l for l in map(json.loads, open(sys.argv[2] + "/metrics.jsonl"))}
spans = [e for e in events if e["ph"] == "X"]
assert {e["pid"] for e in spans} == {0, 1}, "not both ranks"
steps = {r: sorted((e for e in spans if e["pid"] == r and e["name"] == "step" and e["cat"] == "phase"), key=lambda e: e["ts"]) for r in (0, 1)}
assert len(steps[0]) == len(steps[1]) == 12, {r: len(s) for r, s in steps.items()}
cover, ratio = [], []
for r in (0, 1):
    for n, s in enumerate(steps[r]):
        parts = [e for e in spans if e["pid"] == r and e["cat"] == "phase" and e["name"] in ("data", "forward", "backward", "optimizer")
                 and s["ts"] <= e["ts"] < s["ts"] + s["dur"]]
        cover.append(sum(e["dur"] for e in parts) / s["dur"])
        if r == 0 and n > 0: # the first has the start of the trace in its seconds
            ratio.append(s["dur"] / 1e6 / metrics[3 + n]["seconds"])
assert 0.98 <= statistics.median(cover) <= 1.0001, cover
assert abs(statistics.median(ratio) - 1) <= 0.02, ratio
for a, b in zip(steps[0], steps[1]): # ranks make a step together: spans on one clock overlap
    assert a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"], (a, b)
gathers = [e for e in spans if e["cat"] == "collective" and e["name"] == "all_gather"]
assert gathers and all(e["args"]["bytes"] > 0 and e["args"]["detail"] and e["args"]["number"] > 0 for e in gathers)
starts = {e["id"] for e in events if e["ph"] == "s"}
ends = {e["id"] for e in events if e["ph"] == "f"}
assert starts and starts == ends, (len(starts), len(ends))
linear = [e for e in spans if e["cat"] == "op" and e["name"] == "linear"]
assert any("layers.0" in e["args"].get("where", "") and "[" in e["args"]["where"] for e in linear), linear[0]
assert any(e["ph"] == "C" for e in events), "no memory"
print("trace holds:", len(events), "events")
PYTHON

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --trace one.json --output_dir one >one.log 2>&1 || fail "$(tail -3 one.log)"
python3 check.py one.json one || fail "the trace of one host"
"$fsdp" trace summary one.json >summary || fail "no summary"
grep -Eq '^one.json: 12 steps on 2 ranks, [0-9.]+ ms a step$' summary || fail "$(head -5 summary)"
grep -Eq '^slowest: rank [01], busy for' summary || fail "$(head -5 summary)"
grep -Eq '^exposed communication: [0-9.]+ ms a step' summary || fail "$(head -5 summary)"
grep -Eq '^operation linear.backward  ' summary || fail "$(cat summary)"
grep -Eq '^collective all_gather .* [KM]iB$' summary || fail "$(cat summary)"
"$fsdp" trace summary one.json one.json >summary || fail "two traces are not compared"
grep -Eq '^whole step .* \+0.000  +\+0.0%$' summary || fail "a trace differs from itself: $(grep '^whole' summary)"

# --- two hosts whose clocks are 1,000 seconds apart, where the kernel has time namespaces --------------------------------------
if unshare --time --monotonic 1000 true 2>/dev/null; then
    port=$((20000 + RANDOM % 10000))
    "$fsdp" run --nnodes 2 --node_rank 0 --rdzv_endpoint 127.0.0.1:$port "${train[@]}" --trace two.json --output_dir two >two.0.log 2>&1 &
    unshare --time --monotonic 1000 "$fsdp" run --nnodes 2 --node_rank 1 --rdzv_endpoint 127.0.0.1:$port "${train[@]}" --trace two.json \
        --output_dir two >two.1.log 2>&1 || fail "$(tail -3 two.1.log)"
    wait $! || fail "$(tail -3 two.0.log)"
    python3 check.py two.json two || fail "the trace of two clocks"
else
    echo "no time namespaces here: clocks that differ are not tested"
fi

refused 2 'give files' trace
refused 2 'give files' trace other one.json
echo '[]' >empty.json
refused 2 'has no steps' trace summary empty.json
echo '{}' >object.json
refused 2 'is not a trace' trace summary object.json
