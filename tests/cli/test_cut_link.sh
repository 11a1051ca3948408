#!/bin/bash
# The link between two hosts is cut in the middle of a run, and comes back: the job ends with the bits of a run that nobody
# disturbed. Hosts are network namespaces; iptables drops every packet of one, and no connection is told. Skipped without root, ip or
# iptables.
set -euo pipefail
source "$(dirname "$0")/support.bash"
"$fsdp" --version | grep -qw UCX || { echo "skipped: built without UCX"; exit 77; }
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
command -v ip >/dev/null && command -v iptables >/dev/null || { echo "skipped: no ip or no iptables"; exit 77; }
steps=200
source "$(dirname "$0")/jobs.bash"
id=fc$$
cleanup()
{
    kill -9 "${launchers[@]}" 2>/dev/null || true
    ip netns del "${id}0" 2>/dev/null || true
    ip netns del "${id}1" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
subnet=10.233.$((RANDOM % 200 + 20))
if ! ip netns add "${id}0" 2>/dev/null || ! ip netns add "${id}1" || ! ip link add eth0 netns "${id}0" type veth peer name eth0 netns "${id}1"; then
    echo "skipped: network namespaces are not possible here"
    exit 77
fi
for host in 0 1; do
    ip -n "$id$host" addr add "$subnet.$((host + 1))/24" dev eth0
    ip -n "$id$host" link set lo up
    ip -n "$id$host" link set eth0 up
done
link() { for chain in INPUT OUTPUT; do ip netns exec "${id}1" iptables "$1" $chain -i eth0 -j DROP 2>/dev/null || ip netns exec "${id}1" iptables "$1" $chain -o eth0 -j DROP; done; }
link -A 2>/dev/null && link -D || { echo "skipped: iptables does not work here"; exit 77; }

export FSDP_RDZV_SECRET=secret-of-$$ UCX_TLS=tcp,self
endpoint=$subnet.1
on_node() { exec ip netns exec "$id$1" "${@:2}"; }

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"
port=$(free_port)
launch cut 0 2 "$port" --watchdog 3
launch cut 1 2 "$port" --watchdog 3
reached cut 15
link -A
# Whoever notices first says so; only then the link comes back.
for _ in $(seq 1200); do
    grep -qs . cut.report && break
    sleep 0.05
done
grep -qs . cut.report || fail "nobody notices: $(tail -n 5 cut.*.log)"
link -D
ended cut
same calm cut
grep -q 'starting all ranks again\|joining again' cut.*.log || fail "nobody started again: $(tail -n 5 cut.*.log)"
echo "a link that is cut and comes back: the same bits"
