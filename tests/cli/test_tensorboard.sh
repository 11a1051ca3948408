#!/bin/bash
# TensorBoard reads our event files and shows our scalars, where a python with TensorBoard is at hand: FSDP_TENSORBOARD_PYTHON, or
# what `make test-tensorboard` has put into build/venv. Nothing is downloaded here.
set -euo pipefail
source_root=${FSDP_SOURCE:?}
for python in "${FSDP_TENSORBOARD_PYTHON:-}" "$source_root/build/venv/bin/python"; do
    if [[ -x $python ]] && "$python" -c 'import tensorboard' 2>/dev/null; then
        FSDP_TENSORBOARD_PYTHON=$python exec "$source_root/scripts/test-tensorboard" "${FSDP_BUILD:?}"
    fi
done
echo "skipped: no python with tensorboard; make test-tensorboard installs one"
exit 77
