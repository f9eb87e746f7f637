// Bars per energy group, histograms of the round weight, and battery levels.

// One bar a method in every energy group. value(line, label): {mean, sd} or null; high: the end of the axis, or null for
// the largest value; dashed: where a line is drawn; say(found): as text; tick(mean): above a bar.
function barsByGroup(host, lines, { value, title, what, high, factor = 1, dashed = null, say, tick }) {
  const labels = [...new Set(data.lines.flatMap((line) => Object.keys(line.groups)))];
  const width = Math.max(260, host.clientWidth);
  const longest = Math.min(MOST_LETTERS, Math.max(...labels.map((label) => label.length)));
  const slanted = longest * 6.6 > (width - 54) / labels.length; // where names of groups do not fit side by side
  const room = (width - 54) / labels.length;
  // Names at a slant must not lie on each other, nor leave the page on the left; else they stand upright.
  const turn = room >= 19 && longest * 5 <= 46 + room / 2 ? -38 : -90;
  const every = Math.ceil(13 / room); // and upright ones too: of very many groups, some are named
  const below = slanted ? 22 + longest * (turn === -90 ? 6.4 : 4) : 42;
  const height = 248 + below;
  const frame = { left: 46, right: width - 8, top: 44, bottom: height - below };
  const x = scale([0, labels.length], [frame.left, frame.right]);
  const ends = lines.flatMap((i) => labels.map((label) => value(i, label)).filter((v) => v && v.mean !== null).map((v) => v.mean + (v.sd || 0)));
  const top = high ?? (Math.max(...ends.filter(isFinite), dashed ?? 0, 0) * 1.05 || 1);
  const y = scale([0, top], [frame.bottom, frame.top]);
  const heightOf = (v) => y(Math.min(top, Math.max(0, factor * v)));
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img",
    "aria-label": `${what} of ${labels.length} energy groups for ${lines.length} methods; the numbers are in the table below.` });
  const grid = draw("g");
  axes(grid, frame, x, y, [], ticks(0, top, 5), { x: slanted ? "" : "energy group", y: title, at: 12 });
  svg.append(grid);
  const slot = x(1) - x(0);
  const bar = Math.min(44, (slot * 0.82) / Math.max(1, lines.length));
  labels.forEach((label, g) => {
    const middle = x(g + 0.5);
    if (g % every === 0) svg.append(slanted
      ? draw("text", { transform: `translate(${middle + 4} ${frame.bottom + 12}) rotate(${turn})`, class: "tick end" }, cut(label))
      : draw("text", { x: middle, y: frame.bottom + 17, class: "tick middle" }, label));
    lines.forEach((i, n) => {
      const found = value(i, label);
      if (!found || found.mean === null) return;
      const left = middle + (n - lines.length / 2) * bar;
      const end = heightOf(found.mean);
      svg.append(draw("rect", {
        x: left + 0.5, y: end, width: Math.max(1, bar - 1.5), height: Math.max(0, frame.bottom - end), rx: 1.5,
        class: "bar", style: { fill: colour(i) }, "data-line": i, "data-group": label, "data-value": found.mean,
        onpointermove: (event) => showTip(event.clientX, event.clientY, make("div", { class: "row" }, key(i), make("span", {}, `${data.lines[i].label}, ${label}: ${say(found)}`))),
        onpointerleave: hideTip }));
      if (found.sd > 0) {
        const c = left + bar / 2;
        const [a, b] = [heightOf(found.mean + found.sd), heightOf(found.mean - found.sd)];
        svg.append(draw("path", { d: `M${c} ${a}V${b}M${c - 3} ${a}h6M${c - 3} ${b}h6`, class: "whisker" }));
      }
      if (bar >= 30) svg.append(draw("text", { x: left + bar / 2, y: Math.min(end - 6, heightOf(found.mean + found.sd) - 4), class: "tick middle value" }, tick(found.mean)));
    });
  });
  if (dashed !== null) svg.append(draw("line", { x1: frame.left, x2: frame.right, y1: y(dashed), y2: y(dashed), class: "one" }));
  host.replaceChildren(svg);
}

function groupBars(host) {
  const { name, percent: inPercent } = data.measure;
  barsByGroup(host, data.lines.map((_, i) => i).filter((i) => visible[i] && Object.keys(data.lines[i].groups).length), {
    value: (i, label) => data.lines[i].groups[label], title: name + judgedUnit, what: `Final ${name}`,
    high: inPercent ? 100 : null, factor: inPercent ? 100 : 1,
    say: (v) => `${plusMinus(v.mean, v.sd, judged, " (sd)")}${inPercent ? " %" : ""}`, tick: (v) => (inPercent ? percent(v, 0) : number(v, 2)) });
}

