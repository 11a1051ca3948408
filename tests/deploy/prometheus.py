#!/usr/bin/env python3
"""Prometheus against a job that trains at this moment. usage: prometheus.py PORT FILE_OF_SERIES; the working directory is scratch."""
import json, os, re, socket, subprocess, sys, time, urllib.error, urllib.parse, urllib.request

port, series = sys.argv[1], open(sys.argv[2]).read().split()
grafana = os.path.join(os.environ["FSDP_SOURCE"], "deploy", "grafana")
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    own = s.getsockname()[1]
with open("prometheus.yml", "w") as f:
    json.dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
               "rule_files": [os.path.join(grafana, "alerts.yml")],
               "scrape_configs": [{"job_name": "fsdp", "static_configs": [{"targets": ["127.0.0.1:" + port]}]}]}, f)
log = open("prometheus.log", "w")
server = subprocess.Popen(["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", "--log.level=warn",
                           f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log)


def get(path, **arguments):
    url = f"http://127.0.0.1:{own}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as e:
        sys.exit(f"{arguments}: {e.read().decode()}")


def wait(what, found):
    for _ in range(300):
        try:
            if found():
                return
        except OSError:
            pass  # Prometheus is not up yet
        if server.poll() is not None:
            break
        time.sleep(0.2)
    sys.exit(f"not within a minute: {what}\n{open('prometheus.log').read()}")


def rules():
    return [r for g in get("rules")["groups"] for r in g["rules"]]


try:
    wait("a scrape", lambda: get("query", query="up == 1")["result"])
    for name in series:
        wait(f"a value of {name}", lambda: get("query", query=name)["result"])
    known = get("metadata")
    unsaid = [name for name in series if not known.get(name, [{}])[0].get("help")]
    assert not unsaid, f"without help: {unsaid}"
    board = json.load(open(os.path.join(grafana, "dashboard.json")))
    queries = [t["expr"].replace("$instance", ".*") for p in board["panels"] for t in p.get("targets", [])]
    for query in queries:
        if re.search("fsdp_gpu_|fsdp_loss_scale", query):
            get("query", query=query)  # understood; a value needs a GPU, or fp16
        else:
            wait(f"a value of {query}", lambda: get("query", query=query)["result"])
    wait("all rules evaluated", lambda: all(r["health"] == "ok" for r in rules()))
    firing = [r["name"] for r in rules() if r["state"] == "firing"]
    assert not firing, f"a healthy run fires {firing}"
    print(f"Prometheus answers {len(series)} series, {len(queries)} queries of the dashboard and {len(rules())} rules")
finally:
    server.terminate()
    server.wait()
