#!/bin/bash
# The cases of build/bench/bench run, at sizes that take no time, and print what programs can read; wrong options are
# usage errors. What they measure is nobody's claim here.
set -u
bench=$FSDP_BUILD/bench/bench
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
export OMP_NUM_THREADS=1

# runs LINES CASE OPTIONS...: as JSON, so many lines; as a table, a header besides.
runs()
{
    local lines=$1
    shift
    timeout 200 "$bench" "$@" --json >json 2>err || fail "$*: $(cat err)"
    [ "$(grep -c '^{"[^{}]*: [-0-9a-z."]*}$' json)" -eq "$lines" ] && [ "$(wc -l <json)" -eq "$lines" ] || fail "$*: $(cat json)"
    grep -qE 'nan|inf' json && fail "$*: no JSON: $(cat json)"
    timeout 200 "$bench" "$@" >table 2>err || fail "$*: $(cat err)"
    [ "$(wc -l <table)" -gt "$lines" ] || fail "$*: $(cat table)"
}

runs 12 checkpoint --parameters 1 --rounds 1 --directory here
[ ! -e here ] || fail "a checkpoint is left behind"
runs 2 overlap --rounds 1 --hidden 64 --layers 1 --width 16 --batch 1
runs 4 comm --no_mpi --ranks 2 --mib 1,2 --seconds 0
seq 2000 >text
runs 1 tokenizer --tokenizer "$FSDP_SOURCE/tests/golden/tokenizer_words" --text text

refuses()
{
    "$bench" "$@" >out 2>err
    [ $? -eq 2 ] && [ -s err ] && [ ! -s out ] || fail "$*: $(cat out err)"
}
refuses
refuses nothing
refuses gemm --rounds 0
refuses gemm --bf16_blocks 1,2
refuses gemm --fp32_blocks 1,2,x
refuses gemm --shape 64,64
refuses kernels --level nothing
refuses comm --ranks 2,x
refuses overlap --wrong
"$bench" --help | grep -q checkpoint || fail "bench --help lists no cases"
echo "the cases run"
