# A Slurm of two nodes on this host, in $work/slurm: munge, slurmctld and two slurmd with sockets, ports and folders of their own,
# so that several may run beside each other and beside one that the system has. slurm_start, slurm_stop; nothing outlives them.

# slurm_missing: says what a test of Slurm lacks here; silent when it can run
slurm_missing()
{
    local program
    for program in munged slurmctld slurmd srun sbatch scontrol python3; do
        command -v "$program" >/dev/null || { echo "there is no $program (make test-slurm installs it)"; return; }
    done
    ((EUID == 0)) || echo "slurmd is started by root only"
}

# free_ports N: as many that nobody uses now
free_ports()
{
    python3 - "$1" <<'PYTHON'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in held])
PYTHON
}

slurm_configure()
{
    local ports
    read -ra ports < <(free_ports 3)
    cat >"$slurm/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm/munge.socket,cred_expire=10
SlurmctldPort=${ports[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool.%n
TmpFS=$slurm/tmp.%n
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.%n.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=60
JobRequeue=1
NodeName=$slurm_first NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=2 RealMemory=1000
NodeName=$slurm_second NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=2 RealMemory=1000
PartitionName=low Nodes=$slurm_first,$slurm_second Default=YES PriorityTier=1 GraceTime=60 OverTimeLimit=0
PartitionName=high Nodes=$slurm_first,$slurm_second PriorityTier=10 PreemptMode=OFF
CONF
    mkdir -p "$slurm"/{state,{tmp,spool}."$slurm_first",{tmp,spool}."$slurm_second"}
}

slurm_start()
{
    slurm=$work/slurm
    slurm_first=$(hostname) # tasks meet at the first node by its name, which must resolve
    slurm_second=$slurm_first-second
    mkdir -p "$slurm"
    slurm_configure
    export SLURM_CONF=$slurm/slurm.conf
    head -c 1024 /dev/urandom >"$slurm/munge.key"
    chmod 600 "$slurm/munge.key"
    slurm_daemons=()
    munged --foreground --force --socket="$slurm/munge.socket" --key-file="$slurm/munge.key" --pid-file="$slurm/munge.pid" \
        --log-file="$slurm/munge.log" --seed-file="$slurm/munge.seed" >"$slurm/munged.out" 2>&1 &
    slurm_daemons+=($!)
    until_true "munged does not listen" test -S "$slurm/munge.socket"
    slurmctld -D >"$slurm/slurmctld.out" 2>&1 &
    slurm_daemons+=($!)
    local node
    for node in "$slurm_first" "$slurm_second"; do
        slurmd -D -N "$node" >"$slurm/slurmd.$node.out" 2>&1 &
        slurm_daemons+=($!)
    done
    until_true "the nodes of Slurm do not come up" slurm_is_idle
}

slurm_is_idle() { [[ $(timeout 5 sinfo -h -p low -t idle -o %D 2>/dev/null) == 2 ]]; }

# until_true WHAT COMMAND...: waits up to a minute for the command to succeed
until_true()
{
    local what=$1
    shift
    for _ in $(seq 600); do
        "$@" && return
        sleep 0.1
    done
    fail "$what: $(tail -n 5 "$slurm"/*.out)"
}

slurm_stop()
{
    [[ -n ${slurm:-} ]] || return 0
    timeout 10 scancel --full --signal=KILL --user="$(id -un)" >/dev/null 2>&1 || true
    kill "${slurm_daemons[@]}" 2>/dev/null || true
    wait "${slurm_daemons[@]}" 2>/dev/null || true
    slurm=
}
