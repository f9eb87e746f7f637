// What if: sliders for one group, and the map of its sizes, both by the batteries of battery.js.

const tables = data.whatif ? readTables(data.whatif.tables) : [];
const roundSeconds = advice.horizon.round_s;
const SLIDERS = [
  ["panel", "Panel", (g, v) => panelText(g, v)],
  ["battery", "Battery", (g, v) => batteryText(v)],
  ["steps", "Local steps", (g, v) => `${v} per round`],
  ["sent", "Upload", (g, v) => `${amount(1e6 * v * modelOf().up_mb, "B")} (× ${number(v, 2)})`],
  ["cycle", "Promise", (g, v) => (v ? `one training per ${plural(v, "round")}` : "as the mean supply allows")],
];
const modelOf = () => data.whatif.models[state.picked];
const present = () => ({ panel: groups[state.picked].panel, battery: groups[state.picked].battery_wh, steps: modelOf().local_steps, sent: 1, cycle: modelOf().set_cycle });
const run = (setting) => simulate(modelOf(), setting, tables, roundSeconds, data.whatif.month_of, modelOf().seeds);
let setting = null;

// Sliders of sizes go in steps of three digits from a sixteenth to sixteen times, those of numbers by one.
const RANGE = 96;
const sized = (value, at) => Number((value * 16 ** (at / RANGE)).toPrecision(3));
const CYCLES = [0, 1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, 72, 96, 144, 168, 336];

function slider(name, label, words) {
  const now = present();
  const g = groups[state.picked];
  const cycles = [...new Set([...CYCLES, now.cycle, ...g.cycles, g.cycle])].sort((a, b) => a - b);
  const [low, high, at, read] = {
    panel: [-RANGE, RANGE, 0, (v) => (v ? sized(now.panel, v) : now.panel)], battery: [-RANGE, RANGE, 0, (v) => (v ? sized(now.battery, v) : now.battery)],
    steps: [1, Math.max(10, 4 * now.steps), now.steps, (v) => v], sent: [-40, 20, 0, (v) => Number((10 ** (v / 20)).toPrecision(2))],
    cycle: [0, cycles.length - 1, cycles.indexOf(now.cycle), (v) => cycles[v]],
  }[name];
  const text = make("output", {}, words(g, now[name]));
  const input = make("input", { type: "range", min: low, max: high, step: 1, value: at, "data-name": name, "aria-label": label, oninput: () => {
    setting[name] = read(Number(input.value));
    text.replaceChildren(words(g, setting[name]));
    outcome();
  } });
  return make("label", {}, make("span", {}, label), input, text);
}

function outcome() {
  const g = groups[state.picked], now = run(present()), then = run(setting);
  const cycles = [Math.min(...then.cycles), Math.max(...then.cycles)];
  const often = cycles[0] === cycles[1] ? `1 in ${cycles[0]}` : `1 in ${cycles[0]} to ${cycles[1]}`;
  const row = (name, before, after) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, before), make("td", { "data-name": name }, after));
  const nowCycles = [Math.min(...now.cycles), Math.max(...now.cycles)];
  const parts = [
    make("p", { class: `big ${then.weight === null ? "" : then.weight >= advice.target.weight ? "good" : "bad"}`, "data-weight": then.weight, "data-per-day": then.perDay }, then.weight === null ? "no slot in this horizon" : `weight ${weightText(then.weight)}`, make("span", {}, rounds(then.perDay))),
    then.why ? make("p", { class: "note" }, `Impossible: ${then.why}.`) : null,
    make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, ""), make("th", {}, "as it is"), make("th", {}, "with the sliders"))), make("tbody", {},
      row("weight", weightText(now.weight), weightText(then.weight)), row("rounds a day", number(now.perDay, 3), number(then.perDay, 3)),
      row("trainings per round", nowCycles[0] === nowCycles[1] ? `1 in ${nowCycles[0]}` : `1 in ${nowCycles[0]} to ${nowCycles[1]}`, often),
      row("energy of a round", amount(now.unit, "J"), amount(then.unit, "J")))),
    make("p", { class: "muted" }, `In full, over ${g.simulated === g.count ? "all" : g.simulated.toLocaleString("en-US")} devices, the weight as it is: ${weightText(g.weight)}.`)];
  byId("outcome").replaceChildren(...parts.filter((part) => part !== null));
  monthBars(byId("what-if-months"), now, then);
  if (map) map.mark();
}

