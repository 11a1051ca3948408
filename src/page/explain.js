/* `fsdp explain --html`: the scenes of two training steps, to be played, paused and stepped through. */
"use strict";
(() => {
    page.addWords({
        en: {
            play: "Play", pause: "Pause", back: "Back", next: "Next", scene: "Scene", strategy: "Strategy", speed: "Speed", rank: "Rank", memory: "Memory of each rank",
            shards: "shards of parameters", gradients: "shards of gradients", optimizer: "optimizer state", gathered: "gathered units", full: "full gradients",
            units: "Units on each rank", compare: "Strategies side by side", gatheredStep: "gathered a step", reducedStep: "reduced a step", peak: "at most held", taken: "memory taken", planned: "planned", state: "state",
            about: "Filled: what the rank holds of a unit. Blue is its shard, teal what it gathered from others, red a full gradient, orange the shard of the sum.",
            playKeys: "Space plays and pauses, the arrow keys step.", tale: "All scenes", course: "Memory of rank 0 over the scenes", measured: "All numbers come from the run itself: two real steps, one process a rank.",
        },
        ko: {
            play: "재생", pause: "일시정지", back: "이전", next: "다음", scene: "장면", strategy: "전략", speed: "속도", rank: "랭크", memory: "랭크별 메모리",
            shards: "파라미터 샤드", gradients: "그래디언트 샤드", optimizer: "옵티마이저 상태", gathered: "모은 유닛", full: "전체 그래디언트",
            units: "랭크별 유닛", compare: "전략 비교", gatheredStep: "스텝당 모으기", reducedStep: "스텝당 합산", peak: "최대 보유량", taken: "잡은 메모리", planned: "계획", state: "상태",
            about: "채워진 칸은 랭크가 그 유닛에서 갖고 있는 부분입니다. 파랑은 자기 샤드, 청록은 다른 랭크에서 모은 부분, 빨강은 전체 그래디언트, 주황은 합산된 그래디언트의 샤드입니다.",
            playKeys: "스페이스 키로 재생·일시정지하고, 화살표 키로 한 장면씩 넘깁니다.", tale: "모든 장면", course: "장면에 따른 랭크 0의 메모리", measured: "모든 숫자는 실제 실행에서 나왔습니다. 랭크마다 프로세스 하나로 두 스텝을 학습했습니다.",
        },
    });
    const { element, draw, bytes, word, section, table } = page, tales = page.data.tales;
    let tale = tales[0], at = 0, timer = null;
    const held = (t, s, r) => t.ranks[r].parameters + t.ranks[r].gradients + t.ranks[r].optimizer + s.gathered[r] + s.gradients[r];

    const strategies = element("select", { id: "strategy", onchange: (e) => { tale = tales[Number(e.target.value)]; open(); } }, tales.map((t, i) => element("option", { value: i }, t.strategy)));
    const speed = element("select", { id: "speed", onchange: () => { if (timer) { pause(); play(); } } }, [[2, "0.5×"], [1, "1×"], [0.5, "2×"], [0.25, "4×"]].map(([v, name]) => element("option", { value: v, selected: v === 1 }, name)));
    const button = element("button", { type: "button", id: "play", onclick: () => (timer ? pause() : play()) }, word("play"));
    const slider = element("input", { type: "range", min: 0, value: 0, id: "slider", "aria-label": word("scene"), oninput: (e) => { pause(); show(Number(e.target.value)); } });
    const counter = element("span", { class: "figures", id: "counter" }), story = element("p", { class: "story", id: "story", "aria-live": "polite" });
    const stage = element("div", { class: "columns" }), memory = element("div"), course = element("div"), list = element("div");

    function play() {
        if (at >= tale.scenes.length - 1) show(0);
        button.textContent = word("pause");
        timer = setInterval(() => { if (at < tale.scenes.length - 1) show(at + 1); else pause(); }, 1800 * Number(speed.value));
    }
    function pause() {
        clearInterval(timer);
        timer = null;
        button.textContent = word("play");
    }
    const step = (by) => { pause(); show(Math.min(tale.scenes.length - 1, Math.max(0, at + by))); };

    /* A unit is a bar as wide as its bytes: the rank's own shard always, the rest while it is gathered; its gradient below. */
    function drawRank(r) {
        const scene = tale.scenes[at], row = 46, width = 330, left = 118, inner = width - left - 8, most = Math.max(...tale.units.map((u) => u.gathered_bytes));
        const svg = draw("svg", { role: "img", viewBox: `0 0 ${width} ${tale.units.length * row}`, "aria-label": `${word("rank")} ${r}` });
        tale.units.forEach((u, i) => {
            const y = i * row + 6, whole = (u.gathered_bytes / most) * inner, part = (u.shards[r] / most) * inner;
            const group = tale.ranks.map((k, n) => n).filter((n) => tale.ranks[n].group === tale.ranks[r].group);
            const before = group.filter((n) => n < r).reduce((a, n) => a + (u.shards[n] / most) * inner, 0);
            const own = part >= whole - 1, start = left + (own ? 0 : before), state = scene.parameters[i], sum = scene.sums[i], active = scene.unit === i;
            svg.append(draw("text", { x: left - 6, y: y + 14, "text-anchor": "end", "font-weight": active ? 700 : 400 }, u.name.length > 16 ? "…" + u.name.slice(-15) : u.name));
            svg.append(draw("rect", { class: "grid", x: left, y, width: whole, height: 18 }));
            if (state !== "S" && !own) svg.append(draw("rect", { class: "f5", x: left, y, width: whole, height: 18, "fill-opacity": state === "G" ? 0.45 : 0.9 }));
            svg.append(draw("rect", { class: "f0", x: start, y, width: part, height: 18 }));
            svg.append(draw("rect", { class: "grid", x: left, y: y + 20, width: whole, height: 10 }));
            if (sum === "F" || sum === "R") svg.append(draw("rect", { class: "f4", x: left, y: y + 20, width: whole, height: 10, "fill-opacity": sum === "R" ? 0.55 : 0.9 }));
            if (sum === "R" || sum === "S") svg.append(draw("rect", { class: "f1", x: start, y: y + 20, width: part, height: 10 }));
            if (active) svg.append(draw("rect", { class: "outline", x: left - 2, y: y - 2, width: whole + 4, height: 34, rx: 4 }));
        });
        return svg;
    }
    function memoryOptions() {
        const scene = tale.scenes[at], most = Math.max(...tales.map((t) => t.peak));
        return {
            title: word("memory"), about: tale.ranks.map((_, r) => `${word("rank")} ${r}: ${bytes(held(tale, scene, r))}`).join(", "), format: bytes, most,
            rows: tale.ranks.map((k, r) => ({ name: `${word("rank")} ${r}`, parts: [
                { name: word("shards"), value: k.parameters }, { name: word("gradients"), value: k.gradients }, { name: word("optimizer"), value: k.optimizer },
                { name: word("gathered"), value: scene.gathered[r] }, { name: word("full"), value: scene.gradients[r] }].map((p, i) => ({ ...p, color: [0, 1, 3, 5, 4][i] })) })),
        };
    }
    const courseOptions = () => ({
        title: word("course"), about: word("course"), xName: word("scene"), x: tale.scenes.map((_, i) => i), format: bytes, height: 240,
        series: [
            { name: word("shards"), color: 0, values: tale.scenes.map(() => tale.ranks[0].parameters) },
            { name: word("gradients"), color: 1, values: tale.scenes.map(() => tale.ranks[0].gradients) },
            { name: word("optimizer"), color: 3, values: tale.scenes.map(() => tale.ranks[0].optimizer) },
            { name: word("gathered"), color: 5, values: tale.scenes.map((s) => s.gathered[0]) },
            { name: word("full"), color: 4, values: tale.scenes.map((s) => s.gradients[0]) },
        ],
        marks: [{ x: at, name: String(at + 1) }],
    });
    let memoryFigure, courseFigure;
    function show(index) {
        at = index;
        const scene = tale.scenes[at];
        slider.value = at;
        slider.setAttribute("aria-valuetext", scene.text);
        counter.textContent = `${at + 1} / ${tale.scenes.length}`;
        story.textContent = scene.text;
        stage.replaceChildren(...tale.ranks.map((_, r) => element("section", {}, element("h2", {}, `${word("rank")} ${r}`), drawRank(r))));
        memoryFigure.update(memoryOptions());
        courseFigure.update(courseOptions());
        list.querySelectorAll("li").forEach((item, i) => (i === at ? item.setAttribute("aria-current", "step") : item.removeAttribute("aria-current")));
    }
    function open() {
        pause();
        slider.max = tale.scenes.length - 1;
        list.replaceChildren(element("ol", {}, tale.scenes.map((s) => element("li", {}, s.text))));
        show(0);
    }
    memoryFigure = page.bars(memoryOptions());
    courseFigure = page.areas(courseOptions());
    memory.append(memoryFigure);
    course.append(courseFigure);
    document.addEventListener("keydown", (event) => {
        if (["SELECT", "BUTTON", "INPUT", "SUMMARY", "svg"].includes(event.target.tagName)) return;
        const keys = { " ": () => (timer ? pause() : play()), ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => step(-1e9), End: () => step(1e9) };
        if (!keys[event.key]) return;
        keys[event.key]();
        event.preventDefault();
    });
    section(null,
        element("p", { class: "soft" }, word("measured"), " ", word("playKeys")),
        element("div", { class: "controls" }, tales.length > 1 ? element("label", {}, word("strategy"), " ", strategies) : element("b", {}, `${word("strategy")} ${tale.strategy}`),
            element("button", { type: "button", id: "back", onclick: () => step(-1) }, word("back")), button, element("button", { type: "button", id: "next", onclick: () => step(1) }, word("next")),
            element("label", {}, word("speed"), " ", speed)),
        element("div", { class: "controls" }, slider, counter), story);
    section(word("units"), element("p", { class: "soft" }, word("about")), stage);
    section(word("memory"), memory);
    section(word("course"), course);
    if (tales.length > 1) {
        section(word("compare"), page.bars({
            title: word("compare"), about: word("peak"), format: bytes,
            rows: tales.map((t) => ({ name: t.strategy, parts: [{ name: word("state"), value: held(t, { gathered: [0], gradients: [0] }, 0) }, { name: `${word("gathered")} + ${word("full")}`, value: t.peak - held(t, { gathered: [0], gradients: [0] }, 0) }] })),
        }), table(null, [word("strategy"), word("gatheredStep"), word("reducedStep"), word("peak"), word("taken"), word("planned")],
            tales.map((t) => [t.strategy, bytes(t.ranks[0].gathered_a_step), bytes(t.ranks[0].reduced_a_step), bytes(t.peak), bytes(t.ranks[0].taken), bytes(t.ranks[0].planned)])));
    }
    section(null, element("details", {}, element("summary", {}, word("tale")), list));
    open();
})();
