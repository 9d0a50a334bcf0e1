// What the pages share: data, colours, elements, scales, axes, the tip. Texts are set as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const $$ = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(9)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : (100 * value).toFixed(digits) + "\u00a0%");
const points = (value) => (value === null || value === undefined ? "–" : (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(100 * value).toFixed(1));
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 }));

const pValue = (value) => (value < 0.001 ? "p < 0.001" : `p = ${number(value, 2)}`);

function scaleOf(from, to, low, high) {
  const slope = to === from ? 0 : (high - low) / (to - from);
  return (value) => low + (value - from) * slope;
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((f) => f >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

function logScaleOf(from, to, low, high) {
  const linear = scaleOf(Math.log(from), Math.log(to), low, high);
  return (value) => linear(Math.log(value));
}

function logTicks(low, high) {
  const found = [];
  const steps = high / low > 200 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) found.push(...steps.map((step) => +(step * 10 ** power).toPrecision(1)));
  return found.filter((value) => value >= low && value <= high);
}

// A frame with axes; returns the drawing and its scales.
function frame(box, options) {
  const width = Math.max(box.clientWidth, 240);
  const height = options.height;
  const margin = { left: 46, right: 12, top: 10, bottom: 42, ...options.margin };
  const x = (options.xLog ? logScaleOf : scaleOf)(options.x[0], options.x[1], margin.left, width - margin.right);
  const xTicks = options.xTicks || (options.xLog ? logTicks(...options.x) : ticks(...options.x, Math.round(width / 90)));
  const y = scaleOf(options.y[0], options.y[1], height - margin.bottom, margin.top);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label, tabindex: options.focus ? 0 : null });
  const back = s("g", { "aria-hidden": "true" });
  const format = options.format || ((value) => value);
  for (const value of options.yTicks || ticks(options.y[0], options.y[1], 5)) {
    back.append(s("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }));
    back.append(s("text", { x: margin.left - 7, y: y(value) + 4, "text-anchor": "end" }, String(format(value))));
  }
  for (const value of xTicks) {
    back.append(s("line", { class: "axis", x1: x(value), x2: x(value), y1: height - margin.bottom, y2: height - margin.bottom + 4 }));
    back.append(s("text", { x: x(value), y: height - margin.bottom + 18, "text-anchor": "middle" }, String((options.xFormat || format)(value))));
  }
  back.append(s("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom }));
  back.append(s("text", { x: (margin.left + width - margin.right) / 2, y: height - 4, "text-anchor": "middle" }, options.xTitle || ""));
  svg.append(back);
  return { svg, x, y, width, height, margin };
}

function swatch(model) {
  return s("svg", { class: "swatch", width: 30, height: 12, "aria-hidden": "true" },
    s("line", { x1: 0, x2: 30, y1: 6, y2: 6, style: `stroke:var(--${model.colour})`, "stroke-width": 2.4, "stroke-dasharray": model.dash || null }),
    marker(model, 15, 6, 4.6, false));
}

// Corners of the markers on a circle of radius 1, by Matplotlib's names.
const ring = (count, turn, radius = () => 1) => Array.from({ length: count }, (_, i) => {
  const angle = (2 * Math.PI * i) / count + (turn * Math.PI) / 180;
  return [radius(i) * Math.cos(angle), radius(i) * Math.sin(angle)];
});
const cross = (turn) => ring(12, turn, (i) => (i % 3 === 2 ? 0.5 : 1));
const SHAPES = {
  o: ring(24, 0), s: ring(4, 45), D: ring(4, 0), d: ring(4, 0).map(([x, y]) => [0.6 * x, y]), p: ring(5, -90), h: ring(6, -90),
  "^": ring(3, -90), v: ring(3, 90), "<": ring(3, 180), ">": ring(3, 0), "*": ring(10, -90, (i) => (i % 2 ? 0.42 : 1)),
  P: cross(-15), X: cross(30),
};
function marker(model, x, y, radius, hollow) {
  const colour = `var(--${model.colour})`;
  const d = SHAPES[model.marker].map(([dx, dy], i) => (i ? "L" : "M") + (x + radius * dx).toFixed(1) + " " + (y + radius * dy).toFixed(1)).join("") + "Z";
  return s("path", { d, class: "marker", style: hollow ? `stroke:${colour};fill:var(--paper)` : `fill:${colour};stroke:var(--paper)`, "stroke-width": hollow ? 1.4 : 0.8, "fill-opacity": hollow ? 0.75 : 0.9 });
}

function path(xs, ys) {
  let d = "";
  xs.forEach((value, i) => { d += (i ? "L" : "M") + value.toFixed(1) + " " + ys[i].toFixed(1); });
  return d;
}

function showTip(rows, clientX, clientY) {
  const tip = $$("tip");
  tip.replaceChildren(...rows.map((row) => (Array.isArray(row) ? h("div", {}, h("span", {}, row[0]), h("b", {}, row[1])) : h("b", {}, row))));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = clientX + 16 + width > innerWidth ? clientX - width - 16 : clientX + 16;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.min(Math.max(4, clientY - height / 2), innerHeight - height - 4) + "px";
}
function hideTip() { $$("tip").hidden = true; }

// Make an element explain itself to pointer and keyboard alike.
function explains(element, rows) {
  const show = (event) => {
    const box = element.getBoundingClientRect();
    showTip(rows(), event.clientX ?? box.left + box.width / 2, event.clientY ?? box.top);
  };
  for (const name of ["pointermove", "focus"]) element.addEventListener(name, show);
  for (const name of ["pointerleave", "blur"]) element.addEventListener(name, hideTip);
  return element;
}

// A table whose columns sort by click or key. columns: {title, value, show?, first?}
function sortable(columns, rows, label, state) {
  const body = h("tbody");
  const heads = columns.map((column, index) =>
    h("th", { scope: "col" }, h("button", { type: "button", onclick: () => sort(index) }, column.title)));
  function sort(index, keep) {
    if (!keep) state.down = state.column === index ? !state.down : !columns[index].first;
    state.column = index;
    const value = columns[index].value;
    const sorted = [...rows].sort((a, b) => compare(value(a), value(b)) * (state.down ? -1 : 1));
    const known = sorted.filter((row) => value(row) !== null && value(row) !== undefined);
    const unknown = sorted.filter((row) => !known.includes(row));
    body.replaceChildren(...[...known, ...unknown].map((row) =>
      h("tr", {}, columns.map((column) => {
        const shown = column.show ? column.show(row) : column.value(row);
        return shown instanceof HTMLTableCellElement ? shown : h("td", {}, shown ?? "–");
      }))));
    heads.forEach((head, i) => {
      if (i === index) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }
  sort(Math.min(state.column ?? 0, columns.length - 1), true);
  return h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, heads)), body);
}
function compare(a, b) {
  return typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : (a ?? -Infinity) - (b ?? -Infinity);
}

const nearest = (values, wanted) => values.reduce((best, value, i) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? i : best), 0);

// A cursor that follows the pointer and the keys; `rows(at)` is what the tip says.
function explore(f, xs, rows, at = 0) {
  const cursor = s("line", { class: "cursor", y1: f.margin.top, y2: f.height - f.margin.bottom, visibility: "hidden" });
  f.svg.append(cursor);
  const move = (index, clientX, clientY) => {
    at = Math.min(xs.length - 1, Math.max(0, index));
    cursor.setAttribute("x1", xs[at]); cursor.setAttribute("x2", xs[at]); cursor.setAttribute("visibility", "visible");
    showTip(rows(at), clientX, clientY);
  };
  const leave = () => { cursor.setAttribute("visibility", "hidden"); hideTip(); };
  const place = () => { const r = f.svg.getBoundingClientRect(); return [r.left + (xs[at] / f.width) * r.width, r.top + 80]; };
  f.svg.addEventListener("pointermove", (event) => {
    const r = f.svg.getBoundingClientRect();
    move(nearest(xs, ((event.clientX - r.left) / r.width) * f.width), event.clientX, event.clientY);
  });
  f.svg.addEventListener("pointerleave", leave);
  f.svg.addEventListener("focus", () => move(at, ...place()));
  f.svg.addEventListener("blur", leave);
  f.svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -8, PageUp: 8 }[event.key];
    if (step) { event.preventDefault(); move(at + step, ...place()); }
    if (event.key === "Escape") leave();
  });
}

async function unpack() {
  const bytes = Uint8Array.from(atob($$("data").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $$("theme").textContent = `Colours: ${theme}`;
  try { localStorage.setItem("equiscale-theme", theme); } catch { /* private window */ }
}

function startTheme() {
  let theme = "auto";
  try { theme = localStorage.getItem("equiscale-theme") || "auto"; } catch { /* private window */ }
  setTheme(theme);
  $$("theme").addEventListener("click", () => setTheme({ auto: "light", light: "dark", dark: "auto" }[$$("theme").textContent.slice(9)]));
}
