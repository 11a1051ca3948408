/* The kit on which all pages stand. A view (plan.js, explain.js, ...) runs after it and calls:
 *
 *   page.data                       what the command embedded, parsed
 *   page.word(key)                  a word of the kit in the page's language; page.addWords({en: {...}, ko: {...}})
 *   page.element(tag, attributes, ...children)   an HTML element; strings become text, never markup
 *   page.draw(tag, attributes, ...children)      the same for SVG
 *   page.bytes(n) page.count(n) page.seconds(n) page.duration(n)   numbers as the command prints them
 *   page.section(title, ...children)             appended to the page and returned
 *   page.nameTables(root, name)                  for screen readers: tables in it that have no caption
 *   page.facts([[name, value]...])               a row of figures
 *   page.table(caption, heads, rows, {text: [columns that hold text]})
 *   page.themeButton()                           chooses light or dark, whatever the system says
 *
 * Pictures return a <figure> with figure.update(options), which draws it again with other data. All have a title, a
 * description for screen readers, a legend and a table of the same numbers. With a pointer: hover to read, drag to
 * zoom, double click to see everything. With keys, when the picture has the focus: arrows read, + and - zoom, Home and
 * End go to the ends, 0 shows everything.
 *
 *   page.lines({title, about, x: [...], series: [{name, values, x?, color?, faint?}], format, xName, marks?, logarithmic?})
 *       x of a series: where it has values of its own; few values are drawn as dots, too
 *   page.areas({title, about, x, series, format, xName, marks?, limit?, outlines?: [{name, values}]})   stacked
 *       marks: [{x, name}]; limit: {value, name}; values may be null where there is none
 *   page.bars({title, about, rows: [{name, parts: [{name, value, color?}], note?, mark?}], format, limit?, most?, mark?})   stacked
 *       mark of a row: a value to mark in it; of the picture: what that is
 *   page.heat({title, about, rows: [...], columns: [...], values: [[...]...], format})
 *   page.tracks({title, about, x: [first, last], tracks: [{name, spans: [{from, to, kind, note?, half?, low?}]}],
 *                kinds: [{name, color}], xName, marks?})   half and low: the upper and the lower half of a track
 *
 * Data comes from strangers: it reaches the page as text nodes and numbers only. */
