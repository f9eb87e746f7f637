// The groups as they are: months, causes, flows and the worst week.

function monthLines(host, width, title, value, bottom, top, dashed) {
  const height = 250;
  const frame = { left: 44, right: width - 12, top: 26, bottom: height - 30 };
  const months = groups[0].months;
  const x = scale([0, Math.max(months.length - 1, 1)], [frame.left + 14, frame.right - 14]);
  const y = scale([bottom, top], [frame.bottom, frame.top]);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} by month. ${groups.map((g) =>
    `${g.name}: ${g.months.map((m) => `${monthName(m.month)} ${number(value(m), 3)}`).join(", ")}`).join(". ")}` });
  axes(svg, frame, x, y, [], ticks(bottom, top, 5), { x: "", y: title });
  axisOfMonths(svg, frame, x, months);
  if (dashed !== null) svg.append(draw("line", { x1: frame.left, x2: frame.right, y1: y(dashed), y2: y(dashed), class: "one" }));
  groups.forEach((g, i) => {
    const points = g.months.map((m, n) => [n, value(m)]).filter(([, v]) => v !== null);
    if (!points.length) return;
    svg.append(draw("path", { d: `M${points.map(([n, v]) => `${x(n)} ${y(v)}`).join("L")}`, class: "stroke curve", "data-group": i, style: { stroke: colour(i) }, "stroke-dasharray": data.lines[i].style.dash.join(" ") || null }));
    for (const [n, v] of points) svg.append(marker(data.lines[i].style.marker, x(n), y(v), i));
  });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const n = Math.min(months.length - 1, Math.max(0, Math.round(x.back(((event.clientX - box.left) / box.width) * width))));
    showTip(event.clientX, event.clientY, make("div", { class: "head" }, monthName(months[n].month)), ...groups.map((g, i) =>
      make("div", { class: "row" }, key(i), make("span", {}, g.name), make("span", {}, number(value(g.months[n]), 3)))));
  });
  svg.addEventListener("pointerleave", hideTip);
  host.replaceChildren(svg);
}

function monthSection() {
  byId("group-keys").replaceChildren(...groups.map((g, i) => make("span", {}, key(i), ` ${g.name}`)));
  const most = Math.max(...groups.flatMap((g) => g.months.map((m) => m.rounds_per_day))) || 1;
  const least = Math.min(advice.target.weight, ...groups.flatMap((g) => g.months.map((m) => m.weight ?? 1)));
  const bottom = Math.max(0, Math.floor(10 * (least - 0.02)) / 10);
  drawIn(byId("weight-chart"), (host, width) => monthLines(host, width, "weight", (m) => m.weight, bottom, 1 + 0.05 * (1 - bottom), advice.target.weight));
  drawIn(byId("rate-chart"), (host, width) => monthLines(host, width, "rounds a day, per device", (m) => m.rounds_per_day, 0, 1.1 * most, null));
  fallback(byId("months"), "Numbers by month", () => make("div", {}, ...["weight", "rounds_per_day"].map((name) =>
    table([name === "weight" ? "weight" : "rounds a day", ...groups[0].months.map((m) => monthName(m.month))],
      groups.map((g) => [g.name, ...g.months.map((m) => number(m[name], 3))])))));
}

const causeNames = Object.keys(advice.causes).filter((name) => groups.some((g) => g.skipped[name] > 0));
const causeParts = (skipped) => causeNames.map((name) => [`cause-${slug(name)}`, name, skipped[name] || 0, `${name} ${share(skipped[name], 2)} of the slots`]);

function causeSection() {
  const all = (g) => Object.values(g.skipped).reduce((sum, value) => sum + value, 0);
  const widest = Math.max(...groups.map(all)) || 1;
  stackedRows(byId("cause-bars"), groups.map((_, i) => i), (i) => causeParts(groups[i].skipped), widest);
  [...byId("cause-bars").children].forEach((row, i) => row.firstChild.append(make("span", { class: "muted" }, ` ${share(all(groups[i]))}`)));
  legendOf(byId("cause-legend"), causeNames.map((name) => [`cause-${slug(name)}`, name, advice.causes[name]]));
  if (!causeNames.length) byId("cause-legend").replaceChildren("No slot is skipped.");
  drawIn(byId("cause-months"), causeMonths);
}

function causeMonths(host, width) {
  const g = groups[state.picked], height = 220;
  const frame = { left: 44, right: width - 12, top: 26, bottom: height - 30 };
  const high = Math.max(0.05, ...g.months.map((m) => Object.values(m.skipped).reduce((a, b) => a + b, 0)));
  const x = scale([-0.5, g.months.length - 0.5], [frame.left, frame.right]);
  const y = scale([0, 100 * high], [frame.bottom, frame.top]);
  const said = g.months.map((m) => `${monthName(m.month)} ${share(Object.values(m.skipped).reduce((a, b) => a + b, 0))}`).join(", ");
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Slots skipped by month, ${g.name}: ${said}` });
  axes(svg, frame, x, y, [], ticks(0, 100 * high, 5), { x: "", y: `${brief(g.name)}: slots skipped, %` });
  axisOfMonths(svg, frame, x, g.months);
  const half = 0.36 * (x(1) - x(0));
  g.months.forEach((m, n) => {
    let base = 0;
    for (const [kind, , value, words] of causeParts(m.skipped)) {
      if (!value) continue;
      svg.append(draw("rect", { x: x(n) - half, width: 2 * half, y: y(100 * (base + value)), height: y(100 * base) - y(100 * (base + value)), class: `part ${kind}`, "data-month": n,
        onpointermove: (event) => showTip(event.clientX, event.clientY, make("div", {}, `${monthName(m.month)}: ${words}`)), onpointerleave: hideTip }));
      base += value;
    }
  });
  host.replaceChildren(svg);
}

