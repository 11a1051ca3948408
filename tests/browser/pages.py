"""Pages of the command in Chromium: no error, no request, legible everywhere, and the numbers of the command.

usage: pages.py FSDP CHROMIUM [--screenshots DIR]"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import large_run
from browser import Browser

WIDTHS = (400, 1600)
PICTURES = ("live-1600.png", "live-400-dark.png", "report-1600.png", "report-400-dark.png", "compared-1600-dark.png", "plan-1600.png", "misfit-400-dark.png", "explain-en-1600.png", "explain-ko-400-dark.png")  # for docs/images

# Everything that shows text, with its size on the screen and the contrast to what lies behind it.
LEGIBLE = r"""
(() => {
    const parse = (c) => { const n = c.match(/[\d.]+/g).map(Number); return n.length > 3 && n[3] === 0 ? null : n.slice(0, 3); };
    const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
    const bad = [];
    for (const e of document.querySelectorAll("h1, h2, p, th, td, li, dt, dd, summary, button, select, code, figure text, section svg text, caption")) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        const box = e.getBoundingClientRect();
        if (!own || !box.width || e.closest("details:not([open]) > :not(summary)")) continue;
        const style = getComputedStyle(e), svg = e instanceof SVGElement;
        const size = parseFloat(style.fontSize) * (svg ? Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) : 1);
        const [a, b] = [light(parse(svg ? style.fill : style.color)), light(behind(svg ? e.closest("svg").parentElement : e))].sort((x, y) => y - x);
        if (size < 8.9) bad.push(`${e.textContent.slice(0, 30)}: ${size.toFixed(1)} px`);
        if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(`${e.textContent.slice(0, 30)}: contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
        if (!svg && (box.left < -1 || (box.right > innerWidth + 1 && !e.closest(".wide")))) bad.push(`${e.textContent.slice(0, 30)}: outside`);
    }
    if (document.documentElement.scrollWidth > innerWidth) bad.push(`the page is ${document.documentElement.scrollWidth} wide`);
    return bad;
})()
"""


# What a screen reader must be able to name.
NAMED = {"button", "link", "slider", "combobox", "checkbox", "textbox", "image", "img", "graphics-document", "figure", "table", "region"}


class Check:
    def __init__(self, fsdp, browser, shots):
        self.fsdp, self.browser, self.shots = fsdp, browser, shots
        self.failures = 0

    def expect(self, holds, what):
        if not holds:
            self.failures += 1
            print("FAILED:", what)

    def run(self, *arguments, code=0):
        done = subprocess.run([self.fsdp, *arguments], capture_output=True, text=True, timeout=300)
        self.expect(done.returncode == code, f"fsdp {' '.join(arguments)}: {done.returncode} {done.stderr}")
        return done.stdout

    def everywhere(self, name, path, ready="true"):
        """At every width, light and dark: nothing wrong, everything legible. `ready`: when the page has all it shows."""
        for width in WIDTHS:
            for dark in (False, True):
                self.browser.open(path, width, dark)
                self.browser.wait(ready)
                where = f"{name} at {width} px, {'dark' if dark else 'light'}"
                bad = self.browser.value(LEGIBLE)
                self.expect(not bad, f"{where}: {bad[:5]}")
                unnamed = self.unnamed()
                self.expect(not unnamed, f"{where}: a screen reader has no name for {unnamed[:5]}")
                self.expect(not self.browser.troubles(), f"{where}: {self.browser.troubles()[:3]}")
                picture = f"{name}-{width}{'-dark' if dark else ''}.png"
                if self.shots and picture in PICTURES:
                    self.browser.screenshot(os.path.join(self.shots, picture), 1400 if width == 1600 else 1000, 0.625 if width == 1600 else 1)

    def unnamed(self):
        """Pictures, tables and controls of the accessibility tree that have no name; the page itself must have a language and a heading."""
        nodes = [n for n in self.browser.call("Accessibility.getFullAXTree")["nodes"] if not n.get("ignored")]
        roles = [(n["role"]["value"], (n.get("name") or {}).get("value", "").strip()) for n in nodes if "role" in n]
        missing = [role for role, name in roles if role in NAMED and not name]
        if not any(role == "heading" and name for role, name in roles):
            missing.append("any heading")
        if not any(role in ("image", "img", "graphics-document", "figure") for role, _ in roles):
            missing.append("any picture")
        if not self.browser.value("document.documentElement.lang"):
            missing.append("the language")
        return missing

    def plan(self, work):
        page = os.path.join(work, "step.html")
        flags = ["plan", "--preset", "llama3_1_8b", "--device", "h100", "--world_size", "8", "--sharding_strategy", "full"]
        other = "--activation_checkpointing full"
        table = self.run(*flags, "--timeline", page, "--against=" + other)
        self.everywhere("plan", page)
        b = self.browser
        total = re.search(r"^total +(\S+ \S+)", table, re.M).group(1)
        self.expect(total in b.value("document.querySelector('.facts').textContent"), f"the page does not say {total}")
        planned = json.loads(self.run(*flags, "--json"))["strategies"][0]["total"]
        second = json.loads(self.run(*flags, *other.split(), "--json"))["strategies"][0]["total"]
        self.expect(b.value("page.data.plans.map((p) => p.total)") == [planned, second], "the totals of two plans")
        units = json.loads(self.run(*flags, "--units", "--json"))["units"]
        self.expect(b.value("page.data.plans[0].units") == units, "the units of the page and of --units")
        # Keys read and zoom; the table has the numbers of the picture.
        b.value("document.querySelector('figure > svg').focus()")
        b.key("End")
        b.wait("document.querySelector('.readout').textContent.includes('2')")
        before = b.value("document.querySelector('figure > svg').textContent")
        b.key("+")
        b.wait(f"document.querySelector('figure > svg').textContent !== {json.dumps(before)}")
        b.key("0")
        b.wait(f"document.querySelector('figure > svg').textContent === {json.dumps(before)}")
        b.value("document.querySelector('figure details').open = true")
        b.wait("document.querySelectorAll('figure details table tr').length > 20")
        self.expect(not b.troubles(), f"keys: {b.troubles()[:3]}")

    def misfit(self, work):
        page = os.path.join(work, "misfit.html")
        why = self.run("plan", "--preset", "tiny", "--world_size", "2", "--device", "cpu", "--sharding_strategy", "full", "--fit", "20MB",
                       "--timeline", page, code=2)
        self.everywhere("misfit", page)
        text = self.browser.value("document.body.innerText")
        for flags, total, saves in re.findall(r"^(--\S+ \S+) +(\S+ \S+) +(\S+ \S+)", why, re.M):
            self.expect(all(s in text for s in (flags, total, saves)), f"the page has no remedy {flags} {total} {saves}")
        self.expect("Does not fit" in text, "the page does not say that it does not fit")

    def hostile(self, work):
        """Names of strangers are text."""
        page = os.path.join(work, "hostile.html")
        self.run("plan", "--preset", "tiny", "--world_size", "2", "--device", "cpu", "--timeline", page)
        name = "<img src=x onerror='window.hacked=1'><script>window.hacked=2</script>"
        escaped = json.dumps(name).replace("<", "\\u003c").replace(">", "\\u003e")
        with open(page) as f:
            text = f.read().replace('"root"', escaped)
        with open(page, "w") as f:
            f.write(text)
        self.browser.open(page, 1600, False)
        self.expect(self.browser.value("page.data.plans[0].units.some((u) => u.name.startsWith('<img'))"), "no hostile name is in the page")
        self.expect(self.browser.value("typeof window.hacked") == "undefined", "a name of the data ran")
        self.expect(self.browser.value("document.images.length") == 0, "a name of the data became markup")
        self.expect(not self.browser.troubles(), f"hostile: {self.browser.troubles()[:3]}")

    def live(self, work):
        """The live page during a run of two ranks: its curves hold the numbers of metrics.jsonl, and grow by themselves."""
        b, folder = self.browser, os.path.join(work, "live")
        text = os.path.join(work, "live.txt")
        with open(text, "w") as f:
            f.write("\n".join(map(str, range(20000))))
        log = open(os.path.join(work, "live.log"), "w+")
        job = subprocess.Popen([self.fsdp, "run", "--standalone", "--nproc-per-node", "2", "--plain", self.fsdp, "train", "--device", "cpu", "--threads", "1", "--hidden_width", "64",
                                "--num_layers", "6", "--num_heads", "2", "--intermediate_size", "128", "--max_context_width", "64", "--train_batch_size", "4", "--dataset", text,
                                "--max_steps", "3000", "--sample_tokens", "0", "--validation_split", "0.05", "--validation_freq", "10", "--validation_batches", "2",
                                "--checkpoint_freq", "25", "--keep_checkpoints", "3", "--sharding_strategy", "full", "--dashboard", "--output_dir", folder],
                               stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            url = self.live_address(job, log.name)
            self.live_page(url, folder)
            page, first = large_run.borrow(url)
        finally:
            job.terminate()
            job.wait(120)
        b.wait("document.getElementById('state').textContent === 'The run has stopped.'")
        self.expect(not b.troubles(), f"live, at the end: {b.troubles()[:3]}")
        self.large_run(page, first)
        self.reconnect(page, first)

    def reconnect(self, page, first):
        """A page whose events break off says so, tries again also where it is refused, and has every step once when it succeeds."""
        b, state = self.browser, "document.getElementById('state').textContent"
        with large_run.Server(page, first) as server:
            b.open(server.url, 1600, False)
            b.wait("!!page.data.live && page.data.live.step > 9000")
            server.away = True
            b.wait(state + ".startsWith('No connection')")
            until = time.monotonic() + 60
            while server.refuses < 2 and time.monotonic() < until:
                time.sleep(0.1)
            self.expect(server.refuses >= 2, "a page that was refused does not try again")
            self.expect(b.value(state + ".startsWith('No connection')"), "a page without connection does not say so")
            server.away = False
            b.wait(state + " === 'Training.'")
            b.wait("page.data.runs[0].curves.step.length > 1000")
            self.expect(b.value("page.data.runs[0].curves.step.every((s, i, all) => i === 0 || s > all[i - 1])"), "steps come twice after a new connection")

    def large_run(self, page, first):
        """10,000 steps of 64 ranks do not make the page slow."""
        b = self.browser
        with large_run.Server(page, first) as server:
            for width in WIDTHS:
                b.open(server.url, width, False)
                b.wait("!!page.data.live && page.data.live.step > 9000")
                b.call("Performance.enable")
                before, step = self.busy(), b.value("page.data.live.step")
                b.wait(f"page.data.live.step >= {step + 20}")
                each = (self.busy() - before) / 20
                print(f"10,000 steps of 64 ranks at {width} px: {1e3 * each:.0f} ms of the page's thread for each event")
                self.expect(each < 0.4, f"an event takes {each:.2f} s, which is longer than events are apart")
                self.expect(b.value("document.querySelectorAll('.board figure svg rect').length") > 64 * 8, "64 ranks are not all drawn")
                bad = b.value(LEGIBLE)
                self.expect(not bad, f"64 ranks at {width} px: {bad[:5]}")
                self.expect(not b.troubles(), f"64 ranks: {b.troubles()[:3]}")
                if self.shots and width == 1600:
                    top = b.value("[...document.querySelectorAll('h2')].find((e) => e.textContent === 'Ranks and phases').closest('section').getBoundingClientRect().top + scrollY - 14")
                    b.screenshot(os.path.join(self.shots, "live-64-ranks.png"), 1300, 0.625, top)

    def busy(self):
        """Seconds that the page's thread has worked."""
        return next(m["value"] for m in self.browser.call("Performance.getMetrics")["metrics"] if m["name"] == "TaskDuration")

    def live_address(self, job, log):
        until = time.monotonic() + 60
        while time.monotonic() < until and job.poll() is None:
            with open(log) as f:
                found = re.search(r"live page: (http://127\.0\.0\.1:\d+/)", f.read())
            if found:
                return found.group(1)
            time.sleep(0.1)
        raise RuntimeError("no live page: " + open(log).read()[-500:])

    def live_page(self, url, folder):
        b = self.browser
        b.open(url, 1600, False)
        b.wait(f"!!page.data.live && page.data.live.step >= {150 if self.shots else 40} && page.data.runs[0].timeline && page.data.live.checkpoint.step > 0")
        self.everywhere("live", url, "!!page.data.live && page.data.runs[0].timeline && document.querySelectorAll('.board section:not([hidden])').length > 10")
        b.open(url, 1600, False)
        b.wait("!!page.data.live")
        shown = b.value("[page.data.runs[0].curves.step, page.data.runs[0].curves.loss, page.data.runs[0].curves.grad_norm]")
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            lines = {line["step"]: line for line in map(json.loads, (l for l in f if l.endswith("\n")))}
        self.expect(shown[0] == list(range(1, shown[0][-1] + 1)), "steps of the live page are missing or come twice")
        self.expect(all(abs(loss - lines[step]["loss"]) < 1e-6 and abs(norm - lines[step]["grad_norm"]) < 1e-6 for step, loss, norm in zip(*shown)), "the numbers of the live page")
        titles = b.value("[...document.querySelectorAll('section:not([hidden]) h2')].map((e) => e.textContent)")
        for title in ("Loss", "Throughput", "Utilization", "Gradient norm", "Where the time goes", "Memory of each rank", "One step, unit by unit", "Ranks and phases",
                      "Ranks and their last collective", "Log", "Checkpoints", "Sessions and restarts", "Settings"):
            self.expect(title in titles, f"the live page has no {title}: {titles}")
        b.wait(f"page.data.runs[0].curves.step.length > {len(shown[0])}")  # it grows by itself
        self.expect(not b.value("document.body.innerText.includes('[object')"), "an object is shown as text")
        # Held still, it is read with keys; then it goes on.
        b.value("document.getElementById('hold').click()")
        held = b.value("document.querySelector('#figures dd').textContent")
        b.value("document.querySelector('.board figure > svg').focus()")
        b.key("Home")
        b.wait("document.querySelector('.board .readout').textContent.includes('step 1')")
        self.expect(b.value("document.querySelector('#figures dd').textContent") == held, "a page that is held moves")
        b.value("document.getElementById('hold').click()")
        b.wait(f"document.querySelector('#figures dd').textContent !== {json.dumps(held)}")
        if self.shots:  # the lower half, dark
            b.open(url, 1600, True)
            b.wait("!!page.data.live && page.data.runs[0].timeline && document.querySelectorAll('.board section:not([hidden])').length > 10")
            top = b.value("[...document.querySelectorAll('h2')].find((e) => e.textContent === 'Where the time goes').closest('section').getBoundingClientRect().top + scrollY - 14")
            b.screenshot(os.path.join(self.shots, "live-1600-dark.png"), 1700, 0.625, top)
            b.open(url, 1600, False)
            b.wait("!!page.data.live")
        # Dark by choice.
        paper = b.value("getComputedStyle(document.body).backgroundColor")
        b.value("document.getElementById('theme').click()")
        self.expect(b.value("getComputedStyle(document.body).backgroundColor") != paper, "the button changes no colour")
        bad = b.value(LEGIBLE)
        self.expect(not bad, f"live, dark by choice: {bad[:5]}")
        self.expect(not b.troubles(), f"live: {b.troubles()[:3]}")

    def report(self, work):
        """A run's report holds the numbers of metrics.jsonl; two runs are drawn over each other."""
        b = self.browser
        text = os.path.join(work, "text.txt")
        with open(text, "w") as f:
            f.write("\n".join(map(str, range(20000))))
        runs = [os.path.join(work, name) for name in ("steady", "faster")]
        for folder, rate in zip(runs, ("0.001", "0.01")):
            self.run("run", "--standalone", "--nproc-per-node", "2", self.fsdp, "train", "--device", "cpu", "--threads", "1", "--hidden_width", "32", "--num_layers", "2",
                     "--num_heads", "2", "--intermediate_size", "64", "--max_context_width", "32", "--train_batch_size", "2", "--dataset", text, "--max_steps", "60",
                     "--sample_tokens", "0", "--validation_split", "0.05", "--validation_freq", "20", "--learning_rate", rate, "--sharding_strategy", "full",
                     "--trace", os.path.join(folder, "trace.json"), "--output_dir", folder)
        self.everywhere("report", os.path.join(runs[0], "report.html"))
        with open(os.path.join(runs[0], "metrics.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        self.expect(b.value("page.data.runs[0].curves.step") == [line["step"] for line in lines], "the steps of the report")
        shown = b.value("page.data.runs[0].curves.loss")
        self.expect(all(abs(a - line["loss"]) < 1e-6 for a, line in zip(shown, lines)), "the losses of the report")
        titles = b.value("[...document.querySelectorAll('h2')].map((e) => e.textContent)")
        for title in ("Verdict", "Loss", "Throughput and utilization", "Ranks and phases", "Memory of each rank", "One step", "Settings", "To run it again"):
            self.expect(title in titles, f"the report has no {title}: {titles}")
        self.expect(not b.value("document.body.innerText.includes('[object')"), "an object is shown as text")
        b.value("document.querySelector('figure > svg').focus()")
        b.key("End")
        b.wait("document.querySelector('.readout').textContent.includes('step 60')")
        both = os.path.join(work, "both.html")
        self.run("report", *runs, "--html", both)
        self.everywhere("compared", both)
        self.expect("0.01" in b.value("document.body.innerText"), "settings that differ are not shown")

    def spikes(self, work):
        """A loss that jumps, one that is not finite, and validation are marked in the picture and said beside it."""
        b, folder = self.browser, os.path.join(work, "spiky")
        os.mkdir(folder)
        with open(os.path.join(folder, "metrics.jsonl"), "w") as f:
            for step in range(1, 201):
                loss = 9.0 if step == 120 else None if step == 160 else 4 - step / 100 + 0.01 * (step % 5)
                f.write(json.dumps({"step": step, "loss": loss, "seconds": 0.1}) + "\n")
        with open(os.path.join(folder, "validation.jsonl"), "w") as f:
            for step in range(20, 201, 20):
                f.write(json.dumps({"step": step, "validation_loss": 4.1 - step / 100}) + "\n")
        self.run("report", folder)
        self.everywhere("spikes", os.path.join(folder, "report.html"))
        self.expect(b.value("page.data.runs[0].spikes") == [120, 160], "the steps of the spikes")
        loss = "[...document.querySelectorAll('figure')].find((f) => f.textContent.includes('Loss'))"
        self.expect(b.value(f"{loss}.querySelectorAll('path.mark').length") == 2, "spikes are not marked in the picture")
        self.expect(b.value(f"{loss}.textContent.includes('spike at 120')"), "a mark is not named")
        self.expect(b.value(f"{loss}.textContent.toLowerCase().includes('validation')"), "validation is not in the picture of the loss")
        self.expect("at steps 120, 160" in b.value("document.body.innerText"), "spikes are not said in words")
        b.value("document.querySelector('figure details').open = true")
        b.wait("document.querySelectorAll('figure details table tr').length > 10")

    def hostile_run(self, work):
        """A stranger's run folder is shown; nothing in it runs."""
        evil, folder = "</script><img src=x onerror='window.hacked=1'><script>window.hacked=2</script>", os.path.join(work, "evil")
        os.mkdir(folder)
        for name, value in (("settings", {evil: evil}), ("run", {"sessions": [{"began": evil, "host": evil}], "origins": {evil: evil}}),
                            ("ranks", {"ranks": [{"planned": 5, "measured": 1e300, "classes": {evil: 5}, "seconds": {evil: 1}}]})):
            with open(os.path.join(folder, name + ".json"), "w") as f:
                json.dump(value, f)
        with open(os.path.join(folder, "metrics.jsonl"), "w") as f:
            f.write('{"step": 1, "loss": 1e308}\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": -1e308}\n{"step": ')
        self.run("report", folder)
        self.browser.open(os.path.join(folder, "report.html"), 1600, False)
        self.expect(evil in self.browser.value("document.body.textContent"), "what the stranger wrote is not shown")
        self.expect(self.browser.value("typeof window.hacked") == "undefined", "a stranger's folder ran")
        self.expect(self.browser.value("document.images.length") == 0, "a stranger's folder became markup")
        self.expect(not self.browser.troubles(), f"hostile run: {self.browser.troubles()[:3]}")

    def explain(self, work, language):
        b = self.browser
        page = os.path.join(work, f"explain-{language}.html")
        told = self.run("explain", "--sharding_strategy", "all", "--lang", language, "--html", page)
        self.everywhere(f"explain-{language}", page)
        sentences = re.findall(r"^  \|[#=+.]{24}\| +(\S+ \S+)  (.*)$", told, re.M)
        scenes = b.value("page.data.tales.flatMap((t) => t.scenes.map((s) => [page.bytes(t.ranks[0].parameters + t.ranks[0].gradients + "
                         "t.ranks[0].optimizer + s.gathered[0] + s.gradients[0]), s.text]))")
        self.expect(scenes == [list(s) for s in sentences], "the scenes of the page and the lines of the command")
        # Step through the first strategy with the button, then by keys and slider, then play.
        n = b.value("page.data.tales[0].scenes.length")
        for i in range(1, n):
            b.value("document.getElementById('next').click()")
            if b.value("document.getElementById('story').textContent") != scenes[i][1]:
                self.expect(False, f"scene {i} is not shown")
                break
        b.value("document.activeElement.blur()")
        b.key("ArrowLeft")
        b.wait(f"document.getElementById('counter').textContent === '{n - 1} / {n}'")
        b.value("(() => { const s = document.getElementById('slider'); s.value = 3; s.dispatchEvent(new Event('input')); })()")
        b.wait(f"document.getElementById('counter').textContent === '4 / {n}'")
        b.value("(() => { const s = document.getElementById('speed'); s.value = '0.25'; })()")
        b.value("document.getElementById('play').click()")
        b.wait("parseInt(document.getElementById('counter').textContent) >= 6")
        b.value("document.getElementById('play').click()")
        b.value("(() => { const s = document.getElementById('strategy'); s.value = '3'; s.dispatchEvent(new Event('change')); })()")
        b.wait("document.getElementById('counter').textContent.startsWith('1 /')")
        self.expect(b.value("document.getElementById('story').textContent") == b.value("page.data.tales[3].scenes[0].text"), "another strategy")
        self.expect(not b.troubles(), f"explain: {b.troubles()[:3]}")
        if self.shots and language == "en":  # again, in the middle of the step
            b.open(page, 1600, False)
            b.value("(() => { const s = document.getElementById('slider'); s.value = 23; s.dispatchEvent(new Event('input')); })()")
            b.screenshot(os.path.join(self.shots, "explain-en-1600.png"), 1400, 0.625)


def main():
    shots = sys.argv[sys.argv.index("--screenshots") + 1] if "--screenshots" in sys.argv else None
    browser = Browser(sys.argv[2])
    try:
        with tempfile.TemporaryDirectory() as work:
            check = Check(os.path.abspath(sys.argv[1]), browser, shots)
            check.plan(work)
            check.misfit(work)
            check.hostile(work)
            check.live(work)
            check.report(work)
            check.spikes(work)
            check.hostile_run(work)
            check.explain(work, "en")
            check.explain(work, "ko")
    finally:
        browser.close()
    print("pages in the browser:", "well" if not check.failures else f"{check.failures} failures")
    return 1 if check.failures else 0


sys.exit(main())
