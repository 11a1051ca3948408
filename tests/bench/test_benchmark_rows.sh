#!/bin/bash
# Every row of scripts/gpu-bench runs, with its own flags on a model so small that it takes no time; what goes wrong is said.
set -u
script=$FSDP_SOURCE/scripts/gpu-bench
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
export OMP_NUM_THREADS=1 PYTHON=/nonexistent KEEP=$folder/keep

# A row's flags, its own model and length of run aside.
cat >small <<'END'
#!/bin/bash
[[ $1 == bench && $2 == step ]] || exec "$FSDP_BUILD/fsdp" "$@"
shift 2
[[ $1 == --* ]] || shift
flags=()
while [[ $# -gt 0 ]]; do
    case $1 in
    --preset | --max_context_width | --train_batch_size | --gradient_accumulation_steps | --steps | --warmup_steps) shift ;;
    *) flags+=("$1") ;;
    esac
    shift
done
exec "$FSDP_BUILD/fsdp" bench step --model_type llama_v2 --hidden_width 32 --num_layers 1 --num_heads 2 --intermediate_size 64 \
    --vocab_size 32 --max_context_width 16 --train_batch_size 1 --steps 1 --warmup_steps 1 "${flags[@]}"
END
chmod +x small

for row in $(bash "$script" list); do
    case $row in
    operations | kernels) continue ;; # print tables of their own
    esac
    FSDP=$folder/small DEVICE=cpu timeout 200 bash "$script" "$row" >out 2>err || fail "$row: $(cat out err keep/*)"
    [ "$(grep -cE "^$row +fsdp .* [0-9.]+ +[0-9.]+ +[0-9]+ +[0-9.]+ +[0-9.]+ " out)" -ge 1 ] || fail "$row: $(cat out)"
    ! grep -qE 'failed|nan|inf' out || fail "$row: $(cat out)"
    awk -v row="$row" '$1 == row { ms = match($0, / [0-9.]+ +[0-9.]+ +[0-9]+ +[0-9.]+ +[0-9.]+ /); split(substr($0, ms), at, " ")
        exit !(at[1] >= at[2]) }' out || fail "$row: a step faster than the best: $(cat out)"
    rm -rf keep
done
grep -q 'no torch: fsdp alone' err || fail "nobody says that PyTorch is missing: $(cat err)"

for row in operations kernels tiny; do
    FSDP=$folder/small DEVICE=abacus timeout 60 bash "$script" $row >out 2>err && fail "$row: a run that failed is no failure"
done
grep -q '^tiny .*failed: .*abacus' out || fail "the reason is missing: $(cat out)"
mkdir temporary
KEEP='' TMPDIR=$folder/temporary FSDP=$folder/small DEVICE=cpu timeout 60 bash "$script" tiny >out 2>err || fail "nothing is kept: $(cat out err)"
[ -z "$(ls temporary)" ] || fail "what a run printed is left behind: $(ls temporary)"
bash "$script" tiny breakfast >out 2>err
[ $? -eq 2 ] && grep -q 'no row is named breakfast; there are tiny' err || fail "a wrong row: $(cat err)"
FSDP=$folder/nothing bash "$script" tiny >out 2>err
[ $? -eq 1 ] && grep -q 'build it, or name it with FSDP' err || fail "no program: $(cat err)"
exit 0
