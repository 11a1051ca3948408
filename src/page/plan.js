/* `fsdp plan --timeline`: memory of one training step, drawn from the plan that the job would run. */
"use strict";
(() => {
    const { element, bytes, count, section, facts, table } = page;
    const [plan, other] = page.data.plans;
    const colors = {
        parameters: 2, "low-precision copies": 10, gradients: 1, optimizer: 3, buffers: 9, communication: 8, validation: 11, "gathered units": 5,
        "full gradients": 4, inputs: 9, activations: 0, "recomputed activations": 11, "gradients of activations": 7, workspace: 6,
    };
    const sum = (list) => list.reduce((a, b) => a + b, 0);
    const resident = (p) => sum(p.residents.map((r) => r.bytes));
    /* Two programs differ in length: over each other, forward is 0 to 1 and backward 1 to 2. */
    const place = (p, i) => (!other ? i : i < p.forward ? i / p.forward : 1 + (i - p.forward) / Math.max(1, p.length - p.forward));
    const xName = other ? "forward 0–1, backward 1–2" : "instruction";
    const xs = (p) => p.series.x.map((i) => place(p, i));
    const totals = (p) => p.series.x.map((_, i) => resident(p) + sum(p.series.classes.map((c) => c.values[i])));

    /* Values of `from` at the x of `to`: each holds until the next. */
    function resample(fromX, values, toX) {
        let at = 0;
        return toX.map((x) => {
            while (at + 1 < fromX.length && fromX[at + 1] <= x) at++;
            return values[at];
        });
    }
    function describe(p, name) {
        section(name,
            element("p", {}, `${p.model}, ${p.ranks} rank${p.ranks === 1 ? "" : "s"} on ${p.device}, ${p.batch} × ${p.width} a rank, parameters ${p.param_dtype}`),
            element("p", {}, p.flags.split(" --").map((f, i) => [element("code", { class: "flag" }, (i ? "--" : "") + f), " "])),
            facts([["planned a rank", bytes(p.total)], ["lives at the peak", bytes(resident(p) + p.peak.bytes)], ["on the host", bytes(p.host)],
                ["limit", p.limit ? bytes(p.limit) : "not known"], ["units", String(p.units.length)]]),
            p.limit > 0 && p.total > p.limit ? element("p", { class: "alarm" }, `Does not fit: ${bytes(p.total - p.limit)} too many.`) : null);
    }
    function drawMemory() {
        const x = other ? [...new Set([...xs(plan), ...xs(other)])].sort((a, b) => a - b) : xs(plan);
        const at = (values) => (other ? resample(xs(plan), values, x) : values);
        const series = [
            ...plan.residents.filter((r) => r.bytes > 0).map((r) => ({ name: r.name, values: x.map(() => r.bytes) })),
            ...plan.series.classes.map((c) => ({ name: c.name, values: at(c.values) })),
        ].filter((s) => s.values.some((v) => v > 0)).map((s) => ({ ...s, color: colors[s.name] }));
        const outlines = other ? [{ name: "lives in the other plan", values: resample(xs(other), totals(other), x) }] : [];
        section("What lives during the step", element("p", { class: "soft" }, "Each colour is a class of memory, held from one instruction to the next. The plan reserves room for the largest of each arena, so what is planned can be more than what lives at any one moment."),
            page.areas({
                title: "Memory of one training step", xName, x, series, outlines, format: bytes, height: 400,
                about: `At the peak ${bytes(resident(plan) + plan.peak.bytes)} live on a rank, in ${plan.peak.unit || "the first unit"}; ${bytes(plan.total)} are planned.`,
                limit: plan.limit > 0 ? { value: plan.limit, name: `limit ${bytes(plan.limit)}` } : undefined,
                marks: [{ x: place(plan, plan.forward), name: "backward begins", row: 0 }, { x: place(plan, plan.peak.index), name: "peak" + (plan.peak.unit ? ": " + plan.peak.unit : ""), row: 1 }],
            }));
    }
    function drawUnits(p, name) {
        const first = (u) => Math.min(p.length, ...u.stays.map((s) => s.first));
        const tracks = [...p.units].sort((a, b) => first(a) - first(b)).map((u) => ({
            name: u.name,
            spans: u.stays.map((s) => ({ from: place(p, s.first), to: place(p, s.last + 1), kind: s.class === "full gradients" ? 1 : 0, note: bytes(s.bytes), half: s.class !== "full gradients", low: s.class === "full gradients" })),
        }));
        section(name, element("p", { class: "soft" }, "A bar is the time during which a unit takes memory beyond its shard: its gathered parameters above, its full gradient below."),
            page.tracks({
                title: "When units are gathered and released", about: "One track for each unit; the table has the same spans.", xName,
                x: [place(p, 0), place(p, p.length)], tracks, kinds: [{ name: "gathered", color: 0 }, { name: "full gradient", color: 1 }],
                marks: [{ x: place(p, p.forward), name: "backward begins" }],
            }));
    }
    function whyPeak(p, name) {
        section(name, element("p", {}, `The peak is at instruction ${p.peak.index} of ${p.length}, in ${p.peak.index < p.forward ? "forward" : "backward"}${p.peak.unit ? " of " + p.peak.unit : ""}.`),
            page.bars({
                title: "Planned memory by class", about: `${bytes(p.total)} in all.`, format: bytes,
                rows: [...p.residents.map((r) => [r.name, r.bytes]), ["gathered units", p.gather_arena], ["full gradients", p.gradient_arena], ["activations and workspace", p.slab]]
                    .filter(([, b]) => b > 0).map(([n, b]) => ({ name: n, parts: [{ name: "bytes", value: b }] })),
            }),
            table("Values that stand at the peak, the largest first", ["what", "of which", "values", "bytes"], p.peak.values.slice(0, 20).map((v) => [v.name, v.class, String(v.count), bytes(v.bytes)]), { text: [0, 1] }),
            p.remedies.length ? table("What each remedy saves, planned one by one", ["remedy", "a rank", "saves", "host memory", ...(p.limit ? [""] : [])],
                p.remedies.map((r) => [element("code", { class: "flag" }, r.flags), bytes(r.total), bytes(p.total - r.total), bytes(r.host), ...(p.limit ? [r.fits ? "fits" : "too large"] : [])])) : null);
    }
    function listUnits(p, name) {
        section(name, table(null, ["unit", "parameters", "fp32", "shard of a rank", "gathered", "full gradient"], p.units.map((u) => [u.name, count(u.parameters), bytes(u.bytes), bytes(u.shard_bytes), bytes(u.gathered_bytes), bytes(u.gradient_bytes)])));
    }
    describe(plan, other ? "This plan (coloured)" : "The plan");
    if (other) describe(other, "The other plan (outline)");
    drawMemory();
    drawUnits(plan, "When units are gathered");
    if (other) drawUnits(other, "When units are gathered in the other plan");
    whyPeak(plan, "What stands at the peak");
    if (other) whyPeak(other, "What stands at the peak of the other plan");
    listUnits(plan, "Units");
})();
