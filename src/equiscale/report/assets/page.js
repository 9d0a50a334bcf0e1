// What is shown: state in the address, controls that change it, one function per section.
let data;
const state = {};
const tableStates = { table: { column: 2, down: true }, costs: { column: 1, down: false }, glance: { column: null, down: true } };
let timer = null;

const shortened = (label) => (label.length > 24 ? label.slice(0, 23) + "…" : label);
const modelOf = (key) => data.byModel.get(key);
const choose = (key, known, fallback) => (known.includes(key) ? key : fallback ?? known[0]);
const cellsOf = (dataset) => data.cells.filter((c) => c.dataset === dataset);
const datasetName = () => data.cells.find((c) => c.dataset === state.dataset)?.dataset_name;
const publishedCell = (scenario, model) =>
  data.published.cells.find((c) => c.dataset === datasetName() && c.scenario === scenario && c.model === model);
const sizesOf = () => data.datasets.find((d) => d.key === state.dataset).sizes;
const scenarioOf = (key) => data.scenarios.find((s) => s.key === key);
const shownCells = () => cellsOf(state.dataset).filter((c) => c.scenario === state.scenario && state.models.has(c.model));
const hiddenVariants = () => [...new Set(cellsOf(state.dataset).map((c) => c.model))].filter((key) => modelOf(key).variant && !state.models.has(key));
const shownModels = () => data.models.filter((m) => state.models.has(m.key));

function readState() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const datasets = [...new Set(data.cells.map((c) => c.dataset))];
  state.dataset = choose(given.dataset, datasets);
  const scenarios = [...new Set(cellsOf(state.dataset).map((c) => c.scenario))];
  state.scenario = choose(given.scenario, scenarios, scenarios.includes("mid2rest") ? "mid2rest" : scenarios[0]);
  state.published = given.published !== "0";
  const own = new Set(cellsOf(state.dataset).map((c) => c.model).filter((key) => !modelOf(key).variant));
  state.models = new Set(given.models !== undefined ? given.models.split("~").filter((key) => data.byModel.has(key)) : own);
  state.size = sizesOf()[nearest(sizesOf(), Number(given.size) || 40)];
  for (const name of ["stage", "selection", "item", "first", "second"]) state[name] = given[name];
}

function writeState() {
  const values = { dataset: state.dataset, scenario: state.scenario, models: [...state.models].join("~"), published: state.published ? 1 : 0, size: state.size };
  for (const name of ["stage", "selection", "item", "first", "second"]) if (state[name] !== undefined) values[name] = state[name];
  history.replaceState(null, "", "#" + new URLSearchParams(values));
}

function change(values) {
  Object.assign(state, values);
  writeState();
  readState();
  drawAll();
}

function select(id, label, options, value, onchange) {
  return h("label", { class: "field" }, label,
    h("select", { id, onchange: (event) => onchange(event.target.value) },
      options.map((option) => h("option", { value: option.key, selected: option.key === value }, option.label))));
}

function drawControls() {
  const focused = document.activeElement?.id;
  const datasets = data.datasets.filter((d) => cellsOf(d.key).length);
  const scenarios = data.scenarios.filter((x) => cellsOf(state.dataset).some((c) => c.scenario === x.key));
  const available = data.models.filter((m) => cellsOf(state.dataset).some((c) => c.model === m.key) || (state.published && publishedCell(state.scenario, m.key)));
  $$("controls").replaceChildren(
    select("c-dataset", "Dataset", datasets, state.dataset, (dataset) => change({ dataset })),
    select("c-scenario", "Trained on → tested on", scenarios, state.scenario, (scenario) => change({ scenario })),
    chip("c-published", "published figures", state.published, (published) => change({ published }), null),
    h("fieldset", {}, h("legend", {}, "Models"),
      available.filter((m) => !m.variant).map(modelChip),
      h("button", { type: "button", id: "c-all", onclick: () => change({ models: new Set(available.map((m) => m.key)) }) }, "all"),
      h("button", { type: "button", id: "c-none", onclick: () => change({ models: new Set() }) }, "none"),
      variantChips(available.filter((m) => m.variant))));
  if (focused && $$(focused)) $$(focused).focus();
}

function modelChip(m) {
  return chip("c-m" + m.index, m.label, state.models.has(m.key), (on) => {
    const models = new Set(state.models);
    if (on) models.add(m.key); else models.delete(m.key);
    change({ models });
  }, m);
}

function variantChips(variants) {
  if (!variants.length) return "";
  const open = variants.some((m) => state.models.has(m.key));
  return h("details", { open }, h("summary", { id: "c-variants" }, `with other options (${variants.length})`), variants.map(modelChip));
}

function chip(id, label, on, onchange, model) {
  return h("label", { class: "chip" }, h("input", { type: "checkbox", id, checked: on, onchange: (event) => onchange(event.target.checked) }),
    h("span", {}, model ? swatch(model) : null, label));
}

