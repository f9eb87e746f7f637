// What the sections of the advice share: amounts with units, dates, the picked group, stacked bars.

const advice = data.advice;
const groups = advice.groups;
const state = { picked: Math.max(0, groups.findIndex((g) => g.starved)), redraw: [] };

const PREFIXES = { "-9": "n", "-6": "µ", "-3": "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T" };
// 1009880 J as 1.01 MJ.
function amount(value, unit, digits = 3) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value === 0) return `0 ${unit}`;
  const rounded = Number(value.toPrecision(digits));
  const power = Math.min(12, Math.max(-9, 3 * Math.floor(Math.floor(Math.log10(Math.abs(rounded)) + 1e-12) / 3)));
  return `${Number((rounded / 10 ** power).toPrecision(digits))} ${PREFIXES[power]}${unit}`;
}
const share = (value, digits = 1) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);
const weightText = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const rounds = (value) => `${number(value, 3)} rounds/day`;
// Sizes are written as in the file of the fleet: 0.06 Wp, not 60 mWp.
const panelText = (g, value) => (g.panel_unit === "Wp" ? `${number(value, 3)} Wp` : `${number(value, 3)} × trace`);
const batteryText = (value) => `${number(value, 3)} Wh`;
const hours = (value) => (value === null ? "not within the horizon" : value < 48 ? `${number(value, 3)} h` : `${number(value / 24, 3)} days`);

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const monthName = (month) => MONTHS[Number(month.slice(5, 7)) - 1];
const DAY_S = 86400;
// A calendar of 365-day years: dates are computed in UTC from the first year, which is no leap year.
const moment = (iso, seconds = 0) => new Date(Date.parse(`${iso}:00Z`) + 1000 * seconds);
const dayText = (date) => `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
const clockText = (date) => `${dayText(date)}, ${String(date.getUTCHours()).padStart(2, "0")}:${String(date.getUTCMinutes()).padStart(2, "0")}`;

// A name in a picture, where it cannot be wrapped.
const brief = (name, most = 26) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

// A table whose first column are the groups.
function groupTable(head, row, which = groups.map((_, i) => i)) {
  return make("table", { class: "results" },
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...which.map((i) => make("tr", { "data-group": i }, make("th", { scope: "row" }, key(i), groups[i].name),
      ...row(groups[i], i).map((cell) => make("td", {}, cell))))));
}

// Every control that picks a group follows the others.
function picks() {
  for (const select of document.querySelectorAll(".group-pick")) {
    select.replaceChildren(...groups.map((g, i) => make("option", { value: i, selected: i === state.picked }, g.name)));
    select.addEventListener("change", () => pick(Number(select.value)));
  }
}
function pick(group) {
  state.picked = group;
  for (const select of document.querySelectorAll(".group-pick")) select.value = group;
  for (const again of state.redraw) again();
}
// Draws now, when another group is picked, and when the window gets another width.
function drawIn(host, paint) {
  const again = () => paint(host, Math.max(260, host.clientWidth));
  let width = host.clientWidth;
  again();
  // In the next frame: what is drawn within the observer's own turn may change sizes again, which browsers complain of.
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (host.clientWidth !== width) {
      width = host.clientWidth;
      again();
    }
  })).observe(host);
  state.redraw.push(again);
}

// Rows of stacked bars. parts(i): [[class, name, value, words]]; a bar is `of(i)` wide in parts of the widest.
function stackedRows(host, rows, parts, widest) {
  host.replaceChildren(...rows.map((i) => {
    const mine = parts(i).filter(([, , value]) => value > 0);
    return make("div", { class: "stack-row" }, make("span", {}, key(i), groups[i].name),
      make("div", { class: "stack", role: "img", "aria-label": `${groups[i].name}: ${mine.map(([, , , words]) => words).join("; ") || "nothing"}` },
        ...mine.map(([kind, name, value, words]) => make("div", {
          class: `part ${kind}`, "data-group": i, "data-part": name, style: { width: `${(100 * value) / widest}%` },
          onpointermove: (event) => showTip(event.clientX, event.clientY, make("div", {}, `${groups[i].name}: ${words}`)), onpointerleave: hideTip })),
        mine.length ? null : make("span", { class: "muted none" }, "none")));
  }));
}
function legendOf(host, entries) {
  host.replaceChildren(...entries.map(([kind, name, hint]) =>
    make("span", {}, make("i", { class: `swatch part ${kind}` }), make("b", {}, name), hint ? ` ${hint}` : "")));
}
const slug = (name) => name.replace(/[^a-z]+/g, "-");
function axisOfMonths(group, frame, x, months) {
  const every = Math.ceil((32 * months.length) / (frame.right - frame.left));
  months.forEach((m, i) => i % every === 0 && group.append(draw("text", { x: x(i), y: frame.bottom + 17, class: "tick middle" }, monthName(m.month))));
}
