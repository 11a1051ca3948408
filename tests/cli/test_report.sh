#!/bin/bash
# Every run leaves report.html; `fsdp report` makes it again, compares runs, names what is missing or torn, and shows a
# stranger's folder without obeying it. `make test-browser` looks at the pages in Chromium.
set -euo pipefail
. "${FSDP_SOURCE:?}/tests/cli/support.bash"
command -v python3 >/dev/null || { echo "no python3 to read pages"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1
seq 1 20000 >text.txt
train=("$fsdp" train --device cpu --threads 1 --model_type llama_v3 --hidden_width 32 --num_layers 2 --num_heads 2 --intermediate_size 64
    --max_context_width 32 --train_batch_size 2 --dataset text.txt --max_steps 12 --sample_tokens 0)

cat >check.py <<'PYTHON'
import json, re, sys
page = open(sys.argv[1]).read()
data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1)
assert not re.search("[<>&]", data), "markup in the data"
assert page.count("<script") == 4 and "default-src 'none'" in page
runs = json.loads(data)["runs"]
for run, folder in zip(runs, sys.argv[2:]):
    lines = [json.loads(l) for l in open(folder + "/metrics.jsonl")]
    assert run["curves"]["step"] == [l["step"] for l in lines]
    for name in ("loss", "grad_norm", "tokens_per_s", "memory_peak"):
        assert all(abs(a - l[name]) <= 1e-6 * abs(l[name]) for a, l in zip(run["curves"][name], lines)), name
    settings = {s["name"]: s for s in run["settings"]}
    assert settings["max_steps"]["value"] == "12" and settings["max_steps"]["origin"] == "command line", settings["max_steps"]
    for rank in run["ranks"]: # what was taken is what was planned, class by class
        planned, taken = dict(rank["classes"]), dict(rank["taken"])
        planned["activations"] += planned.pop("workspace", 0) + planned.pop("validation", 0)
        assert taken.pop("host memory") <= planned.pop("host memory") # the snapshot of a checkpoint comes after the last step
        assert planned == taken, (planned, taken)
    assert len(run["verdict"]) == 6 and run["verdict"][0]["text"] == "It finished after step %d." % run["steps"] and run["ranks"][0]["measured"] > 0 and run["ranks"][0]["seconds"]
    assert not run["troubles"], run["troubles"]
    assert [c["step"] for c in run["checkpoints"]] == [12]
assert len(runs) == len(sys.argv) - 2
PYTHON

# --- at the end of a run, again, and two compared --------------------------------------------------------------------
"${train[@]}" --output_dir a >a.log 2>&1 || fail "$(tail -3 a.log)"
[[ -s a/report.html ]] || fail "a run leaves no report: $(tail -3 a.log)"
python3 check.py a/report.html a || fail "the report of a run"
rm a/report.html
"$fsdp" report a >said || fail "no report"
grep -q '^  Loss healthy? ' said || fail "no verdict: $(cat said)"
python3 check.py a/report.html a || fail "the report made again"
"${train[@]}" --learning_rate 0.02 --output_dir b >b.log 2>&1 || fail "$(tail -3 b.log)"
"$fsdp" report a b --html both.html >said || fail "two runs are not compared"
python3 check.py both.html a b || fail "two runs"

# --- each picture as a file of its own ---------------------------------------------------------------------------------
cat >pictures.py <<'PYTHON'
import re, sys, xml.dom.minidom
for path in sys.argv[1:]:
    text = open(path, encoding="utf-8").read()
    sheet = xml.dom.minidom.parseString(text.encode()).documentElement
    assert sheet.tagName == "svg" and sheet.getElementsByTagName("title") and sheet.getElementsByTagName("desc"), path
    assert not re.search(r"href|<script|url\(|@import", text), path + " names something outside"
    numbers = re.findall(r' (?:x|y|width|height)="([^"]*)"', text)
    assert all(re.fullmatch(r"-?[0-9.]+%?", n) for n in numbers), path
PYTHON
"$fsdp" report a --svg pictures >said || fail "no pictures"
grep -q '^pictures: pictures$' said || fail "nobody says where the pictures are: $(cat said)"
for name in loss seconds tokens_per_s grad_norm lr times ranks memory; do
    [[ -s pictures/$name.svg ]] || fail "no picture of $name: $(ls pictures)"