// Below, bootstrap intervals are too narrow to judge by.
const FEWEST_RUNS = 5;
function drawNotices() {
  const notes = [];
  if (data.protocol !== data.provenance.paper_protocol) notes.push(`These runs were trained as “${data.protocol}”, not by the paper's protocol (${data.provenance.paper_protocol}): the published figures are a guide, not a target.`);
  const hidden = hiddenVariants().length;
  if (hidden) notes.push(`${hidden} ${hidden === 1 ? "variant of a model, with other options, is" : "variants of models, with other options, are"} not shown; open “with other options” above to choose.`);
  const few = shownCells().filter((c) => c.runs < FEWEST_RUNS);
  if (few.length) notes.push(`${few.length} of the shown cells have fewer than five seeds: bootstrap intervals of so few are too narrow, and with one seed there is none.`);
  if (data.provenance.problems.length) notes.push(`${data.provenance.problems.length} records could not be used; see the end of the page.`);
  $$("notices").replaceChildren(...notes.map((text) => h("p", { class: "notice" }, text)));
}

function drawGlance() {
  const scenarios = data.scenarios;
  const cells = cellsOf(state.dataset).filter((c) => state.models.has(c.model));
  const models = [...new Set(cells.map((c) => c.model))].map(modelOf).sort((a, b) => a.index - b.index);
  const find = (model, scenario) => cells.find((c) => c.model === model && c.scenario === scenario);
  const shown = shownCells().filter((c) => c.mean !== null).sort((a, b) => b.mean - a.mean);
  $$("answer").replaceChildren(...answer(shown));
  const columns = [{ title: "model", first: true, value: (m) => m.label, show: (m) => h("td", {}, swatch(m), m.label) },
    ...scenarios.map((x) => ({
      title: x.label,
      value: (m) => find(m.key, x.key)?.mean ?? null,
      show: (m) => heat(find(m.key, x.key)),
    }))];
  if (tableStates.glance.column === null) tableStates.glance.column = 1 + Math.max(0, scenarios.findIndex((x) => x.key === state.scenario));
  const incomplete = cells.some((c) => c.missing.length);
  $$("glance").replaceChildren(sortable(columns, models, "Mean accuracy on the test sizes by model and scenario", tableStates.glance),
    incomplete ? h("p", { class: "quiet" }, "* Seeds are missing that other cells of the dataset have; the mean is over the others.") : "");
}

function answer(cells) {
  if (!cells.length) return ["Nothing to show: choose at least one model that has runs."];
  const best = cells[0];
  const words = [h("b", {}, modelOf(best.model).label), ` reaches ${percent(best.mean)} on the test sizes of ${scenarioOf(best.scenario).label}${best.runs === 1 ? ", with one seed" : ""}`];
  if (best.gap !== null) words.push(`, ${points(Math.abs(best.gap)).replace("+", "")} points ${best.gap < 0 ? "above" : "below"} its accuracy at the sizes it was trained on`);
  const standard = cells.find((c) => c.model === "standard");
  if (standard && standard !== best) words.push(`; the standard network reaches ${percent(standard.mean)}`);
  if (cells.length > 2) words.push(`. Last of the ${cells.length} shown is ${modelOf(cells.at(-1).model).label} with ${percent(cells.at(-1).mean)}`);
  return [...words, "."];
}

function heat(cell) {
  if (!cell || cell.mean === null) return h("td", { class: "missing" }, "no runs");
  const missing = cell.missing.length ? ` (${cell.missing.length} missing)` : "";
  return explains(h("td", { class: "heat" }, h("i", { style: `width:${(100 * cell.mean).toFixed(1)}%` }), percent(cell.mean) + (missing ? " *" : "")),
    () => [modelOf(cell.model).label, ["mean", percent(cell.mean)], ["95 % interval", interval(cell.low, cell.high)], ["seeds", cell.runs + missing]]);
}
const interval = (low, high) => (low === null || low === undefined ? "none" : `${percent(low)} … ${percent(high)}`);

