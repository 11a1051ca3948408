"""A small hub: answers as the Hugging Face hub does, from a folder REPOSITORIES/{models,datasets}/OWNER/NAME, with the
faults that a file's name asks for; NAME@v1 holds the revision v1 of NAME. Prints its port, and writes a line per request to LOG.
usage: hub_server.py REPOSITORIES LOG"""
import hashlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

root, log = os.path.abspath(sys.argv[1]), sys.argv[2]
counts, lock = {}, threading.Lock()


def seen(key):
    with lock:
        counts[key] = counts.get(key, 0) + 1
        return counts[key]


def read(path):
    with open(path, "rb") as f:
        return f.read()


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", headers=(), part=None):
        """Sends `body`, or claims to and closes the connection after `part` bytes."""
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if part is None else body[:part])
        self.close_connection = part is not None

    def drip(self, data, pieces=35):
        """Slowly: the file drip says how many seconds it takes."""
        seconds = float(read(os.path.join(root, "drip")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for i in range(pieces):
            self.wfile.write(data[i * len(data) // pieces:(i + 1) * len(data) // pieces])
            time.sleep(seconds / pieces)

    def list_files(self, kind, name, revision):
        if revision not in ("main", "v1"):
            return self.answer(404, b"no such revision")
        name += "" if revision == "main" else "@v1"
        folder = os.path.join(root, kind, name)
        if "down" in name:
            return self.answer(503, b"later")
        if not os.path.isdir(folder):
            return self.answer(401, b"{}")
        files = []
        for base, _, names in os.walk(folder):
            for n in sorted(names):
                data = read(os.path.join(base, n))
                entry = {"rfilename": os.path.relpath(os.path.join(base, n), folder), "size": len(data),
                         "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
                if len(data) > 1000:
                    digest = "0" * 64 if "wrong" in n else hashlib.sha256(data).hexdigest()
                    entry["lfs"] = {"sha256": digest, "size": len(data)}
                files.append(entry)
        if "escape" in name:
            files.append({"rfilename": "../../escaped", "size": 1, "blobId": "0" * 40})
        self.answer(200, json.dumps({"sha": ("c" if revision == "main" else "d") * 40, "siblings": files}).encode())

    def send_file(self, path, elsewhere):
        name, data = os.path.basename(path), read(path)
        first = 0
        if self.headers.get("Range") and "rangeless" not in name:
            first = int(self.headers["Range"].split("=")[1].split("-")[0])
        n = seen(path + str(elsewhere))
        if "moved" in name and not elsewhere:
            other = self.server.other
            return self.answer(302, b"over there", [("Location", f"http://127.0.0.1:{other}/elsewhere{path}")])
        if "limited" in name and n == 1:
            return self.answer(429, b"slow down", [("Retry-After", "1")])
        if "busy" in name and n <= 2:
            return self.answer(503, b"later")
        if ("slow" in name or "stall" in name or "held" in name) and n == 1:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:10])
            self.wfile.flush()
            limit = time.monotonic() + (4 if "slow" in name else 60)
            while time.monotonic() < limit and not ("held" in name and os.path.exists(os.path.join(root, "release"))):
                time.sleep(0.1)
            self.close_connection = True
            return None
        if len(data) > 1000 and os.path.exists(os.path.join(root, "drip")):
            return self.drip(data)
        headers = [("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")] if first else []
        body = data[first:]
        return self.answer(206 if first else 200, body, headers, len(body) // 2 if "cut" in name and n <= 2 else None)

    def do_GET(self):
        with lock, open(log, "a") as f:
            token = "token" if self.headers.get("Authorization") else "-"
            f.write(f"{self.server.server_port} {self.path} {self.headers.get('Range', '-')} {token}\n")
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[0] == "elsewhere":
            return self.send_file("/" + "/".join(parts[1:]), True)
        if parts[0] == "api":
            return self.list_files(parts[1], "/".join(parts[2:4]), parts[5])
        kind = "datasets" if parts[0] == "datasets" else "models"
        parts = parts[1:] if kind == "datasets" else parts
        path = os.path.join(root, kind, parts[0], parts[1] + ("@v1" if parts[3][0] == "d" else ""), *parts[4:])
        return self.send_file(path, False) if os.path.isfile(path) else self.answer(404, b"no such file")


hub, other = ThreadingHTTPServer(("127.0.0.1", 0), Hub), ThreadingHTTPServer(("127.0.0.1", 0), Hub)
hub.other = other.other = other.server_port
threading.Thread(target=other.serve_forever, daemon=True).start()
print(hub.server_port, flush=True)
hub.serve_forever()
