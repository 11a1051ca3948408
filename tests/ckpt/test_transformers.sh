#!/bin/bash
# transformers opens what we export and we train what it saves, where a python with transformers is at hand:
# FSDP_TRANSFORMERS_PYTHON, or what `make test-transformers` has put into build/venv. Nothing is downloaded here.
set -euo pipefail
source_root=${FSDP_SOURCE:?}
for python in "${FSDP_TRANSFORMERS_PYTHON:-}" "$source_root/build/venv/bin/python"; do
    if [[ -x $python ]] && "$python" -c 'import torch, transformers' 2>/dev/null; then
        FSDP_TRANSFORMERS_PYTHON=$python exec "$source_root/scripts/test-transformers" "${FSDP_BUILD:?}"
    fi
done
echo "skipped: no python with transformers; make test-transformers installs one"
exit 77
