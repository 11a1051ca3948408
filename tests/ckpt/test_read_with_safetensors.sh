#!/bin/bash
# The program of docs/read-checkpoint.md reads checkpoints of ours: every element is as `fsdp ckpt export` has it, and the optimizer's
# is as in PyTorch's file. It wants a python with safetensors and numpy: FSDP_TRANSFORMERS_PYTHON, build/venv, or the system's.
set -euo pipefail
source "${FSDP_SOURCE:?}/tests/cli/support.bash"
for python in "${FSDP_TRANSFORMERS_PYTHON:-}" "$source_root/build/venv/bin/python" "$(command -v python3 || true)"; do
    [[ -x $python ]] && "$python" -c 'import safetensors, numpy' 2>/dev/null && break
    python=
done
[[ -n $python ]] || { echo "skipped: no python with safetensors and numpy; make test-transformers installs one"; exit 77; }

awk '/^```python/ { on = 1; next } /^```/ { on = 0 } on' "$source_root/docs/read-checkpoint.md" >read_checkpoint.py
"$fsdp" ckpt import "$source_root/tests/ckpt/fixtures/pytorch/dcp" run --world_size 3 >import.log 2>&1 || fail "$(cat import.log)"
"$fsdp" ckpt reshard run full --kind full >reshard.log 2>&1 || fail "$(cat reshard.log)"
"$fsdp" ckpt export run model >export.log 2>&1 || fail "$(cat export.log)"
"$python" read_checkpoint.py run/step-00000003 moment1 >out.log || fail "the program fails on its own"
grep -q '^0.weight \[3, 5\]' out.log || fail "$(cat out.log)"
"$python" - "$source_root/tests/ckpt/fixtures/pytorch/dcp-expected.safetensors" <<'EOF' || fail "not the same elements"
import sys
import numpy as np
from safetensors.numpy import load_file
from read_checkpoint import read_checkpoint
expected, exported = load_file(sys.argv[1]), load_file("model/model.safetensors")
for path in ("run/step-00000003", "full/step-00000003"):
    read = {f"{role}/{n}": t for role in ("parameter", "moment1", "moment2") for n, t in read_checkpoint(path, role).items()}
    assert set(read) == set(expected), (path, set(read) ^ set(expected))
    for key, tensor in read.items():
        assert tensor.shape == expected[key].shape and np.array_equal(tensor, expected[key]), (path, key)
    for name, tensor in exported.items():
        assert np.array_equal(tensor, read["parameter/" + name]), (path, name)
EOF
echo "ok"
