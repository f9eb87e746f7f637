// The last evaluation against each swept setting: one series per method and combination of the other settings.

const seriesColour = (sweep, part, k) => `var(--${part}-${data.sweeps.indexOf(sweep)}-${k})`;

// Numbers of the last evaluation that there may be a chart of: [name, moments(line), factor, unit].
function sweepMetrics() {
  const { name, percent: inPercent } = data.measure;
  const own = [...new Set(data.lines.flatMap((line) => Object.keys(line.final.metrics)))];
  const of = (field) => (line) => line.final[field];
  const all = [
    ["accuracy", of("accuracy"), 100, " %"],
    [`${name} of the worst energy group`, of("worst_group"), inPercent ? 100 : 1, inPercent ? " %" : ""],
    ["loss", of("loss"), 1, ""],
    ...own.map((metric) => [metric, (line) => line.final.metrics[metric], 1, ""]),
    ["participations", of("participations"), 1, ""],
    [`energy spent, ${data.energy.unit}`, of("spent"), 1, ""],
  ];
  const known = all.filter(([, moments]) => data.lines.some((line) => moments(line)?.mean != null));
  // What the runs are judged by comes first.
  return known.sort((a, b) => (b[0] === name) - (a[0] === name));
}

function sweepSection() {
  byId("sweeps").hidden = !data.sweeps.length;
  if (!data.sweeps.length) return;
  const metrics = sweepMetrics();
  const select = byId("sweep-metric");
  metrics.forEach(([name], i) => select.append(make("option", { value: i }, name)));
  const lost = data.lines.some((line) => line.lost);
  const partly = data.lines.filter((line) => line.diverged && !line.lost);
  const named = partly.slice(0, 5).map((line) => `${line.label}: ${line.diverged} diverged`).join("; ");
  byId("sweep-note").textContent = [
    lost ? "A cross at the bottom: all seeds diverged, and have no last evaluation." : "",
    partly.length ? `A hollow point above a cross: some seeds diverged, and the mean is over the others (${named}${partly.length > 5 ? ` and ${partly.length - 5} more` : ""}).` : "",
  ].filter(Boolean).join(" ");
  // Of one setting there is room for a second chart: what the worst group gets.
  const worst = metrics.find(([name]) => name.endsWith("worst energy group"));
  const chosen = () => metrics[Number(select.value)];
  const has = (sweep, metric) => sweep.series.some(({ lines }) => lines.some((i) => metric[1](data.lines[i])?.mean != null));
  const charts = data.sweeps.length === 1 && worst && has(data.sweeps[0], worst) ? [[data.sweeps[0], chosen], [data.sweeps[0], () => worst]] : data.sweeps.map((sweep) => [sweep, chosen]);
  const hosts = charts.map(([sweep], i) => {
    const host = make("div", { class: "host", id: `sweep-${i}` });
    const legend = make("div", { class: "legend others" }, ...sweep.others.map(({ label, style }, k) =>
      make("span", {}, lineKey(style, seriesColour(sweep, "others", k)), label)));
    byId("sweep-charts").append(make("figure", { class: "small" }, host, legend));
    return host;
  });
  const render = () => charts.forEach(([sweep, metric], i) => sweepChart(hosts[i], sweep, metric()));
  select.addEventListener("change", render);
  redraw.push(render, fallback(byId("sweeps"), "The points as a table", () => sweepTable(chosen())));
  hosts.forEach((host) => onResize(host, render));
  render();
}

// The points of one series that have a number, and the places where runs diverged, all of them or some.
function sweepPoints(series, [, moments, factor]) {
  const points = series.lines.map((line, n) => ({ line, place: series.places[n], found: moments(data.lines[line]) })).filter(({ line }) => visible[line]);
  const good = points.filter(({ line, found }) => found && found.mean !== null && !data.lines[line].lost);
  return {
    good: good.map(({ line, place, found }) => ({ line, place, mean: factor * found.mean, margin: factor * (found.margin ?? 0), sd: factor * (found.sd ?? 0), runs: found.runs })),
    lost: points.filter(({ line }) => data.lines[line].diverged),
  };
}

