#!/bin/bash
# Files of PyTorch through the command: imported, compared, refused.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
fixtures=$source_root/tests/ckpt/fixtures/pytorch

for name in plain.pt stream.pt training.pth; do
    "$fsdp" ckpt diff "$fixtures/$name" "$fixtures/expected.safetensors" >diff.log 2>&1 || fail "$name: $(cat diff.log)"
    "$fsdp" ckpt import "$fixtures/$name" "from-$name" --world_size 3 >import.log 2>&1 || fail "$name: $(cat import.log)"
    "$fsdp" ckpt verify "from-$name" >verify.log 2>&1 || fail "$name: $(cat verify.log)"
    "$fsdp" ckpt diff "from-$name" "$fixtures/expected.safetensors" >diff.log 2>&1 || fail "$name: $(cat diff.log)"
done
grep -q "left out: optimizer, epoch" import.log || fail "nothing says what was left out: $(cat import.log)"

code=0
"$fsdp" ckpt import "$fixtures/module.pt" refused >refused.log 2>&1 || code=$?
[[ $code -eq 2 ]] || fail "a pickled module ends with $code"
grep -q "asks for torch.nn.modules.linear.Linear" refused.log || fail "$(cat refused.log)"
[[ ! -e refused ]] || fail "a refused import left something"
echo "ok"
