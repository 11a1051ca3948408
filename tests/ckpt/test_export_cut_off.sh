#!/bin/bash
# An export that is killed leaves nothing under its name, and what it leaves beside it goes with the next one to that place;
# what others write there stays. Around it: an older checkpoint is taken with a word, and none is put where it would hide others.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
source "$FSDP_SOURCE/tests/training/jobs.bash"

job run 2 --max_steps 4 --checkpoint_freq 2 --hidden_width 64
for format in hf dcp pt; do
    "$fsdp" ckpt export run "whole-$format" --format $format >export.log 2>&1 || fail "$format: $(cat export.log)"
    code=0
    (ulimit -f 8; exec "$fsdp" ckpt export run "$format" --format $format) >cut.log 2>&1 || code=$?
    [[ $code == $((128 + $(kill -l XFSZ))) ]] || fail "$format: exit code $code: $(cat cut.log)"
    [[ ! -e $format ]] || fail "$format: something has its name"
    [[ $format == pt || -n $(ls -d "$format".tmp-*) ]] || fail "$format: this test is not about what it was"
    mkdir "$format.tmp-mine" # not of an export
    "$fsdp" ckpt export run "$format" --format $format >export.log 2>&1 || fail "$format: $(cat export.log)"
    [[ $(echo "$format"*) == "$format $format.tmp-mine" ]] || fail "$format leaves $(echo "$format"*)"
    diff -r "whole-$format" "$format" >diff.log || fail "$format: $(cat diff.log)"
    [[ ! -e $format/OWNER ]] || fail "$format: OWNER is still there"
done
"$fsdp" ckpt export run hf >export.log 2>&1 || fail "again: $(cat export.log)"
"$fsdp" ckpt export run no/such/file.pt --format pt >export.log 2>&1 || fail "into a folder that is not there: $(cat export.log)"
refused 2 "an export needs a source and a destination" ckpt export run "" --format dcp

mkdir none
echo '{}' >none/config.json
printf '\x02\0\0\0\0\0\0\0{}' >none/model.safetensors
refused 2 "holds no tensor" ckpt import none imported

cp -r run damaged
rm damaged/checkpoints/step-00000004/rank-00001.safetensors
"$fsdp" ckpt export damaged older >export.log 2>&1 || fail "$(cat export.log)"
grep -q 'step-00000004 is damaged and was passed over' export.log || fail "an older checkpoint, and no word of it: $(cat export.log)"

"$fsdp" generate --device cpu --model damaged --prompt x --max_new_tokens 1 >generate.log 2>&1 || fail "$(cat generate.log)"
grep -q 'step-00000004 is damaged and was passed over' generate.log || fail "generate has no word of it: $(cat generate.log)"

refused 2 "--dtype belongs to \`fsdp ckpt export\`" ckpt reshard run other --dtype bf16
refused 2 "--tolerance belongs to \`fsdp ckpt diff\`" ckpt prune run --tolerance 1
refused 2 "is the folder of a run" ckpt reshard run run --world_size 3
[[ ! -e run/step-00000004 ]] || fail "a checkpoint that hides the run's own"