const FLOWS = [
  ["training", "local steps"], ["radio", "sending and receiving"], ["standby", "drawn between rounds"], ["lost", "of rounds that failed"],
  ["leak", "self-discharge"], ["charging_loss", "between panel and battery"], ["overflow", "came when the battery was full"], ["stored", "left in the battery at the end"],
];
const flowName = (name) => name.replace("_", " ");

function flowSection() {
  const shown = FLOWS.filter(([name]) => groups.some((g) => g.flows_j[name] > 0));
  stackedRows(byId("flow-bars"), groups.map((_, i) => i), (i) => {
    const flows = groups[i].flows_j, all = flows.harvested + flows.initial || 1;
    return shown.map(([name]) => [`flow-${slug(name)}`, name, flows[name] / all, `${flowName(name)} ${amount(flows[name], "J")}, ${share(flows[name] / all)}`]);
  }, 1);
  legendOf(byId("flow-legend"), shown.map(([name, hint]) => [`flow-${slug(name)}`, flowName(name), hint]));
  byId("flow-table").replaceChildren(groupTable(["group", "harvested", "held at first", ...shown.map(([name]) => flowName(name))],
    (g) => ["harvested", "initial", ...shown.map(([name]) => name)].map((name) => amount(g.flows_j[name], "J"))));
}

function weekChart(host, width) {
  const g = groups[state.picked], week = g.worst_week, roundS = advice.horizon.round_s;
  const frame = { left: 52, right: width - 12, top: 26, bottom: 230 }, low = { left: 52, right: width - 12, top: 262, bottom: 330 };
  const n = week.level_wh.length;
  const x = scale([0, n * roundS], [frame.left, frame.right]);
  const y = scale([0, 1.05 * Math.max(week.capacity_wh, ...week.level_wh)], [frame.bottom, frame.top]);
  const watts = week.harvest_wh.map((wh) => (3600 * wh) / roundS);
  const most = Math.max(...watts) || 1;
  const y2 = scale([0, most], [low.bottom, low.top]);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} 366`, role: "img",
    "aria-label": `Battery of ${g.name} in the week from ${dayText(moment(week.start))}: mean between ${batteryText(Math.min(...week.level_wh))} and ${batteryText(Math.max(...week.level_wh))} of ${batteryText(week.capacity_wh)}` });
  let from = null;
  watts.concat([1]).forEach((w, i) => {
    if (w <= 0 && i < n && from === null) from = i;
    if ((w > 0 || i === n) && from !== null) {
      svg.append(draw("rect", { x: x(from * roundS), width: x(i * roundS) - x(from * roundS), y: frame.top, height: low.bottom - frame.top, class: "dark-spell" }));
      from = null;
    }
  });
  axes(svg, frame, x, y, [], ticks(0, y.back(frame.top), 5), { x: "", y: `${brief(g.name)}: usable energy, Wh` });
  axes(svg, low, x, y2, [], [0, Number(most.toPrecision(2))], { x: "", y: "offered, W" });
  const days = Math.ceil((n * roundS) / DAY_S);
  const every = Math.ceil((58 * days) / (frame.right - frame.left));
  for (let day = 0; day < days; day++) {
    svg.append(draw("line", { x1: x(day * DAY_S), x2: x(day * DAY_S), y1: low.bottom, y2: low.bottom + 4, class: "axis" }));
    if (day % every === 0) svg.append(draw("text", { x: x(day * DAY_S), y: low.bottom + 17, class: "tick" }, dayText(moment(week.start, day * DAY_S))));
  }
  const steps = (values, to) => values.map((v, i) => `${x(i * roundS).toFixed(1)} ${to(v).toFixed(1)}H${x((i + 1) * roundS).toFixed(1)}`).join("L");
  const full = y(week.capacity_wh);
  svg.append(
    draw("line", { x1: frame.left, x2: frame.right, y1: full, y2: full, class: "one" }), draw("text", { x: frame.right, y: full - 5, class: "tick end" }, `full, ${batteryText(week.capacity_wh)}`),
    draw("path", { d: `M${frame.left} ${low.bottom}L${steps(watts, y2)}V${low.bottom}Z`, class: "sun" }),
    draw("path", { d: `M${steps(week.lowest_wh, y)}`, class: "stroke thin", style: { stroke: colour(state.picked) }, "stroke-dasharray": "3 3" }),
    draw("path", { d: `M${steps(week.level_wh, y)}`, class: "stroke curve", style: { stroke: colour(state.picked) } }));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const i = Math.min(n - 1, Math.max(0, Math.floor(x.back(((event.clientX - box.left) / box.width) * width) / roundS)));
    showTip(event.clientX, event.clientY, make("div", { class: "head" }, clockText(moment(week.start, i * roundS))),
      make("div", {}, `mean ${batteryText(week.level_wh[i])}, lowest ${batteryText(week.lowest_wh[i])}`), make("div", {}, `offered ${amount(watts[i], "W")}`));
  });
  svg.addEventListener("pointerleave", hideTip);
  host.replaceChildren(svg, make("div", { class: "legend" }, make("span", {}, key(state.picked), " mean of the devices"), make("span", {}, "┄ device with the least"), make("span", {}, make("i", { class: "swatch sun-swatch" }), "offered")));
}
