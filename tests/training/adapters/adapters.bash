# What tests of adapters share: a text of `lines` lines (set before this is read), a small model, and jobs on them.
for ((i = 1; i <= lines; i++)); do
    echo "line $i of $((i * i % 97)) words and $((i * 7919 % 1009)) letters"
done >text.txt
shape=(--model_type llama_v2 --vocab_size 256 --hidden_width 16 --num_layers 2 --num_heads 2 --intermediate_size 32)
common=(--device cpu --threads 1 --max_context_width 16 --dataset text.txt --lr 1e-2 --lr_decay_style constant --warmup 0)

# job NAME RANKS FLAGS...: a run with a global batch of 6.
job()
{
    local name=$1 ranks=$2
    shift 2
    "$fsdp" run --standalone --nproc-per-node "$ranks" "$fsdp" train "${common[@]}" --train_batch_size $((6 / ranks)) --output_dir "$name" "$@" \
        >"$name.log" 2>&1 || fail "$name: $(cat "$name.log")"
}
same()
{
    "$fsdp" ckpt diff "$@" >diff.log 2>&1 || fail "$1 and $2 differ: $(head -5 diff.log)"
}
works()
{
    "$fsdp" "$@" >out.log 2>&1 || fail "fsdp $*: $(cat out.log)"
}