"use strict";
const page = (() => {
    const SVG = "http://www.w3.org/2000/svg", LEFT = 74, RIGHT = 14, TOP = 14, BOTTOM = 34, COLORS = 12;
    const language = document.documentElement.lang === "ko" ? "ko" : "en";
    const words = {
        en: { table: "The same as a table", start: "start", all: "total", light: "Light", dark: "Dark", keys: "Arrow keys read values, + and − zoom, 0 shows everything." },
        ko: { table: "표로 보기", start: "처음", all: "합계", light: "밝게", dark: "어둡게", keys: "화살표 키로 값을 읽고, + 와 −로 확대·축소하고, 0으로 전체를 봅니다." },
    };
    const word = (key) => words[language][key] ?? words.en[key] ?? key;
    const addWords = (more) => { for (const l of ["en", "ko"]) Object.assign(words[l], more[l]); };

    function fill(node, attributes, children) {
        for (const [name, value] of Object.entries(attributes || {})) {
            if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
            else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
        }
        for (const child of children.flat(2)) {
            if (child !== undefined && child !== null && child !== false) node.append(child instanceof Node ? child : String(child));
        }
        return node;
    }
    const element = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
    const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

    /* Halves go to the even digit, as printf has it. */
    function fixed(value, digits) {
        const shifted = value * 10 ** digits, whole = Math.abs(shifted % 1) === 0.5 ? 2 * Math.round(shifted / 2) : Math.round(shifted);
        return (whole / 10 ** digits).toFixed(digits);
    }
    function scaled(value, base, names, digits) {
        let unit = 0;
        for (; Math.abs(value) >= base && unit + 1 < names.length; unit++) value /= base;
        return [fixed(value, digits(value, unit)), names[unit]];
    }
    const bytes = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], (v, u) => (u ? 2 : 0)).join(" ");
    const count = (n) => scaled(n, 1000, ["", "k", "M", "B", "T"], (v, u) => (!u ? 0 : Math.abs(v) < 10 ? 2 : Math.abs(v) < 100 ? 1 : 0)).join("");
    const seconds = (n) => (Math.abs(n) >= 1 ? n.toFixed(2) + " s" : Math.abs(n) >= 1e-3 ? (n * 1e3).toFixed(2) + " ms" : (n * 1e6).toFixed(1) + " µs");
    function duration(n) {
        if (n < 60) return n < 10 && n % 1 ? fixed(n, 2) + " s" : fixed(n, 0) + " s";
        const whole = Math.round(n), two = (v) => String(v).padStart(2, "0"), days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24, minutes = Math.floor(whole / 60) % 60;
        const clock = days || hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
        return days ? `${days} d ${clock}` : clock;
    }
    const plain = (n) => (Number.isInteger(n) ? String(n) : Number(n.toPrecision(6)).toString());

    /* A screen reader calls a table without a caption by the heading above it. */
    const nameTables = (root, name) => root.querySelectorAll("table").forEach((t) => t.caption || t.setAttribute("aria-label", name));

    function section(title, ...children) {
        const made = element("section", {}, title && element("h2", {}, title), children);
        if (title) nameTables(made, title);
        document.querySelector("main").append(made);
        return made;
    }
    const facts = (rows) => element("dl", { class: "facts" }, rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));

    function table(caption, heads, rows, options = {}) {
        const text = options.text || [0];
        const cell = (value, column) => (column === 0 ? element("th", { scope: "row" }, value) : element("td", text.includes(column) ? { class: "text" } : {}, value));
        return element("div", { class: "wide" }, element("table", {}, caption && element("caption", {}, caption),
            element("thead", {}, element("tr", {}, heads.map((h, i) => element("th", { scope: "col", class: text.includes(i) && "text" }, h)))),
            element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell))))));
    }

    /* The style sheet's rule for dark screens holds always or never, once somebody has chosen. */
    function themeButton() {
        const rule = [...document.styleSheets[0].cssRules].find((r) => r.media && r.media.mediaText.includes("dark")), system = matchMedia(rule.media.mediaText);
        let dark = system.matches;
        const button = element("button", { type: "button", id: "theme", onclick: () => {
            dark = !dark;
            rule.media.mediaText = dark ? "all" : "not all";
            document.documentElement.style.colorScheme = dark ? "dark" : "light";
            button.textContent = word(dark ? "light" : "dark");
        } }, word(dark ? "light" : "dark"));
        return button;
    }

    /* A figure whose picture follows its width: `paint(svg, width)` fills it. */
    let figures = 0;
    function figure(options, paint) {
        const id = "figure" + ++figures;
        const svg = draw("svg", { role: "img", "aria-labelledby": id + "t " + id + "d", tabindex: 0 });
        const legend = element("ul", { class: "legend" }), readout = element("div", { class: "readout", "aria-live": "polite" });
        const alternative = element("details", {}, element("summary", {}, word("table")));
        const made = element("figure", { "aria-labelledby": id + "t" }, svg, readout, legend, alternative);
        const state = { options, svg, legend, readout, from: null, to: null, at: null, width: 0 };
        const render = () => {
            svg.replaceChildren(draw("title", { id: id + "t" }, state.options.title || ""), draw("desc", { id: id + "d" }, state.options.about || ""));
            paint(state);
        };
        alternative.addEventListener("toggle", () => {
            if (alternative.open) alternative.replaceChildren(alternative.firstChild, state.table ? state.table() : "");
        });
        new ResizeObserver(() => {
            const width = Math.round(made.clientWidth);
            if (width && width !== state.width) { state.width = width; render(); }
        }).observe(made);
        state.render = render;
        made.update = (next) => {
            state.options = next;
            if (state.width && !state.dragged) render(); /* whoever drags sees the new data when the pointer is let go */
            if (alternative.open) alternative.replaceChildren(alternative.firstChild, state.table());
        };
        return made;
    }

    /* The end of a name says more than its beginning. */
    const cut = (name, width) => (name.length * 7 > width ? "…" + name.slice(-Math.max(3, Math.floor(width / 7) - 1)) : name);

    const swatch = ({ color, kind, upright, faint }) => draw("svg", { viewBox: "0 0 14 14", "aria-hidden": "true", class: faint && "faint" },
        kind ? draw("path", { class: kind, d: upright ? "M7 0V14" : "M0 7H14" }) : draw("rect", { class: "f" + color, width: 14, height: 14, rx: 3 }));
    function showLegend(state, entries) {
        state.legend.replaceChildren(...entries.map((e) => element("li", {}, swatch(e), e.name)));
    }

    /* About `n` round steps from low to high; of bytes in powers of two. */
    function ticks(low, high, n, binary) {
        if (!(high > low)) return [low];
        const rough = (high - low) / n;
        const base = binary ? Math.pow(2, Math.floor(Math.log2(rough))) : Math.pow(10, Math.floor(Math.log10(rough)));
        const step = binary ? (base >= rough ? base : base * 2) : [1, 2, 5, 10].map((f) => f * base).find((s) => s >= rough);
        const list = [];
        for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) list.push(v);
        return list;
    }

    /* Axes, grid, marks and the hand that reads and zooms, shared by what is drawn over x. Returns the scales. */
    function plane(state, height, yHigh, yLow, rows) {
        const { svg, width, options } = state, x = options.x;
        const from = state.from ?? x[0], to = state.to ?? x[x.length - 1];
        const left = rows ? rows : LEFT, inner = Math.max(40, width - left - RIGHT), high = height - TOP - BOTTOM;
        const logarithmic = options.logarithmic && yLow > 0;
        const rank = (v) => (logarithmic ? Math.log(v) : v);
        const px = (v) => left + (to > from ? ((v - from) / (to - from)) * inner : 0);
        const py = (v) => TOP + high - (yHigh > yLow ? ((rank(v) - rank(yLow)) / (rank(yHigh) - rank(yLow))) * high : 0);
        svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
        svg.setAttribute("height", height);
        for (const v of rows ? [] : ticks(yLow, yHigh, Math.max(2, Math.floor(high / 60)), options.format === bytes)) {
            svg.append(draw("path", { class: "grid", d: `M${left} ${py(v).toFixed(1)}H${left + inner}` }),
                draw("text", { class: "soft", x: left - 6, y: py(v) + 4, "text-anchor": "end" }, (options.format || plain)(v)));
        }
        for (const v of ticks(from, to, Math.max(2, Math.floor(inner / 90)))) {
            svg.append(draw("path", { class: "grid", d: `M${px(v).toFixed(1)} ${TOP + high}v4` }),
                draw("text", { class: "soft", x: px(v), y: TOP + high + 17, "text-anchor": "middle" }, plain(v)));
        }
        if (options.xName) svg.append(draw("text", { class: "soft", x: left + inner, y: height - 3, "text-anchor": "end" }, options.xName));
        const body = draw("g", { "clip-path": clip(svg, left, TOP - 8, inner, high + 8) });
        svg.append(body);
        return { px, py, left, inner, high, from, to, body };
    }
    let clips = 0;
    function clip(svg, x, y, width, height) {
        const id = "clip" + ++clips;
        svg.append(draw("clipPath", { id }, draw("rect", { x, y, width, height })));
        return `url(#${id})`;
    }

    function addMarks(plan, state) {
        for (const mark of state.options.marks || []) {
            if (mark.x < plan.from || mark.x > plan.to) continue;
            const right = plan.px(mark.x) > plan.left + plan.inner / 2;
            state.svg.append(draw("path", { class: "mark", d: `M${plan.px(mark.x).toFixed(1)} ${TOP}v${plan.high}` }),
                draw("text", { class: "label", x: plan.px(mark.x) + (right ? -4 : 4), y: TOP + 10 + 14 * (mark.row || 0), "text-anchor": right ? "end" : "start" }, mark.name));
        }
    }

    /* `read(x)` says in words what stands there and returns the x that it took. */
    function addHand(plan, state, read) {
        const { svg } = state, hair = draw("path", { class: "cursor" }), band = draw("rect", { class: "zoom", y: TOP, height: plan.high, width: 0 });
        const xs = state.options.x;
        svg.append(band, hair);
        const at = (event) => {
            const box = svg.getBoundingClientRect();
            return plan.from + ((event.clientX - box.left - plan.left) / plan.inner) * (plan.to - plan.from);
        };
        const show = (x) => {
            state.at = read(Math.min(plan.to, Math.max(plan.from, x)));
            hair.setAttribute("d", `M${plan.px(state.at).toFixed(1)} ${TOP}v${plan.high}`);
        };
        const zoom = (from, to) => {
            const least = (xs[xs.length - 1] - xs[0]) / 2000;
            if (to - from < least) return;
            state.from = Math.max(xs[0], from);
            state.to = Math.min(xs[xs.length - 1], to);
            state.render();
        };
        let begun = null;
        const letGo = () => { begun = null; state.dragged = false; band.setAttribute("width", 0); };
        svg.onpointermove = (event) => {
            show(at(event));
            if (begun === null) return;
            const a = Math.max(plan.left, Math.min(plan.px(begun), plan.px(at(event)))), b = Math.min(plan.left + plan.inner, Math.max(plan.px(begun), plan.px(at(event))));
            band.setAttribute("x", a);
            band.setAttribute("width", Math.max(0, b - a));
        };
        svg.onpointerdown = (event) => { if (event.pointerType === "mouse" && event.button === 0) { begun = at(event); state.dragged = true; } };
        svg.onpointerup = (event) => {
            const from = begun;
            letGo();
            if (from !== null && Math.abs(plan.px(at(event)) - plan.px(from)) > 8) zoom(Math.min(from, at(event)), Math.max(from, at(event)));
        };
        svg.onpointerleave = letGo;
        svg.ondblclick = () => { state.from = state.to = null; state.render(); };
        svg.onkeydown = (event) => {
            const span = plan.to - plan.from, now = state.at ?? plan.from, i = nearest(xs, now);
            const keys = {
                ArrowLeft: () => show(xs[Math.max(0, i - 1)]), ArrowRight: () => show(xs[Math.min(xs.length - 1, i + 1)]),
                Home: () => show(plan.from), End: () => show(plan.to),
                "+": () => zoom(now - span / 4, now + span / 4), "-": () => zoom(plan.from - span / 2, plan.to + span / 2),
                "0": () => svg.ondblclick(),
            };
            if (!keys[event.key]) return;
            keys[event.key]();
            event.preventDefault();
        };
        if (state.at !== null && state.at >= plan.from && state.at <= plan.to) show(state.at);
        else if (state.readout.textContent !== word("keys")) state.readout.replaceChildren(element("span", { class: "soft hint" }, word("keys")));
    }
    function nearest(xs, x) {
        let low = 0, high = xs.length - 1;
        while (high - low > 1) {
            const middle = (low + high) >> 1;
            if (xs[middle] <= x) low = middle; else high = middle;
        }
        return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
    }
    const readings = (state, head, list) => state.readout.replaceChildren(element("b", {}, head), " ", list.map(([name, value]) => `${name} ${value}`).join(" · "));

    /* A path through (x, y): where points are closer than pixels, the lowest and the highest of each column. */
    function trace(plan, xs, values) {
        let d = "", pen = "M", column = null, low = 0, high = 0;
        const flush = () => {
            if (column === null) return;
            d += `${pen}${column} ${plan.py(low).toFixed(1)}` + (high !== low ? `L${column} ${plan.py(high).toFixed(1)}` : "");
            pen = "L";
            column = null;
        };
        for (let i = 0; i < xs.length; i++) {
            const v = values[i];
            if (v === null || v === undefined || !Number.isFinite(v)) { flush(); pen = "M"; continue; }
            const at = Math.round(plan.px(xs[i]) * 2) / 2;
            if (at !== column) { flush(); column = at; low = high = v; }
            low = Math.min(low, v);
            high = Math.max(high, v);
        }
        flush();
        return d;
    }
    /* At most about 200 rows; a series with an x of its own has values only there. */
    const seriesTable = (state) => () => {
        const { x, series, outlines, format, xName, title } = state.options, all = [...series, ...(outlines || [])];
        const step = Math.max(1, Math.ceil(x.length / 200)), own = all.map((s) => s.x && new Map(s.x.map((v, i) => [v, s.values[i]])));
        const few = new Set(all.filter((s) => s.x && s.x.length <= 200).flatMap((s) => s.x));
        const value = (k, i) => (own[k] ? own[k].get(x[i]) : all[k].values[i]);
        return table(title, [xName || "", ...all.map((s) => s.name)], x.map((v, i) => [v, i]).filter(([v, i]) => i % step === 0 || few.has(v))
            .map(([v, i]) => [plain(v), ...all.map((_, k) => (Number.isFinite(value(k, i)) ? (format || plain)(value(k, i)) : "–"))]));
    };

    const lines = (options) => figure(options, (state) => {
        const o = state.options, xs = (s) => s.x || o.x;
        let low = Infinity, high = -Infinity;
        for (const s of o.series) {
            s.values.forEach((v, i) => {
                if (!Number.isFinite(v) || (state.from !== null && (xs(s)[i] < state.from || xs(s)[i] > state.to))) return;
                low = Math.min(low, v);
                high = Math.max(high, v);
            });
        }
        if (!(high >= low)) { low = 0; high = 1; }
        const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
        const plan = plane(state, o.height || 280, o.logarithmic ? high : high + room, o.logarithmic ? low : Math.min(low, Math.max(low - room, low >= 0 ? 0 : -Infinity)));
        o.series.forEach((s, i) => {
            const color = (s.color ?? i) % COLORS;
            plan.body.append(draw("path", { class: `line s${color}${s.faint ? " faint" : ""}`, d: trace(plan, xs(s), s.values) }));
            if (s.values.length > 20) return;
            s.values.forEach((v, k) => { if (Number.isFinite(v)) plan.body.append(draw("circle", { class: "f" + color, cx: plan.px(xs(s)[k]).toFixed(1), cy: plan.py(v).toFixed(1), r: 3 })); });
        });
        addMarks(plan, state);
        addHand(plan, state, (x) => {
            const at = o.x[nearest(o.x, x)];
            const reading = (s) => {
                const i = nearest(xs(s), at), v = s.values[i];
                return [s.name, (Number.isFinite(v) ? (o.format || plain)(v) : "–") + (xs(s)[i] !== at ? ` (at ${plain(xs(s)[i])})` : "")];
            };
            readings(state, `${o.xName || "x"} ${plain(at)}`, o.series.map(reading));
            return at;
        });
        showLegend(state, o.series.length > 1 ? o.series.map((s, i) => ({ name: s.name, color: (s.color ?? i) % COLORS, faint: s.faint })) : []);
        state.table = seriesTable(state);
    });

    /* Values hold from their x to the next: memory is taken and given back at once. */
    const areas = (options) => figure(options, (state) => {
        const o = state.options, n = o.x.length, sums = new Array(n).fill(0);
        for (const s of o.series) s.values.forEach((v, i) => { sums[i] += v; });
        let high = o.limit ? o.limit.value : 0;
        for (const list of [sums, ...(o.outlines || []).map((l) => l.values)]) for (const v of list) if (v > high) high = v;
        high = high || 1;
        const plan = plane(state, o.height || 340, high * (o.marks ? 1.18 : 1.05), 0);
        const stepped = (list, back) => {
            let d = "", last = null;
            for (let k = 0; k < n; k++) {
                const i = back ? n - 1 - k : k, y = plan.py(list[i]).toFixed(1);
                if (k > 0 && y === last && k < n - 1) continue;
                const x = plan.px(o.x[i]).toFixed(1);
                d += !d && !back ? `M${x} ${y}` : back ? `H${i + 1 < n ? plan.px(o.x[i + 1]).toFixed(1) : x}V${y}` : `H${x}V${y}`;
                last = y;
            }
            return d;
        };
        let under = new Array(n).fill(0);
        o.series.forEach((s, k) => {
            const over = under.map((v, i) => v + s.values[i]);
            if (s.values.some((v) => v > 0)) plan.body.append(draw("path", { class: `f${(s.color ?? k) % COLORS}`, d: stepped(over) + `L${plan.px(o.x[n - 1]).toFixed(1)} ${plan.py(under[n - 1]).toFixed(1)}` + stepped(under, true) + `H${plan.px(o.x[0]).toFixed(1)}Z` }));
            under = over;
        });
        (o.outlines || []).forEach((s, k) => plan.body.append(draw("path", { class: "outline" + (k ? " second" : ""), d: stepped(s.values) })));
        if (o.limit) state.svg.append(draw("path", { class: "limit", d: `M${plan.left} ${plan.py(o.limit.value).toFixed(1)}h${plan.inner}` }),
            draw("text", { class: "label", x: plan.left + 4, y: plan.py(o.limit.value) - 5 }, o.limit.name));
        addMarks(plan, state);
        addHand(plan, state, (x) => {
            const i = nearest(o.x, x);
            readings(state, `${o.xName || "x"} ${plain(o.x[i])}`, [[word("all"), o.format(sums[i])], ...o.series.filter((s) => s.values[i] > 0).map((s) => [s.name, o.format(s.values[i])]), ...(o.outlines || []).map((s) => [s.name, o.format(s.values[i])])]);
            return o.x[i];
        });
        showLegend(state, [...o.series.map((s, i) => ({ name: s.name, color: (s.color ?? i) % COLORS, used: s.values.some((v) => v > 0) })).filter((e) => e.used),
            ...(o.outlines || []).map((s, k) => ({ name: s.name, kind: "outline" + (k ? " second" : "") }))]);
        state.table = seriesTable(state);
    });

    const bars = (options) => figure(options, (state) => {
        const { svg, width } = state, o = state.options, narrow = width < 520, dense = o.rows.length > 16, gap = dense ? 18 : narrow ? 46 : 30, tall = dense ? 13 : 20;
        const parts = new Map(o.rows.flatMap((r) => r.parts.map((p) => [p.name, p.color]))), names = [...parts.keys()];
        const color = (name) => (parts.get(name) ?? names.indexOf(name)) % COLORS;
        const total = (r) => r.parts.reduce((sum, p) => sum + p.value, 0), above = narrow && !dense;
        const longest = Math.max(...o.rows.map((r) => r.name.length)), left = above ? 0 : Math.min(260, width * 0.3, longest * 7 + 12);
        const most = o.most || Math.max(1, o.limit ? o.limit.value : 0, ...o.rows.map((r) => Math.max(total(r), r.mark || 0)));
        const inner = width - left - 92, top = o.limit ? 18 : 2, height = top + o.rows.length * gap + 6;
        svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
        svg.setAttribute("height", height);
        o.rows.forEach((row, i) => {
            const y = top + i * gap + (above ? 18 : 4);
            let x = left;
            svg.append(draw("text", above ? { x: 0, y: y - 5 } : { x: left - 8, y: y + tall - 3, "text-anchor": "end" }, row.name));
            for (const part of row.parts) {
                const w = (part.value / most) * inner;
                svg.append(draw("rect", { class: "f" + color(part.name), x: x.toFixed(1), y, width: Math.max(0, w).toFixed(1), height: tall }, draw("title", {}, `${row.name}: ${part.name} ${o.format(part.value)}`)));
                x += w;
            }
            if (row.mark) {
                const at = left + (row.mark / most) * inner;
                svg.append(draw("path", { class: "outline", d: `M${at.toFixed(1)} ${y - 3}v${tall + 6}` }, draw("title", {}, `${row.name}: ${o.mark} ${o.format(row.mark)}`)));
                x = Math.max(x, at);
            }
            svg.append(draw("text", { x: x + 6, y: y + tall - 3 }, row.note ?? o.format(total(row))));
        });
        if (o.limit) {
            const x = left + (o.limit.value / most) * inner;
            svg.append(draw("path", { class: "limit", d: `M${x.toFixed(1)} ${top}V${height}` }), draw("text", { x, y: 12, "text-anchor": x > width / 2 ? "end" : "start" }, o.limit.name));
        }
        showLegend(state, [...(names.length > 1 ? names.map((name) => ({ name, color: color(name) })) : []), ...(o.mark ? [{ name: o.mark, kind: "outline", upright: true }] : [])]);
        state.readout.hidden = true;
        state.table = () => table(o.title, ["", ...names, word("all"), ...(o.mark ? [o.mark] : [])], o.rows.map((r) => [r.name, ...names.map((n) => { const p = r.parts.find((q) => q.name === n); return p ? o.format(p.value) : "–"; }), o.format(total(r)), ...(o.mark ? [r.mark ? o.format(r.mark) : "–"] : [])]));
    });

    const heat = (options) => figure(options, (state) => {
        const { svg, width } = state, o = state.options, left = Math.min(120, width * 0.25), cell = Math.max(14, (width - left - RIGHT) / Math.max(1, o.columns.length));
        const tall = o.rows.length > 24 ? 14 : 22, slanted = cell < 96, top = slanted ? 92 : 24, height = top + o.rows.length * tall;
        const values = o.values.flat().filter(Number.isFinite);
        let most = 0;
        for (const v of values) most = Math.max(most, v);
        svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
        svg.setAttribute("height", height);
        o.columns.forEach((name, k) => {
            const x = left + (k + 0.5) * cell;
            svg.append(draw("text", slanted ? { class: "soft", x: x + 4, y: top - 6, transform: `rotate(-90 ${x + 4} ${top - 6})` } : { class: "soft", x, y: 14, "text-anchor": "middle" }, name));
        });
        o.rows.forEach((name, i) => {
            svg.append(draw("text", { x: left - 6, y: top + i * tall + tall - 5, "text-anchor": "end" }, cut(name, left)));
            o.columns.forEach((column, k) => {
                const v = o.values[i][k];
                if (!Number.isFinite(v)) return;
                svg.append(draw("rect", { class: "f4", x: left + k * cell + 1, y: top + i * tall + 1, width: cell - 2, height: tall - 2, "fill-opacity": (0.06 + 0.5 * (most ? v / most : 0)).toFixed(3) }, draw("title", {}, `${name}, ${column}: ${(o.format || plain)(v)}`)));
                if (cell > 60 && tall > 14) svg.append(draw("text", { x: left + (k + 0.5) * cell, y: top + i * tall + 15, "text-anchor": "middle" }, (o.format || plain)(v)));
            });
        });
        state.readout.hidden = true;
        state.table = () => table(o.title, ["", ...o.columns], o.rows.map((r, i) => [r, ...o.values[i].map((v) => (Number.isFinite(v) ? (o.format || plain)(v) : "–"))]));
    });

    const tracks = (options) => figure(options, (state) => {
        const o = state.options, row = o.tracks.length > 60 ? 12 : 20, names = Math.min(150, state.width * 0.28);
        const plan = plane(state, TOP + BOTTOM + o.tracks.length * row, 1, 0, names);
        o.tracks.forEach((track, i) => {
            const y = TOP + i * row, text = draw("text", { x: names - 6, y: y + row / 2 + 4, "text-anchor": "end" }, cut(track.name, names));
            if (row < 20) text.setAttribute("font-size", "9");
            state.svg.append(text);
            for (const span of track.spans) {
                if (span.to < plan.from || span.from > plan.to) continue;
                plan.body.append(draw("rect", { class: "f" + o.kinds[span.kind].color, x: plan.px(span.from).toFixed(1), y: y + (span.low ? row / 2 : 1), width: Math.max(1, plan.px(span.to) - plan.px(span.from)).toFixed(1), height: span.half || span.low ? row / 2 - 1 : row - 3, rx: 2 },
                    draw("title", {}, `${track.name}: ${o.kinds[span.kind].name}${span.note ? ", " + span.note : ""}`)));
            }
        });
        addMarks(plan, state);
        addHand(plan, state, (x) => {
            const found = o.tracks.flatMap((t) => t.spans.filter((s) => s.from <= x && x <= s.to).map((s) => [t.name, `${o.kinds[s.kind].name}${s.note ? " " + s.note : ""}`]));
            readings(state, `${o.xName || "x"} ${plain(Math.round(x * 100) / 100)}`, found.slice(0, 8));
            return x;
        });
        showLegend(state, o.kinds);
        state.table = () => table(o.title, ["", "", o.xName || "", "", ""], o.tracks.flatMap((t) => t.spans.map((s) => [t.name, o.kinds[s.kind].name, plain(s.from), plain(s.to), s.note || ""])), { text: [0, 1, 4] });
    });

    const data = JSON.parse(document.getElementById("data").textContent);
    return { data, language, word, addWords, element, draw, bytes, count, seconds, duration, plain, section, nameTables, facts, table, themeButton, lines, areas, bars, heat, tracks };
})();
