#!/bin/bash
# What a user gets wrong is said in one clear line on standard error, with exit code 2.
set -euo pipefail
source "$(dirname "$0")/support.bash"

refused 2 "fsdp: unknown command 'trian'; did you mean \`fsdp train\`?" trian
refused 2 "fsdp: unknown command 'zzzzzz'; \`fsdp --help\`" zzzzzz
refused 2 "fsdp train: unknown flag --num_layer; did you mean --num_layers?" train --num_layer 3
refused 2 "fsdp train: --num_layers=many: a whole number is wanted" train --num_layers many
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
refused 2 "fsdp help: --completion=fish: one of bash is wanted" help --completion fish
refused 2 "fsdp: unknown command 'nothing'" help nothing

: >empty.txt
refused 2 "empty.txt" train --preset tiny --dataset empty.txt
echo "a short text" >short.txt
refused 2 "less than one context" train --preset tiny --dataset short.txt
[[ ! -e tokens.bin ]]
echo "every mistake is one line and exit code 2"