function monthBars(host, now, then) {
  const g = groups[state.picked], width = Math.max(260, host.clientWidth), height = 250;
  const frame = { left: 40, right: width - 8, top: 12, bottom: height - 30 };
  const x = scale([-0.5, g.months.length - 0.5], [frame.left, frame.right]), y = scale([0, 1], [frame.bottom, frame.top]);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Weight by month: ${then.byMonth.map((w, i) => `${monthName(g.months[i].month)} ${weightText(w)}`).join(", ")}` });
  axes(svg, frame, x, y, [], [0, 0.25, 0.5, 0.75, 1], { x: "", y: "" });
  axisOfMonths(svg, frame, x, g.months);
  const half = 0.36 * (x(1) - x(0));
  const bar = (n, w, attributes) => w !== null && svg.append(draw("rect", { x: x(n) - half, width: 2 * half, y: y(w), height: frame.bottom - y(w), ...attributes }));
  g.months.forEach((m, n) => {
    bar(n, then.byMonth[n], { class: "now", style: { fill: colour(state.picked) }, onpointermove: (event) => showTip(event.clientX, event.clientY, make("div", {}, `${monthName(m.month)}: ${weightText(now.byMonth[n])} → ${weightText(then.byMonth[n])}`)), onpointerleave: hideTip });
    bar(n, now.byMonth[n], { class: "was" });
  });
  svg.append(draw("line", { x1: frame.left, x2: frame.right, y1: y(advice.target.weight), y2: y(advice.target.weight), class: "one" }));
  host.replaceChildren(svg);
}

const ADVISED = ["panel", "battery", "pair"];
// The weight over panel and battery, from a quarter to four times the present ones, or to the advised ones, row by row so that the page stays usable.
class SizeMap {
  constructor(host) {
    this.host = host;
    this.turn = 0;
  }

  paint() {
    const width = Math.max(260, this.host.clientWidth), height = 300;
    this.size = [width, height];
    const g = groups[state.picked], now = present();
    this.cells = [18, 14];
    this.frame = { left: 60, right: width - 10, top: 12, bottom: height - 40 };
    const advised = ADVISED.map((kind) => g.sizes[kind]).filter((size) => size !== null);
    const span = (values, value) => [Math.min(value / 4, ...values.map((v) => v / 1.3)), Math.max(4 * value, ...values.map((v) => 1.3 * v))];
    this.x = scale(span(advised.map((s) => s.panel), now.panel), [this.frame.left, this.frame.right], true);
    this.y = scale(span(advised.map((s) => s.battery_wh), now.battery), [this.frame.bottom, this.frame.top], true);
    this.svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Weight of ${g.name} by panel and battery` });
    this.heat = draw("g"), this.marks = draw("g");
    this.svg.append(this.heat);
    axes(this.svg, this.frame, this.x, this.y, logTicks(this.x.back(this.frame.left), this.x.back(this.frame.right)), logTicks(this.y.back(this.frame.bottom), this.y.back(this.frame.top)),
      { x: g.panel_unit === "Wp" ? "panel, Wp" : "panel, times the trace", y: "" });
    this.svg.append(draw("text", { x: 12, y: (this.frame.top + this.frame.bottom) / 2, class: "title middle", transform: `rotate(-90 12 ${(this.frame.top + this.frame.bottom) / 2})` }, "battery, Wh"), this.marks);
    this.host.replaceChildren(this.svg);
    this.weights = [];
    this.mark();
    this.fill(0, ++this.turn);
  }

  fill(row, turn) {
    const [columns, rows] = this.cells;
    if (turn !== this.turn) return;
    if (row === rows) return this.contour();
    const { left, right, top, bottom } = this.frame;
    const [w, h] = [(right - left) / columns, (bottom - top) / rows];
    // The promise of the advised sizes is kept while they vary.
    const base = { ...present(), cycle: groups[state.picked].cycle };
    for (let column = 0; column < columns; column++) {
      const at = { ...base, panel: this.x.back(left + (column + 0.5) * w), battery: this.y.back(bottom - (row + 0.5) * h) };
      const weight = run(at).weight;
      this.weights.push(weight);
      this.heat.append(draw("rect", { x: left + column * w, y: bottom - (row + 1) * h, width: w + 0.5, height: h + 0.5, class: "cell", style: { "--heat": `${Math.round(100 * weight)}%` },
        onpointermove: (event) => showTip(event.clientX, event.clientY, make("div", {}, `${panelText(groups[state.picked], at.panel)}, ${batteryText(at.battery)}: weight ${weightText(weight)}`)), onpointerleave: hideTip }));
    }
    setTimeout(() => this.fill(row + 1, turn), 0);
  }

  // Where the target begins: along the edges between cells that reach it and cells that do not.
  contour() {
    const [columns, rows] = this.cells, { left, right, top, bottom } = this.frame;
    const [w, h] = [(right - left) / columns, (bottom - top) / rows];
    const good = (c, r) => this.weights[r * columns + c] >= advice.target.weight - 1e-12;
    let d = "";
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) {
        if (c + 1 < columns && good(c, r) !== good(c + 1, r)) d += `M${left + (c + 1) * w} ${bottom - r * h}v${-h}`;
        if (r + 1 < rows && good(c, r) !== good(c, r + 1)) d += `M${left + c * w} ${bottom - (r + 1) * h}h${w}`;
      }
    this.heat.append(draw("path", { d, class: "contour" }));
    this.host.dataset.ready = "1";
  }

  mark() {
    if (!this.marks) return; // it is not drawn yet, and will be marked then
    const g = groups[state.picked], now = present();
    const inside = (v, low, high) => Math.min(high, Math.max(low, v));
    const dot = (panel, battery, kind, name) => draw("path", { d: { now: SHAPES.o, pair: SHAPES.D, panel: SHAPES["^"], battery: SHAPES.s, sliders: SHAPES.X }[kind], class: `point ${kind}`,
      transform: `translate(${inside(this.x(panel), this.frame.left, this.frame.right)} ${inside(this.y(battery), this.frame.top, this.frame.bottom)}) scale(1.6)`, "aria-label": name });
    this.marks.replaceChildren(...ADVISED.filter((kind) => g.sizes[kind]).map((kind) => dot(g.sizes[kind].panel, g.sizes[kind].battery_wh, kind, kind)),
      dot(now.panel, now.battery, "now", "as it is"), setting.panel !== now.panel || setting.battery !== now.battery ? dot(setting.panel, setting.battery, "sliders", "with the sliders") : "");
  }
}

