#!/bin/bash
# What a user gets wrong is said in one clear line on standard error, with exit code 2.
set -euo pipefail
source "$(dirname "$0")/support.bash"

refused 2 "fsdp: unknown command 'trian'; did you mean \`fsdp train\`?" trian
refused 2 "fsdp: unknown command 'zzzzzz'; \`fsdp --help\`" zzzzzz
refused 2 "fsdp train: unknown flag --num_layer; did you mean --num_layers?" train --num_layer 3
refused 2 "fsdp train: --num_layers=many: a whole number is expected" train --num_layers many
refused 2 "fsdp train: --bf16=true and --fp16=true contradict each other" train --bf16 --fp16
refused 2 "fsdp train: --fit belongs to \`fsdp plan\`" train --fit 80GB
refused 2 "fsdp train: /no/such/file" train --config /no/such/file
refused 2 "/no/such/data" train --preset tiny --dataset /no/such/data
refused 2 "fsdp plan: unknown flag --presett; did you mean --preset?" plan --presett tiny
refused 2 "fsdp run: no program is named" run
refused 2 "--standalone and --nnodes contradict" run --standalone --nnodes 2 true
refused 127 "/no/such/program" run /no/such/program
refused 2 "fsdp tokenize: /no/such/file: cannot open" tokenize /no/such/file
refused 2 "/no/such/tokenizer" tokenize --tokenizer /no/such/tokenizer --text x
refused 2 "'x' is no id" tokenize --decode --text "1 x"
refused 2 "--output wants the files" tokenize --output tokens.bin
refused 2 "fsdp help: --completion=tcsh: one of bash, zsh, fish is expected" help --completion tcsh
refused 2 "unknown command 'trian'" help trian --man
refused 2 "fsdp: unknown command 'nothing'" help nothing

: >empty.txt
refused 2 "empty.txt" train --preset tiny --dataset empty.txt
echo "a short text" >short.txt
refused 2 "less than one context" train --preset tiny --dataset short.txt
[[ ! -e tokens.bin ]]

# Names from files are shown, not sent to the terminal: no escape sequences, no forged lines.
printf 'output_dir = "run\033[31m\342\200\256x"\nsource_prefix = "\033]0;title\007"\n' >hostile.conf
"$fsdp" train --preset tiny --dataset "$source_root/LICENSE" --max_context_width 64 --device cpu --config hostile.conf --dry_run >out 2>&1 || fail "$(cat out)"
grep -qF 'run\x1b[31m' out || fail "the folder's name is not shown: $(grep output_dir out)"
! grep -q $'\033\|\342\200\256\|\007' out || fail "control characters of a settings file reach the terminal"

# Output that cannot be written is a failure of every command: exit code 1 and one line.
tiny=(train --device cpu --threads 1 --model_type llama_v2 --vocab_size 256 --hidden_width 16 --num_layers 1 --num_heads 2 --intermediate_size 32
    --max_context_width 16 --train_batch_size 2 --dataset "$source_root/LICENSE" --max_steps 2 --output_dir run --overwrite)
"$fsdp" "${tiny[@]}" --export_dir model >log 2>&1 || fail "$(cat log)"
unwritten()
{
    local got=0
    "$fsdp" "$@" >/dev/full 2>err </dev/null || got=$?
    [[ $got == 1 ]] || fail "fsdp $* into a full device: exit code $got: $(cat err)"
    [[ $(wc -l <err) == 1 ]] || fail "fsdp $* into a full device: not one line: $(cat err)"
    grep -q "standard output" err || fail "fsdp $* into a full device: $(cat err)"
}
if [[ -w /dev/full ]]; then
    unwritten --help
    unwritten --version
    unwritten train --help
    unwritten help --markdown
    unwritten "${tiny[@]}"
    unwritten ckpt show run/checkpoints
    unwritten ckpt verify run/checkpoints
    unwritten plan --preset tiny
    unwritten tokenize --text hello
    unwritten run --standalone --nproc-per-node 2 echo hello
    unwritten generate --model model --device cpu --prompt a --max_new_tokens 4
fi
echo "every mistake is one line and exit code 2"
