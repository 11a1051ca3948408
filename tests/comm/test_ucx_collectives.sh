#!/bin/bash
# The tests of collectives through shared memory, over UCX: every rank as a host of its own, then two ranks a host.
set -eu
program=${FSDP_BUILD:?}/tests/comm_test_collectives
"$FSDP_BUILD/fsdp" --version | grep -qw UCX || { echo "built without UCX"; exit 77; }
for per_host in 0 2; do
    FSDP_TEST_BACKEND=ucx FSDP_TEST_PER_HOST=$per_host "$program"
done
