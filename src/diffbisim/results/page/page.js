"use strict";
// Two chains, X and Y, by groups of states (mostly one each), coupled. `focus` is what is looked at: a group of X, one
// of Y, or both; a click keeps it. Every figure marks the focus by shapes, which are redrawn without redrawing the rest.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const NONE = { x: null, y: null };
const EDGES = 400, NAMED = 24, BARS = 18, PARTNERS = 6;  // drawn of a graph; with names; of the costs; of a state
let view, X, Y, kept = NONE, focus = NONE, drawn = new Set();

// --- numbers, names, matrices ---------------------------------------------------------------------------------------

const number = v => String(+v.toPrecision(4));
const percent = v => v > 0 && v < 0.001 ? "< 0.1\u00a0%" : (100 * v).toFixed(1) + "\u00a0%";
const many = (k, what) => `${k.toLocaleString("en")} ${what}${k === 1 ? "" : "s"}`;
const short = (text, most = 26) => text.length > most ? text.slice(0, most - 1) + "…" : text;
const safe = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");  // plotly reads tags
const groupName = (side, k) => side.members[k][0] + (side.sizes[k] > 1 ? ` and ${side.sizes[k] - 1} more` : "");

function row(M, k) {  // [[column, value], …]
  const found = [];
  for (let e = M.p[k]; e < M.p[k + 1]; e++) found.push([M.j[e], M.v[e]]);
  return found;
}
function entry(M, i, j) {
  for (let e = M.p[i]; e < M.p[i + 1]; e++) if (M.j[e] === j) return M.v[e];
  return 0;
}
function column(M, j) {
  const found = [];
  for (let i = 0; i + 1 < M.p.length; i++) { const v = entry(M, i, j); if (v > 0) found.push([i, v]); }
  return found;
}
const largest = (list, most) => list.slice().sort((a, b) => b[1] - a[1]).slice(0, most);
const partners = (which, k) => {  // of a group, as shares
  if (which === "x") return row(view.encoder, k);
  const found = column(view.visits, k), total = found.reduce((sum, [, v]) => sum + v, 0);
  return found.map(([i, v]) => [i, v / total]);
};

// --- looks ----------------------------------------------------------------------------------------------------------

const colors = {};  // of the style sheet, read once for each theme
const color = name => colors[name] ??= getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };
const touch = matchMedia("(pointer: coarse)").matches;

function layout(more) {
  return {
    margin: { l: 8, r: 8, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: color("ink"), size: 12 }, hovermode: "closest", dragmode: touch ? false : "pan", ...more,
  };
}
const axis = more => ({ gridcolor: color("line"), zeroline: false, automargin: true, exponentformat: "power", fixedrange: touch, ...more });
const scaleOf = () => [[0, color("low")], [1, color("high")]];

function draw(id, made, listeners) {
  Plotly.react(id, made.data, made.layout, config);
  if (drawn.has(id) || !listeners) return;
  drawn.add(id);
  const box = $(id);
  box.on("plotly_hover", event => look(listeners(event.points[0]), event.event));
  box.on("plotly_unhover", () => look(kept));
  box.on("plotly_click", event => keep(listeners(event.points[0])));
  box.addEventListener("keydown", arrows);
}

// --- graphs ---------------------------------------------------------------------------------------------------------

function bend(side, i, j, loop = 0.05) {  // a curve from i to j, to the right of the straight line; a loop for i = j
  const [a, b] = side.place[i], [c, d] = side.place[j];
  if (i === j) {
    const away = Math.hypot(a, b) || 1, ux = a / away, uy = b / away;
    return [[a, b], [a + loop * (2 * ux - uy), b + loop * (2 * uy + ux)], [a + loop * (2 * ux + uy), b + loop * (2 * uy - ux)], [a, b]];
  }
  return [[a, b], [(a + c) / 2 + 0.12 * (d - b), (b + d) / 2 - 0.12 * (c - a)], [c, d]];
}
function along([p, q, r], t) { return [0, 1].map(k => (1 - t) ** 2 * p[k] + 2 * t * (1 - t) * q[k] + t * t * r[k]); }

function strongest(side) {  // transitions between groups by flow; those from a group to itself are told, not drawn
  const all = [];
  let flow = 0;
  side.visits.forEach((visits, i) => row(side.transition, i).forEach(([j, p]) => {
    if (i !== j) { all.push([i, j, p, visits * p]); flow += visits * p; }
  }));
  all.sort((a, b) => b[3] - a[3] || b[2] - a[2]);
  const kept = all.slice(0, EDGES);
  return { kept, total: all.length, share: flow > 0 ? kept.reduce((sum, e) => sum + e[3], 0) / flow : 1 };
}