// From the means and standard deviations: intervals over two seeds may be wider than all there is to see.
function sweepRange(all, bounds) {
  const ends = all.flatMap(({ good }) => good.flatMap((p) => [p.mean - Math.min(p.margin, 2 * p.sd), p.mean + Math.min(p.margin, 2 * p.sd)]));
  if (!ends.length) return [0, bounds?.[1] ?? 1];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  // An axis of percents has one of them at least.
  const room = Math.max((high - low || Math.abs(high) || 1) * 0.08, bounds ? (1 - (high - low)) / 2 : 0);
  return [Math.max(bounds?.[0] ?? (low >= 0 ? 0 : -Infinity), low - room), Math.min(bounds?.[1] ?? Infinity, high + room)];
}

function sweepChart(host, sweep, metric) {
  const [name, , factor, unit] = metric;
  const names = sweep.kind === "names";
  const width = Math.max(260, host.clientWidth);
  const even = names || sweep.kind === "steps";
  const longest = Math.min(MOST_LETTERS, Math.max(...sweep.values.map((v) => v.length)));
  const slanted = even && longest * 6.6 > (width - 60) / sweep.values.length;
  const turn = longest * 5 <= 46 + (width - 60) / sweep.values.length / 2 ? -38 : -90;
  const below = slanted ? 22 + longest * (turn === -90 ? 6.4 : 4) : 42;
  const frame = { left: 46, right: width - 12, top: 26, bottom: 258 };
  const log = sweep.kind === "log";
  const [first, last] = [sweep.at[0], sweep.at.at(-1)];
  const pad = log ? (last / first) ** 0.06 : even ? 0.5 : (last - first) * 0.06;
  const x = scale(log ? [first / pad, last * pad] : [first - pad, last + pad], [frame.left, frame.right], log);
  const all = sweep.series.map((series) => sweepPoints(series, metric));
  const range = sweepRange(all, factor === 100 ? [0, 100] : null);
  const y = scale(range, [frame.bottom, frame.top]);
  const clip = `clip-${host.id}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${frame.bottom + below}`, class: "chart", role: "img", "data-key": sweep.key, "data-kind": sweep.kind,
    "data-y": range.join(" "), "aria-label": `${name} against ${sweep.key}, ${plural(sweep.series.length, "line")}; the numbers are in the table below.` });
  const grid = draw("g");
  const titles = { x: slanted ? "" : sweep.key, y: `${name}${unit ? `,${unit}` : ""}${slanted ? ` against ${sweep.key}` : ""}` };
  axes(grid, frame, x, y, [], ticks(...range, 6), titles);
  // The values themselves are the ticks; of many numbers, as many as there is room for.
  let free = -Infinity;
  sweep.values.forEach((text, i) => {
    const at = x(sweep.at[i]);
    grid.append(draw("line", { x1: at, x2: at, y1: frame.bottom, y2: frame.bottom + 4, class: "axis" }));
    if (slanted) return grid.append(draw("text", { transform: `translate(${at + 4} ${frame.bottom + 12}) rotate(${turn})`, class: "tick end" }, cut(text)));
    if (at - text.length * 3.4 < free) return;
    free = at + text.length * 3.4 + 4;
    grid.append(draw("text", { x: at, y: frame.bottom + 17, class: "tick middle" }, text));
  });
  const marks = draw("g", { "clip-path": `url(#${clip})` });
  const spread = names ? Math.min(14, (x(1) - x(0)) * 0.7 / sweep.series.length) : Math.min(3, 12 / sweep.series.length);
  const crosses = {}; // at each place: those of several series stand above each other
  const above = (place) => (crosses[place] = (crosses[place] ?? -1) + 1);
  sweep.series.forEach((series, k) => {
    const dodge = (k - (sweep.series.length - 1) / 2) * spread;
    drawSeries(marks, sweep, k, all[k], (place) => x(sweep.at[place]) + dodge, y, frame, above, metric);
  });
  const area = { x: frame.left, y: frame.top - 5, width: frame.right - frame.left + 8, height: frame.bottom - frame.top + 10 };
  svg.append(draw("clipPath", { id: clip }, draw("rect", area)), grid, marks);
  host.replaceChildren(svg);
}

