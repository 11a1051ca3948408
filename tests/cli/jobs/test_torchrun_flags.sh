#!/bin/bash
# Command lines written for torchrun start here: its flags with dashes and underscores, its short ones, its PET_* variables, and what
# Slurm and Kubernetes say about a node. What needs Python is refused with a word.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
source "$(dirname "$0")/jobs.bash" # for free_port
unset SLURM_NODEID JOB_COMPLETION_INDEX OMP_NUM_THREADS # nproc obeys the last one
export TMPDIR=$work
cat >rank <<'END'
#!/bin/sh
echo "rank $RANK of $WORLD_SIZE node $GROUP_RANK of $GROUP_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT id $TORCHELASTIC_RUN_ID restarts $TORCHELASTIC_MAX_RESTARTS: $*"
END
chmod +x rank

# says TEXT FLAGS...: one launcher with these flags succeeds and prints TEXT
says()
{
    local text=$1
    shift
    timeout 60 "$fsdp" run "$@" ./rank --standalone -t words >out 2>err </dev/null || fail "fsdp run $*: $(cat out err)"
    grep -qF -- "$text" out || fail "fsdp run $*: '$text' is not in: $(cat out err)"
}

# Every flag twice: as torchrun's help has it, and as older scripts do. Arguments of the program stay its own.
for dash in - _; do
    says "rank 1 of 2 node 0 of 1" --standalone --nproc${dash}per${dash}node=2
    says "rank 0 of $(nproc) " --nproc${dash}per${dash}node cpu
    says "127.0.0.1:29555" --master${dash}addr 127.0.0.1 --master${dash}port 29555 --nnodes 1
    says "id seven" --rdzv${dash}backend=c10d --rdzv${dash}endpoint localhost:0 --rdzv${dash}id seven --nnodes=1:1
    says ": --standalone -t words" --rdzv${dash}backend static --rdzv${dash}conf timeout=9,last_call_timeout=1,read_timeout=60
    says "restarts 3" --max${dash}restarts 3 --monitor${dash}interval 0.5 --start${dash}method spawn --role trainer --no${dash}python
    says "rank 0" --local${dash}addr 127.0.0.1 --event${dash}log${dash}handler null --shutdown${dash}timeout 3
    says "rank 1" --nproc${dash}per${dash}node 2 --local${dash}ranks${dash}filter 1 --log${dash}dir kept$dash --tee 1
    ! grep -q "rank 0" out || fail "a rank is shown that was filtered out: $(cat out)"
    grep -q "rank 0" kept$dash/attempt_0/0/stdout.log || fail "--tee keeps nothing: $(find kept$dash)"
    says "17: rank 1" --nproc${dash}per${dash}node 2 --log${dash}line${dash}prefix${dash}template '${rank}7: '
    says "rank 1" --nproc${dash}per${dash}node 2 --signals${dash}to${dash}handle 'SIGTERM, SIGINT,SIGHUP ,SIGQUIT'
    CUDA_VISIBLE_DEVICES=4,5 says "rank 1" --nproc${dash}per${dash}node 2 --virtual${dash}local${dash}rank
done

# Short flags, and a folder for what is kept where none is named.
says "rank 0" -t 3
says "rank 0" --standalone -t 0:1
timeout 60 "$fsdp" run -r 1 ./rank >out 2>err || fail "-r: $(cat err)"
[[ ! -s out ]] || fail "-r shows what it redirects: $(cat out)"
folder=$(sed -n 's/.* is kept in \([^;]*\);.*/\1/p' err)
[[ $folder == "$work"/* ]] || fail "nobody says where the output is: $(cat err)"
grep -q "rank 0" "$folder/attempt_0/0/stdout.log" || fail "$folder holds nothing"

# The environment stands in for flags that are not given.
PET_NPROC_PER_NODE=2 PET_MAX_RESTARTS=4 PET_RDZV_ID=nine says "rank 1 of 2 node 0 of 1"
grep -q "id nine restarts 4" out || fail "PET_*: $(cat out)"
PET_NPROC_PER_NODE=2 says "rank 0 of 1" --nproc-per-node 1

# node VARIABLE...: two launchers that are told only by the environment which node they are
node()
{
    local port code=0
    port=$(free_port)
    timeout 60 env "$1=1" "${@:2}" "$fsdp" run --nnodes 2 --rdzv-endpoint "127.0.0.1:$port" ./rank >other 2>&1 &
    timeout 60 env "$1=0" "${@:2}" "$fsdp" run --nnodes 2 --rdzv-endpoint "127.0.0.1:$port" ./rank >out 2>&1 || code=$?
    wait $! || code=$?
    [[ $code == 0 ]] || fail "$*: $(cat out other)"
    grep -q "rank 0 of 2 node 0 of 2" out && grep -q "rank 1 of 2 node 1 of 2" other || fail "$*: $(cat out other)"
}
if "$fsdp" --version | grep -qw libcrypto; then
    node PET_NODE_RANK SLURM_NODEID=7 # what torchrun reads comes first
    node SLURM_NODEID JOB_COMPLETION_INDEX=7
    node JOB_COMPLETION_INDEX
fi

# Every binding works for one rank without a GPU: one may lie near cores that this process may not use. Words that torchrun does not
# know are refused.
if "$fsdp" --version | grep -qw hwloc; then
    for mode in node socket exclusive core-complex; do
        CUDA_VISIBLE_DEVICES=-1 says "rank 0" --numa-binding $mode
    done
    CUDA_VISIBLE_DEVICES=-1 PET_NUMA_BINDING=node says "rank 0"
else
    refused 2 "no hwloc" run --numa_binding node ./rank
fi
refused 2 "numa_binding" run --numa_binding everywhere ./rank
refused 2 "share_cores" run --numa_binding node --share_cores ./rank
refused 2 "SIGKILL cannot be passed on" run --signals-to-handle SIGTERM,SIGKILL ./rank
CUDA_VISIBLE_DEVICES=3 refused 2 "1 GPUs for 2 ranks" run --nproc-per-node 2 --virtual-local-rank ./rank

# Python is left to Python.
refused 2 "python3 SCRIPT" run --run-path ./rank
refused 2 "Python class" run --logs-specs other ./rank
refused 2 "search stdout.log" run --duplicate-stdout-filters loss ./rank
refused 2 "search stderr.log" run --duplicate_stderr_filters loss,error ./rank
refused 2 "python3 -m MODULE" run -m package
refused 2 "python3 -m MODULE" run --nproc-per-node 2 --module package
refused 2 "python3 train.py" run --standalone train.py
refused 2 "unknown flag -x" run -x ./rank
refused 2 "foo=1" run --rdzv-conf foo=1 ./rank
says ": --standalone -t words" --standalone --no-python
if command -v python3 >/dev/null; then
    timeout 60 "$fsdp" run --standalone python3 -m platform >out 2>err || fail "a module of python3 behind a switch: $(cat err)"
fi
echo "torchrun's command lines start"
