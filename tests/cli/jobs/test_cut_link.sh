#!/bin/bash
# The link between two hosts is cut in the middle of a run, and comes back: the job ends with the bits of a run that nobody
# disturbed. Hosts are network namespaces; iptables drops every packet of one, and no connection is told. Skipped without root, ip or
# iptables.
set -euo pipefail
source "$(dirname "$0")/../support.bash"
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto joins no launchers"; exit 77; }
steps=200
source "$(dirname "$0")/jobs.bash"
source "$(dirname "$0")/hosts.bash"
trap 'kill -9 "${launchers[@]}" 2>/dev/null || true; hosts_close; rm -rf "$work"' EXIT
hosts_open || exit 77

"$fsdp" run --standalone --nproc-per-node 2 "${train[@]}" --output_dir calm >calm.log 2>&1 || fail "undisturbed: $(cat calm.log)"
port=$(free_port)
launch cut 0 2 "$port" --watchdog 3
launch cut 1 2 "$port" --watchdog 3
reached cut 15
link_cut
# Whoever notices first says so; only then the link comes back.
for _ in $(seq 1200); do
    grep -qs . cut.report && break
    sleep 0.05
done
grep -qs . cut.report || fail "nobody notices: $(tail -n 5 cut.*.log)"
link_mend
ended cut
same calm cut
grep -q 'starting all ranks again\|joining again' cut.*.log || fail "nobody started again: $(tail -n 5 cut.*.log)"
echo "a link that is cut and comes back: the same bits"
