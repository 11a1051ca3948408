"""Perfetto's own trace processor (WebAssembly, in a worker of headless Chromium) loads a trace of two ranks and answers SQL: it imports
everything without an error, and its spans agree with the steps of metrics.jsonl.

usage: perfetto.py CHROMIUM ENGINE_FOLDER TRACE METRICS; the folder has engine_bundle.js and its trace_processor*.wasm"""
import base64
import http.server
import json
import os
import re
import statistics
import struct
import sys
import threading

from browser import Browser

PAGE = b"""<!doctype html><script>
const channel = new MessageChannel(), waiting = [];
const engine = new Worker("engine_bundle.js");
let failed = "";
engine.onerror = (e) => { failed = e.message || "the worker does not start"; };
engine.postMessage(channel.port1, [channel.port1]);
channel.port2.onmessage = (e) => { let text = ""; for (const byte of e.data) text += String.fromCharCode(byte); waiting.push(btoa(text)); };
const send = (text) => channel.port2.postMessage(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
const take = () => waiting.splice(0);
</script>"""


def serve(folder):
    """The page and the engine's files, on this host alone."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            known = re.fullmatch(r"engine_bundle\.js|trace_processor\w*\.wasm", name)
            body = PAGE if name == "" else open(os.path.join(folder, name), "rb").read() if known else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html" if name == "" else "application/wasm" if name.endswith("wasm") else "text/javascript")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


# ---- The processor's protocol: protobuf messages of perfetto's trace_processor.proto ----

def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            n, at = read_varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at:at + n], at + n
        yield key >> 3, value


def varints(data):
    at, out = 0, []
    while at < len(data):
        value, at = read_varint(data, at)
        out.append(value - (1 << 64) if value >> 63 else value)
    return out


class Processor:
    APPEND, FINALIZE, QUERY = 1, 2, 3

    def __init__(self, browser):
        self.browser, self.number = browser, 0

    def call(self, method, arguments=b""):
        """Fields of the answers; a query may have several."""
        self.number += 1
        message = field(1, self.number) + field(2, method) + arguments
        self.browser.value(f"send({json.dumps(base64.b64encode(field(1, message)).decode())})")
        answers = []
        while True:
            self.browser.wait("waiting.length > 0 || failed")
            for text in self.browser.value("take()"):
                for _, one in fields(base64.b64decode(text)):
                    answer = dict(fields(one))
                    if 5 in answer:
                        raise RuntimeError("the processor gives up: " + answer[5].decode())
                    answers.append(answer)
            failed = self.browser.value("failed")
            if failed:
                raise RuntimeError("the processor does not work: " + failed)
            if answers and (method != self.QUERY or self.is_last(answers[-1])):
                return answers

    @staticmethod
    def is_last(answer):
        result = list(fields(answer[203]))
        return any(n == 2 for n, _ in result) or any(n == 3 and dict(fields(v)).get(6) for n, v in result)

    def load(self, path):
        with open(path, "rb") as f:
            answers = self.call(self.APPEND, field(101, f.read()))
        wrong = dict(fields(answers[0].get(201, b""))).get(2)
        if wrong:
            raise RuntimeError("the trace is refused: " + wrong.decode())
        self.call(self.FINALIZE)

    def query(self, sql):
        """Rows of values."""
        cells, names = [], 0
        for answer in self.call(self.QUERY, field(103, field(1, sql.encode()))):
            for number, value in fields(answer[203]):
                if number == 2:
                    raise RuntimeError(sql + ": " + value.decode())
                names += number == 1
                if number == 3:
                    batch = {}
                    for key, part in fields(value):
                        batch[key] = part
                    whole = iter(varints(batch.get(2, b"")))
                    real = iter(struct.unpack(f"<{len(batch.get(3, b'')) // 8}d", batch.get(3, b"")))
                    text = iter(batch.get(5, b"").decode().split("\0"))
                    for kind in varints(batch.get(1, b"")):
                        cells.append({1: lambda: None, 2: lambda: next(whole), 3: lambda: next(real), 4: lambda: next(text)}[kind]())
        return [cells[i:i + names] for i in range(0, len(cells), names)] if names else []


def check(processor, trace, metrics):
    with open(trace) as f:
        events = json.load(f)
    spans = [e for e in events if e["ph"] == "X"]
    troubles = processor.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    assert not troubles, f"errors while importing: {troubles}"
    (loaded, least), = processor.query("select count(*), min(dur) from slice where dur > 0 or (dur = 0 and category != 'unit')")
    instants = sum(e["ph"] == "i" for e in events)
    (all_slices,), = processor.query("select count(*) from slice")
    assert all_slices == len(spans) + instants and loaded <= all_slices and least >= 0, (all_slices, len(spans), instants)
    in_rank = "from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"
    steps = processor.query(f"select process.pid, slice.ts, slice.dur, process.name {in_rank} where slice.name = 'step' and category = 'phase' order by pid, ts")
    ranks = sorted({(pid, name) for pid, _, _, name in steps})
    assert ranks == [(0, "rank 0"), (1, "rank 1")], ranks
    # Phases and their waits fill the step that they lie in; steps take as long as the metrics say.
    covered = processor.query(
        f"with step as (select process.pid as rank, slice.ts as ts, slice.dur as dur {in_rank} where slice.name = 'step' and category = 'phase'), "
        f"phase as (select process.pid as rank, slice.ts as ts, slice.dur as dur {in_rank} where category = 'phase' and slice.name in ('data', 'forward', 'backward', 'optimizer')) "
        "select step.rank, step.ts, sum(phase.dur) * 1.0 / step.dur from step join phase on phase.rank = step.rank and phase.ts >= step.ts "
        "and phase.ts < step.ts + step.dur group by step.rank, step.ts")
    assert len(covered) == len(steps), (len(covered), len(steps))
    share = statistics.median(row[2] for row in covered)
    assert 0.98 <= share <= 1.0001, f"phases make up {share:.4f} of a step"
    with open(metrics) as f:
        lines = [json.loads(line) for line in f]
    own = [dur for pid, _, dur, _ in steps if pid == 0]
    first = json.load(open(os.path.join(os.path.dirname(metrics), "settings.json")))["trace_first"]
    ratios = [dur * 1e-9 / lines[first - 1 + i]["seconds"] for i, dur in enumerate(own) if i > 0]
    assert abs(statistics.median(ratios) - 1) <= 0.02, ratios
    # Arrows, counters and arguments came through.
    (flows,), = processor.query("select count(*) from flow")
    assert flows == sum(e["ph"] == "f" for e in events) > 0, flows
    counters = {name for name, in processor.query("select distinct name from process_counter_track")}
    assert counters == {e["name"] + " bytes" for e in events if e["ph"] == "C"} and counters, counters
    gathers = processor.query("select extract_arg(arg_set_id, 'args.detail'), extract_arg(arg_set_id, 'args.bytes') from slice where category = 'collective' and name = 'all_gather'")
    assert len(gathers) == sum(e["cat"] == "collective" and e["name"] == "all_gather" for e in spans) > 0 and all(unit and size > 0 for unit, size in gathers)
    where, = processor.query("select extract_arg(arg_set_id, 'args.where') from slice where category = 'op' and name = 'linear' limit 1")
    assert where[0] and "[" in where[0], where
    print(f"Perfetto loads {all_slices} spans and {flows} arrows without an error; phases make up {100 * share:.2f} % of a step, "
          f"steps are {100 * statistics.median(ratios):.2f} % of the seconds in metrics.jsonl")


def main():
    chromium, folder, trace, metrics = sys.argv[1:]
    browser, server = Browser(chromium), serve(folder)
    try:
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/", 400, False)
        processor = Processor(browser)
        processor.load(trace)
        check(processor, trace, metrics)
    finally:
        browser.close()
        server.shutdown()


main()
