#!/bin/bash
# Completion as bash, zsh and fish ask for it: commands, flags, their values, checkpoints, actions, and command lines
# inside `fsdp run`. Bash's own function runs here; the others where they are installed.
set -euo pipefail
source "$(dirname "$0")/support.bash"
mkdir -p bin runs/a/checkpoints/step-00000010 runs/a/checkpoints/step-00000020 "a folder"
touch notes.txt
ln -s "$fsdp" bin/fsdp
PATH=$work/bin:$PATH

"$fsdp" help --completion bash >completion
bash -n completion
source completion
# offers WANTED WORDS...: what bash offers for the last word.
offers()
{
    COMP_WORDS=("${@:2}")
    COMP_CWORD=$(($# - 2))
    _fsdp
    [[ ${COMPREPLY[*]-} == "$1" ]] || fail "${*:2}: '${COMPREPLY[*]-}' instead of '$1'"
}
offers train fsdp trai
offers --num_layers fsdp train --num_la
offers --num-layers fsdp train --num-la
offers --no_shuffle fsdp train --no_shuf
offers "constant cosine" fsdp train --lr_decay_style co
offers "constant cosine" fsdp train --lr-decay-style co
offers "llama2_7b llama2_13b" fsdp train --preset = llama2
offers "show" fsdp ckpt sh
offers "verify" fsdp ckpt v
offers "runs/a/checkpoints/step-00000010 runs/a/checkpoints/step-00000020 runs/a/checkpoints" fsdp ckpt show runs/a/ch
offers "runs/a/checkpoints/step-00000020" fsdp train --resume_from_checkpoint runs/a/checkpoints/step-00000020
offers "notes.txt" fsdp train --dataset no
offers "a folder" fsdp train --dataset "a f"
offers "" fsdp train --lr x
offers "" fsdp no-such-command --x
offers "explain eval" fsdp help e
# Through the launcher: flags of the launcher first, of the program after its name.
offers --nproc_per_node fsdp run --nproc_p
offers --num_layers fsdp run --standalone --nproc-per-node 2 fsdp train --num_la
offers "llama2_7b llama2_13b" fsdp run --nproc-per-node 2 ./bin/fsdp train --preset llama2
offers train fsdp run --standalone fsdp trai
# The command that is typed is the one that is asked.
offers --num_layers ./bin/fsdp train --num_la

if command -v zsh >/dev/null; then
    "$fsdp" help --completion zsh >_fsdp
    cat >probe.zsh <<'END'
_describe() { print -l -- ${described%%:*}; }
_files() { print FILES; }
compset() { :; }
compdef() { :; }
source ./_fsdp
words=("$@") CURRENT=$#
PREFIX=$words[-1]
_fsdp
END
    [[ $(zsh -f probe.zsh fsdp train --num_la) == --num_layers ]] || fail "zsh: $(zsh -f probe.zsh fsdp train --num_la)"
    [[ $(zsh -f probe.zsh fsdp run --standalone fsdp train --preset llama2 | xargs) == "llama2_7b llama2_13b" ]] || fail "zsh: values"
    [[ $(zsh -f probe.zsh fsdp train --dataset no) == FILES ]] || fail "zsh: files"
fi
if command -v fish >/dev/null; then
    "$fsdp" help --completion fish >fsdp.fish
    ask() { HOME=$work fish -c "source fsdp.fish; complete -C '$1'" 2>&1 | cut -f 1 | xargs; }
    [[ $(ask "fsdp train --num_la") == --num_layers ]] || fail "fish: $(ask "fsdp train --num_la")"
    [[ $(ask "fsdp run --standalone fsdp train --preset llama2") == *llama2_7b* ]] || fail "fish: $(ask "fsdp run --standalone fsdp train --preset llama2")"
fi
echo "completion knows commands, flags, values and checkpoints"
