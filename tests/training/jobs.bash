# What tests of whole runs share: a text of `lines` lines, a small model of `layers` layers, and jobs on them with a global
# batch of `batch`. For tests that have sourced support.bash; they may set these before, and `tiny` after.
for ((i = 1; i <= ${lines:=400}; i++)); do
    echo "line $i of $((i * i % 97)) words and $((i * 7919 % 1009)) letters"
done >text.txt
: "${batch:=6}"
source "$FSDP_SOURCE/tests/training/on_device.bash"
tiny=("${device[@]}" --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 16 --num_layers "${layers:=2}" --num_heads 2
    --intermediate_size 32 --max_context_width 16 --dropout 0 --dataset text.txt --lr 1e-2 --lr_decay_style constant --warmup 0)

# try_job NAME RANKS FLAGS...: a run, which may fail; what it says is in NAME.log
try_job()
{
    local name=$1 ranks=$2
    shift 2
    "$fsdp" run --standalone --nproc-per-node "$ranks" "$fsdp" train "${tiny[@]}" --train_batch_size $((batch / ranks)) --output_dir "$name" "$@" \
        >"$name.log" 2>&1
}
job() { try_job "$@" || fail "$1: $(cat "$1.log")"; } # the same, which may not
