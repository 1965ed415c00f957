"use strict";
// One row a lane: a label, and a canvas on which the part of the run between view.from and view.to is drawn.
const data = JSON.parse(document.getElementById("data").textContent);
for (const list of ["names", "faults", "epochs", "stalls", "outages", "locks", "marks"]) data[list] ??= [];
const byId = id => document.getElementById(id);
const chart = byId("chart"), tip = byId("tip");
const perSecond = data.unitsPerSecond, end = Math.max(1, data.end);
const leastView = Math.min(end, perSecond / 100);
let view = { from: 0, to: end };
let color = {};

function readColors() {
	const style = getComputedStyle(document.documentElement);
	for (const name of ["back", "text", "soft", "line", "band", "bad", "warn", "accent", "ok", "refused",
		"unknown", "p50", "p99", "light"])
		color[name] = style.getPropertyValue("--" + name).trim();
}
const hue = i => `hsl(${(i * 137.508 + 200) % 360} 55% ${color.light})`;

function time(units) {
	const s = units / perSecond, seen = (view.to - view.from) / perSecond, digits = seen < 20 ? 3 : seen < 300 ? 1 : 0;
	if (s < 60) return s.toFixed(digits) + " s";
	const m = Math.floor(s / 60), rest = (s - 60 * m).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
	return m < 60 ? `${m}:${rest}` : `${Math.floor(m / 60)}:${String(m % 60).padStart(2, "0")}:${rest}`;
}
function span(units) {
	const s = units / perSecond;
	return s >= 10 ? s.toFixed(1) + " s" : s >= 0.1 ? s.toFixed(2) + " s" : (s * 1000).toFixed(1) + " ms";
}
const tens = d => d < 9 ? "1 10 100".split(" ")[d % 3] + [" µs", " ms", " s"][Math.floor(d / 3)] : `10^${d - 6} s`;
function micro(us) {
	return us >= 1e6 ? (us / 1e6).toPrecision(3) + " s" : us >= 1e3 ? (us / 1e3).toPrecision(3) + " ms" : us + " µs";
}

// A lane draws itself, and tells what is at a place: hit(units, y, units of a few pixels).
const lanes = [];
function addLane(labels, height, draw, hit) {
	const [row, label, canvas] = ["div", "div", "canvas"].map(tag => document.createElement(tag));
	row.className = "row";
	label.className = "label";
	for (const [text, cls, title] of labels) {
		const line = document.createElement("div");
		line.textContent = text;
		line.title = title || text;
		if (cls) line.className = cls;
		label.append(line);
	}
	canvas.style.height = height + "px";
	row.append(label, canvas);
	chart.append(row);
	const lane = { row, canvas, height, draw, hit };
	lanes.push(lane);
	return lane;
}

const x = (units, width) => (units - view.from) / (view.to - view.from) * width;

// bar draws a piece of time, and its name where there is room for it.
function bar(c, width, from, length, y, height, fill, name, more = "") {
	const left = Math.max(-2, x(from, width)), right = Math.min(width + 2, x(from + length, width));
	if (right < -2 || left > width + 2) return;
	c.fillStyle = fill;
	c.fillRect(left, y, Math.max(1.5, right - left - (right - left > 4 ? 0.7 : 0)), height);
	if (!name || right - left < 34) return;
	const size = Math.min(11, height), most = Math.floor((right - left - 6) / (0.55 * size));
	if (name.length + more.length <= most) name += more;
	if (name.length > most) name = most < 6 ? "" : name.slice(0, most - 1) + "…";
	c.font = size + "px system-ui, sans-serif";
	c.fillStyle = color.back;
	c.fillText(name, Math.max(0, left) + 3, y + height / 2 + size * 0.35);
}

