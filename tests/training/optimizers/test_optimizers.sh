#!/bin/bash
# --optimizer muon and adafactor in a whole run: their checkpoints name what they hold, go on with the same bits under another strategy and with the
# same curve on another number of ranks, travel through PyTorch's folders, and are not mistaken for another optimizer's.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"

source "$FSDP_SOURCE/tests/training/jobs.bash"
same()
{
    "$fsdp" ckpt diff "$@" >diff.log 2>&1 || fail "$*: $(cat diff.log)"
}

for optimizer in muon adafactor; do
    job "$optimizer" 2 --optimizer $optimizer --max_steps 6 --checkpoint_freq 3
    saved=$optimizer/checkpoints
    job "$optimizer-on" 2 --optimizer $optimizer --max_steps 6 --sharding_strategy no_shard --resume_from_checkpoint $saved/step-00000003
    same $saved/step-00000006 $optimizer-on/checkpoints/step-00000006
    job "$optimizer-3" 3 --optimizer $optimizer --max_steps 6 --resume_from_checkpoint $saved/step-00000003
    same $saved/step-00000006 $optimizer-3/checkpoints/step-00000006 --tolerance 5e-3
    "$fsdp" ckpt export $saved $optimizer-dcp --format dcp >export.log 2>&1 || fail "$(cat export.log)"
    "$fsdp" ckpt import $optimizer-dcp $optimizer-back >import.log 2>&1 || fail "$(cat import.log)"
    same $optimizer-back $saved/step-00000006
done

# Matrices of Muon's have one moment, all else two.
"$fsdp" ckpt show muon/checkpoints/step-00000006 >show.log
grep -q "moment1 .*layers.0.mlp.up_proj.weight" show.log || fail "no momentum: $(cat show.log)"
grep -q "moment2 .*layers.0.mlp.up_proj.weight" show.log && fail "a second moment that nobody needs"
grep -q "moment2 .*embed_tokens.weight" show.log || fail "the embedding is AdamW's: $(cat show.log)"
grep -q "moment2 .*lm_head.weight" show.log || fail "the head is AdamW's: $(cat show.log)"

# Adafactor has means of rows and columns of matrices, and the moments of vectors.
"$fsdp" ckpt show adafactor/checkpoints/step-00000006 >show.log
grep -q "moment2_rows .*layers.0.mlp.up_proj.weight" show.log || fail "no means of rows: $(cat show.log)"
grep -q "moment2_columns .*embed_tokens.weight" show.log || fail "no means of columns: $(cat show.log)"
grep -q "moment2 .*norm.weight" show.log || fail "no moments of vectors: $(cat show.log)"
grep -q "moment1" show.log && fail "first moments that nobody needs"

# Another optimizer's checkpoint is refused, and both are named.
job adamw 1 --max_steps 3
for optimizer in muon adafactor; do
    code=0
    try_job wrong 1 --optimizer $optimizer --max_steps 6 --resume_from_checkpoint adamw/checkpoints --overwrite || code=$?
    [[ $code == 2 ]] && grep -q "state of --optimizer adamw, which $optimizer cannot" wrong.log || fail "$optimizer resumed from AdamW: $code: $(cat wrong.log)"
    code=0
    try_job wrong 1 --max_steps 8 --resume_from_checkpoint $optimizer/checkpoints --overwrite || code=$?
    [[ $code == 2 ]] && grep -q "state of --optimizer $optimizer, which adamw cannot" wrong.log || fail "AdamW resumed from $optimizer: $code: $(cat wrong.log)"
done