const MARKER_STEP = 9;
function drawSizes() {
  const box = $$("sizes");
  const sizes = sizesOf(), last = sizes.length - 1, middle = Math.floor(last / 2);
  const cells = shownCells().filter((c) => c.curve.mean.length);
  const published = state.published ? shownModels().map((m) => publishedCell(state.scenario, m.key)).filter((c) => c?.curve.length === sizes.length) : [];
  const label = `Line chart: accuracy at object sizes ${sizes[0]} to ${sizes[last]}, ${state.dataset}, ${scenarioOf(state.scenario).label}. ` + cells.map((c) => `${modelOf(c.model).label}: ${[...new Set([0, middle, last])].map((i) => `${percent(c.curve.mean[i])} at ${sizes[i]}`).join(", ")}.`).join(" ");
  const f = frame(box, { height: 380, x: last ? [sizes[0], sizes[last]] : [sizes[0] - 1, sizes[0] + 1], y: [0, 1], label, focus: true, format: (v) => number(100 * v) + "\u00a0%", xFormat: (v) => v, xTicks: [...new Set(Array.from({ length: 7 }, (_, i) => sizes[Math.round((i * last) / 6)]))], xTitle: "object size in pixels", margin: { left: 52 } });
  for (const [low, high] of scenarioOf(state.scenario).train[state.dataset]) {
    const width = Math.max(f.x(high) - f.x(low), 6);
    f.svg.insertBefore(s("rect", { class: "shade", x: f.x((low + high) / 2) - width / 2, y: f.margin.top, width, height: f.height - f.margin.top - f.margin.bottom }), f.svg.firstChild);
    f.svg.append(s("text", { x: f.x((low + high) / 2), y: f.height - f.margin.bottom - 8, "text-anchor": "middle", "aria-hidden": "true" }, "trained on"));
  }
  const xs = sizes.map(f.x);
  const hollow = s("g", { class: "published" });
  for (const c of published) {
    const model = modelOf(c.model);
    for (let i = model.index % MARKER_STEP; i < xs.length; i += MARKER_STEP) hollow.append(marker(model, xs[i], f.y(c.curve[i]), 3.4, true));
  }
  for (const c of cells) {
    const model = modelOf(c.model);
    if (c.curve.low[0] !== null) {
      const band = path([...xs, ...[...xs].reverse()], [...c.curve.high.map(f.y), ...[...c.curve.low].reverse().map(f.y)]) + "Z";
      f.svg.append(s("path", { d: band, style: `fill:var(--${model.colour})`, opacity: 0.13 }));
    }
    f.svg.append(s("path", { d: path(xs, c.curve.mean.map(f.y)), fill: "none", style: `stroke:var(--${model.colour})`, "stroke-width": 2.2, "stroke-dasharray": model.dash || null, "stroke-linejoin": "round", class: "series" }));
  }
  f.svg.append(hollow);
  explore(f, xs, (at) => {
    const rows = [...cells].sort((a, b) => b.curve.mean[at] - a.curve.mean[at]).map((c) => [modelOf(c.model).label, percent(c.curve.mean[at])]);
    const others = published.filter((c) => !cells.some((o) => o.model === c.model)).map((c) => [modelOf(c.model).label + " (published)", percent(c.curve[at])]);
    return [`object size ${sizes[at]}`, ...rows, ...others];
  }, middle);
  box.replaceChildren(f.svg);
}

function drawSeeds() {
  const box = $$("seeds");
  const rows = shownModels().map((model) => ({ model, cell: shownCells().find((c) => c.model === model.key), published: state.published ? publishedCell(state.scenario, model.key) : null })).filter((r) => r.cell || r.published);
  rows.sort((a, b) => (b.cell?.mean ?? b.published?.mean ?? 0) - (a.cell?.mean ?? a.published?.mean ?? 0));
  const all = rows.flatMap((r) => [...(r.cell?.accuracies ?? []), r.published?.mean ?? null]).filter((v) => v !== null);
  const low = Math.max(0, Math.floor(10 * Math.min(1, ...all) - 0.2) / 10);
  const step = 32;
  const height = Math.max(120, rows.length * step + 60);
  const label = `Dot plot: test accuracy of every seed, ${state.dataset}, ${scenarioOf(state.scenario).label}. ` + rows.map((r) => `${r.model.label}: ${r.cell ? `mean ${percent(r.cell.mean)} over ${r.cell.runs} seeds` : "no runs"}${r.published ? `, published ${percent(r.published.mean)}` : ""}.`).join(" ");
  const narrow = box.clientWidth < 460;
  const f = frame(box, { height, x: [low, 1], y: [rows.length, 0], yTicks: [], label, format: (v) => number(100 * v) + "\u00a0%", xTitle: "test accuracy", margin: { left: narrow ? 118 : 150, right: 18 } });
  rows.forEach((row, index) => {
    const y = f.y(index + 0.5);
    const colour = `var(--${row.model.colour})`;
    const group = s("g", { tabindex: 0, role: "img", "aria-label": `${row.model.label}: ${row.cell ? percent(row.cell.mean) : "no runs"}` });
    group.append(s("rect", { x: 0, y: y - step / 2, width: f.width, height: step, fill: "transparent" }));
    group.append(s("line", { class: "grid", x1: f.margin.left, x2: f.width - f.margin.right, y1: y, y2: y }));
    group.append(s("text", { class: "strong", x: f.margin.left - 10, y: y + 4, "text-anchor": "end" }, shortened(row.model.label)));
    (row.cell?.accuracies ?? []).forEach((value, i, all) => {
      group.append(s("circle", { cx: f.x(value), cy: all.length > 1 ? y + (((i * 7) % 5) - 2) * 2.4 : y, r: 3, style: `fill:${colour}`, opacity: 0.45, class: "seed" }));
    });
    if (row.cell && row.cell.low !== null) group.append(s("line", { x1: f.x(row.cell.low), x2: f.x(row.cell.high), y1: y, y2: y, style: `stroke:${colour}`, "stroke-width": 4, "stroke-linecap": "round" }));
    if (row.cell && row.cell.mean !== null) group.append(s("line", { x1: f.x(row.cell.mean), x2: f.x(row.cell.mean), y1: y - 9, y2: y + 9, style: `stroke:${colour}`, "stroke-width": 2.5 }));
    if (row.published) {
      group.append(marker({ ...row.model, marker: "D" }, f.x(row.published.mean), y, 6, true));
    }
    explains(group, () => [row.model.label, ...(row.cell ? [["mean", percent(row.cell.mean)], ["95 % interval", interval(row.cell.low, row.cell.high)], ["median", percent(row.cell.median)], ["seeds", `${row.cell.runs}${row.cell.missing.length ? `, ${row.cell.missing.length} missing` : ""}`]] : ["no runs here"]), ...(row.published ? [["published", `${percent(row.published.mean)} (${row.published.runs} seeds)`]] : [])]);
    f.svg.append(group);
  });
  box.replaceChildren(rows.length ? f.svg : h("p", { class: "missing" }, "No model chosen."));
}

