"""Headless Chromium, driven over its debugging protocol through a pair of pipes; the standard library alone."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

LIMIT = 60  # seconds for any single wait: the machine may be busy


class Browser:
    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="fsdp-browser-")
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()

        def inherit():
            os.dup2(to_read, 3 + 100)
            os.dup2(from_write, 4 + 100)
            os.dup2(3 + 100, 3)
            os.dup2(4 + 100, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--remote-debugging-pipe", "--user-data-dir=" + self.profile, "about:blank"],
            close_fds=False, preexec_fn=inherit, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.buffer = b""
        self.number = 0
        self.events = []
        target = self.call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        self.session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, until):
        """The next message, or None after the moment `until`."""
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.from_read], [], [], left)[0]:
                return None
            part = os.read(self.from_read, 1 << 20)
            if not part:
                raise RuntimeError("the browser is gone")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, parameters=None, session="own"):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + LIMIT
        while True:
            answer = self.receive(until)
            if answer is None:
                raise RuntimeError(method + ": no answer")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(method + ": " + answer["error"]["message"])
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def value(self, expression):
        result = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            raise RuntimeError(expression + ": " + json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, expression):
        """Until the expression is true."""
        until = time.monotonic() + LIMIT
        while not self.value(expression):
            if time.monotonic() > until:
                raise RuntimeError("never true: " + expression)
            time.sleep(0.05)

    def open(self, path, width, dark, height=1000):
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        url = path if path.startswith("http:") else "file://" + os.path.abspath(path)
        self.origin = url if path.startswith("http:") else "file:"
        self.call("Page.navigate", {"url": url})
        self.wait(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(self.origin)})")
        self.wait("[...document.querySelectorAll('figure > svg')].every((s) => s.childElementCount > 2)")

    def troubles(self):
        """Errors on the console, and requests that leave the page; a page of a server may ask that for its events."""
        served = self.origin.startswith("http:")
        found = []
        for event in self.events:
            p = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append("exception: " + json.dumps(p["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
                found.append("console: " + json.dumps(p["args"]))
            elif event["method"] == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
                found.append("log: " + p["entry"]["text"])
            elif event["method"] == "Network.requestWillBeSent" and not p["request"]["url"].startswith(self.origin):
                found.append("request: " + p["request"]["url"])
            elif event["method"] == "Network.requestWillBeSent" and p.get("type") not in (("Document", "EventSource") if served else ("Document",)):
                found.append("request: " + p["request"]["url"])
        return found

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": key}
            if kind == "keyDown" and len(key) == 1:
                event["text"] = key
            self.call("Input.dispatchKeyEvent", event)

    def screenshot(self, path, height, scale=1, top=0):
        """`height` pixels of the page from `top` on."""
        clip = {"x": 0, "y": top, "width": self.value("innerWidth"), "height": height, "scale": scale}
        parameters = {"format": "png", "clip": clip, "captureBeyondViewport": True}
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot", parameters)["data"]))
