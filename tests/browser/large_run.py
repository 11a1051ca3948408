"""Plays the server of a run of 10,000 steps on 64 ranks, with the page and the first event of a real one, so that the page's speed
can be measured without 64 ranks; the standard library alone."""
import copy
import http.server
import json
import math
import threading
import time
import urllib.request

RANKS, STEPS, POINTS, APART = 64, 10000, 4000, 0.4  # seconds between events, as the server of a run has them


def borrow(url):
    """The page of a run, and its first event."""
    page = urllib.request.urlopen(url, timeout=60).read()
    with urllib.request.urlopen(url + "events", timeout=60) as events:
        line = events.readline().decode()
    return page, json.loads(line[len("data: "):])


def enlarge(first):
    """The same event, of many steps and ranks."""
    m = copy.deepcopy(first)
    steps = [1 + i * (STEPS - 1) // (POINTS - 1) for i in range(POINTS)]
    for name, values in m["curves"].items():
        m["curves"][name] = steps if name == "step" else [(values[-1] or 1) * (1 + 0.3 * math.sin(i * 0.7) + 300 / (i + 100)) for i in range(POINTS)]
    m["run"]["ranks"] = [dict(copy.deepcopy(first["run"]["ranks"][0]), rank=i) for i in range(RANKS)]
    m["run"]["spikes"] = [500 * i for i in range(1, 13)]
    m["run"]["times"] = {"step": steps[::POINTS // 200], "laps": [{"name": lap["name"], "values": [0.001 * (1 + (i * k) % 7) for i in range(200)]}
                                                                   for k, lap in enumerate(first["run"]["times"]["laps"])]}
    m["live"].update(step=STEPS, steps=2 * STEPS, n_ranks=RANKS, places=[first["live"]["places"][0]] * RANKS)
    return m


def next_event(whole, n):
    """What came with a step more: what ranks did changes with every event."""
    m = {"whole": False, "run": {"ranks": copy.deepcopy(whole["run"]["ranks"])}, "live": dict(whole["live"], step=STEPS + n)}
    m["curves"] = {name: [STEPS + n if name == "step" else values[-1]] for name, values in whole["curves"].items()}
    for i, rank in enumerate(m["run"]["ranks"]):
        rank["seconds"] = [[name, v * (1 + 0.2 * math.sin(n + i))] for name, v in rank["seconds"]]
    m["live"]["places"] = [[STEPS + n, n, f"all_gather of layers.{(n + i) % 32}", *place[3:]] for i, place in enumerate(m["live"]["places"])]
    if n % 5 == 0:
        m["run"].update(times=whole["run"]["times"], timeline=whole["run"]["timeline"], validation=whole["run"]["validation"])
    return m


class Server:
    def __init__(self, page, first):
        whole, outer = enlarge(first), self
        self.refuses = 0  # how many asked for events and were told that too many watch already
        self.away = False  # events break off, and are refused

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                events = self.path.startswith("/events")
                if events and outer.away:
                    outer.refuses += 1
                    self.send_error(503)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream" if events else "text/html; charset=utf-8")
                self.end_headers()
                if not events:
                    self.wfile.write(page)
                    return
                try:
                    self.tell(whole)
                    for n in range(1, 1000):
                        time.sleep(APART)
                        if outer.away:
                            return
                        self.tell(next_event(whole, n))
                except OSError:
                    pass  # the page was left

            def tell(self, message):
                self.wfile.write(b"data: " + json.dumps(message).encode() + b"\n\n")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
