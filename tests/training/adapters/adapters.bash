# What tests of adapters share: a text of `lines` lines (set before this is read), a small model, and jobs on them whose
# shape is theirs to give.
source "$FSDP_SOURCE/tests/training/jobs.bash"
shape=(--model_type llama_v2 --vocab_size 256 --hidden_width 16 --num_layers 2 --num_heads 2 --intermediate_size 32)
common=("${device[@]}" --threads 1 --max_context_width 16 --dataset text.txt --lr 1e-2 --lr_decay_style constant --warmup 0)
tiny=("${common[@]}")

same()
{
    "$fsdp" ckpt diff "$@" >diff.log 2>&1 || fail "$1 and $2 differ: $(head -5 diff.log)"
}
works()
{
    "$fsdp" "$@" >out.log 2>&1 || fail "fsdp $*: $(cat out.log)"
}
