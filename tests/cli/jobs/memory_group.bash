# A control group with little memory, in which the kernel kills whom we choose. For tests that have sourced support.bash.
group=/sys/fs/cgroup/memory/fsdp-test-$$ limit=memory.limit_in_bytes
[[ -d /sys/fs/cgroup/memory ]] || group=/sys/fs/cgroup/fsdp-test-$$ limit=memory.max
hog=

# group_open: false, with the reason on standard output, where there can be none
group_open()
{
    command -v python3 >/dev/null || { echo "skipped: no python3"; return 1; }
    if ! mkdir "$group" 2>/dev/null || ! echo $((256 << 20)) 2>/dev/null >"$group/$limit"; then
        echo "skipped: no memory control group can be made here"
        return 1
    fi
    [[ ! -e $group/memory.swap.max ]] || echo 0 >"$group/memory.swap.max"
}

group_close()
{
    [[ -z $hog ]] || kill -9 "$hog" 2>/dev/null || true
    for _ in $(seq 100); do # a group goes when its last process has
        [[ -d $group ]] && ! rmdir "$group" 2>/dev/null || break
        sleep 0.1
    done
}

enter_group() { echo "$BASHPID" >"$group/cgroup.procs"; }

# starve PID: somebody else in the group takes all of its memory, until the process is gone: by its score the kernel chooses it first.
# False where it was gone before.
starve()
{
    echo 1000 2>/dev/null >"/proc/$1/oom_score_adj" || return 1
    (
        enter_group
        exec python3 -c 'import os, sys
held = []
while os.path.exists("/proc/" + sys.argv[1]):
    held.append(b"x" * (1 << 20))' "$1"
    ) >hog.log 2>&1 &
    hog=$!
    for _ in $(seq 1200); do
        [[ -d /proc/$1 ]] || break
        sleep 0.05
    done
    [[ ! -d /proc/$1 ]] || fail "the kernel killed nobody: $(tail -n 3 "$group"/memory.*events 2>/dev/null)"
    wait "$hog" 2>/dev/null || true # he may be next: until the launcher has looked, the process seems to be there
    hog=
}