function drawSeries(group, sweep, k, { good, lost }, x, y, frame, above, [name, , , unit]) {
  const series = sweep.series[k];
  const own = seriesColour(sweep, "series", k);
  const tell = (words) => ({
    onpointermove: (event) => showTip(event.clientX, event.clientY, make("div", { class: "row" }, lineKey(series.style, own), make("span", {}, words))),
    onpointerleave: hideTip });
  // Values that have no order are not joined by a line.
  if (sweep.kind !== "names" && good.length > 1) group.append(draw("path", {
    d: `M${good.map((p) => `${x(p.place).toFixed(1)} ${y(p.mean).toFixed(1)}`).join("L")}`, class: "stroke curve", style: { stroke: own },
    "stroke-dasharray": series.style.dash.join(" ") || null, "data-series": k }));
  for (const p of good) {
    const at = x(p.place);
    if (p.margin > 0) {
      // An end beyond the axes has no cap.
      const ends = [y(p.mean + p.margin), y(p.mean - p.margin)];
      const [top, bottom] = ends.map((v) => Math.min(frame.bottom, Math.max(frame.top, v)));
      const caps = ends.filter((v) => v >= frame.top && v <= frame.bottom).map((v) => `M${at - 3} ${v}h6`);
      group.append(draw("path", { d: `M${at} ${top}V${bottom}${caps.join("")}`, class: "stroke thin", style: { stroke: own } }));
    }
    const gone = data.lines[p.line].diverged;
    const words = `${series.label}, ${sweep.key}=${sweep.values[p.place]}: ${name} ${number(p.mean)}${p.margin ? ` ± ${number(p.margin, 2)}` : ""}${unit} (${plural(p.runs, "seed")}${gone ? `; ${gone} diverged` : ""})`;
    group.append(draw("g", { ...tell(words), class: "point", "data-series": k, "data-line": p.line, "data-value": p.mean },
      draw("circle", { cx: at, cy: y(p.mean), r: 10, fill: "transparent" }), shape(series.style.marker, at, y(p.mean), own, gone ? "marker hollow" : "marker")));
  }
  for (const p of lost) {
    const { diverged, lost: all } = data.lines[p.line];
    const [at, height] = [x(p.place), frame.bottom - 7 - 13 * above(p.place)];
    const left = at > frame.right - 40; // there is no room to the right
    group.append(draw("g", { ...tell(`${series.label}, ${sweep.key}=${sweep.values[p.place]}: ${diverged} diverged`), class: "lost-point", "data-line": p.line },
      draw("circle", { cx: at, cy: height, r: 10, fill: "transparent" }), shape("X", at, height, own),
      ...(all ? [] : [draw("text", { x: at + (left ? -8 : 8), y: height + 4, class: `tick${left ? " end" : ""}` }, diverged.replace(/ seeds?$/, ""))])));
  }
}

const sweepTable = (metric) => {
  const label = (series, sweep, p) => `${series.label} · ${sweep.key}=${sweep.values[p.place]}`;
  const rows = data.sweeps.flatMap((sweep) => sweep.series.flatMap((series) => {
    const { good, lost } = sweepPoints(series, metric);
    return [...good.map((p) => [label(series, sweep, p), number(p.mean), p.margin ? number(p.margin, 3) : "–", String(p.runs), data.lines[p.line].diverged || "none"]),
      ...lost.filter((p) => data.lines[p.line].lost).map((p) => [label(series, sweep, p), "–", "–", "0", data.lines[p.line].diverged])];
  }));
  return table(["", `${metric[0]}${metric[3] ? `,${metric[3]}` : ""}`, "± (95 %)", "seeds", "diverged"], rows);
};