function graph(side, ink) {
  const { kept } = strongest(side), traces = [];
  const bins = [0, 0.01, 0.1, 0.3, 0.7], heads = { x: [], y: [], angle: [], size: [] };
  const n = side.sizes.length, end = n <= 12 ? 0.85 : n <= 40 ? 0.9 : 0.94;  // where the disk of the next state begins
  const thin = Math.min(1, 10 / Math.sqrt(kept.length));  // many arrows must not hide the disks
  bins.forEach((least, k) => {
    const x = [], y = [];
    for (const [i, j, p] of kept) {
      if (p < least || p >= (bins[k + 1] ?? 2)) continue;
      const curve = bend(side, i, j), points = [0, 0.25, 0.5, 0.75, end].map(t => along(curve, t));
      for (const [a, b] of points) { x.push(a); y.push(b); }
      x.push(null); y.push(null);
      const [[a, b], [c, d]] = points.slice(-2);
      heads.x.push(c); heads.y.push(d); heads.size.push(thin * ((n <= 40 ? 8 : 6) + k));
      heads.angle.push(Math.atan2(c - a, d - b) * 180 / Math.PI);  // clockwise from above; both axes have one scale
    }
    const line = { width: thin * (0.5 + 0.7 * k), color: color("edge"), dash: k === 0 ? "dot" : "solid" };
    if (x.length) traces.push({ x, y, mode: "lines", hoverinfo: "skip", opacity: Math.sqrt(thin) * (0.45 + 0.12 * k), line });
  });
  const { x, y, ...marker } = heads;
  traces.push({ x, y, mode: "markers", hoverinfo: "skip", marker: { ...marker, symbol: "arrow", color: color("edge"), line: { width: 0 } } });
  const most = Math.max(...side.visits) || 1, whole = n <= 12 ? 34 : n <= 40 ? 24 : n <= 100 ? 17 : 13;
  const shade = side.rewards ?? side.paid;
  const [xs, ys] = [0, 1].map(k => side.place.map(p => p[k])), span = values => Math.max(...values) - Math.min(...values);
  traces.push({
    x: xs, y: ys, mode: n <= NAMED ? "markers+text" : "markers",
    hoverinfo: "none", text: side.members.map(names => safe(short(names[0], 14))), textposition: span(ys) > 2 * span(xs) ? "middle right" : "top center",
    marker: {
      size: side.visits.map(v => whole * Math.max(Math.sqrt(v / most), 0.4)), color: shade, colorscale: "Cividis", opacity: 1,
      line: { color: side.start.map(v => v > 0 ? ink : color("edge")), width: side.start.map(v => v > 0 ? 3 : 1) },
      colorbar: { title: { text: side.rewards ? "reward" : "cost paid", side: "right" }, thickness: 10, len: 0.8, outlinewidth: 0 },
    },
  });
  const hidden = { visible: false, fixedrange: touch };
  const room = values => { const low = Math.min(...values), high = Math.max(...values), m = 0.14 * span(values) + 0.12; return [low - m, high + m]; };
  return { data: traces, layout: layout({ xaxis: { ...hidden, range: room(xs) }, yaxis: { ...hidden, range: room(ys), scaleanchor: "x" } }) };
}

function graphNote(side) {
  const { kept, total, share } = strongest(side);
  const groups = side.sizes.length < side.n
    ? `${many(side.n, "state")} are shown as ${side.sizes.length} groups of similar states. Probabilities of a group are averages; visits and costs are sums. ` : "";
  const edges = kept.length < total
    ? `Only the ${kept.length} strongest of ${total.toLocaleString("en")} transitions are drawn (${percent(share)} of the flow). The heat map of transitions shows all of them, and pointing at a disk draws those that leave it. ` : "";
  return groups + edges + "Area of a disk: visits. Thick ring: initial state. Dotted arrow: probability below 0.01.";
}

// --- heat maps ------------------------------------------------------------------------------------------------------

function ticks(side) {
  const n = side.sizes.length, step = Math.ceil(n / 24), at = [];
  for (let k = 0; k < n; k += step) at.push(k);
  return { tickvals: at, ticktext: at.map(k => safe(short(side.members[k][0], 12))), showgrid: false };
}

