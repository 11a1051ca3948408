/* The pictures of a run, which the report and the live page share. Each takes runs in the form that the command gives
 * them and returns {kind, options} for page[kind](options), or null where the run has nothing to show. */
"use strict";
const pictures = (() => {
    const { element, bytes, count, seconds, plain, table } = page;
    const last = (list) => list[list.length - 1];
    const some = (list) => list.some((v) => Number.isFinite(v));
    /* Without the first tenth, as the verdict has it. */
    const middle = (list) => { const s = list.slice(Math.floor(list.length / 10)).filter(Number.isFinite).sort((a, b) => a - b); return s.length ? s[s.length >> 1] : NaN; };
    const shown = (v, format) => (Number.isFinite(v) ? format(v) : "not known");
    const percent = (v) => (100 * v).toFixed(1) + " %";
    const share = (v) => plain(Number((100 * v).toPrecision(4))) + " %";
    const short = (v) => plain(Number(v.toPrecision(4)));
    const rate = (v) => (v ? Number(v.toPrecision(3)).toExponential() : "0");

    const everyStep = (runs) => (runs.length > 1 ? [...new Set(runs.flatMap((r) => [...r.curves.step, ...r.validation.step]))].sort((a, b) => a - b) : runs[0].curves.step);

    /* Of noisy figures, the mean of the last few values stands out over the values themselves. */
    const FEW = 20;
    function smooth(values) {
        let sum = 0, n = 0;
        const out = new Array(values.length);
        for (let i = 0; i < values.length; i++) {
            if (Number.isFinite(values[i])) { sum += values[i]; n++; }
            if (i >= FEW && Number.isFinite(values[i - FEW])) { sum -= values[i - FEW]; n--; }
            out[i] = n ? sum / n : null;
        }
        return out;
    }
    function smoothed(picture) {
        const list = picture && picture.options.series;
        if (!list || list.length !== 1 || list[0].values.length < 5 * FEW) return picture;
        const [one] = list;
        return { ...picture, options: { ...picture.options, series: [{ ...one, color: 0, faint: true }, { ...one, name: `mean of ${FEW}`, values: smooth(one.values), color: 0 }] } };
    }

    /* One figure of every run; each series has its own steps. */
    function curve(runs, title, about, key, format, more = {}) {
        const several = runs.length > 1;
        const series = runs.filter((r) => some(r.curves[key])).map((r) => ({ name: several ? r.name : title, x: r.curves.step, values: r.curves[key] }));
        return series.length ? { kind: "lines", options: { title, about, xName: "step", x: everyStep(runs), series, format, ...more } } : null;
    }
    const withMedian = (title, key, format) => (runs, more) => smoothed(curve(runs, title, `${title}, median ${shown(middle(runs[0].curves[key]), format)}.`, key, format, more));
    const throughput = withMedian("Tokens a second", "tokens_per_s", count);
    const utilization = withMedian("Utilization", "utilization", share);
    const stepSeconds = withMedian("Seconds a step", "seconds", seconds);
    const gradientNorm = (runs, more) => smoothed(curve(runs, "Gradient norm", "Norm of the gradient before clipping.", "grad_norm", short, more));
    const learningRate = (runs, more) => curve(runs, "Learning rate", "Learning rate of each step.", "lr", rate, more);

    function loss(runs, more = {}) {
        if (!runs.some((r) => some(r.curves.loss))) return null;
        const [run] = runs, several = runs.length > 1, name = (r, what) => (several ? `${r.name}, ${what}` : what);
        const series = runs.flatMap((r, i) => [{ name: name(r, "loss"), x: r.curves.step, values: r.curves.loss, color: 2 * i },
            ...(some(r.validation.loss) ? [{ name: name(r, "validation"), x: r.validation.step, values: r.validation.loss, color: 2 * i + 1 }] : [])]);
        const marks = several ? [] : run.spikes.slice(0, 12).map((step, i) => ({ x: step, name: i < 3 ? `spike at ${step}` : "", row: i % 3 }));
        return { kind: "lines", options: { title: "Loss", about: `From ${shown(run.curves.loss[0], short)} to ${shown(last(run.curves.loss), short)}.`, xName: "step", x: everyStep(runs), series, marks, format: short, height: 340, ...more } };
    }
    function times(run, more = {}) {
        const laps = run.times.laps.map((l, i) => ({ ...l, color: i })).filter((l) => l.values.some((v) => v > 0));
        return laps.length ? { kind: "areas", options: { title: "Where the time went", about: "Seconds of a step by phase; the table has the numbers.", xName: "step", x: run.times.step, series: laps, format: seconds, ...more } } : null;
    }
    function heat(run) {
        const ranks = run.ranks.filter((r) => r.seconds.some(([, v]) => v > 0));
        if (!ranks.length) return null;
        const columns = [...new Set(ranks.flatMap((r) => r.seconds.filter(([, v]) => v > 0).map(([n]) => n)))];
        const of = (r) => new Map(r.seconds);
        return { kind: "heat", options: { title: "Seconds by rank and phase", about: "One row a rank, one column a phase.", rows: ranks.map((r) => `rank ${r.rank}`), columns, values: ranks.map((r) => { const m = of(r); return columns.map((c) => m.get(c)); }), format: seconds } };
    }
    /* Two bars a rank: as planned, and as taken where a run tells. Classes have the colours of the plan's order. */
    function memory(run) {
        const ranks = run.ranks.filter((r) => r.planned > 0).slice(0, 64), parts = (list) => list.filter(([, v]) => v > 0).map(([name, value]) => ({ name, value }));
        return ranks.length ? { kind: "bars", options: { title: "Memory of each rank, planned and taken", about: "Two bars a rank, by class: planned, and taken now. The mark is what was taken at most.", format: bytes, mark: "taken at most",
            rows: ranks.flatMap((r) => [{ name: `rank ${r.rank} planned`, mark: r.measured, note: r.measured > 0 ? `${percent(r.measured / r.planned)} taken` : bytes(r.planned), parts: parts(r.classes) },
                ...(r.taken && r.taken.length ? [{ name: "taken", parts: parts(r.taken) }] : [])]) } } : null;
    }
    /* Kinds of spans keep their colours from step to step. */
    const colors = { gather: 5, whole: 0, "full gradient": 1, reduce: 4, wait: 8, forward: 2, backward: 3, optimizer: 6, data: 9 };
    function timeline(run) {
        if (!run.timeline) return null;
        const names = [...new Set(run.timeline.tracks.flatMap((t) => t.spans.map((s) => s[2])))].slice(0, 24);
        return { kind: "tracks", options: { title: "Timeline of one step", about: "When each span began and ended.", xName: "ms", x: [0, run.timeline.length], kinds: names.map((name, i) => ({ name, color: colors[name] ?? i % 12 })),
            tracks: run.timeline.tracks.map((t) => ({ name: t.name, spans: t.spans.filter((s) => names.includes(s[2])).map(([from, to, name, unit, half]) => ({ from, to, kind: names.indexOf(name), note: unit || "", half: half === 1, low: half === 2 })) })) } };
    }
    const sessions = (run) => (run.sessions.length ? table(null, ["began", "after step", "ranks", "host", "resumed from", "ended"], run.sessions.map((s) => [s.began ?? "–", String(s.step), String(s.ranks), s.host ?? "–", s.resumed_from || "–", s.ended ?? "–"]), { text: [0, 3, 4, 5] }) : null);
    const checkpoints = (run) => (run.checkpoints.length ? table(null, ["name", "step", "written"], run.checkpoints.map((c) => [c.name, String(c.step), c.written]), { text: [0, 2] }) : null);
    function settings(run) {
        if (!run.settings.length) return null;
        const rows = (list) => list.map((s) => [s.name, s.value, s.origin ?? "–"]), given = run.settings.filter((s) => s.origin && s.origin !== "default");
        return [given.length ? table("Set by somebody, or chosen", ["setting", "value", "from"], rows(given), { text: [0, 1, 2] }) : null,
            element("details", {}, element("summary", {}, "All settings"), table(null, ["setting", "value", "from"], rows(run.settings), { text: [0, 1, 2] }))];
    }
    return { last, some, middle, shown, percent, share, short, rate, curve, throughput, utilization, stepSeconds, gradientNorm, learningRate, loss, times, heat, memory, timeline, sessions, checkpoints, settings };
})();