function drawTable() {
  const rows = shownCells();
  const yesNo = (value) => (value === null ? "–" : value ? "yes" : "no");
  const name = (c) => modelOf(c.model).label;
  const columns = [
    { title: "model", first: true, value: name, show: (c) => h("td", {}, swatch(modelOf(c.model)), name(c)) },
    { title: "seeds", value: (c) => c.runs, show: (c) => (c.missing.length ? h("td", { title: "missing seeds: " + c.missing.join(", ") }, `${c.runs} `, h("span", { class: "missing" }, `(${c.missing.length} missing)`)) : String(c.runs)) },
    { title: "mean", value: (c) => c.mean, show: (c) => percent(c.mean, 2) },
    { title: "95 % interval", value: (c) => c.low, show: (c) => interval(c.low, c.high) },
    { title: "median", value: (c) => c.median, show: (c) => percent(c.median, 2) },
    { title: "std", value: (c) => c.std, show: (c) => points(c.std).replace("+", "") },
    { title: "gap", value: (c) => c.gap, show: (c) => points(c.gap) },
    { title: "published", value: (c) => publishedCell(c.scenario, c.model)?.mean ?? null, show: (c) => percent(publishedCell(c.scenario, c.model)?.mean, 2) },
    { title: "difference", value: (c) => c.difference, show: (c) => points(c.difference) },
    { title: "inside", value: (c) => yesNo(c.inside) },
    { title: "near", value: (c) => (c.near === null ? "–" : `${yesNo(c.near)}, ${c.near_runs} of ${c.runs}`) },
    { title: "learning rate", value: (c) => c.learning_rate, show: (c) => String(c.learning_rate) },
  ];
  $$("table").replaceChildren(sortable(columns, rows, "Statistics of the shown cells", tableStates.table),
    h("p", { class: "quiet" }, "Gap: accuracy at the trained sizes minus accuracy at the others, in points. “Inside”: whether the published mean lies in our interval, from five seeds on. “Near”: whether our mean lies within two published standard deviations of the published one, and how many of our runs do. Runs that were trained differently, or at another learning rate than the published ones, are not judged."));
}
function kernelAt(text, index) {
  const code = text.charCodeAt(index);
  return code - 48 - (code > 92 ? 1 : 0);
}

