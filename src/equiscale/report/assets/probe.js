// The page of a probe: one function per section.
let data;
const tableStates = { glance: { column: 1, down: true }, table: { column: 0 } };
const main = () => (data.labelled ? "accuracy" : "agreement");
const sizeOf = (row) => (data.in_pixels ? `${row.object_size} px` : percent(row.share, 0));
const full = (model) => model.rows[model.rows.length - 1];
const named = (model) => h("span", {}, swatch(model), ` ${model.label}`);
const mean = (model) => model.rows.reduce((sum, row) => sum + row[main()], 0) / model.rows.length;
const interval = (row, key) => (row[key] === null ? "–" : `${percent(row[key])} (${(100 * row[key + "_low"]).toFixed(0)}–${(100 * row[key + "_high"]).toFixed(0)})`);
const span = ([low, high]) => (low === high ? `${low} px` : `${low}–${high} px`);
const usable = (model) => (model.usable ? span(model.usable) : "nowhere");

const CHARTS = [
  { key: "accuracy", title: "Accuracy at each object size", note: "Share of images with the right answer, with its 95 % interval. Dotted: 95 % of the best." },
  { key: "agreement", title: "Agreement with its own answer at full size", note: "Share of images that get the answer the network gives at full size; needs no labels." },
  { key: "confidence", title: "Confidence", note: "Mean probability of the answer. A network that knows its limits becomes unsure where it is wrong." },
  { key: "calibration_error", title: "Calibration error", note: "Mean distance of confidence from accuracy (ECE, 10 bins): 0 is best." },
];

function drawAnswer() {
  const noun = data.labelled ? "best accuracy" : "full-size answers";
  $$("answer").textContent = data.models.map((model) => {
    if (!model.usable) return `${model.label} is at no size better than chance, or there are too few pictures to tell.`;
    const [low, high] = model.usable, below = model.rows[0];
    const kept = `${model.label} keeps 95 % of its ${noun} ${low === high ? `only at ${low}` : `from ${low} to ${high}`} pixels.`;
    if (below.object_size >= low) return kept;
    return `${kept} At ${below.object_size} pixels it ${data.labelled ? "is right about" : "keeps"} ${percent(below[main()], 0)}.`;
  }).join(" ");
}

function drawGlance() {
  const columns = [
    { title: "network", value: (m) => m.label, show: named, first: true },
    ...(data.labelled ? [{ title: "accuracy at full size", value: (m) => full(m).accuracy, show: (m) => interval(full(m), "accuracy") }] : []),
    { title: `mean ${main()} over sizes`, value: mean, show: (m) => heat(mean(m)) },
    { title: "usable range", value: (m) => m.usable?.[0], show: usable },
    { title: "confidence at the smallest size", value: (m) => m.rows[0].confidence, show: (m) => percent(m.rows[0].confidence) },
    { title: "ms per image", value: (m) => full(m).milliseconds, show: (m) => number(full(m).milliseconds) },
  ];
  $$("glance").replaceChildren(sortable(columns, data.models, "networks", tableStates.glance));
  $$("notes").replaceChildren(...data.notes.map((note) => h("p", { class: "notice" }, note[0].toUpperCase() + note.slice(1) + ".")));
}
const heat = (value) => h("td", { class: "heat" }, h("i", { style: `width:${(100 * value).toFixed(1)}%` }), percent(value));

function drawCharts() {
  const shown = CHARTS.filter(({ key }) => data.models[0].rows[0][key] !== null);
  $$("charts").replaceChildren(...shown.map((chart) => h("section", {}, h("h2", {}, chart.title), h("p", { class: "quiet" }, chart.note), h("div", { class: "chart" }))));
  shown.forEach((chart, index) => drawCurve($$("charts").children[index].querySelector(".chart"), chart));
}

function drawCurve(box, { key, title }) {
  const rows = data.models[0].rows, shares = rows.map((row) => row.share);
  const label = `Line chart: ${title}. ` + data.models.map((m) => `${m.label}: ${m.rows.map((row) => `${percent(row[key])} at ${sizeOf(row)}`).join(", ")}.`).join(" ");
  const f = frame(box, { height: 300, x: [shares[0], shares[shares.length - 1]], xLog: true, y: [0, 1], label, focus: true, xTicks: shares, format: (v) => number(100 * v) + "\u00a0%", xFormat: (v) => (data.in_pixels ? rows[shares.indexOf(v)].object_size : percent(v, 0)), xTitle: data.in_pixels ? "object size in pixels" : "object size, share of the canvas", margin: { left: 52, right: 18 } });
  const xs = shares.map(f.x);
  for (const model of data.models) {
    const colour = `var(--${model.colour})`, ys = model.rows.map((row) => f.y(row[key]));
    if (model.rows[0][key + "_low"] !== undefined) {
      const high = model.rows.map((row) => f.y(row[key + "_high"])), low = model.rows.map((row) => f.y(row[key + "_low"]));
      f.svg.append(s("path", { d: path([...xs, ...[...xs].reverse()], [...high, ...low.reverse()]) + "Z", style: `fill:${colour}`, opacity: 0.13 }));
    }
    if (key === main() && model.usable) {
      const best = f.y(0.95 * Math.max(...model.rows.map((row) => row[key])));
      f.svg.append(s("line", { x1: xs[0], x2: xs[xs.length - 1], y1: best, y2: best, style: `stroke:${colour}`, "stroke-dasharray": "1 4", "stroke-width": 1.4 }));
    }
    f.svg.append(s("path", { d: path(xs, ys), fill: "none", style: `stroke:${colour}`, "stroke-width": 2.2, "stroke-dasharray": model.dash || null, class: "series" }));
    xs.forEach((x, i) => f.svg.append(marker(model, x, ys[i], 4.2, false)));
  }
  explore(f, xs, (at) => [`object size ${sizeOf(rows[at])}`, ...data.models.map((m) => [m.label, percent(m.rows[at][key])])]);
  box.replaceChildren(f.svg, data.models.length > 1 ? h("div", { class: "legend" }, data.models.map(named)) : "");
}

