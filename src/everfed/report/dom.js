// Small helpers: elements, numbers as people read them, the one tooltip of the page.

const SVG = "http://www.w3.org/2000/svg";
const data = JSON.parse(document.getElementById("data").textContent);
const visible = data.lines.map(() => true);
const colour = (line) => `var(--line-${line})`;
const byId = (id) => document.getElementById(id);

// Texts are always set as text: nothing from the data is ever parsed as HTML.
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") Object.entries(value).forEach(([k, v]) => node.style.setProperty(k, v));
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const number = (value, digits = 4) =>
  value === null || value === undefined || !isFinite(value)
    ? "–"
    : Math.abs(value) >= 1000
      ? Math.round(value).toLocaleString("en-US")
      : String(Number(value.toPrecision(digits)));
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : (100 * value).toFixed(digits));
// What the runs are judged by: an accuracy in percent, or a loss as it is.
const judged = (value, digits = 1) => (data.measure.percent ? percent(value, digits) : number(value));
const judgedUnit = data.measure.percent ? ", %" : "";
// A mean with its spread, which one seed does not have.
const plusMinus = (mean, spread, show, what = "") => (spread === null || spread === undefined ? show(mean) : `${show(mean)} ± ${show(spread)}${what}`);
// Time: x is in rounds, and shown in the unit of the page's clock.
const inUnits = (rounds) => rounds * data.clock.per_round;
const timeTitle = data.clock.title === "rounds" ? "round" : data.clock.title;
const plural = (n, what) => `${n.toLocaleString("en-US")} ${what}${n === 1 ? "" : "s"}`;

const tip = byId("tip");
function showTip(x, y, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(8, x + 16 + box.width > room ? x - box.width - 14 : x + 14)}px`;
  tip.style.top = `${Math.max(8, Math.min(y + 14, window.innerHeight - box.height - 8))}px`;
}
function hideTip() {
  tip.hidden = true;
}

// The line's own shape, drawn as on the chart, for chips and tooltips.
const key = (line) => lineKey(data.lines[line].style, colour(line));
function lineKey(style, own) {
  return draw("svg", { class: "key", viewBox: "0 0 26 12", "aria-hidden": "true" },
    draw("path", { d: "M1 6H25", style: { stroke: own }, "stroke-dasharray": style.dash.join(" ") || null, class: "stroke" }),
    style.marker ? shape(style.marker, 13, 6, own) : null);
}

const SHAPES = {
  o: "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z",
  s: "M-3 -3h6v6h-6z",
  D: "M0 -4.2l4.2 4.2l-4.2 4.2l-4.2 -4.2z",
  "^": "M0 -4l4 7h-8z",
  v: "M0 4l4 -7h-8z",
  P: "M-1.3 -4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
  "<": "M-4 0l7 -4v8z",
  X: "M0 -1.6l2.2 -2.2l1.6 1.6l-2.2 2.2l2.2 2.2l-1.6 1.6l-2.2 -2.2l-2.2 2.2l-1.6 -1.6l2.2 -2.2l-2.2 -2.2l1.6 -1.6z",
};
const marker = (name, x, y, line) => shape(name, x, y, colour(line));
function shape(name, x, y, own, look = "marker") {
  return draw("path", { d: SHAPES[name] || SHAPES.o, transform: `translate(${x} ${y})`, style: { "--own": own }, class: look });
}

// A table that is built only when somebody opens it: cheap to have below every chart.
function fallback(where, name, build) {
  const box = make("div", { class: "scroll" });
  const details = make("details", { class: "numbers" }, make("summary", {}, name), box);
  const refresh = () => details.open && box.replaceChildren(build());
  details.addEventListener("toggle", refresh);
  where.append(details);
  return refresh;
}

function table(head, rows, caption) {
  return make("table", {},
    caption ? make("caption", {}, caption) : null,
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows.map(([first, ...rest]) =>
      make("tr", {}, make("th", { scope: "row" }, first), ...rest.map((text) => make("td", {}, text))))));
}
