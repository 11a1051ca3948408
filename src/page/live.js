/* `fsdp train --dashboard`: a run while it trains. The server sends events (src/report/live/live_run.h): everything
 * first, then what is new. Panels on the screen are drawn again when something came; the others when they are scrolled
 * to. */
"use strict";
(() => {
    const { element, bytes, count, seconds, duration, table } = page;
    const { last, shown, percent, share, short, rate } = pictures;
    const main = document.querySelector("main"), title = document.querySelector("h1");
    let run = null, live = null, received = 0, held = false, connected = false, ended = false;

    /* ---- Above the pictures ---- */
    const state = element("p", { role: "status", id: "state" }, "Waiting for the run …");
    const bar = element("progress", { id: "progress", "aria-label": "Steps done", max: 1, value: 0, hidden: true });
    const figures = element("div", { id: "figures" });
    const hold = element("button", { type: "button", id: "hold", "aria-pressed": "false", onclick: () => {
        held = !held;
        hold.setAttribute("aria-pressed", String(held));
        hold.textContent = held ? "Go on" : "Hold";
        draw();
    } }, "Hold");
    main.append(element("div", { class: "controls" }, hold, page.themeButton()), element("section", { "aria-label": "The run" }, state, bar, figures));
    const board = element("div", { class: "board" });
    main.append(board);

    /* Ages are those of the moment at which they came. */
    const older = (age) => Math.max(0, age + Date.now() / 1000 - received);
    const ago = (age) => `${duration(Math.floor(older(age)))} ago`;
    const newest = (key, format) => shown(live.newest[key], format);
    function sayState() {
        const waits = live ? older(live.step_age) : 0, usual = live ? live.newest.seconds || 1 : 1;
        const done = live && live.steps !== null && live.step >= live.steps;
        const text = ended ? (done ? "The run has ended." : "The run has stopped.") : !live ? "Waiting for the run …"
            : !connected ? "No connection: the run has ended or cannot be reached. Trying again."
            : waits > 30 && waits > 10 * usual ? `Training, but no step for ${duration(Math.round(waits / 10) * 10)}.`
            : live.step === 0 ? "Training: the first step is under way." : held ? "Training. The page holds still." : "Training.";
        if (state.textContent !== text) state.textContent = text;
        state.classList.toggle("alarm", !ended && live !== null && (!connected || text.includes("no step")));
    }
    function sayFigures() {
        const saved = live.checkpoint, peak = Math.max(...run.ranks.map((r) => r.measured));
        const rows = [["step", live.steps === null ? String(live.step) : `${live.step} of ${live.steps}`], ["time left", live.left === null || ended ? "–" : duration(live.left)],
            ["loss", newest("loss", short)], ["validation loss", run.validation.loss.length ? `${newestValidation()} at ${last(run.validation.step)}` : "–"],
            ["tokens a second", newest("tokens_per_s", count)], ["utilization", newest("utilization", share)], ["step takes", newest("seconds", seconds)],
            ["gradient norm", newest("grad_norm", short)], ["learning rate", newest("lr", rate)], ["peak memory of a rank", peak > 0 ? bytes(peak) : "–"],
            ["last step", live.step > 0 ? ago(live.step_age) : "–"], ["checkpoint", saved.step > 0 ? `step ${saved.step}, ${ago(saved.age)}` : "none yet"],
            ["restarts", String(live.restarts)], ["slow rank", live.slow ? `rank ${live.slow.rank} (${live.slow.phase})` : "none"]];
        if (saved.failures > 0) rows.push(["failed checkpoints", String(saved.failures)]);
        figures.replaceChildren(page.facts(rows), element("p", { class: "soft" }, `${live.model}. Sharding ${live.strategy} over ${live.n_ranks} rank${live.n_ranks === 1 ? "" : "s"}, ${live.device}.`));
        bar.hidden = live.steps === null;
        if (!bar.hidden) { bar.max = Math.max(1, live.steps); bar.value = Math.min(live.step, live.steps); }
        title.textContent = `Run ${run.name}`;
        document.title = `${live.step}${live.steps === null ? "" : "/" + live.steps} · ${run.name}`;
    }
    const newestValidation = () => shown(last(run.validation.loss), short);

    /* ---- Panels ---- */
    const panels = [], visible = new Set();
    const watcher = new IntersectionObserver((entries) => {
        for (const e of entries) {
            const panel = panels.find((p) => p.section === e.target);
            if (!e.isIntersecting) visible.delete(panel);
            else { visible.add(panel); if (panel.stale) paint(panel); }
        }
    }, { rootMargin: "200px" });
    function addPanel(name, paintInto, { text, wide } = {}) {
        const body = element("div"), section = element("section", { class: wide && "across", hidden: true }, element("h2", {}, name), text && element("p", { class: "soft" }, text), body);
        board.append(section);
        panels.push({ section, body, paintInto: (to) => { const drawn = paintInto(to); page.nameTables(to, name); return drawn; }, stale: true, drawn: false });
        watcher.observe(section);
    }
    /* `make()` gives the picture, or null as long as there is nothing. */
    function addPicture(name, make, more) {
        let figure = null;
        addPanel(name, (body) => {
            const picture = make();
            if (!picture) return false;
            if (figure) figure.update(picture.options);
            else body.append(figure = page[picture.kind](picture.options));
            return true;
        }, more);
    }
    /* Made again only when what it shows has changed, so that nobody loses a place or a selection. */
    function addList(name, facts, make, more) {
        let before = null;
        addPanel(name, (body) => {
            const now = JSON.stringify(facts());
            if (now !== before) {
                const content = make(), scroller = body.querySelector(".scroll"), top = scroller ? scroller.scrollTop : null;
                before = now;
                body.replaceChildren(...[content].flat().filter(Boolean));
                if (top !== null && body.querySelector(".scroll")) body.querySelector(".scroll").scrollTop = top;
            }
            return body.childElementCount > 0;
        }, more);
    }
    function paint(panel) {
        if (!run || held) { panel.stale = true; return; }
        panel.section.hidden = !panel.paintInto(panel.body);
        panel.stale = false;
        panel.drawn = true;
    }
    function draw() {
        if (!run || document.hidden) return;
        sayState();
        if (held) return;
        sayFigures();
        for (const panel of panels) {
            if (!panel.drawn || panel.section.hidden || visible.has(panel)) paint(panel);
            else panel.stale = true;
        }
    }

    const small = { height: 230 }, one = () => [run];
    addPicture("Loss", () => pictures.loss(one(), { height: 300 }), { wide: true });
    addPicture("Throughput", () => pictures.throughput(one(), small));
    addPicture("Utilization", () => pictures.utilization(one(), small));
    addPicture("Gradient norm", () => pictures.gradientNorm(one(), small));
    addPicture("Learning rate", () => pictures.learningRate(one(), small));
    addPicture("Where the time goes", () => pictures.times(run, { height: 300 }), { text: "Mean seconds of a step over the ranks. Collectives count only while ranks stand still for them." });
    addPicture("Memory of each rank", () => pictures.memory(run), { text: "Planned by class, and taken; the mark is what was taken at most. In what is taken, activations include workspace and what validation needs." });
    addPicture("One step, unit by unit", () => pictures.timeline(run), { wide: true, text: "A recent step of rank 0. Above in a row: the unit is gathered, then whole until it is released. Below: its full gradient, then its reduction. On GPUs, these are the moments at which the work was handed to the device." });
    addPicture("Ranks and phases", () => pictures.heat(run), { wide: true, text: "Seconds a step of each rank, over the last ten steps or so. Who computes longer than the others lets them wait in their collectives." });
    const note = (i) => (live.slow && live.slow.rank === i ? `slow (${live.slow.phase})` : live.waited_for && live.waited_for.rank === i ? `waited for (${live.waited_for.phase})` : "");
    addList("Ranks and their last collective", () => [live.places, live.slow, live.waited_for], () => element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ranks" }, table(null, ["rank", "node", "step", "collectives", "last collective", "memory now", "limit", "in this step"],
        live.places.map(([step, n, name, now, limit, node], i) => [String(i), String(node), String(step), String(n), name || "–", bytes(now), limit > 0 ? bytes(limit) : "–", note(i)]), { text: [4, 7] })), { wide: true });
    addList("GPUs", () => live.gpus, () => (live.gpus && live.gpus.length ? table(null, ["rank", "bus", "busy", "memory", "temperature", "power", "of at most", "SM clock", "memory clock"],
        live.gpus.map((g) => [String(g.rank), g.bus, shown(g.utilization, percent), shown(g.memory_used, bytes), shown(g.celsius, (v) => `${v} °C`), shown(g.watts, (v) => `${v.toFixed(0)} W`), shown(g.watts_limit, (v) => `${v.toFixed(0)} W`),
            shown(g.sm_hertz, (v) => `${(v / 1e6).toFixed(0)} MHz`), shown(g.memory_hertz, (v) => `${(v / 1e6).toFixed(0)} MHz`)]), { text: [1] }) : null), { text: "As the driver says; those of this node." });
    addList("Log", () => live.log, () => (live.log && live.log.length ? element("ol", { class: "log scroll", tabindex: 0, role: "region", "aria-label": "Last lines of the log" },
        live.log.map(([time, rank, level, text]) => element("li", {}, element("span", { class: "soft" }, `${time.slice(11, 19)} rank ${rank} `), level === "warning" ? element("span", { class: "alarm" }, "warning: ") : null, text)).reverse()) : null), { text: "Newest first; times are UTC. Of other ranks, warnings and errors." });
    addList("Checkpoints", () => run.checkpoints, () => pictures.checkpoints(run));
    addList("Sessions and restarts", () => run.sessions, () => pictures.sessions(run), { wide: true });
    addList("Settings", () => run.settings, () => pictures.settings(run), { wide: true });

    /* ---- What comes ---- */
    function receive(message) {
        const slow = live ? { log: live.log, gpus: live.gpus } : {};
        received = Date.now() / 1000;
        live = { ...slow, ...message.live };
        if (message.whole) run = { ...message.run, curves: message.curves };
        else {
            for (const [key, values] of Object.entries(message.curves)) for (const v of values) run.curves[key].push(v);
            Object.assign(run, message.run);
        }
        page.data.runs = [run];
        page.data.live = live;
        connected = true;
        if (message.live.ended) { ended = true; source.close(); }
        requestAnimationFrame(draw);
    }
    /* Browsers try again when a connection breaks, but not after an answer such as "too many watch already". */
    let source = null;
    function connect() {
        source = new EventSource("events" + location.search);
        source.onmessage = (event) => receive(JSON.parse(event.data));
        source.onerror = () => {
            connected = false;
            sayState();
            if (source.readyState === EventSource.CLOSED && !ended) setTimeout(connect, 5000);
        };
    }
    connect();
    document.addEventListener("visibilitychange", draw);
    setInterval(() => { if (run && !held && !document.hidden && !ended) { sayState(); sayFigures(); } }, 1000);
})();