let map = null;
function whatIf() {
  if (!data.whatif) {
    byId("what-if").replaceChildren(make("h2", {}, "What if?"), make("p", {}, "The supplies of so many rounds are too large for this page; take fewer or longer rounds to get sliders."));
    return;
  }
  const start = () => {
    setting = present();
    byId("sliders").replaceChildren(...SLIDERS.map((one) => slider(...one)));
    const m = modelOf(), n = m.members.length, { count } = groups[state.picked];
    const who = n === count ? (n === 1 ? "its device" : `all ${n} devices of the group`) : `${n} of its ${count.toLocaleString("en-US")} devices, evenly spaced from the least supplied to the best`;
    byId("what-if-note").replaceChildren(`Move a slider: the batteries of ${who} are followed through all ${advice.horizon.rounds.toLocaleString("en-US")} rounds in your browser, ${plural(m.seeds, "schedule")} each, with the supply as given. ` +
      "Batteries begin with their share of charge, so that a larger one may do well for a while on that alone. All else stays as it is.");
    outcome();
  };
  state.redraw.push(start);
  start();
  map = new SizeMap(byId("size-map"));
  drawIn(byId("size-map"), () => map.paint());
  drawIn(byId("what-if-months"), () => outcome());
  byId("map-note").replaceChildren(`supply as given, at the promise of the advised sizes; line: weight ${advice.target.weight}; the advised sizes also hold in drawn years${advice.horizon.days >= 364 ? " and for ten years" : ""}`);
  byId("map-legend").replaceChildren(...[["now", "o", "as it is"], ["pair", "D", "advised pair"], ["panel", "^", "smallest panel"], ["battery", "s", "smallest battery"], ["sliders", "X", "sliders"]].map(([kind, shape, name]) =>
    make("span", {}, draw("svg", { class: "key", viewBox: "-7 -6 14 12", "aria-hidden": "true" }, draw("path", { d: SHAPES[shape], class: `point ${kind}` })), name)));
  byId("reset-sliders").addEventListener("click", start);
}
