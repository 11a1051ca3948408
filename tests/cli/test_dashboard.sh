#!/bin/bash
# --dashboard: two ranks train and show it. The page, its events and run.json are there and hold the numbers of
# metrics.jsonl; strangers, traversal, oversized requests, slow readers and a thousand connections are refused or left
# waiting, and the run trains on as if nobody looked. `make test-browser` looks at the page in Chromium.
set -euo pipefail
. "$(dirname "$0")/support.bash"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FSDP_DASHBOARD_TOKEN
command -v python3 >/dev/null || { echo "no python3 to ask the server"; exit 77; }
export OMP_NUM_THREADS=1
seq 1 4000 >text.txt
train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 32 --num_layers 2 --num_heads 2
    --intermediate_size 64 --max_context_width 32 --train_batch_size 4 --dataset text.txt --sharding_strategy full --sample_tokens 0
    --validation_split 0.1 --validation_batches 1 --validation_freq 50 --checkpoint_freq 50 --keep_checkpoints 1)
run=("$fsdp" run --standalone --nproc-per-node 2 --plain)

# --- what does not go together ---------------------------------------------------------------------------------------
refused 2 "one server answers for both; give one port" "${train[@]:1}" --max_steps 1 --output_dir no --dashboard 18081 --metrics_port 18082
refused 2 "one server answers for both; give them the same address" "${train[@]:1}" --max_steps 1 --output_dir no --dashboard --dashboard_address 127.0.0.2 --metrics_port auto
refused 2 "has no page to serve; give --dashboard" "${train[@]:1}" --max_steps 1 --output_dir no --dashboard_address 127.0.0.1
FSDP_DASHBOARD_TOKEN='a b' refused 2 "FSDP_DASHBOARD_TOKEN: give 8 to 32" "${train[@]:1}" --max_steps 1 --output_dir no --dashboard

# --- a run that is watched and attacked ------------------------------------------------------------------------------
cat >watch.py <<'PYTHON'
import json, socket, sys, time, urllib.request

port, folder, token = int(sys.argv[1]), sys.argv[2], sys.argv[3]
base, mark = f"http://127.0.0.1:{port}", "?token=" + token if token else ""

def get(path, **headers):
    return urllib.request.urlopen(urllib.request.Request(base + path + mark, headers=headers), timeout=60)

def raw(request, patience=60):
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    try:
        s.sendall(request)
        s.settimeout(patience)
        return s.recv(65536)
    except OSError:
        return b""
    finally:
        s.close()

def metrics():
    with open(folder + "/metrics.jsonl") as f:
        return {l["step"]: l for l in map(json.loads, (line for line in f if line.endswith("\n")))}

def agree(curves):
    lines = metrics()
    for i, step in enumerate(curves["step"]):
        for name in ("loss", "grad_norm", "tokens_per_s", "seconds", "memory_peak"):
            a, b = curves[name][i], lines[step][name]
            assert abs(a - b) <= 1e-6 * abs(b), (step, name, a, b)
    return len(curves["step"])

page = get("/")
text = page.read().decode()
assert "default-src 'none'" in text and "connect-src 'self'" in text and "http:" not in text.replace("http://www.w3.org/2000/svg", ""), "the page names a host"
assert page.headers["X-Content-Type-Options"] == "nosniff" and page.headers["X-Frame-Options"] == "DENY"

document = json.load(get("/run.json"))
run, live = document["runs"][0], document["live"]
assert agree(run["curves"]) > 0 and len(run["ranks"]) == 2 and run["ranks"][0]["planned"] > 0
assert live["n_ranks"] == 2 and live["steps"] == 1000000 and live["left"] >= 0 and "full" in live["strategy"], live
if len(sys.argv) > 4:  # only whether it opens
    sys.exit(0)
settings = {s["name"]: s for s in run["settings"]}
assert settings["max_steps"] == {"name": "max_steps", "value": "1000000", "origin": "command line"}, settings["max_steps"]
assert settings["dashboard"]["value"] == "auto", settings["dashboard"]

# Events: everything first, then what is new; together they are metrics.jsonl.
stream = get("/events")
def event():
    line = stream.readline().decode()
    assert line.startswith("data: ") and stream.readline() == b"\n", line[:80]
    return json.loads(line[6:])
first = event()
assert first["whole"] and first["run"]["settings"]
curves = first["curves"]
steps = set()
for _ in range(6):
    more = event()
    if more["whole"]:
        curves = more["curves"]
    else:
        for name, values in more["curves"].items():
            curves[name] += values
    steps.add(more["live"]["step"])