const MOST_LETTERS = 30; // of a name at a slant
const cut = (text) => (text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS - 1)}…` : text);

const groupTable = () => {
  const labels = [...new Set(data.lines.flatMap((line) => Object.keys(line.groups)))];
  const rows = data.lines.filter((_, i) => visible[i]).map((line) => [
    line.label, ...labels.map((l) => (line.groups[l] ? plusMinus(line.groups[l].mean, line.groups[l].sd, judged) : "–"))]);
  return table(["method", ...labels], rows, `Final ${data.measure.name}${data.measure.percent ? " in percent" : ""}, mean ± standard deviation over seeds`);
};

function histograms(host) {
  const edges = data.weight_edges;
  const shown = data.lines.map((_, i) => i).filter((i) => visible[i] && data.lines[i].weights);
  host.replaceChildren(...shown.map((i) => {
    const { counts, rounds, mean, variance } = data.lines[i].weights;
    const [width, height] = [300, 150];
    const frame = { left: 36, right: width - 8, top: 22, bottom: height - 26 };
    const parts = counts.map((c) => (100 * c) / rounds);
    const x = scale([edges[0], edges.at(-1)], [frame.left, frame.right]);
    const high = Math.max(...parts) * 1.05;
    const y = scale([0, high], [frame.bottom, frame.top]);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img",
      "aria-label": `Round weights of ${data.lines[i].label}: mean ${number(mean)}, variance ${number(variance)}.` });
    const grid = draw("g");
    axes(grid, frame, x, y, ticks(0, edges.at(-1), 5), ticks(0, high, 3), { x: "", y: "% of rounds" });
    svg.append(grid);
    parts.forEach((part, b) => part > 0 && svg.append(draw("rect", {
      x: x(edges[b]) + 0.4, width: Math.max(1, x(edges[b + 1]) - x(edges[b]) - 0.8), y: y(part), height: frame.bottom - y(part),
      class: "bar", style: { fill: colour(i) }, "data-line": i, "data-count": counts[b],
      onpointermove: (event) => showTip(event.clientX, event.clientY,
        `${plural(counts[b], "round")} (${number(part, 3)} %) with a weight of ${number(Math.max(0, edges[b]), 3)} to ${number(edges[b + 1], 3)}`),
      onpointerleave: hideTip })));
    if (edges.at(-1) > 1) svg.append(draw("line", { x1: x(1), x2: x(1), y1: frame.top - 2, y2: frame.bottom, class: "one" }));
    return make("figure", { class: "small" },
      make("figcaption", {}, key(i), make("b", {}, data.lines[i].label),
        make("span", { class: "stats" }, `mean ${number(mean, 3)} · variance ${number(variance, 3)}`)), svg);
  }));
}

const weightTable = () => {
  const known = data.lines.filter((line) => line.weights);
  return table(["weight of the round", ...known.map((line) => line.label)], known[0].weights.counts.map((_, b) => [
    `${number(Math.max(0, data.weight_edges[b]), 3)} to ${number(data.weight_edges[b + 1], 3)}`,
    ...known.map((line) => String(line.weights.counts[b]))]), "Rounds, all seeds together");
};

const clientTitle = ({ client, group, cycle }) => `client ${client}, ${group.startsWith("E=") ? "" : `${group}, `}E=${cycle}`;

// One strip a client: the level after the harvest and after the decision of every round.
function batteryStrips(host, run) {
  const fleet = data.fleets[run.fleet];
  const { rounds, harvested, left } = run.battery;
  host.replaceChildren(...fleet.batteries.map((client, c) => {
    const last = c === fleet.batteries.length - 1;
    const [width, height] = [Math.max(260, host.clientWidth), last ? 96 : 64];
    const frame = { left: 46, right: width - 8, top: 22, bottom: last ? height - 38 : height - 6 };
    const high = Math.max(client.capacity, 1, ...harvested[c]);
    const x = scale([0, rounds], [frame.left, frame.right]);
    const timed = scale([0, inUnits(rounds)], [frame.left, frame.right]);
    const y = scale([0, high], [frame.bottom, frame.top]);
    const steps = harvested[c].map((v, r) => `V${y(v).toFixed(1)}H${x(r + 0.5).toFixed(2)}V${y(left[c][r]).toFixed(1)}H${x(r + 1).toFixed(2)}`);
    const d = `M${frame.left} ${frame.bottom}${steps.join("")}`;
    const title = clientTitle(client);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "data-client": client.client,
      "aria-label": `Battery of ${title} over the first ${rounds} rounds`,
      onpointermove: (event) => {
        const box = svg.getBoundingClientRect();
        const r = Math.floor(x.back(((event.clientX - box.left) / box.width) * width));
        if (r < 0 || r >= rounds) return hideTip();
        showTip(event.clientX, event.clientY, `${title}, round ${r}: ${number(harvested[c][r], 3)} after the harvest, ${number(left[c][r], 3)} ${run.raster.arrivals ? "at its end" : "after deciding"}`);
      }, onpointerleave: hideTip });
    const grid = draw("g");
    shade(grid, frame, timed);
    axes(grid, frame, timed, y, last ? timeTicks(0, inUnits(rounds), width / 90) : [], [0, Number(high.toPrecision(3))], { x: last ? timeTitle : "", y: title });
    svg.append(grid, draw("path", { d: `${d}V${frame.bottom}Z`, style: { fill: colour(run.line) }, class: "level" }),
      draw("path", { d, style: { stroke: colour(run.line) }, class: "stroke thin" }));
    return svg;
  }));
}

const batteryTable = (run) => {
  const clients = data.fleets[run.fleet].batteries;
  const rows = run.battery.harvested[0].map((_, r) => [String(r), ...clients.map((_, c) => `${number(run.battery.harvested[c][r], 3)} → ${number(run.battery.left[c][r], 3)}`)]);
  return table(["round", ...clients.map(clientTitle)], rows, `Units after the harvest → ${run.raster.arrivals ? "at the end of the round" : "after the decision"}`);
};
