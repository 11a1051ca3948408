#!/bin/bash
# Kernel times are measured into a profile, by one rank and by two; plans, benches and runs are predicted from it; and what
# is no profile is refused. How close predictions come is docs/predict.md's: times are no test on a machine with other load.
set -euo pipefail
source "$(dirname "$0")/support.bash"
job="--vocab_size 256 --hidden_width 64 --num_layers 2 --num_heads 4 --intermediate_size 160 --max_context_width 32
     --train_batch_size 4 --device cpu --threads 1"
for i in $(seq 200); do echo "the quick brown fox jumps over the lazy dog, line $i"; done >text.txt

# A profile, and a second workload that adds to it.
"$fsdp" bench kernel $job --profile one.json >out || fail "no profile"
grep -q "one.json: .* kernels" out || fail "$(cat out)"
rows=$(grep -c '"gemm"' one.json)
"$fsdp" bench kernel tiny --device cpu --threads 1 --profile one.json --json >out
grep -q '"predicted_ms": [0-9.]*[1-9]' out || fail "$(cat out)"
[[ $(grep -c '"gemm"' one.json) -gt $rows ]] || fail "a second workload added no products"

# The plan of that job, all of whose kernels were measured.
"$fsdp" plan $job --world_size 1 --predict --profile one.json >out
grep -q "^Predicted: .* ms a step on 1 rank" out || fail "$(cat out)"
grep -q "100 % was measured at these shapes" out || fail "kernels of the plan are not those of the run: $(cat out)"
"$fsdp" plan $job --world_size 1 --predict --profile one.json --predict_scaling 1,2,4 --json >out
[[ $(grep -o '"world_size"' out | wc -l) == 4 ]] || fail "a curve of three: $(cat out)"

# A bench and a run put it beside what they measure.
"$fsdp" bench step $job --profile one.json --steps 3 --warmup_steps 1 >out
grep -q "ms predicted" out || fail "$(cat out)"
"$fsdp" train $job --dataset text.txt --max_steps 12 --output_dir run --profile one.json >out 2>&1
grep -q "^predicted step " out || fail "$(cat out)"
grep -q '"predicted_seconds"' run/metrics.jsonl || fail "metrics say nothing of it"
"$fsdp" report run | grep -q "As predicted?" || fail "nor does the report"

# One that runs find by themselves.
FSDP_CACHE_DIR=$work/cache "$fsdp" bench kernel $job --profile auto >out || fail "$(cat out)"
FSDP_CACHE_DIR=$work/cache "$fsdp" train $job --dataset text.txt --max_steps 4 --output_dir again >out 2>&1
grep -q "^predicted step " out || fail "a run does not find its profile: $(cat out)"

# Two ranks side by side, with collectives.
"$fsdp" run --nproc-per-node 2 "$fsdp" bench kernel $job --sharding_strategy full --profile two.json >out 2>&1 || fail "$(cat out)"
grep -q '"reduce_scatter"' two.json || fail "no collectives in the profile of two ranks"
"$fsdp" plan $job --world_size 2 --sharding_strategy full --predict --profile two.json >out
grep -q "collectives over 2 ranks were measured" out || fail "$(cat out)"

# Of emulated ranks with the emulated links, also where the profile has collectives of its own.
exposed() { sed -n 's/.*"predicted_exposed_ms": \([0-9.]*\).*/\1/p' "$1"; }
for profile in one two; do
    for rate in 0.05 1; do
        "$fsdp" bench step $job --sharding_strategy full --emulate 2@${rate}GBs --profile $profile.json --steps 1 --warmup_steps 1 --json >emulated.$rate
    done
    awk "BEGIN { exit !($(exposed emulated.0.05) > 4 * $(exposed emulated.1) && $(exposed emulated.1) > 0) }" ||
        fail "$profile: $(cat emulated.0.05 emulated.1)"
done

# A known GPU brings its own; the curve goes up to 16,384.
"$fsdp" plan --preset llama3_1_8b --device h100 --world_size 8 --predict --predict_scaling auto >out
grep -qE "^ +16384 " out || fail "$(cat out)"
grep -q "between nodes every rank has" out || fail "assumptions about the network are not said"
"$fsdp" plan --preset llama3_1_8b --device h100 --world_size 64 --predict --predict_links 100,5 --json >slow
"$fsdp" plan --preset llama3_1_8b --device h100 --world_size 64 --predict --predict_links 400,50 --json >fast
ms() { sed -n 's/.*"step_ms":\([0-9.]*\).*/\1/p' "$1" | head -1; }
awk -v a="$(ms slow)" -v b="$(ms fast)" 'BEGIN { exit !(a > b && b > 0) }' || fail "faster links: $(ms slow) and $(ms fast) ms"

refused 2 "no profile of this name" plan $job --predict --profile nobody.json
FSDP_CACHE_DIR=$work/empty refused 2 "needs kernel times" plan $job --predict --device cpu
refused 2 "not of" bench kernel $job --threads 2 --profile one.json
refused 2 "predict_scaling" plan $job --predict --profile one.json --predict_scaling 2,many
refused 2 "Muon does not update units in host memory" plan $job --device h200 --predict --profile h200 --world_size 1 --sharding_strategy full --optimizer muon --cpu_offload
refused 2 "predict_links" plan $job --predict --profile one.json --predict_links 0
head -c 2000 one.json >torn.json
refused 2 "torn.json" plan $job --predict --profile torn.json
sed 's/"gemm"/"gemmm"/' one.json >other.json
refused 2 "damaged" plan $job --predict --profile other.json
