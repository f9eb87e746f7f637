// Tables of the groups, changes and sizes; other years, the limit, and what to expect of the model.

function stateSection() {
  const { target } = advice;
  byId("years-note").replaceChildren(target.years ? `In ${target.needed} of ${target.years} drawn years the weight is at least that of the column.` : "");
  const head = ["group", "devices", "rounds a day", "promised", "weight", "worst device", ...(target.years ? [`in ${target.needed} of ${target.years} years`] : []), "main cause of skipping", "panel", "battery", ""];
  byId("state-table").replaceChildren(groupTable(head, (g) => [
    g.count.toLocaleString("en-US"), number(g.rounds_per_day, 3), number(g.promised_per_day, 3), weightText(g.weight), weightText(g.lowest_weight),
    ...(target.years ? [weightText(g.years.low)] : []), g.main_cause || "–", panelText(g, g.panel), batteryText(g.battery_wh),
    make("span", { class: `badge ${g.starved === null ? "" : g.starved || g.charge_days !== null ? "bad" : "good"}` }, g.dead_since ? `first dry ${dayText(moment(g.dead_since))}` : g.starved === null ? "no slot" : g.starved ? "starved" : g.charge_days !== null ? "on its charge" : "fed")]));
}

const priced = advice.prices.per_wp !== null;
function changeSection() {
  byId("changes-note").replaceChildren(advice.changes.length
    ? `Single changes of starved groups, and what each does to the mean weight over all devices. ${priced ? "Prices are those of all devices of a group." : `Enlargement is ${advice.prices.measure.replace(/^[^:]*: /, "")}.`}`
    : groups.every((g) => g.starved === false) ? "Every group reaches the target: nothing needs to be changed."
      : groups.some((g) => g.starved) ? "No single change was found that brings a starved group to the target." : "Groups without a slot in this horizon cannot be judged; no other needs to be changed.");
  if (!advice.changes.length) return;
  const row = (c, n) => [String(n + 1), c.group, c.text, `${weightText(c.weight_before)} → ${weightText(c.weight_after)}`, c.helps > 0 && c.helps < 0.001 ? "< 0.001" : `+${c.helps.toFixed(3)}`, costText(c.cost)];
  const head = ["", "group", "change", "weight", "fleet's gain", priced ? "price" : "enlargement"];
  byId("change-table").replaceChildren(table(head, advice.changes.map(row)));
  byId("change-table").firstChild.classList.add("words");
  if (advice.prices.budget !== null)
    byId("budget").replaceChildren(make("p", {}, make("b", {}, `Within a budget of ${number(advice.prices.budget)} €: `), advice.budget.length ? advice.budget.map((c) => `${c.group}: ${c.text} (${costText(c.cost)})`).join("; ") : "no change fits."));
}
const costText = (cost) => (cost === null ? "–" : priced ? `${number(cost, 4)} €` : `${number(100 * cost, 3)} %`);

function sizeSection() {
  const { target } = advice;
  byId("sizes-note").replaceChildren(`For a weight of ${target.weight}${target.years ? ` with the supply as given and in ${target.needed} of ${target.years} drawn years` : ""}${advice.horizon.days >= 364 ? ", for ten years of the supply as given, one after the other" : ""}, at the promise of the second column: the smallest panel with the present battery, the smallest battery with the present panel, the cheapest pair that takes nothing away, and the shortest promise that the present sizes keep.`);
  const one = (g, kind, words) => (g.sizes[kind] ? words(g.sizes[kind]) : make("span", { title: g.sizes.why[kind] || g.sizes.why.all || null }, "none"));
  byId("size-table").replaceChildren(groupTable(["group", "promise", "panel now", "smallest panel", "battery now", "smallest battery", "cheapest pair", "promise kept today"], (g) => [
    `1 in ${g.cycle}`, panelText(g, g.panel), one(g, "panel", (s) => panelText(g, s.panel)), batteryText(g.battery_wh), one(g, "battery", (s) => batteryText(s.battery_wh)),
    one(g, "pair", (s) => `${panelText(g, s.panel)}, ${batteryText(s.battery_wh)}`), one(g, "cycle", (s) => `1 in ${s.cycle}`)]));
}

