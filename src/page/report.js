/* `fsdp report`, and report.html in a run's folder: one run drawn from its files, or several compared. */
"use strict";
(() => {
    const { element, bytes, count, seconds, section, facts, table } = page;
    const { last, middle, shown, percent, short } = pictures;
    const runs = page.data.runs, [run] = runs, several = runs.length > 1;
    const levels = { good: "✓ good", look: "▲ worth a look", bad: "✗ trouble", unknown: "? not known" };
    const figure = (picture) => picture && page[picture.kind](picture.options);
    const soft = (text) => element("p", { class: "soft" }, text);

    function verdict(r) {
        section(several ? `Verdict on ${r.name}` : "Verdict",
            element("ul", { class: "verdict" }, r.verdict.map((v) => element("li", {}, element("b", {}, v.question), " ", element("span", { class: v.level === "bad" ? "alarm" : v.level === "good" ? "" : "soft" }, levels[v.level] ?? v.level), element("br"), v.text))),
            r.troubles.length ? [soft("What could not be read, or is not there:"), element("ul", {}, r.troubles.map((t) => element("li", {}, t)))] : null);
    }
    const figuresOf = (r) => [["steps", String(r.steps)], ["last loss", shown(last(r.curves.loss), short)], ["last validation loss", shown(last(r.validation.loss), short)],
        ["median step", shown(middle(r.curves.seconds), seconds)], ["tokens a second", shown(middle(r.curves.tokens_per_s), count)],
        ["utilization", shown(middle(r.curves.utilization), percent)], ["peak memory of rank 0", shown(last(r.curves.memory_peak), bytes)], ["sessions", String(r.sessions.length)]];

    function losses() {
        const picture = figure(pictures.loss(runs));
        if (picture) section("Loss", picture, run.spikes.length && !several ? element("p", {}, `Spikes, or losses that are not finite, at steps ${run.spikes.join(", ")}.`) : null);
    }
    function speeds() {
        const found = [pictures.throughput(runs), pictures.utilization(runs), pictures.stepSeconds(runs)].filter(Boolean);
        if (found.length) section("Throughput and utilization", found.flatMap((p) => [element("h3", {}, p.options.title), figure(p)]));
    }
    function gradients() {
        for (const picture of [pictures.gradientNorm(runs), pictures.learningRate(runs)]) if (picture) section(picture.options.title, figure(picture));
    }
    /* A section with a sentence and a picture, where there is one. */
    const pictured = (title, text, picture) => picture && section(title, soft(text), figure(picture));
    function memory() {
        if (pictured("Memory of each rank", "Planned by class, and taken; the mark is what was taken at most. In what is taken, activations include workspace and what validation needs.", pictures.memory(run))) return;
        const peak = figure(pictures.curve(runs, "Memory taken by rank 0", "Bytes that the library has taken.", "memory", bytes));
        if (peak) section("Memory", peak);
    }
    const listed = (title, content) => content && section(title, content);
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
    pictured("Where the time went", "Mean seconds of a step over the ranks. Collectives count only while ranks stand still for them.", pictures.times(run));
    pictured("Ranks and phases", "Seconds of each rank in the last session. Who computes longer than the others lets them wait in their collectives.", pictures.heat(run));
    memory();
    pictured("One step", "The last step of the trace: phases and waits of a rank's training thread, and its collectives below.", pictures.timeline(run));
    listed("Sessions and restarts", pictures.sessions(run));
    listed("Checkpoints", pictures.checkpoints(run));
    listed("Settings", pictures.settings(run));
    reproduce(run);
})();
