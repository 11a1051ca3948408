#!/bin/bash
# What docs/deploy.md says is true: its table of sizes is the one that `fsdp plan` makes today (in builds without CUDA), the messages it quotes are those of
# the sources, the files it names are there, and flags it names are known.
set -euo pipefail
source "$(dirname "$0")/../cli/support.bash"
page=$source_root/docs/deploy.md

# A build with CUDA plans every shape with cuDNN first, which takes minutes.
if "$fsdp" --version | grep -w CUDA >/dev/null; then
    echo "the table of sizes is checked in builds without CUDA"
else
    "$source_root/scripts/size-table" "$build" >table
    sed -n '/^<!-- size-table: begin/,/^<!-- size-table: end/p' "$page" | sed -e 1d -e '$d' >written
    diff written table || fail "the table of sizes is old: scripts/size-table build --write"
fi

for message in 'the kernel ended a process because memory ran out' 'timed out after' 'the rendezvous did not answer at' \
    "our secret is not this job's" 'NCCL did not connect the' 'yet: starting from scratch'; do
    grep -qF -- "$message" "$page" || fail "the page no longer quotes '$message'"
    grep -rqF -- "$message" "$source_root/src" || fail "no message says '$message' any more"
done

for file in $(grep -o 'deploy/[a-z0-9_/-]*[.a-zA-Z]*' "$page" | sort -u); do
    [[ -e $source_root/$file ]] || fail "the page names $file, which is not there"
done

# A flag counts as known when train or run has it; those of other programs are named here.
others=' --include --repo-type --nodes --signal --rm --ipc --shm-size --format --mpi --auto-resume --build-arg --from-literal --write --log_dir '
known=$({ "$fsdp" train --help; "$fsdp" run --help; "$fsdp" plan --help; } | sed 's/-/_/g' | grep -o '__[a-z0-9_]*' | sort -u)
for flag in $(grep -oE -- '(^|[ `])--[a-z][a-z0-9_-]*' "$page" | tr -d ' `' | sort -u); do
    [[ $others == *" $flag "* ]] || grep -qx -- "$(tr - _ <<<"$flag")" <<<"$known" || fail "the page names $flag, which nothing knows"
done
"$fsdp" train --preset tiny --dry_run --vocab_size 256 --dataset "$page" >dry.log || fail "$(cat dry.log)"
echo "docs/deploy.md says what is so"
