// Bars per energy group, histograms of the round weight, and battery levels.

function groupBars(host) {
  const labels = [...new Set(data.lines.flatMap((line) => Object.keys(line.groups)))];
  const shown = data.lines.map((_, i) => i).filter((i) => visible[i] && Object.keys(data.lines[i].groups).length);
  const [width, height] = [Math.max(260, host.clientWidth), 290];
  const frame = { left: 46, right: width - 8, top: 44, bottom: height - 42 };
  const x = scale([0, labels.length], [frame.left, frame.right]);
  const { name, percent: inPercent } = data.measure;
  const factor = inPercent ? 100 : 1;
  const ends = shown.flatMap((i) => Object.values(data.lines[i].groups).map((v) => v.mean + (v.sd || 0)));
  const high = inPercent ? 100 : Math.max(...ends.filter(isFinite), 0) * 1.05 || 1;
  const y = scale([0, high], [frame.bottom, frame.top]);
  const heightOf = (v) => y(Math.min(high, Math.max(0, factor * v)));
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img",
    "aria-label": `Final ${name} of ${labels.length} energy groups for ${shown.length} methods; the numbers are in the table below.` });
  const grid = draw("g");
  axes(grid, frame, x, y, [], ticks(0, high, 5), { x: "energy group", y: name + judgedUnit, at: 12 });
  svg.append(grid);
  const slot = x(1) - x(0);
  const bar = Math.min(44, (slot * 0.82) / Math.max(1, shown.length));
  labels.forEach((label, g) => {
    const middle = x(g + 0.5);
    svg.append(draw("text", { x: middle, y: frame.bottom + 17, class: "tick middle" }, label));
    shown.forEach((i, n) => {
      const value = data.lines[i].groups[label];
      if (!value || value.mean === null) return;
      const left = middle + (n - shown.length / 2) * bar;
      const top = heightOf(value.mean);
      const words = `${data.lines[i].label}, ${label}: ${plusMinus(value.mean, value.sd, judged, " (sd)")}${inPercent ? " %" : ""}`;
      svg.append(draw("rect", {
        x: left + 0.5, y: top, width: Math.max(1, bar - 1.5), height: Math.max(0, frame.bottom - top), rx: 1.5,
        class: "bar", style: { fill: colour(i) }, "data-line": i, "data-group": label, "data-value": value.mean,
        onpointermove: (event) => showTip(event.clientX, event.clientY, make("div", { class: "row" }, key(i), make("span", {}, words))),
        onpointerleave: hideTip }));
      if (value.sd > 0) {
        const c = left + bar / 2;
        const [a, b] = [heightOf(value.mean + value.sd), heightOf(value.mean - value.sd)];
        svg.append(draw("path", { d: `M${c} ${a}V${b}M${c - 3} ${a}h6M${c - 3} ${b}h6`, class: "whisker" }));
      }
      if (bar >= 30) svg.append(draw("text", { x: left + bar / 2, y: Math.min(top - 6, heightOf(value.mean + value.sd) - 4), class: "tick middle value" }, inPercent ? percent(value.mean, 0) : number(value.mean, 2)));
    });
  });
  host.replaceChildren(svg);
}

const groupTable = () => {
  const labels = [...new Set(data.lines.flatMap((line) => Object.keys(line.groups)))];
  const rows = data.lines.filter((_, i) => visible[i]).map((line) => [
    line.label, ...labels.map((l) => (line.groups[l] ? plusMinus(line.groups[l].mean, line.groups[l].sd, judged) : "–"))]);
  return table(["method", ...labels], rows, `Final ${data.measure.name}${data.measure.percent ? " in percent" : ""}, mean ± standard deviation over seeds`);
};

function histograms(host) {
  const edges = data.weight_edges;
  const shown = data.lines.map((_, i) => i).filter((i) => visible[i]);
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

const weightTable = () => table(
  ["weight of the round", ...data.lines.map((line) => line.label)],
  data.lines[0].weights.counts.map((_, b) => [
    `${number(Math.max(0, data.weight_edges[b]), 3)} to ${number(data.weight_edges[b + 1], 3)}`,
    ...data.lines.map((line) => String(line.weights.counts[b]))]), "Rounds, all seeds together");

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
        showTip(event.clientX, event.clientY, `${title}, round ${r}: ${number(harvested[c][r], 3)} after the harvest, ${number(left[c][r], 3)} after deciding`);
      }, onpointerleave: hideTip });
    const grid = draw("g");
    axes(grid, frame, x, y, last ? ticks(0, rounds, width / 90) : [], [0, Number(high.toPrecision(3))], { x: last ? "round" : "", y: title });
    svg.append(grid, draw("path", { d: `${d}V${frame.bottom}Z`, style: { fill: colour(run.line) }, class: "level" }),
      draw("path", { d, style: { stroke: colour(run.line) }, class: "stroke thin" }));
    return svg;
  }));
}

const batteryTable = (run) => {
  const clients = data.fleets[run.fleet].batteries;
  const rows = run.battery.harvested[0].map((_, r) => [String(r), ...clients.map((_, c) => `${number(run.battery.harvested[c][r], 3)} → ${number(run.battery.left[c][r], 3)}`)]);
  return table(["round", ...clients.map(clientTitle)], rows, "Units after the harvest → after the decision");
};