// Flat bars: stride numbers each, of which the first two are from and length.
function strip(flat, stride, tell, fill, name = () => "") {
	return {
		draw(c, width, y, height) {
			for (let i = 0; i < flat.length; i += stride) bar(c, width, flat[i], flat[i + 1], y, height, fill(i), name(i));
		},
		hit(at, near) {
			let best = -1, far = near;
			for (let i = 0; i < flat.length; i += stride) {
				const miss = at < flat[i] ? flat[i] - at : Math.max(0, at - flat[i] - flat[i + 1]);
				if (miss <= far) { best = i; far = miss; }
			}
			return best < 0 ? "" : `${tell(best)}\n${time(flat[best])} for ${span(flat[best + 1])}`;
		},
	};
}

// columns calls at(px, first bin, last bin) for each pixel of the view.
function columns(width, bins, at) {
	const step = (view.to - view.from) / width / data.bin, start = view.from / data.bin;
	for (let px = 0; px < width; px++) {
		const first = Math.floor(start + px * step), last = Math.max(first, Math.ceil(start + (px + 1) * step) - 1);
		if (first >= 0 && first < bins) at(px, first, Math.min(last, bins - 1));
	}
}

function scaleText(c, text, y) {
	c.font = "10px system-ui, sans-serif";
	c.fillStyle = color.back;
	c.globalAlpha = 0.8;
	c.fillRect(0, y - 9, c.measureText(text).width + 5, 11);
	c.globalAlpha = 1;
	c.fillStyle = color.text;
	c.fillText(text, 3, y);
}

function rate(label, counts, fill, height) {
	const seconds = data.bin / perSecond;
	addLane([[label], ["a second", "soft"]], height, (c, width) => {
		const values = [];
		let most = 0;
		columns(width, counts.length, (px, first, last) => {
			let sum = 0;
			for (let i = first; i <= last; i++) sum += counts[i];
			values.push([px, sum / (last - first + 1) / seconds]);
			most = Math.max(most, values.at(-1)[1]);
		});
		c.fillStyle = fill();
		for (const [px, v] of values) if (v > 0) {
			const tall = Math.max(1, v / most * (height - 4));
			c.fillRect(px, height - tall, 1, tall);
		}
		if (most > 0) scaleText(c, most >= 10 ? Math.round(most) : most.toFixed(1), 10);
	}, at => {
		const i = Math.floor(at / data.bin);
		return i < counts.length ? `${label}: ${counts[i]} in ${span(data.bin)}` : "";
	});
}

function quantiles(label, q, height) {
	let low = Infinity, high = 1;
	q.count.forEach((n, i) => {
		if (n) [low, high] = [Math.min(low, q.p50[i]), Math.max(high, q.p99[i])];
	});
	if (high <= 1) return;
	low = Math.floor(Math.log10(Math.max(1, low)));
	high = Math.max(low + 1, Math.ceil(Math.log10(high)));
	const every = Math.ceil(13 * (high - low) / height);
	const y = us => height - 3 - (Math.log10(Math.max(1, us)) - low) / (high - low) * (height - 6);
	addLane([[label], ["p50 and p99, log scale", "soft"]], height, (c, width) => {
		for (let d = low; d <= high; d++) {
			c.fillStyle = color.line;
			c.fillRect(0, y(10 ** d), width, 1);
		}
		columns(width, q.count.length, (px, first, last) => {
			let n = 0, p50 = 0, p99 = 0;
			for (let i = first; i <= last; i++) {
				n += q.count[i];
				p50 += q.count[i] * q.p50[i];
				p99 = Math.max(p99, q.p99[i]);
			}
			if (n === 0) return;
			const top = y(p99), middle = y(p50 / n);
			c.fillStyle = color.p99;
			c.fillRect(px, top, 1, Math.max(1, middle - top));
			c.fillStyle = color.p50;
			c.fillRect(px, middle - 1, 1, 2);
		});
		for (let d = low; d < high; d += every) scaleText(c, tens(d), y(10 ** d) - 1);
	}, at => {
		const i = Math.floor(at / data.bin);
		if (!q.count[i]) return "";
		return `${label}: ${q.count[i]} in ${span(data.bin)}\np50 ${micro(q.p50[i])}, p99 ${micro(q.p99[i])}`;
	});
}