function yearSection() {
  const { target } = advice;
  if (!target.years) return byId("years").remove();
  byId("years-text").replaceChildren(`Each dot is a year drawn from the days of the supply: ${groups.map((g) => (g.weight === null ? `${g.name} has no slot` : `${g.name} reaches ${target.weight} in ${g.years.reached} of ${target.years} years`)).join("; ")}. Dashed: the target; the larger mark is the supply as given.`);
  drawIn(byId("years-chart"), (host, width) => {
    const narrow = width < 520, rowHeight = narrow ? 46 : 34;
    const frame = { left: narrow ? 14 : 190, right: width - 14, top: 8, bottom: 8 + rowHeight * groups.length };
    const low = Math.min(target.weight, ...groups.flatMap((g) => [g.weight, ...g.years.weights]).filter((w) => w !== null));
    const x = scale([Math.max(0, low - 0.05 * (1 - low) - 1e-3), 1], [frame.left, frame.right]);
    const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${frame.bottom + 42}`, role: "img", "aria-label": `Weights in drawn years. ${groups.map((g) => `${g.name}: ${g.years.reached} of ${target.years} reach ${target.weight}`).join(". ")}` });
    axes(svg, frame, x, () => 0, ticks(x.back(frame.left), 1, width / 90), [], { x: "weight", y: "" });
    svg.append(draw("line", { x1: x(target.weight), x2: x(target.weight), y1: frame.top, y2: frame.bottom, class: "one" }));
    groups.forEach((g, i) => {
      const y = frame.top + rowHeight * (i + (narrow ? 0.7 : 0.5));
      svg.append(draw("text", { x: narrow ? frame.left : 0, y: narrow ? y - 14 : y + 4, class: "title" }, `${brief(g.name, 24)}: ${g.years.reached} of ${target.years}`),
        draw("line", { x1: frame.left, x2: frame.right, y1: y, y2: y, class: "grid" }),
        ...g.years.weights.filter((w) => w !== null).map((w) => draw("circle", { cx: x(w), cy: y, r: 4, class: "dot", "data-group": i, style: { fill: colour(i) } })),
        g.weight === null ? "" : draw("g", { transform: `translate(${x(g.weight)} ${y}) scale(1.5)` }, marker(data.lines[i].style.marker, 0, 0, i)));
    });
    host.replaceChildren(svg);
  });
}

function leverSection() {
  byId("lever-table").replaceChildren(table(["setting", ...groups.map((g) => g.name)], advice.levers.map((lever) => [`${lever.name} ${lever.value}`.trim(),
    ...groups.map((g) => {
      const found = lever.effects.find((effect) => effect.group === g.name);
      return lever.refused || !found ? make("span", { title: lever.refused }, "refused") : `${number(found.rounds_per_day, 3)} (${found.weight === null ? "–" : found.weight.toFixed(2)})`;
    })])));
  const refused = advice.levers.filter((lever) => lever.refused);
  if (refused.length) byId("levers").append(make("p", { class: "muted" }, refused.map((lever) => `${lever.name} ${lever.value}: ${lever.refused}`).join(" ")));
}

function varianceSection() {
  const limit = advice.variance;
  const rows = (limit ? limit.methods : []).filter((m) => m.times !== null);
  const biased = (limit ? limit.methods : []).filter((m) => m.unbiased === false);
  byId("variance-text").replaceChildren(limit ? `${limit.words}${rows.length ? " Bars: the variance of a round's update, in times of that limit." : ""}` : "The variance of updates was not computed.",
    biased.length ? ` Biased on this fleet as it is: ${biased.map((m) => `${m.method}${m.lowest_weight === null ? "" : ` (lowest weight of a group ${m.lowest_weight.toFixed(2)})`}`).join(", ")}.` : "");
  const widest = Math.max(...rows.map((m) => m.times), 1);
  byId("variance-bars").replaceChildren(...rows.map((m) => make("div", { class: "stack-row" }, make("span", {}, m.method),
    make("div", { class: "stack labelled", role: "img", "aria-label": `${m.method}: ${number(m.times, 3)} times the limit` },
      make("div", { class: "part fair", "data-method": m.method, style: { width: `${(80 * m.times) / widest}%` } }), make("span", {}, `${number(m.times, 3)} ×`)))));
  const { seen } = advice;
  byId("seen-text").replaceChildren(`Until the model has seen every group ${seen.times} times: ${hours(seen.hours)}. By group: ${Object.entries(seen.groups).map(([name, value]) => `${name} ${hours(value)}`).join(", ")}.`);
}

function noteSection() {
  const sources = [...new Set(groups.map((g) => g.source))];
  byId("note-list").replaceChildren(...[...advice.notes, ...sources.map((source) => `Supply: ${source}.`)].map((note) => make("li", {}, note)));
}

const expected = data.expected;
const expectedText = (value) => (value === null ? "–" : expected.percent ? `${(100 * value).toFixed(1)} %` : number(value, 3));
function expectedSection() {
  if (!expected) return byId("expected").remove();
  const rows = expected.horizons;
  byId("expected-text").replaceChildren(make("b", {}, expected.words), ` The ${expected.metric.replaceAll("_", " ")} of the model by days of training on this fleet, from a pilot of ${plural(expected.pilot.runs, "run")} (dots). The band should contain an evaluation in ${100 * expected.level} of 100 cases; it was tested up to ${expected.farthest} times the pilot's length, and is dashed beyond.`);
  byId("expected-table").replaceChildren(table(["after", "expected", `interval, ${100 * expected.level} %`, "energy spent by then", ...(expected.percent ? ["energy per further percent"] : []), "tested"], rows.map((r) => [plural(r.days, "day"), expectedText(r.value), `${expectedText(r.low)} to ${expectedText(r.high)}`,
    amount(r.spent_j, "J"), ...(expected.percent ? [r.percent_j === null ? "not reached" : amount(r.percent_j, "J")] : []), r.tested ? "yes" : `no: ${number(r.ahead, 2)} pilots ahead`])));
  byId("expected-notes").replaceChildren(...expected.notes.map((note) => make("p", { class: "muted" }, `${note[0].toUpperCase()}${note.slice(1)}`)));
  drawIn(byId("expected-chart"), (host, width) => {
    const frame = { left: 46, right: width - 14, top: 26, bottom: 258 }, f = expected.percent ? 100 : 1, c = expected.curve;
    const values = [...c.low, ...c.high, ...expected.points.map(([, v]) => v)].map((v) => f * v);
    const first = Math.min(c.days[0], Math.max(Math.min(...expected.points.map(([day]) => day)), c.days[0] / 10));
    const x = scale([first, c.days.at(-1)], [frame.left, frame.right], true);
    const y = scale([Math.min(...values), expected.percent ? 100 : Math.max(...values)], [frame.bottom, frame.top]);
    const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} 300`, role: "img", "aria-label": `Expected ${expected.metric}: ${rows.map((r) => `${expectedText(r.value)} after ${r.days} days`).join(", ")}` });
    axes(svg, frame, x, y, logTicks(first, c.days.at(-1)), ticks(y.back(frame.bottom), y.back(frame.top), 6), { x: "days of training", y: `${expected.metric.replaceAll("_", " ")}${expected.percent ? ", %" : ""}` });
    const line = (values, from = 0, to = c.days.length) => values.slice(from, to).map((v, i) => `${x(c.days[from + i]).toFixed(1)} ${y(f * v).toFixed(1)}`);
    const last = c.tested.lastIndexOf(true) + 1;
    svg.append(draw("path", { d: `M${[...line(c.high), ...line(c.low).reverse()].join("L")}Z`, class: "band accent" }),
      draw("path", { d: `M${line(c.value, 0, Math.max(last, 1)).join("L")}`, class: "stroke curve accent-line" }),
      draw("path", { d: `M${line(c.value, Math.max(last - 1, 0)).join("L")}`, class: "stroke accent-line", "stroke-dasharray": "5 4" }),
      ...expected.points.filter(([day]) => day >= first).map(([day, v]) => draw("circle", { cx: x(day), cy: y(f * v), r: 2.6, class: "point now" })),
      ...rows.flatMap((r) => [draw("line", { x1: x(r.days), x2: x(r.days), y1: y(f * r.low), y2: y(f * r.high), class: "whisker" }), draw("circle", { cx: x(r.days), cy: y(f * r.value), r: 4, class: "point pair" })]));
    host.replaceChildren(svg);
  });
}