done
python3 pictures.py pictures/*.svg || fail "a picture is no SVG"
[[ $(grep -o '<path class="line' pictures/loss.svg | wc -l) == 1 ]] || fail "one run has one loss"
"$fsdp" report a b --html both.html --svg pictures/both >said || fail "no pictures of two runs"
python3 pictures.py pictures/both/*.svg || fail "a picture of two runs is no SVG"
[[ $(grep -o '<path class="line' pictures/both/loss.svg | wc -l) == 2 ]] || fail "two runs have two losses"
cp -r a "a<b>&c" && "$fsdp" report "a<b>&c" a --html both.html --svg pictures/odd >said && python3 pictures.py pictures/odd/*.svg || fail "an odd name"

# --- the command that the report gives makes the same run again, and leaves the first one's files alone ------------------
"$fsdp" run --standalone --nproc-per-node 2 --plain "${train[@]}" --sharding_strategy full --trace two/step.json --metrics "it's.jsonl" --output_dir two >two.log 2>&1 ||
    fail "$(tail -3 two.log)"
"$fsdp" report two --svg two/pictures >said || fail "no report of two ranks"
[[ -s two/pictures/step.svg ]] && python3 pictures.py two/pictures/*.svg || fail "no picture of one step: $(ls two/pictures)"
sha256sum two/step.json two/metrics.jsonl "it's.jsonl" >before
python3 -c 'import json, re, sys
print(json.loads(re.search(r"id=\"data\">(.*?)</script>", open("two/report.html").read(), re.S).group(1))["runs"][0]["reproduce"])' >again.sh
mkdir -p path && ln -sf "$fsdp" path/fsdp
PATH=$PWD/path:$PATH bash again.sh >again.log 2>&1 || fail "$(cat again.sh): $(tail -3 again.log)"
sha256sum --quiet -c before || fail "to run it again writes over the first run: $(cat again.sh)"
[[ -s again/step.json && -s "again/it's.jsonl" ]] || fail "not all outputs: $(cat again.sh)"
python3 -c 'import json
losses = [[json.loads(line)["loss"] for line in open(folder + "/metrics.jsonl")] for folder in ("two", "again")]
assert len(losses[0]) == 12 and losses[0] == losses[1], losses' || fail "not the same run again: $(cat again.sh)"

# --- a page that cannot be written does not fail the run ------------------------------------------------------------
mkdir -p c/report.html/in_the_way
"${train[@]}" --output_dir c >c.log 2>&1 || fail "a run fails for its report: $(tail -3 c.log)"
grep -q 'no report.html' c.log || fail "nobody says that there is no report: $(cat c.log)"

# --- torn, missing, strange -----------------------------------------------------------------------------------------
refused 2 "no such folder" report nowhere
mkdir empty
refused 2 "holds no run" report empty
refused 2 "give the folders" report
mkdir -p torn && { head -n 5 a/metrics.jsonl; sed -n 6p a/metrics.jsonl | head -c 100; } >torn/metrics.jsonl && echo '{"a": [' >torn/settings.json
"$fsdp" report torn >said || fail "a torn folder is fatal"
grep -q 'note: metrics.jsonl: 1 lines are torn' said || fail "the torn line is not named: $(cat said)"
grep -q 'note: .*settings.json' said || fail "torn settings are not named: $(cat said)"
grep -q 'note: ranks.json is missing' said || fail "a missing file is not named: $(cat said)"

# --- a long run: thinned, but its spike, its NaN and its slow rank are there ------------------------------------------
mkdir long
python3 - <<'PYTHON'
import json
with open("long/metrics.jsonl", "w") as f:
    for step in range(1, 20001):
        line = {"step": step, "loss": 9.0 if step == 7777 else None if step == 15001 else 3 + 1 / step + 0.01 * (step % 7)}
        if step > 19000:
            line["slow_rank"] = {"rank": 3, "phase": "data", "seconds": 0.1}
        f.write(json.dumps(line) + "\n")
PYTHON
"$fsdp" report long >said || fail "a long run has no report"
grep -q '20000 steps; 1 spike, 1 not finite' said || fail "spikes: $(cat said)"
grep -q 'in 1000 of 20000 steps; the last was rank 3, in data' said || fail "the slow rank: $(cat said)"
python3 - <<'PYTHON' || fail "a long run is not thinned well"
import json, re
run = json.loads(re.search(r'id="data">(.*?)</script>', open("long/report.html").read(), re.S).group(1))["runs"][0]
steps, loss = run["curves"]["step"], run["curves"]["loss"]
assert len(steps) <= 4000 and steps == sorted(set(steps)), len(steps)
assert loss[steps.index(7777)] == 9 and loss[steps.index(15001)] is None and run["spikes"] == [7777, 15001], run["spikes"]
PYTHON

cat >hostile.py <<'PYTHON'
import json, os
evil = "</script><img src=x onerror=hacked=1>\u202e\x1b[31m"
os.makedirs("evil/checkpoints/step-00000001")
json.dump({evil: evil, "trace": "/etc/passwd", "max_steps": {"deep": [evil] * 9}, "long": "x" * 100000}, open("evil/settings.json", "w"))
json.dump({"sessions": [{"began": evil, "host": evil, "step": -5, "ranks": 1e300}, 7, None], "origins": {evil: evil}, "checkpoints": evil}, open("evil/run.json", "w"))
json.dump({"ranks": [{"planned": 1e300, "measured": 1e300, "classes": {evil: 1e300}, "seconds": {evil: -1}}, [], evil]}, open("evil/ranks.json", "w"))
with open("evil/metrics.jsonl", "w") as f:
    for line in ({"step": 1, "loss": evil, "times": {"data": evil}}, {"step": 2, "loss": 1e308, "slow_rank": {"rank": -1, "phase": evil}},
                 {"step": 2, "loss": 0}, {"step": 10**40}, {"step": 3, "loss": -1e308}, [], evil):
        f.write(json.dumps(line) + "\n")
    f.write("[" * 60000 + "\n" + "9" * 200000 + "\nNaN\n{\"step\": 9, \"loss\": NaN}\n")
os.symlink("/etc/passwd", "evil/validation.jsonl")
PYTHON
python3 hostile.py
"$fsdp" report evil --html evil.html >said || fail "a hostile folder is fatal: $(cat said)"
python3 - <<'PYTHON' || fail "what a stranger wrote gets through"
import json, re
page = open("evil.html").read()
assert "<img" not in page and page.count("<script") == 4 and "\x1b" not in page and "\u202e" not in page and "root:" not in page
run = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))["runs"][0]
assert run["curves"]["step"] == [1, 2, 3, 9], run["curves"]["step"]
assert any("validation.jsonl is a link" in t for t in run["troubles"]), run["troubles"]
assert all(len(s["value"]) <= 400 for s in run["settings"])
said = open("said").read()
assert "\x1b" not in said and "\u202e" not in said
PYTHON
echo "reports hold"