// The bars of a lock are kept as differences; see bars.go.
function holdsOf(lock) {
	const all = [];
	let from = 0, token = 0;
	for (let i = 0; i < lock.bars.length; i += 7) {
		const b = lock.bars;
		from += b[i];
		token += b[i + 5];
		all.push({
			from, length: b[i + 1], client: b[i + 2], session: b[i + 3], ticket: b[i + 4], token,
			end: b[i + 6] % 10, mode: Math.floor(b[i + 6] / 10) % 10, lane: Math.floor(b[i + 6] / 100),
		});
	}
	return all;
}

const modes = ["exclusive", "shared", "permits"];
const ends = ["never given back", "given back", "lost", "until its client died"];

function drawLock(lock, index) {
	const holds = holdsOf(lock), tall = lock.lanes > 1 ? 11 : 14, deep = 20, base = lock.lanes * tall + 4;
	const most = Math.max(...lock.depth, 0);
	const marked = data.marks.filter(m => m.lock === index);
	const labels = [[lock.name, marked.length ? "bad" : ""], [`${lock.holds} holds; waiting, ≤ ${most}`, "soft"]];
	addLane(labels, base + deep, (c, width) => {
		for (const h of holds) {
			const group = h.client < 0;
			c.globalAlpha = group ? 0.45 : 1;
			bar(c, width, h.from, h.length, 2 + h.lane * tall, tall - 1, group ? color.soft : hue(h.client),
				group ? `${h.ticket} holds` : data.names[h.client], group ? "" : ` ${h.token}`);
			if (!group && h.end >= 2) bar(c, width, h.from + h.length, 0, 2 + h.lane * tall, tall - 1, color.bad);
		}
		c.globalAlpha = 1;
		c.fillStyle = color.accent;
		columns(width, lock.depth.length, (px, first, last) => {
			let n = 0;
			for (let i = first; i <= last; i++) n = Math.max(n, lock.depth[i]);
			if (n) c.fillRect(px, base + deep - n / most * (deep - 2), 1, n / most * (deep - 2));
		});
		for (const m of marked) for (const at of m.at) bar(c, width, at, 0, 0, base, color.bad);
	}, (at, y, near) => {
		if (y >= base) {
			const i = Math.floor(at / data.bin);
			return i < lock.depth.length ? `at most ${lock.depth[i]} waited within ${span(data.bin)}` : "";
		}
		let best = null, far = near;
		for (const h of holds) {
			const miss = at < h.from ? h.from - at : Math.max(0, at - h.from - h.length);
			if (miss <= far && Math.floor((y - 2) / tall) === h.lane) { best = h; far = miss; }
		}
		if (!best) return "";
		const when = `\n${time(best.from)} for ${span(best.length)}`;
		if (best.client < 0) return `${best.ticket} holds of ${best.session} clients${when}`;
		const how = `${modes[best.mode]}, ${ends[best.end]}`;
		return `${data.names[best.client]}, token ${best.token}, ticket ${best.session}/${best.ticket}, ${how}${when}`;
	});
}

function drawFaults() {
	const tall = 15, rows = data.faults.map((f, i) => {
		const target = k => data.names[f.bars[k + 2]];
		return strip(f.bars, 3, k => `${f.name}: ${target(k)}`, () => hue(i), target);
	});
	addLane(data.faults.map(f => [`${f.count} × ${f.name}`]), Math.max(1, rows.length) * tall, (c, width) => {
		rows.forEach((r, i) => {
			if (i % 2) { c.fillStyle = color.band; c.fillRect(0, i * tall, width, tall); }
			r.draw(c, width, i * tall + 2, tall - 4);
		});
	}, (at, y, near) => rows[Math.floor(y / tall)]?.hit(at, near) || "");
}

function strips(labels, flat, stride, tell, fill, name) {
	if (!flat.length) return;
	const s = strip(flat, stride, tell, fill, name);
	addLane(labels, 18, (c, width) => s.draw(c, width, 3, 12), (at, y, near) => s.hit(at, near));
}