function drawSeen() {
  const several = data.models.length > 1;
  $$("seen-note").textContent = `Images as ${data.models[0].label} gets them, each at the first of its places. Struck out: ${data.labelled ? "a wrong answer" : "another answer than at full size"}.`;
  $$("seen").replaceChildren(h("table", { class: "seen", "aria-label": "images and answers" },
    h("thead", {}, h("tr", {}, h("th", {}, ""), (data.examples[0]?.sizes ?? []).map((size) => h("th", { scope: "col" }, `${size} px`)))),
    h("tbody", {}, data.examples.map((example) => h("tr", {}, h("th", { scope: "row" }, example.label), example.images.map((image, i) => h("td", {},
      h("img", { src: image, alt: `${example.label} at ${example.sizes[i]} pixels` }),
      data.models.map((model, n) => {
        const answer = example.answers[n][i];
        return h("div", { title: `${model.label}: ${answer.name}, ${percent(answer.confidence)}` }, several ? s("svg", { width: 12, height: 12, style: "flex:none" }, marker(model, 6, 6, 4.6, false)) : null, h("span", { class: answer.right ? "right" : "wrong" }, answer.name), h("small", { class: "quiet" }, percent(answer.confidence, 0)));
      }))))))));
}

function drawConfusions() {
  $$("confusion-note").textContent = data.confusions.length ? `The most frequent ${data.labelled ? "wrong answers" : "answers that differ from those at full size"} at the sizes below the usable range.` : "Nothing was taken for something else.";
  const cell = (...content) => h("td", { style: "text-align:left" }, ...content);
  $$("confusions").replaceChildren(data.confusions.length ? h("table", { "aria-label": "confusions" },
    h("thead", {}, h("tr", {}, ["network", "shown", "answered", "sizes"].map((title) => h("th", { style: "text-align:left" }, title)), h("th", {}, "images"), h("th", {}, "share of what was shown"))),
    h("tbody", {}, data.confusions.map((row) => h("tr", {}, cell(named(data.models.find((m) => m.label === row.network))), cell(row.shown), cell(row.answered), cell(span(row.sizes)), h("td", {}, row.images), heat(row.share))))) : "");
}

function drawTable() {
  const rows = data.models.flatMap((model) => model.rows.map((row) => ({ ...row, model })));
  const columns = [
    { title: "network", value: (r) => r.network, show: (r) => named(r.model), first: true },
    { title: "object size", value: (r) => r.object_size, show: (r) => `${r.object_size} px` },
    { title: "of the canvas", value: (r) => r.share, show: (r) => percent(r.share, 0) },
    { title: "images", value: (r) => r.images },
    { title: "accuracy", value: (r) => r.accuracy, show: (r) => interval(r, "accuracy") },
    { title: "agreement", value: (r) => r.agreement, show: (r) => interval(r, "agreement") },
    { title: "confidence", value: (r) => r.confidence, show: (r) => percent(r.confidence) },
    { title: "calibration error", value: (r) => r.calibration_error, show: (r) => percent(r.calibration_error) },
    { title: "ms per image", value: (r) => r.milliseconds, show: (r) => number(r.milliseconds) },
  ].filter((column) => data.labelled || !["accuracy", "calibration error"].includes(column.title));
  $$("table").replaceChildren(sortable(columns, rows, "all numbers", tableStates.table));
}

function drawFacts() {
  $$("facts").replaceChildren(h("dl", {}, Object.entries(data.facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function drawAll() {
  for (const draw of [drawAnswer, drawGlance, drawCharts, drawSeen, drawConfusions, drawTable, drawFacts]) draw();
}

async function start() {
  data = await unpack();
  data.models.forEach((model, index) => { model.colour = "m" + index; });
  startTheme();
  drawAll();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawCharts(); } });
  document.body.dataset.ready = "true";
}
start();