assert len(steps) > 2, steps
assert curves["step"][-1] >= 4000 or curves["step"] == list(range(1, curves["step"][-1] + 1)), "steps are missing or come twice"
agree(curves)

# Strangers.
for request, code in ((b"GET /../../etc/passwd HTTP/1.0\r\n\r\n", b" 404 "), (b"GET /%2e%2e%2f%2e%2e%2fetc/passwd HTTP/1.0\r\n\r\n", b" 404 "),
                      (b"GET /metrics.jsonl HTTP/1.0\r\n\r\n", b" 404 "), (b"POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n", b" 405 "),
                      (b"PUT /run.json HTTP/1.0\r\nContent-Length: 0\r\n\r\n", b" 405 "),
                      (b"GET /run.json HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", b" 401 " if token else b" 403 ")):
    answer = raw(request)
    assert code in answer.split(b"\r\n")[0], (request, answer[:80])
for junk in (b"GET / HTTP/1.0\r\nX: " + b"a" * (1 << 20), b"\0" * 4096, b"G" * (1 << 16), bytes(range(256)) * 64):
    assert b" 200 " not in raw(junk, 0.5).split(b"\r\n")[0]
begun = json.load(get("/run.json"))["live"]["step"]
slow = []
for i in range(12):  # they ask for the events and never read
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.sendall(f"GET /events{mark} HTTP/1.0\r\n\r\n".encode())
    slow.append(s)
many = []
try:
    for i in range(1000):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", port))
        many.append(s)
except OSError:
    pass  # this process may not have so many
deadline = time.monotonic() + 60
while max(metrics()) < begun + 20:  # it trains on, which metrics.jsonl says
    assert time.monotonic() < deadline, "the run stands still"
    time.sleep(0.1)
for s in slow + many:
    s.close()
while True:
    try:
        assert json.load(get("/run.json"))["live"]["step"] >= begun
        break
    except OSError:
        assert time.monotonic() < deadline, "nobody answers any more"
print("watched to step", max(metrics()))
PYTHON

# begin NAME FLAGS...: trains until it is stopped; `job` is its process.
begin()
{
    local name=$1
    shift
    "${run[@]}" "${train[@]}" --max_steps 1000000 --output_dir "$name" "$@" >"$name.log" 2>&1 </dev/null &
    job=$!
    for _ in $(seq 600); do
        ! grep -q 'built without libmicrohttpd' "$name.log" || { echo "skipped: built without libmicrohttpd"; exit 77; }
        [[ -s $name/metrics.jsonl && $(wc -l <"$name/metrics.jsonl") -ge 30 ]] && return
        kill -0 "$job" || fail "$(tail -3 "$name.log")"
        sleep 0.1
    done
    fail "$name does not train: $(tail -3 "$name.log")"
}

end()
{
    local name=$1 code=0
    kill -TERM "$job"
    wait "$job" || code=$?
    [[ $code == 143 ]] || fail "$name ended with $code: $(tail -5 "$name.log")"
    [[ ! -e $name/dashboard.json ]] || fail "dashboard.json is left behind"
    python3 -c 'import json, sys
for line in list(open(sys.argv[1] + "/metrics.jsonl"))[:30]:
    print(json.loads(line)["loss"])' "$name" >"$name.losses"
}

port_of() { grep -o 'live page: http://[^/]*' "$1.log" | grep -o '[0-9]*$'; }

begin quiet
end quiet
begin watched --dashboard
[[ $(stat -c %a watched/dashboard.json) == 600 ]] || fail "dashboard.json is for everyone"
python3 watch.py "$(port_of watched)" watched "" || fail "watching: $(tail -2 watched.log)"
end watched
cmp quiet.losses watched.losses || fail "a run that is watched computes something else"

# --- beyond this host: a token, and none for the metrics that were asked for -----------------------------------------
begin far --dashboard --metrics_port auto --metrics_address 0.0.0.0
port=$(port_of far)
token=$(grep 'live page: ' far.log | sed -n 's/.*?token=//p')
[[ ${#token} == 32 ]] || fail "no token was printed: $(grep 'live page' far.log)"
! grep -rq "$token" far --include='*.json*' --exclude=dashboard.json || fail "the token is in the run's folder for everyone"
! python3 watch.py "$port" far "" short >/dev/null 2>&1 || fail "the page is open to everyone"
! python3 watch.py "$port" far "${token}x" short >/dev/null 2>&1 || fail "another token opens the page"
python3 watch.py "$port" far "$token" short || fail "the token does not open the page: $(tail -2 far.log)"
python3 -c "import urllib.request
assert b'fsdp_step ' in urllib.request.urlopen('http://127.0.0.1:$port/metrics', timeout=60).read()" || fail "no metrics beside the page"
end far