function axis() {
	const lane = addLane([["time", "soft"]], 20, (c, width) => {
		const raw = (view.to - view.from) / perSecond / (width / 90);
		const step = [1e-4, 1e-3, 1e-2, 1e-1, 1].flatMap(d => [d, 2 * d, 5 * d])
			.concat([10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600]).find(s => s >= raw) || 7200;
		c.font = "11px system-ui, sans-serif";
		for (let s = Math.ceil(view.from / perSecond / step) * step; s * perSecond <= view.to; s += step) {
			c.fillStyle = color.line;
			c.fillRect(x(s * perSecond, width), 0, 1, 20);
			c.fillStyle = color.soft;
			c.fillText(time(s * perSecond), x(s * perSecond, width) + 3, 14);
		}
		if (data.healed > 0 && data.healed < end) {
			bar(c, width, data.healed, end - data.healed, 17, 3, color.ok);
		}
	}, at => data.healed > 0 && at > data.healed ? "after the healing" : "");
	lane.row.classList.add("axis");
}

function build() {
	axis();
	const marks = data.marks.flatMap((m, i) => m.at.flatMap(at => [at, 0, i])).map(Number);
	const violation = i => data.marks[marks[i + 2]];
	strips([["violations", "bad"]], marks, 3, i => `${violation(i).check}: ${violation(i).text}`, () => color.bad);
	drawFaults();
	const prober = i => data.names[data.outages[i + 2]];
	strips([["outages"]], data.outages, 3, i => `nothing succeeded for ${prober(i)}`, () => color.bad);
	const node = i => data.names[data.epochs[i + 2]], term = i => data.epochs[i + 3];
	strips([["leader"]], data.epochs, 4, i => `${node(i) || "a node"} leads${term(i) ? `, term ${term(i)}` : ""}`,
		i => hue(node(i) ? data.epochs[i + 2] : term(i)), i => node(i) || `term ${term(i)}`);
	strips([["cluster time stood"]], data.stalls, 3, i => data.names[data.stalls[i + 2]], () => color.warn);
	rate("ok", data.ok, () => color.ok, 54);
	rate("refused", data.refused, () => color.refused, 30);
	rate("unknown", data.unknown, () => color.unknown, 30);
	quantiles("answers", data.answers, 74);
	quantiles("waits for a lock", data.waits, 74);
	data.locks.forEach(drawLock);
}

function draw() {
	for (const { canvas, height, draw } of lanes) {
		const dense = window.devicePixelRatio || 1, width = canvas.clientWidth;
		canvas.width = Math.round(width * dense);
		canvas.height = Math.round(height * dense);
		const c = canvas.getContext("2d");
		c.scale(dense, dense);
		draw(c, width);
	}
	byId("from").value = (view.from / perSecond).toFixed(3);
	byId("to").value = (view.to / perSecond).toFixed(3);
	byId("where").textContent = `${span(view.to - view.from)} of ${span(end)}`;
}

let asked = false;
function show(from, to) {
	const length = Math.min(end, Math.max(leastView, to - from));
	from = Math.min(Math.max(0, from), end - length);
	view = { from, to: from + length };
	if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; draw(); }); }
}
const zoom = (by, at = (view.from + view.to) / 2) => show(at - (at - view.from) * by, at + (view.to - at) * by);
const move = by => show(view.from + by * (view.to - view.from), view.to + by * (view.to - view.from));
const whole = () => show(0, end);

// Violations and outages, by time: what next and previous go to.
const stops = data.marks.filter(m => m.at.length).map(m => [m.at[0], m.at.at(-1)]);
for (let i = 0; i < data.outages.length; i += 3) stops.push([data.outages[i], data.outages[i] + data.outages[i + 1]]);
stops.sort((a, b) => a[0] - b[0]);
let stop = -1;
function visit(from, to) { const room = Math.max(perSecond, to - from); show(from - room, to + room); }
function go(by) {
	if (!stops.length) return;
	stop = (stop + by + stops.length + (stop < 0 && by < 0 ? 1 : 0)) % stops.length;
	visit(...stops[stop]);
}