function heat(M, rows, columns, { decades = 0, unit }) {  // decades: of a logarithmic scale, below the largest
  const z = rows.sizes.map(() => new Array(columns.sizes.length).fill(null));
  const top = M.v.reduce((a, b) => Math.max(a, b), 0) || 1, floor = top * 10 ** -decades;
  rows.sizes.forEach((_, i) => row(M, i).forEach(([j, v]) => { z[i][j] = decades ? Math.log10(Math.max(v, floor)) : v; }));
  const bar = { title: { text: unit, side: "right" }, thickness: 10, outlinewidth: 0 };
  if (decades) {
    const at = [];
    for (let e = Math.floor(Math.log10(top) + 1e-9); e >= Math.log10(floor) - 1e-9; e--) at.push(e);
    Object.assign(bar, { tickvals: at, ticktext: at.map((e, k) => (k === at.length - 1 ? "≤ " : "") + number(10 ** e)) });
  }
  const range = decades ? { zmin: Math.log10(floor), zmax: Math.log10(top) } : { zmin: 0, zmax: top };
  return {
    data: [{ type: "heatmap", z, colorscale: scaleOf(), hoverinfo: "none", hoverongaps: true, colorbar: bar, ...range }],
    layout: layout({ dragmode: touch ? false : "zoom", xaxis: axis({ ...ticks(columns), tickangle: -90 }), yaxis: axis({ ...ticks(rows), autorange: "reversed" }) }),
  };
}

const TABLES = {
  visits: { decades: 6, unit: "visits", note: "How often the optimal coupling visits each pair, on a logarithmic scale; blank: never." },
  encoder: { decades: 4, unit: "share", note: "Each row sums to one: which states of the other chain represent this state; blank: zero." },
  paid: { decades: 6, unit: "cost", note: "Visits times cost, on a logarithmic scale; the cells add up to the distance." },
  metric: { decades: 0, unit: "distance", note: "The distance of the two chains if they started in this pair." },
};

// --- what is looked at ----------------------------------------------------------------------------------------------

function look(where, pointer) {
  focus = where;
  tip(pointer);
  if (!look.waiting) look.waiting = requestAnimationFrame(() => { look.waiting = 0; mark(); describe(); });
}
function keep(where) {
  kept = where.x === kept.x && where.y === kept.y ? NONE : where;
  $("find-x").value = kept.x === null ? "" : X.members[kept.x][0];
  $("find-y").value = kept.y === null ? "" : Y.members[kept.y][0];
  look(kept);
}
function arrows(event) {
  const [which, step] = { ArrowUp: ["x", -1], ArrowDown: ["x", 1], ArrowLeft: ["y", -1], ArrowRight: ["y", 1] }[event.key] ?? [];
  if (!which) return;
  event.preventDefault();
  const n = (which === "x" ? X : Y).sizes.length, now = kept[which];
  keep({ ...kept, [which]: now === null ? (step > 0 ? 0 : n - 1) : (now + step + n) % n });
}

function mark() {  // the focus in every figure, as shapes
  const { x, y } = focus;
  const inX = x !== null ? [[x, 1]] : y !== null ? largest(partners("y", y), PARTNERS) : [];
  const inY = y !== null ? [[y, 1]] : x !== null ? largest(partners("x", x), PARTNERS) : [];
  for (const [id, side, ink, marks, own] of [["graph-x", X, "x", inX, x], ["graph-y", Y, "y", inY, y]])
    shapes(id, [...(own === null ? [] : leaving(side, own, color(ink))), ...marks.map(([k, share]) => ring(side, k, share, color(ink)))]);
  shapes("heat-x", x === null ? [] : [band("y", x, color("x"))]);
  shapes("heat-y", y === null ? [] : [band("y", y, color("y"))]);
  shapes("pairs", [...(x === null ? [] : [band("y", x, color("x"))]), ...(y === null ? [] : [band("x", y, color("y"))])]);
}
function shapes(id, list) { if (drawn.has(id)) Plotly.relayout(id, { shapes: list }); }
function band(which, k, ink) {
  const other = which === "x" ? "y" : "x";
  return { type: "rect", [which + "0"]: k - 0.5, [which + "1"]: k + 0.5, [other + "ref"]: "paper", [other + "0"]: 0, [other + "1"]: 1, line: { color: ink, width: 2 } };
}
function ring(side, k, share, ink) {
  const [a, b] = side.place[k], r = 9 + 9 * Math.sqrt(share);
  return { type: "circle", xsizemode: "pixel", ysizemode: "pixel", xanchor: a, yanchor: b, x0: -r, x1: r, y0: -r, y1: r, line: { color: ink, width: 1.5 + 2.5 * share } };
}
function leaving(side, k, ink) {
  return largest(row(side.transition, k), 60).map(([j, p]) => {
    const points = bend(side, k, j).map(([a, b]) => `${a},${b}`);
    const path = j === k ? `M ${points[0]} C ${points.slice(1).join(" ")}` : `M ${points[0]} Q ${points.slice(1).join(" ")}`;
    return { type: "path", path, line: { color: ink, width: 0.7 + 3 * Math.sqrt(p) } };
  });
}