function drawSelection() {
  const found = data.selections.filter((x) => x.dataset === state.dataset && x.scenario === state.scenario);
  $$("selection-section").hidden = !data.selections.length;
  if (!found.length) {
    $$("selection-controls").replaceChildren();
    $$("maps").replaceChildren();
    $$("selection").replaceChildren(h("p", { class: "missing" }, "No run here has a layer that pools over scale."));
    return;
  }
  const current = found.find((x) => x.model === state.selection) ?? found.find((x) => x.pool === "slice") ?? found[0];
  const smile = Math.max(0, current.classes.indexOf("smile"));
  const item = Number(state.item) < current.classes.length ? Number(state.item) : smile;
  const sizes = sizesOf();
  const size = h("input", { type: "range", id: "c-size", min: 0, max: sizes.length - 1, value: sizes.indexOf(state.size), "aria-label": "object size in pixels", oninput: (event) => slide(Number(event.target.value)) });
  const output = h("output", { for: "c-size", id: "size-output" }, state.size + " px");
  const play = h("button", { type: "button", id: "c-play", onclick: toggle }, timer ? "stop" : "play");
  const focused = document.activeElement?.id;
  $$("selection-controls").replaceChildren(
    select("c-selection", "Model", found.map((x) => ({ key: x.model, label: modelOf(x.model).label })), current.model, (selection) => change({ selection })),
    select("c-item", "Object", current.classes.map((label, key) => ({ key: String(key), label })), String(item), (value) => change({ item: value })),
    h("div", { class: "slider" }, "Object size", size, output, play));
  if (focused && $$(focused)) $$(focused).focus();
  const channels = current.channels;
  const classes = current.classes.length;
  const series = Array.from({ length: channels }, (_, channel) => sizes.map((_, k) => kernelAt(current.chosen, (k * classes + item) * channels + channel)));
  const r = series.map((values) => correlation(sizes, values));
  const order = series.map((_, channel) => channel).sort((a, b) => (r[b] ?? -2) - (r[a] ?? -2));
  const largest = Math.max(...series.flat());
  const strong = r.filter((value) => value !== null && value > 0.9).length;
  const label = `Chosen kernel size of ${channels} channels, ${modelOf(current.model).label}, object ${current.classes[item]}, seed ${current.seed}. ${strong} channels have r above 0.9; the largest kernel is ${largest}.`;
  const f = frame($$("selection"), { height: 332, margin: { top: 22 }, x: [-0.5, channels - 0.5], y: [5, Math.max(largest + 2, 15)], xTicks: [], label, xTitle: `${channels} channels, sorted by r · ${strong} above 0.9 · seed ${current.seed}` });
  f.svg.append(s("text", { x: 4, y: 10, "aria-hidden": "true" }, "kernel size"));
  const colour = `var(--${modelOf(current.model).colour})`;
  const dots = order.map((channel, place) => {
    const values = series[channel];
    const x = f.x(place);
    const group = s("g", {}, s("rect", { x: x - 6, y: f.margin.top, width: 12, height: f.height - f.margin.top - f.margin.bottom, fill: "transparent" }),
      s("line", { x1: x, x2: x, y1: f.y(Math.min(...values)), y2: f.y(Math.max(...values)), style: `stroke:${colour}`, "stroke-width": 2, opacity: 0.3, "stroke-linecap": "round" }));
    const dot = s("circle", { class: "dot", cx: x, r: 5, style: `fill:${colour}` });
    group.append(dot);
    explains(group, () => [`channel ${channel}`, ["r", r[channel] === null ? "undefined (constant)" : r[channel].toFixed(3)], ["95 % interval of r", fisher(r[channel], sizes.length)], [`kernel at ${state.size} px`, values[sizes.indexOf(state.size)]], ["over all sizes", `${Math.min(...values)} … ${Math.max(...values)}`]]);
    f.svg.append(group);
    return { dot, values };
  });
  $$("selection").replaceChildren(f.svg);
  const draw = () => {
    const at = sizes.indexOf(state.size);
    for (const { dot, values } of dots) dot.setAttribute("cy", f.y(values[at]).toFixed(1));
    output.textContent = state.size + " px";
    size.value = at;
    size.setAttribute("aria-valuetext", state.size + " pixels");
    drawMaps(current);
  };
  function slide(index) { state.size = sizes[index]; writeState(); draw(); }
  function next() { slide((sizes.indexOf(state.size) + 1) % sizes.length); }
  function toggle() {
    if (timer) { clearInterval(timer); timer = null; play.textContent = "play"; return; }
    play.textContent = "stop";
    timer = setInterval(next, 160);
  }
  if (timer) { clearInterval(timer); timer = setInterval(next, 160); }
  draw();
}

// Dark violet, blue-green, yellow: brightness rises evenly, so it reads without colour vision.
const HEAT = [[47, 10, 74], [52, 84, 140], [31, 150, 139], [122, 204, 82], [253, 231, 60]];
function heatColour(t) {
  const place = Math.max(0, Math.min(0.9999, t)) * (HEAT.length - 1);
  const low = Math.floor(place), share = place - low;
  return HEAT[low].map((value, i) => Math.round(value + share * (HEAT[low + 1][i] - value)));
}