function listViolations() {
	for (const m of data.marks) {
		const line = document.createElement("li"), check = document.createElement("b");
		check.textContent = m.check + " ";
		line.append(check, m.text + " ");
		if (m.at.length) {
			const button = document.createElement("button");
			button.textContent = "show";
			button.onclick = () => visit(m.at[0], m.at.at(-1));
			line.append(button);
		}
		byId("violations").append(line);
	}
}

function listen() {
	const cursor = chart.appendChild(Object.assign(document.createElement("div"), { id: "cursor", hidden: true }));
	const drag = chart.appendChild(Object.assign(document.createElement("div"), { id: "drag", hidden: true }));
	let start = null;
	const at = event => {
		const box = lanes[0].canvas.getBoundingClientRect();
		return view.from + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (view.to - view.from);
	};
	const left = units => lanes[0].canvas.offsetLeft + x(units, lanes[0].canvas.clientWidth);
	chart.addEventListener("pointerdown", event => {
		if (event.target.tagName !== "CANVAS" || event.button !== 0) return;
		start = at(event);
		chart.setPointerCapture(event.pointerId);
	});
	chart.addEventListener("pointermove", event => {
		cursor.hidden = false;
		cursor.style.left = left(at(event)) + "px";
		drag.hidden = start === null;
		if (start !== null) {
			const [a, b] = [start, at(event)].sort((a, b) => a - b);
			drag.style.left = left(a) + "px";
			drag.style.width = left(b) - left(a) + "px";
		}
		const inside = l => event.clientY - l.canvas.getBoundingClientRect().top;
		const lane = lanes.find(l => inside(l) >= 0 && inside(l) < l.height);
		const near = 4 * (view.to - view.from) / lanes[0].canvas.clientWidth;
		const text = lane && start === null ? lane.hit(at(event), inside(lane), near) : "";
		tip.hidden = !text;
		tip.textContent = text;
		tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
		tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
	});
	chart.addEventListener("pointerup", event => {
		const [a, b] = [start ?? 0, at(event)].sort((a, b) => a - b);
		if (start !== null && x(b, 1) - x(a, 1) > 0.004) show(a, b);
		start = null;
		drag.hidden = true;
	});
	chart.addEventListener("pointerleave", () => { cursor.hidden = tip.hidden = true; });
	chart.addEventListener("dblclick", whole);
	chart.addEventListener("wheel", event => {
		if (event.ctrlKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event)); }
	}, { passive: false });
	const acts = {
		in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25),
		whole, next: () => go(1), previous: () => go(-1),
	};
	const keys = {
		"+": "in", "=": "in", "-": "out", "ArrowLeft": "left", "ArrowRight": "right",
		"0": "whole", "Escape": "whole", "n": "next", "p": "previous",
	};
	document.addEventListener("keydown", event => {
		if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
		event.preventDefault();
		acts[keys[event.key]]();
	});
	for (const [id, act] of Object.entries(acts)) byId(id).onclick = act;
	for (const id of ["from", "to"]) byId(id).onchange = () => {
		const [a, b] = [byId("from"), byId("to")].map(input => Number(input.value) * perSecond);
		if (b > a) show(a, b); else draw();
	};
	for (const button of document.querySelectorAll("button.show")) button.onclick = () => {
		const from = Number(button.dataset.from) * perSecond;
		visit(from, from + Number(button.dataset.for) * perSecond);
		chart.scrollIntoView();
	};
	window.addEventListener("resize", () => show(view.from, view.to));
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); draw(); });
}

readColors();
build();
listViolations();
listen();
const [wantedFrom, wantedTo] = location.hash.slice(1).split("-").map(s => Number(s) * perSecond);
if (wantedTo > wantedFrom) show(wantedFrom, wantedTo);
draw();