function tip(pointer) {
  const { x, y } = focus, box = $("tip");
  box.hidden = !pointer || (x === null && y === null);
  if (box.hidden) return;
  const lines = [];
  if (x !== null) lines.push(`${data.names[0]}: ${groupName(X, x)}`);
  if (y !== null) lines.push(`${data.names[1]}: ${groupName(Y, y)}`);
  if (x !== null && y !== null) lines.push(`visits ${number(entry(view.visits, x, y))}, encoder ${percent(entry(view.encoder, x, y))}, cost paid ${number(entry(view.paid, x, y))}, distance from this pair on ${number(entry(view.metric, x, y))}`);
  box.textContent = lines.join("\n");
  box.style.left = Math.min(pointer.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(pointer.clientY + 14, innerHeight - box.offsetHeight - 8) + "px";
}

function describe() {
  const { x, y } = focus, parts = [];
  if (x !== null) parts.push(["x", about(X, x, data.names[0], y === null && ["represented in " + data.names[1] + " by", Y, partners("x", x)])]);
  if (y !== null) parts.push(["y", about(Y, y, data.names[1], x === null && ["represented in " + data.names[0] + " by", X, partners("y", y)])]);
  if (x !== null && y !== null) parts.push(["both", together(x, y)]);
  if (!parts.length) parts.push(["both", [["", "Point at a disk, a cell or a bar to see its details here and highlight it in all figures."]]]);
  $("chosen").replaceChildren(...parts.map(([kind, lines]) => {
    const box = document.createElement("div");
    box.className = kind;
    for (const [name, text] of lines) {
      const p = document.createElement("p"), b = document.createElement("b");
      b.textContent = name;
      p.append(b, (name ? ": " : "") + text);
      box.append(p);
    }
    return box;
  }));
}
function listed(side, list, most = 5) {
  const shown = largest(list, most).map(([k, p]) => `${groupName(side, k)} (${number(p)})`);
  return shown.join(", ") + (list.length > most ? ` and ${list.length - most} more` : "");
}
function about(side, k, name, match) {
  const lines = [[name, groupName(side, k) + (side.sizes[k] > 1 ? ` (${short(side.members[k].join(", "), 120)})` : "")]];
  lines.push(["visits", number(side.visits[k]) + (side.rewards ? `; reward ${number(side.rewards[k])}` : "") + `; cost paid ${number(side.paid[k])}` + (side.start[k] > 0 ? `; start ${number(side.start[k])}` : "")]);
  lines.push(["next", listed(side, row(side.transition, k))]);
  if (match) lines.push([match[0], match[2].length ? listed(match[1], match[2]) : "nothing: it is never visited"]);
  return lines;
}
function together(x, y) {
  const lines = [["together", `visits ${number(entry(view.visits, x, y))}; cost paid ${number(entry(view.paid, x, y))}, ${percent(entry(view.paid, x, y) / (view.value || 1))} of the distance`],
    ["encoder", `when ${data.names[0]} is here, ${data.names[1]} is there ${percent(entry(view.encoder, x, y))} of the time`], ["distance from this pair on", number(entry(view.metric, x, y))]];
  const pair = view.pairs.find(p => p.i === x && p.j === y && p.next);
  if (pair) lines.push([`coupled successors of ${pair.x} and ${pair.y}`, pair.next.map(([a, b, p]) => `${a} with ${b} (${number(p)})`).join(", ") + (pair.others ? ` and ${pair.others} more` : "")]);
  return lines;
}

// --- costs and sizes ------------------------------------------------------------------------------------------------

function costs() {
  const by = $("paid-by").value;
  if (by === "pairs") return view.pairs.map(p => ({ name: `${short(p.x, 15)} | ${short(p.y, 15)}`, paid: p.paid, at: { x: p.i, y: p.j } }));
  const side = by === "x" ? X : Y, at = k => by === "x" ? { x: k, y: null } : { x: null, y: k };
  const sums = side.sizes.map((_, k) => by === "x" ? row(view.paid, k).reduce((s, [, v]) => s + v, 0) : column(view.paid, k).reduce((s, [, v]) => s + v, 0));
  return sums.map((paid, k) => ({ name: short(groupName(side, k), 28), paid, at: at(k) })).filter(one => one.paid > 0).sort((a, b) => b.paid - a.paid);
}
function bars() {
  const all = costs(), list = all.slice(0, BARS), total = view.value || 1;
  const made = {
    data: [{ type: "bar", orientation: "h", x: list.map(c => c.paid), y: list.map((_, k) => k), customdata: list.map(c => c.at), hoverinfo: "none",
      marker: { color: color("x") }, text: list.map(c => percent(c.paid / total)), textposition: "outside", textangle: 0, cliponaxis: false }],
    layout: layout({ dragmode: false, margin: { l: 8, r: 8, t: 8, b: 40 }, xaxis: axis({ title: { text: "cost paid" }, range: [0, 1.2 * Math.max(...list.map(c => c.paid), 0) || 1] }),
      yaxis: axis({ autorange: "reversed", tickvals: list.map((_, k) => k), ticktext: list.map(c => safe(c.name)), showgrid: false }) }),
  };
  draw("bars", made, point => point.customdata);
  const shown = list.reduce((sum, c) => sum + c.paid, 0);
  $("note-bars").textContent = all.length ? `Visits times cost. The bars shown add up to ${percent(shown / total)} of the distance.` : "No cost is paid: the distance is zero.";
}

function pairsTable() {
  const what = $("table-of").value;
  draw("pairs", heat(view[what], X, Y, TABLES[what]), point => ({ x: point.y, y: point.x }));
  $("note-pairs").textContent = TABLES[what].note + ` Rows: ${data.names[0]}; columns: ${data.names[1]}. Both are sorted so that similar states are adjacent.`;
}

function elbow(chosen) {
  const sizes = data.views.map(v => data.sides[v.y].n), ink = color("y");
  const made = {
    data: [{ x: sizes, y: data.views.map(v => v.value), mode: "lines+markers", line: { color: color("x") }, hovertemplate: "%{x} states: %{y:.4g}<extra></extra>",
      error_y: { type: "data", symmetric: false, array: data.views.map(v => v.upper - v.value), arrayminus: data.views.map(v => v.value - v.lower) } },
    { x: [sizes[chosen]], y: [view.value], mode: "markers", hoverinfo: "skip", marker: { size: 16, symbol: "circle-open", color: ink, line: { width: 3 } } }],
    layout: layout({ dragmode: false, xaxis: axis({ title: { text: "number of states" }, tickvals: sizes }), yaxis: axis({ title: { text: "distance" }, rangemode: "tozero" }) }),
  };
  Plotly.react("elbow", made.data, made.layout, { ...config, displayModeBar: false });
  if (!drawn.has("elbow")) { drawn.add("elbow"); $("elbow").on("plotly_click", event => choose(event.points[0].pointIndex)); }
}

function table() {
  const head = [data.names[0], data.names[1], "visits", "cost", "paid", "share"];
  const rows = view.pairs.map(p => [p.x, p.y, number(p.visits), number(p.cost), number(p.paid), percent(p.paid / (view.value || 1))]);
  const line = (tag, cells, pair) => {
    const tr = document.createElement("tr");
    cells.forEach((text, k) => {
      const cell = document.createElement(tag);
      if (k > 1) cell.className = "number";
      if (pair && k === 0) {
        const button = document.createElement("button");
        button.type = "button"; button.textContent = text;
        button.addEventListener("click", () => keep({ x: pair.i, y: pair.j }));
        cell.append(button);
      } else cell.textContent = text;
      tr.append(cell);
    });
    return tr;
  };
  $("table").replaceChildren(line("th", head), ...rows.map((cells, k) => line("td", cells, view.pairs[k])));
}

// --- the page -------------------------------------------------------------------------------------------------------

function texts() {
  const [a, b] = data.names, gap = view.upper - view.lower;
  $("answer").textContent = `Distance ${number(view.value)}, certified: ${view.lower.toPrecision(6)} ≤ d ≤ ${view.upper.toPrecision(6)} (gap ${gap.toExponential(1)})`;
  $("title").textContent = document.title = data.sweep ? `${a}, and ${b} of ${many(Y.n, "state")}` : `${a} and ${b}: how they differ`;
  const rule = { discounted: `discount ${data.discount}`, average: "long-run average", total: "total until the end" }[data.criterion] ?? data.criterion;
  $("facts").textContent = `${a}: ${many(X.n, "state")}, ${many(X.transitions, "transition")}; ${b}: ${many(Y.n, "state")}, ${many(Y.transitions, "transition")}; ${rule}; ${view.solver}, ${many(view.iterations, "iteration")}. ${view.status}`;
  const largest = Math.max(data.scale, view.upper) || 1;
  $("band").style.left = 100 * view.lower / largest + "%";
  $("band").style.width = 100 * gap / largest + "%";
  $("largest").textContent = `${data.criterion === "total" ? "largest shown" : "largest cost of a pair"}: ${number(largest)}`;
  $("note-x").textContent = graphNote(X);
  $("note-y").textContent = graphNote(Y);
}

const idle = window.requestIdleCallback ?? setTimeout;

function paint() {  // what is seen first at once, the rest one by one when there is time
  const rest = [
    bars, pairsTable,
    () => draw("heat-x", heat(X.transition, X, X, { decades: 4, unit: "probability" }), point => ({ x: point.y, y: null })),
    () => draw("heat-y", heat(Y.transition, Y, Y, { decades: 4, unit: "probability" }), point => ({ x: null, y: point.y })),
    () => { mark(); document.body.dataset.drawn = "all"; },
  ];
  const turn = ++paint.turn, next = () => { if (turn === paint.turn && rest.length) { rest.shift()(); idle(next); } };
  if (data.sweep) elbow(+$("slider").value);
  draw("graph-x", graph(X, color("x")), point => ({ x: point.pointIndex, y: null }));
  draw("graph-y", graph(Y, color("y")), point => ({ x: null, y: point.pointIndex }));
  document.body.dataset.drawn = "first";
  idle(next);
}
paint.turn = 0;

function choose(k) {
  view = data.views[k];
  X = data.sides[0]; Y = data.sides[view.y];
  X.paid = X.sizes.map((_, i) => row(view.paid, i).reduce((sum, [, v]) => sum + v, 0));
  $("slider").value = k;
  $("size").textContent = Y.n;
  $("slider").setAttribute("aria-valuetext", `${many(Y.n, "state")}, distance ${number(view.value)}`);
  kept = focus = { x: kept.x, y: null };
  texts(); table(); describe();
  for (const [id, side] of [["states-x", X], ["states-y", Y]])
    $(id).replaceChildren(...Object.keys(side.states).map(name => Object.assign(document.createElement("option"), { value: name })));
  paint();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  for (const key in colors) delete colors[key];
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} colors`);
  if (view) paint();
}

const prefers = matchMedia("(prefers-color-scheme: dark)");
theme(prefers.matches ? "dark" : "light");
prefers.addEventListener("change", event => theme(event.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.querySelectorAll(".x-name").forEach(e => { e.textContent = data.names[0]; });
document.querySelectorAll(".y-name").forEach(e => { e.textContent = data.names[1]; });
for (const [k, name] of data.names.entries()) $("paid-by").options[k + 1].textContent = `by state of ${name}`;
for (const [id, label] of Object.entries({ "graph-x": `Graph of ${data.names[0]}`, "graph-y": `Graph of ${data.names[1]}`, bars: "Bars of costs", pairs: "Table of pairs", "heat-x": `Transitions of ${data.names[0]}`, "heat-y": `Transitions of ${data.names[1]}` }))
  $(id).setAttribute("aria-label", label);
$("sizes").hidden = !data.sweep;
$("slider").max = data.views.length - 1;
$("slider").addEventListener("input", event => choose(+event.target.value));
$("paid-by").addEventListener("change", bars);
$("table-of").addEventListener("change", () => { pairsTable(); mark(); });
for (const which of ["x", "y"]) $("find-" + which).addEventListener("change", event => {
  const k = (which === "x" ? X : Y).states[event.target.value];
  if (k !== undefined || event.target.value === "") { kept = { ...kept, [which]: k ?? null }; look(kept); }
});
$("find").addEventListener("submit", event => event.preventDefault());
$("find").addEventListener("reset", () => { kept = NONE; look(kept); });
document.addEventListener("keydown", event => { if (event.key === "Escape") $("find").reset(); });
choose(data.chosen);