function drawMaps(current) {
  const box = $$("maps");
  if (current.pool !== "pixel") { box.replaceChildren(); return; }
  if (!current.maps) { box.replaceChildren(h("p", { class: "quiet" }, "The maps of this run are not in the page, to keep it small.")); return; }
  const { channels, side, text, object, range: [smallest, largest] } = current.maps;
  const start = sizesOf().indexOf(state.size) * channels.length * side * side;
  const figures = channels.map((channel, place) => {
    const canvas = h("canvas", { width: side, height: side, role: "img", "aria-label": `Kernel size at every pixel, channel ${channel}, object size ${state.size}` });
    const context = canvas.getContext("2d");
    const image = context.createImageData(side, side);
    for (let i = 0; i < side * side; i++) {
      const t = Math.min(1, (kernelAt(text, start + place * side * side + i) - smallest) / (largest - smallest));
      image.data.set([...heatColour(t), 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
    return h("figure", {}, canvas, h("figcaption", {}, `channel ${channel}`));
  });
  box.replaceChildren(h("p", { class: "quiet" }, `Kernel size at every pixel for “${object}” at ${state.size} px, from ${smallest} (dark) to ${largest} (bright).`), ...figures);
}

function correlation(xs, ys) {
  const mx = xs.reduce((a, b) => a + b) / xs.length, my = ys.reduce((a, b) => a + b) / ys.length;
  let xy = 0, xx = 0, yy = 0;
  xs.forEach((x, i) => { xy += (x - mx) * (ys[i] - my); xx += (x - mx) ** 2; yy += (ys[i] - my) ** 2; });
  return xx * yy > 0 ? xy / Math.sqrt(xx * yy) : null;
}

// Interval of r by Fisher's transformation, over the object sizes.
function fisher(r, count) {
  if (r === null || Math.abs(r) >= 1 || count < 4) return "–";
  const half = 1.96 / Math.sqrt(count - 3);
  return `${Math.tanh(Math.atanh(r) - half).toFixed(2)} … ${Math.tanh(Math.atanh(r) + half).toFixed(2)}`;
}

// One error that is far off would hide how the others differ: from this ratio on the axis is logarithmic.
const WIDE = 20; // as in the figures
function drawErrors() {
  const cells = shownCells();
  const stages = [...new Set(cells.flatMap((c) => Object.keys(c.errors)))];
  if (!stages.length) {
    $$("error-controls").replaceChildren();
    $$("errors").replaceChildren(h("p", { class: "missing" }, "No equivariance error was measured for the shown runs."));
    return;
  }
  const stage = stages.includes(state.stage) ? state.stage : stages.includes("stage2") ? "stage2" : stages.at(-1);
  $$("error-controls").replaceChildren(select("c-stage", "Feature map after", stages.map((key) => ({ key, label: key })), stage, (value) => change({ stage: value })));
  const series = cells.map((c) => ({ model: modelOf(c.model), runs: (c.errors[stage] ?? []).filter((e) => e.error !== null), undefined_: (c.errors[stage] ?? []).reduce((sum, e) => sum + e.undefined, 0) })).filter((x) => x.runs.length);
  const all = series.flatMap((x) => x.runs);
  if (!all.length) { $$("errors").replaceChildren(h("p", { class: "missing" }, "Every error of these runs is undefined.")); return; }
  const accuracies = all.map((e) => e.test_accuracy), errors = all.map((e) => e.error);
  const lost = series.reduce((sum, x) => sum + x.undefined_, 0);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const label = `Scatter plot: equivariance error after ${stage} against test accuracy. ` + series.map((x) => `${x.model.label}: mean error ${number(mean(x.runs.map((e) => e.error)))}.`).join(" ");
  const smallest = Math.min(...errors), largest = Math.max(...errors);
  const xLog = smallest > 0 && largest > WIDE * smallest;
  const f = frame($$("errors"), { height: 340, xLog, x: xLog ? [smallest / 1.3, largest * 1.3] : [0, largest * 1.06 || 1], y: [Math.max(0, Math.min(...accuracies) - 0.04), Math.min(1, Math.max(...accuracies) + 0.03)], label, xFormat: (v) => number(v, 2), format: (v) => number(100 * v) + "\u00a0%", xTitle: `equivariance error${xLog ? ", logarithmic" : ""} · ${lost} undefined left out`, margin: { left: 52 } });
  for (const { model, runs } of series) {
    const group = s("g", { tabindex: 0, role: "img", "aria-label": `${model.label}: mean error ${number(mean(runs.map((e) => e.error)))}, mean accuracy ${percent(mean(runs.map((e) => e.test_accuracy)))}` });
    for (const run of runs) {
      const dot = marker(model, f.x(run.error), f.y(run.test_accuracy), 5, false);
      explains(dot, () => [model.label, ["seed", run.seed], ["error", number(run.error)], ["undefined", run.undefined], ["accuracy", percent(run.test_accuracy)]]);
      group.append(dot);
    }
    explains(group, () => [model.label, ["mean error", number(mean(runs.map((e) => e.error)))], ["runs", runs.length]]);
    f.svg.append(group);
  }
  $$("errors").replaceChildren(f.svg);
}

function leftOut(ranking) {
  const parts = [];
  if (ranking.left_out) parts.push(`${ranking.left_out} ${ranking.left_out === 1 ? "cell" : "cells"}`);
  if (ranking.models_left_out.length) parts.push(`of the models ${ranking.models_left_out.map((key) => modelOf(key).label).join(", ")}`);
  return parts.length ? ` (left out: ${parts.join("; ")})` : "";
}

function drawRanks() {
  const ranking = data.ranking;
  if (!ranking) {
    $$("rank-note").textContent = "";
    $$("ranks").replaceChildren(h("p", { class: "missing" }, "Ranks need at least two models with runs in the same cells."));
    return;
  }
  const critical = ranking.critical_difference;
  $$("rank-note").textContent = `1 is best, over ${ranking.cells} ${ranking.cells === 1 ? "cell that has" : "cells that have"} every model` + leftOut(ranking) + (critical ? `. Bars: critical difference ${critical.toFixed(2)} (Nemenyi, 5 %): models whose bars overlap are not told apart.` : ".") + (ranking.p_value !== null ? ` Friedman ${pValue(ranking.p_value)}.` : "");
  const count = ranking.models.length, step = 28;
  const label = "Average ranks: " + ranking.models.map((key, i) => `${modelOf(key).label} ${ranking.ranks[i].toFixed(2)}`).join(", ");
  const f = frame($$("ranks"), { height: count * step + 60, x: [1, count], y: [count, 0], yTicks: [], xTicks: Array.from({ length: count }, (_, i) => i + 1), label, xTitle: "average rank", margin: { left: 150, right: 20 } });
  ranking.models.forEach((key, index) => {
    const model = modelOf(key), y = f.y(index + 0.5), rank = ranking.ranks[index], colour = `var(--${model.colour})`;
    const half = critical ? critical / 2 : 0;
    const group = s("g", { tabindex: 0, role: "img", "aria-label": `${model.label}: ${rank.toFixed(2)}` },
      s("rect", { x: 0, y: y - step / 2, width: f.width, height: step, fill: "transparent" }),
      s("text", { class: "strong", x: f.margin.left - 10, y: y + 4, "text-anchor": "end" }, shortened(model.label)),
      s("line", { x1: f.x(Math.max(1, rank - half)), x2: f.x(Math.min(count, rank + half)), y1: y, y2: y, style: `stroke:${colour}`, "stroke-width": 3, opacity: 0.35 }),
      s("circle", { cx: f.x(rank), cy: y, r: 5, style: `fill:${colour}` }));
    explains(group, () => [model.label, ["average rank", rank.toFixed(2)]]);
    f.svg.append(group);
  });
  $$("ranks").replaceChildren(f.svg);
}

function drawPairs() {
  const cells = cellsOf(state.dataset);
  const models = data.models.filter((m) => cells.some((c) => c.model === m.key));
  if (models.length < 2) {
    $$("pair-controls").replaceChildren();
    $$("pairs").replaceChildren(h("p", { class: "missing" }, "A comparison needs two models."));
    return;
  }
  const keys = models.map((m) => m.key);
  const first = choose(state.first, keys, keys.includes("slice_pool") ? "slice_pool" : keys.at(-1));
  const second = choose(state.second, keys, keys.find((key) => key !== first));
  const options = models.map((m) => ({ key: m.key, label: m.label }));
  $$("pair-controls").replaceChildren(select("c-first", "First", options, first, (value) => change({ first: value })), select("c-second", "Second", options, second, (value) => change({ second: value })));
  const rows = data.pairs.filter((p) => p.dataset === state.dataset && ((p.first === first && p.second === second) || (p.first === second && p.second === first)));
  const turned = rows.map((p) => (p.first === first ? p : { ...p, difference: p.difference === null ? null : -p.difference, low: p.high === null ? null : -p.high, high: p.low === null ? null : -p.low, wins: p.seeds - p.ties - p.wins }));
  const columns = [
    { title: "scenario", first: true, value: (p) => scenarioOf(p.scenario).label },
    { title: "shared seeds", value: (p) => p.seeds, show: (p) => `${p.seeds}${p.missing ? ` (${p.missing} only in one)` : ""}` },
    { title: "mean difference in points", value: (p) => p.difference, show: (p) => points(p.difference) },
    { title: "95 % interval", value: (p) => p.low, show: (p) => (p.low === null ? "none" : `${points(p.low)} … ${points(p.high)}`) },
    { title: "first better", value: (p) => p.wins, show: (p) => `${p.wins} of ${p.seeds}` },
    { title: "Wilcoxon", value: (p) => p.p_value, show: (p) => (p.p_value === null ? "too few seeds" : pValue(p.p_value)) },
  ];
  $$("pairs").replaceChildren(turned.length ? sortable(columns, turned, "Paired comparison", (tableStates.pairs ??= { column: 0, down: false })) : h("p", { class: "missing" }, "Choose two different models."));
}

function drawCosts() {
  const rows = data.costs.filter((c) => c.dataset === state.dataset && state.models.has(c.model));
  const times = (value) => (value === null ? "–" : number(value) + " ×");
  const seconds = (value) => (value === null ? "–" : value < 0.1 ? number(1000 * value) + " ms" : number(value) + " s");
  const columns = [
    { title: "model", first: true, value: (c) => modelOf(c.model).label, show: (c) => h("td", {}, swatch(modelOf(c.model)), modelOf(c.model).label) },
    { title: "epoch", value: (c) => c.epoch_seconds, show: (c) => seconds(c.epoch_seconds) },
    { title: "× standard", value: (c) => c.epoch_ratio, show: (c) => times(c.epoch_ratio) },
    { title: "published ×", value: (c) => c.published_ratio, show: (c) => times(c.published_ratio) },
    { title: "first epoch", value: (c) => c.first_epoch_seconds, show: (c) => seconds(c.first_epoch_seconds) },
    { title: "last epoch", value: (c) => c.last_epoch_seconds, show: (c) => seconds(c.last_epoch_seconds) },
    { title: "published epoch", value: (c) => c.published_seconds, show: (c) => seconds(c.published_seconds) },
    { title: "one image", value: (c) => c.inference_seconds, show: (c) => seconds(c.inference_seconds) },
    { title: "memory", value: (c) => c.peak_memory_bytes, show: (c) => (c.peak_memory_bytes === null ? "–" : number(c.peak_memory_bytes / 1e6) + " MB") },
    { title: "op. by formula", value: (c) => c.operations_by_formula, show: (c) => (c.operations_by_formula ? number(c.operations_by_formula / 1e6) + " M" : "–") },
    { title: "op. executed", value: (c) => c.operations_executed, show: (c) => (c.operations_executed ? number(c.operations_executed / 1e6) + " M" : "–") },
  ];
  $$("costs").replaceChildren(rows.length ? sortable(columns, rows, "Costs by model", tableStates.costs) : h("p", { class: "missing" }, "No model chosen."));
}

function drawProvenance() {
  const p = data.provenance;
  const others = Object.entries(p.others).filter(([, count]) => count).map(([name, count]) => `${count} ${name}`).join(", ") || "none";
  const facts = {
    "Made with": `${p.made_with}, ${p.made_at}`,
    "Runs": `${p.runs} finished` + (p.our_runs ? `, of them ${p.our_runs} that come with equiscale` : "") + `, ${p.reported_runs} reported` + (p.runs > p.reported_runs ? " (where two learning rates were tried, the better one by validation accuracy)" : ""),
    "Missing runs": p.missing_runs ? `${p.missing_runs}: seeds that other cells of the same dataset have` : "none",
    "Not finished": others,
    "Protocol": data.protocol,
    ...Object.fromEntries(Object.entries(p.versions).map(([name, values]) => [name, values.join(", ")])),
    ...Object.fromEntries(Object.entries(p.datasets).map(([name, hash]) => [`Content of ${name}`, hash || "unknown"])),
    "Published figures": data.published.citation,
  };
  if (p.selections_left_out) facts["Left out"] = `scale selections or maps of ${p.selections_left_out} cells, to keep this page small`;
  const missing = data.cells.filter((c) => c.missing.length);
  $$("provenance").replaceChildren(
    h("dl", {}, Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    missing.length ? h("details", {}, h("summary", {}, `Missing seeds in ${missing.length} cells`), h("ul", {}, missing.map((c) => h("li", {}, `${modelOf(c.model).label}, ${c.dataset}, ${scenarioOf(c.scenario).label}: ${c.missing.join(", ")}`)))) : "",
    p.problems.length ? h("details", { open: true }, h("summary", {}, `${p.problems.length} records with problems`), h("ul", {}, p.problems.map((text) => h("li", {}, text)))) : "");
}

function drawAll() {
  for (const draw of [drawControls, drawNotices, drawGlance, drawSizes, drawSeeds, drawTable, drawSelection, drawErrors, drawRanks, drawPairs, drawCosts, drawProvenance]) draw();
}

function watchServer() {
  setInterval(async () => {
    try {
      const answer = await (await fetch("version", { cache: "no-store" })).text();
      if (answer !== document.body.dataset.version) location.reload();
    } catch { /* the server is gone; what is shown stays */ }
  }, 2000);
}

async function start() {
  data = await unpack();
  data.models.forEach((model, index) => Object.assign(model, { index, colour: "m" + index }));
  data.byModel = new Map(data.models.map((model) => [model.key, model]));
  startTheme();
  readState();
  drawAll();
  addEventListener("hashchange", () => { readState(); drawAll(); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
  if (document.body.dataset.version) watchServer();
  document.body.dataset.ready = "true";
}
start();
