# Two hosts for the two nodes of jobs.bash: network namespaces with one link between them, which can be cut, lose packets, or be slow.
# For tests that have sourced jobs.bash. Sets `endpoint` and on_node.
host=fh$$
slow=

# hosts_open: false, with the reason on standard output, where there can be none
hosts_open()
{
    local subnet=10.233.$((RANDOM % 200 + 20)) node
    "$fsdp" --version | grep -qw UCX || { echo "skipped: built without UCX"; return 1; }
    command -v ip >/dev/null && command -v iptables >/dev/null || { echo "skipped: no ip or no iptables"; return 1; }
    if ! ip netns add "${host}0" 2>/dev/null || ! ip netns add "${host}1" ||
        ! ip link add eth0 netns "${host}0" type veth peer name eth0 netns "${host}1"; then
        echo "skipped: network namespaces are not possible here"
        return 1
    fi
    for node in 0 1; do
        ip -n "$host$node" addr add "$subnet.$((node + 1))/24" dev eth0
        ip -n "$host$node" link set lo up
        ip -n "$host$node" link set eth0 up
    done
    link_lose 1 2>/dev/null && link_mend || { echo "skipped: iptables does not work here"; return 1; }
    export FSDP_RDZV_SECRET=secret-of-$$ UCX_TLS=tcp,self
    endpoint=$subnet.1
    on_node() { exec ip netns exec "$host$1" "${@:2}"; }
}

hosts_close()
{
    local node
    [[ -z $slow ]] || kill -9 "$slow" 2>/dev/null || true
    for node in 0 1; do ip netns del "$host$node" 2>/dev/null || true; done
}

on_link() { ip netns exec "${host}1" iptables -w "$@"; }

# link_cut, link_lose SHARE: no packet passes any more, or this share of them does not (0.05); nobody is told
link_cut() { on_link -A INPUT -i eth0 -j DROP && on_link -A OUTPUT -o eth0 -j DROP; }
link_lose() { on_link -A INPUT -i eth0 -m statistic --mode random --probability "$1" -j DROP; }
link_mend() { on_link -F; }

# link_through_proxy: from now on connections of host 1 go through a process that can hold them up; false where that is not possible
link_through_proxy()
{
    [[ -z $slow ]] || return 0
    command -v python3 >/dev/null || return 1
    rm -f slow.log
    ip netns exec "${host}1" python3 "$(dirname "${BASH_SOURCE[0]}")/slow_link.py" >slow.log 2>&1 </dev/null &
    slow=$!
    for _ in $(seq 600); do
        grep -qs listens slow.log && break
        sleep 0.05
    done
    on_link -t nat -A OUTPUT -o eth0 -p tcp -m mark ! --mark 7 -j REDIRECT --to-port "$(awk '{ print $2 }' slow.log)" 2>/dev/null
}
link_directly()
{
    [[ -n $slow ]] || return 0
    on_link -t nat -F
    kill -9 "$slow" 2>/dev/null || true
    wait "$slow" 2>/dev/null || true
    slow=
}
link_delay() { kill -USR1 "$slow"; } # what passes in the next two seconds waits
