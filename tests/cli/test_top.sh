#!/bin/bash
# `fsdp top`: a run is shown through its folder, and through its page where it has one; plainly where there is no terminal.
# Servers that are none of ours are refused.
set -euo pipefail
. "$(dirname "$0")/support.bash"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FSDP_DASHBOARD_TOKEN
command -v python3 >/dev/null || { echo "no python3 to play a server"; exit 77; }
export OMP_NUM_THREADS=1
seq 1 4000 >text.txt
train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 32 --num_layers 2 --num_heads 2
    --intermediate_size 64 --max_context_width 32 --train_batch_size 4 --dataset text.txt --sample_tokens 0)

# shows TEXT ARGUMENTS...: what it prints holds TEXT, and nothing that a terminal would obey
shows()
{
    local text=$1
    shift
    "$fsdp" top "$@" >shown 2>err </dev/null || fail "fsdp top $*: $(cat err)"
    grep -qF -- "$text" shown || fail "fsdp top $*: no '$text' in: $(cat shown)"
    ! grep -q $'\033' shown || fail "escape sequences where there is no terminal"
}

# --- through the folder -----------------------------------------------------------------------------------------------
refused 2 "there is no fsdp_runs/latest here" top
"${train[@]}" --max_steps 5 --output_dir plain >plain.log 2>&1 || fail "$(tail -3 plain.log)"
loss=$(python3 -c 'import json; print("%.5g" % json.loads(list(open("plain/metrics.jsonl"))[-1])["loss"])')
shows "step 5, last step" plain
shows "loss $loss " plain
refused 2 "no folder of a run" top nowhere
refused 2 "no folder of a run" top "unix:x"
refused 2 "/no/where: no folder of a run" top /no/where
refused 2 "holds no run" top /tmp/../proc/self/fdinfo
refused 2 "give one run" top plain plain

# --- through the page -------------------------------------------------------------------------------------------------
FSDP_DASHBOARD_TOKEN=open-sesame "${train[@]}" --max_steps 1000000 --output_dir watched --dashboard >watched.log 2>&1 </dev/null &
job=$!
for _ in $(seq 600); do
    ! grep -q 'built without libmicrohttpd' watched.log || { echo "skipped: built without libmicrohttpd"; exit 77; }
    [[ -s watched/metrics.jsonl && -s watched/dashboard.json ]] && grep -q 'live page: ' watched.log && break
    kill -0 "$job" || fail "$(tail -3 watched.log)"
    sleep 0.1
done
address=$(grep -o 'live page: .*' watched.log | sed 's/live page: //')
port=$(grep -o '127.0.0.1:[0-9]*' <<<"$address" | cut -d: -f2)
shows "of 1000000 (" watched
shows "last collective" "$address"
FSDP_DASHBOARD_TOKEN=open-sesame shows "last collective" "127.0.0.1:$port"
shows "last collective" "$port" --token open-sesame
# What a killed run left names a port at which another answers now, perhaps in a folder of the same name, or a port of
# another host: the folder is read.
mkdir other
cp -r plain other/watched
for change in 's/"id": "[^"]*"/"id": "0123"/' 's/"host": "[^"]*"/"host": "elsewhere"/' 's/"address": "[^"]*"/"address": "192.0.2.1"/'; do
    sed "$change" watched/dashboard.json >other/watched/dashboard.json
    ! cmp -s watched/dashboard.json other/watched/dashboard.json || fail "no such key: $change"
    shows "step 5, last step" other/watched
done
refused 2 "wants its token" top "localhost:$port"
refused 2 "wants its token" top "$port" --token open-sesame2
if have_terminal; then
    # Interrupted once it has drawn, however long that takes.
    script -qefc "stty cols 60 rows 12; '$fsdp' top watched --interval 0.2; echo code \$?" /dev/null >screen </dev/null &
    terminal=$!
    for _ in $(seq 600); do
        ! grep -qs 'step ' screen || break
        sleep 0.1
    done
    for pid in $(pgrep -f "^$fsdp top watched"); do # others may look at a run of this name
        [[ ! /proc/$pid/cwd -ef $work ]] || kill -INT "$pid" || true # it may have ended
    done
    wait "$terminal" || true
    grep -q 'code 130' screen || fail "fsdp top in a terminal: $(cat -v screen | tail -3)"
    grep -q $'\033\[?25h' screen || fail "the cursor does not come back"
fi
cp watched/dashboard.json stale.json
kill -TERM "$job"
wait "$job" || true
refused 1 "nobody is there" top "$port" --token open-sesame
cp stale.json watched/dashboard.json # of a run that was killed: the folder is read, and that is said
shows "last step" watched
shows "note: the run's page at 127.0.0.1:$port does not answer" watched

# --- a page at another address of this host ------------------------------------------------------------------------------
"${train[@]}" --max_steps 1000000 --output_dir apart --dashboard --dashboard_address 127.0.0.3 >apart.log 2>&1 </dev/null &
job=$!
for _ in $(seq 600); do
    [[ -s apart/metrics.jsonl && -s apart/dashboard.json ]] && break
    kill -0 "$job" || fail "$(tail -3 apart.log)"
    sleep 0.1
done
shows "of 1000000 (" apart
kill -TERM "$job"
wait "$job" || true

# --- servers that are none of ours ------------------------------------------------------------------------------------
cat >server.py <<'PYTHON'
import socket, sys
answers = {"junk": b"\xff\x00" * 1000, "none": b"", "html": b"HTTP/1.0 200 OK\r\n\r\n<html>", "other": b"HTTP/1.0 200 OK\r\n\r\n{\"runs\": 1}",
           "missing": b"HTTP/1.1 404 Not Found\r\n\r\n", "evil": b"HTTP/1.0 200 OK\r\n\r\n{\"runs\": [{\"name\": \"\\u001b[2Jevil\"}]}", "endless": None}
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(16)
print(server.getsockname()[1], flush=True)
for name in sys.argv[1:]:
    client, _ = server.accept()
    client.recv(4096)
    try:
        if answers[name] is None:
            client.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while True:
                client.sendall(b" " * 1000000)
        client.sendall(answers[name])
    except OSError:
        pass
    client.close()
PYTHON
python3 server.py junk none html other missing endless evil >port &
for _ in $(seq 600); do
    [[ -s port ]] && break
    sleep 0.1
done
port=$(cat port)
refused 2 "is no server of fsdp" top "$port"
refused 2 "is no server of fsdp" top "$port"
refused 2 "127.0.0.1:$port" top "$port"
refused 2 "not a run" top "$port"
refused 2 "answers 404" top "$port"
refused 1 "no whole answer" top "$port"
shows 'run \x1b[2Jevil' "$port"
