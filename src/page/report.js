/* `fsdp report`, and report.html in a run's folder: one run drawn from its files, or several compared. */
"use strict";
(() => {
    const { element, bytes, count, seconds, plain, section, facts, table } = page;
    const runs = page.data.runs, [run] = runs, several = runs.length > 1;
    const last = (list) => list[list.length - 1];
    const some = (list) => list.some((v) => Number.isFinite(v));
    /* Without the first tenth, as the verdict has it. */
    const middle = (list) => { const s = list.slice(Math.floor(list.length / 10)).filter(Number.isFinite).sort((a, b) => a - b); return s.length ? s[s.length >> 1] : NaN; };
    const shown = (v, format) => (Number.isFinite(v) ? format(v) : "not known");
    const percent = (v) => (100 * v).toFixed(1) + " %";
    const share = (v) => plain(Number((100 * v).toPrecision(4))) + " %";
    const short = (v) => plain(Number(v.toPrecision(4)));
    const levels = { good: "✓ good", look: "▲ worth a look", bad: "✗ trouble", unknown: "? not known" };

    function verdict(r) {
        section(several ? `Verdict on ${r.name}` : "Verdict",
            element("ul", { class: "verdict" }, r.verdict.map((v) => element("li", {}, element("b", {}, v.question), " ", element("span", { class: v.level === "bad" ? "alarm" : v.level === "good" ? "" : "soft" }, levels[v.level] ?? v.level), element("br"), v.text))),
            r.troubles.length ? [element("p", { class: "soft" }, "What could not be read, or is not there:"), element("ul", {}, r.troubles.map((t) => element("li", {}, t)))] : null);
    }
    const figuresOf = (r) => [["steps", String(r.steps)], ["last loss", shown(last(r.curves.loss), short)], ["last validation loss", shown(last(r.validation.loss), short)],
        ["median step", shown(middle(r.curves.seconds), seconds)], ["tokens a second", shown(middle(r.curves.tokens_per_s), count)],
        ["utilization", shown(middle(r.curves.utilization), percent)], ["peak memory of rank 0", shown(last(r.curves.memory_peak), bytes)], ["sessions", String(r.sessions.length)]];

    /* One curve of every run; each series has its own steps. */
    function curve(title, about, key, format, more = {}) {
        const series = runs.filter((r) => some(r.curves[key])).map((r) => ({ name: several ? r.name : title, x: r.curves.step, values: r.curves[key] }));
        return series.length ? page.lines({ title, about, xName: "step", x: everyStep(), series, format, ...more }) : null;
    }
    let steps = null;
    const everyStep = () => (steps ??= several ? [...new Set(runs.flatMap((r) => [...r.curves.step, ...r.validation.step]))].sort((a, b) => a - b) : run.curves.step);

    function losses() {
        if (!runs.some((r) => some(r.curves.loss))) return;
        const name = (r, what) => (several ? `${r.name}, ${what}` : what);
        const series = runs.flatMap((r, i) => [{ name: name(r, "loss"), x: r.curves.step, values: r.curves.loss, color: 2 * i },
            ...(some(r.validation.loss) ? [{ name: name(r, "validation"), x: r.validation.step, values: r.validation.loss, color: 2 * i + 1 }] : [])]);
        const marks = several ? [] : run.spikes.slice(0, 12).map((step, i) => ({ x: step, name: i < 3 ? `spike at ${step}` : "", row: i % 3 }));
        section("Loss", page.lines({ title: "Loss", about: `From ${shown(run.curves.loss[0], short)} to ${shown(last(run.curves.loss), short)}.`, xName: "step", x: everyStep(), series, marks, format: short, height: 340 }),
            run.spikes.length && !several ? element("p", {}, `Spikes, or losses that are not finite, at steps ${run.spikes.join(", ")}.`) : null);
    }
    function speeds() {
        const pictures = [["Tokens a second", "tokens_per_s", count], ["Utilization", "utilization", share], ["Seconds a step", "seconds", seconds]]
            .map(([title, key, format]) => [title, curve(title, `${title}, median ${shown(middle(run.curves[key]), format)}.`, key, format)]).filter(([, p]) => p);
        if (pictures.length) section("Throughput and utilization", pictures.flatMap(([title, p]) => [element("h3", {}, title), p]));
    }
    function gradients() {
        const norm = curve("Gradient norm", "Norm of the gradient before clipping.", "grad_norm", short), rate = curve("Learning rate", "Learning rate of each step.", "lr", (v) => (v ? v.toExponential(1) : "0"));
        if (norm) section("Gradient norm", norm);
        if (rate) section("Learning rate", rate);
    }
    function times() {
        const laps = run.times.laps.filter((l) => l.values.some((v) => v > 0));
        if (laps.length) section("Where the time went", element("p", { class: "soft" }, "Mean seconds of a step over the ranks. Collectives count only while ranks stand still for them."),
            page.areas({ title: "Where the time went", about: "Seconds of a step by phase; the table has the numbers.", xName: "step", x: run.times.step, series: laps, format: seconds }));
    }
    function heat() {
        const ranks = run.ranks.filter((r) => r.seconds.length);
        if (!ranks.length) return;
        const columns = [...new Set(ranks.flatMap((r) => r.seconds.map(([n]) => n)))];
        section("Ranks and phases", element("p", { class: "soft" }, "Seconds of each rank in the last session. Who computes longer than the others lets them wait in their collectives."),
            page.heat({ title: "Seconds by rank and phase", about: "One row a rank, one column a phase.", rows: ranks.map((r) => `rank ${r.rank}`), columns, values: ranks.map((r) => columns.map((c) => (r.seconds.find(([n]) => n === c) || [])[1])), format: seconds }));
    }
    function memory() {
        const ranks = run.ranks.filter((r) => r.planned > 0).slice(0, 64);
        if (!ranks.length) {
            const peak = curve("Memory taken by rank 0", "Bytes that the library has taken.", "memory", bytes);
            if (peak) section("Memory", peak);
            return;
        }
        section("Memory of each rank", element("p", { class: "soft" }, "Planned by class, and below it what was really taken at most."),
            page.bars({ title: "Memory of each rank, planned and taken", about: "Two bars a rank.", format: bytes,
                rows: ranks.flatMap((r) => [{ name: `rank ${r.rank} planned`, parts: r.classes.filter(([, v]) => v > 0).map(([name, value]) => ({ name, value })) },
                    { name: `rank ${r.rank} taken, ${percent(r.measured / r.planned)}`, parts: [{ name: "taken", value: r.measured, color: 11 }] }]) }));
    }
    function timeline() {
        if (!run.timeline) return;
        const names = [...new Set(run.timeline.tracks.flatMap((t) => t.spans.map((s) => s[2])))].slice(0, 24);
        section("One step", element("p", { class: "soft" }, "The last step of the trace: phases and waits of a rank's training thread, and its collectives below."),
            page.tracks({ title: "Timeline of one step", about: "Phases and collectives of each rank.", xName: "ms", x: [0, run.timeline.length], kinds: names.map((name, i) => ({ name, color: i % 12 })),
                tracks: run.timeline.tracks.map((t) => ({ name: t.name, spans: t.spans.filter((s) => names.includes(s[2])).map(([from, to, name, unit]) => ({ from, to, kind: names.indexOf(name), note: unit || "" })) })) }));
    }
    function history() {
        if (run.sessions.length) section("Sessions and restarts", table(null, ["began", "after step", "ranks", "host", "resumed from"], run.sessions.map((s) => [s.began ?? "–", String(s.step), String(s.ranks), s.host ?? "–", s.resumed_from || "–"]), { text: [0, 3, 4] }));
        if (run.checkpoints.length) section("Checkpoints", table(null, ["name", "step", "written"], run.checkpoints.map((c) => [c.name, String(c.step), c.written]), { text: [0, 2] }));
    }
    function settings() {
        if (!run.settings.length) return;
        const rows = (list) => list.map((s) => [s.name, s.value, s.origin ?? "–"]), given = run.settings.filter((s) => s.origin && s.origin !== "default");
        section("Settings", given.length ? table("Set by somebody, or chosen", ["setting", "value", "from"], rows(given), { text: [0, 1, 2] }) : null,
            element("details", {}, element("summary", {}, "All settings"), table(null, ["setting", "value", "from"], rows(run.settings), { text: [0, 1, 2] })));
    }
    function differences() {
        const names = [...new Set(runs.flatMap((r) => r.settings.map((s) => s.name)))];
        const value = (r, name) => (r.settings.find((s) => s.name === name) || { value: "–" }).value;
        const differ = names.filter((n) => runs.some((r) => value(r, n) !== value(run, n)));
        section("Settings that differ", differ.length ? table(null, ["setting", ...runs.map((r) => r.name)], differ.map((n) => [n, ...runs.map((r) => value(r, n))]), { text: runs.map((_, i) => i + 1) })
            : element("p", {}, "None."));
    }
    function reproduce(r) {
        if (r.reproduce) section(several ? `To run ${r.name} again` : "To run it again", element("p", {}, element("code", {}, r.reproduce)));
    }
    if (several) {
        section("The runs", table(null, ["", ...runs.map((r) => r.name)], figuresOf(run).map(([name], i) => [name, ...runs.map((r) => figuresOf(r)[i][1])])));
        losses();
        speeds();
        gradients();
        differences();
        runs.forEach(verdict);
        runs.forEach(reproduce);
        return;
    }
    section("", element("p", {}, element("code", {}, run.path)), facts(figuresOf(run)));
    verdict(run);
    losses();
    speeds();
    gradients();
    times();
    heat();
    memory();
    timeline();
    history();
    settings();
    reproduce(run);
})();
