// The page: what is shown, and what happens when somebody asks for something else.

function curves() {
  const choice = (name) => document.querySelector(`input[name=${name}]:checked`).value;
  const timed = () => choice("against") === "rounds";
  const series = (metric, factor) => () => {
    return data.lines.map((line, i) => ({ line: i, points: line[metric] }))
      .filter(({ line, points }) => visible[line] && points)
      .map(({ line, points }) => ({ line, x: timed() ? points.rounds.map(inUnits) : points.spent, mean: points.mean.map((v) => v === null ? null : factor * v), sd: points.sd.map((v) => v === null ? 0 : factor * v) }));
  };
  const xTitle = () => (timed() ? data.clock.title : `energy spent, ${data.energy.unit}`);
  const charts = [];
  const accurate = data.lines.some((line) => line.accuracy);
  if (!accurate) byId("curves-of").textContent = "Loss";
  // The charts show the same x, so they zoom as one.
  const together = (domain) => charts.filter((c) => c.zoom !== domain).forEach((c) => { c.zoom = domain; c.render(); });
  const log = byId("log");
  const add = (id, metric, factor, options) => {
    if (!data.lines.some((line) => line[metric])) return byId(id).remove();
    const chart = new LineChart(byId(id), series(metric, factor), { name: id, xTitle, timed, onZoom: together, ...options });
    charts.push(chart);
  };
  add("accuracy-chart", "accuracy", 100, { yTitle: `${data.evaluated_on} accuracy, %`, unit: " %", bounds: [0, 100] });
  if (data.lines.some((line) => Object.keys(line.groups).length > 1)) {
    const { name, percent: inPercent } = data.measure;
    const scaled = inPercent ? { yTitle: `${name} of the worst energy group, %`, unit: " %", bounds: [0, 100] } : { yTitle: `${name} of the worst energy group`, unit: "", log: () => log.checked };
    add("worst-chart", "worst", inPercent ? 100 : 1, scaled);
  } else byId("worst-chart").remove();
  add("loss-chart", "loss", 1, { yTitle: `${data.evaluated_on} loss`, unit: "", log: () => log.checked });
  const render = () => charts.forEach((chart) => chart.render());
  log.addEventListener("change", render);
  document.querySelectorAll("input[name=against]").forEach((input) => input.addEventListener("change", () => {
    charts.forEach((chart) => (chart.zoom = null));
    render();
  }));
  // An axis that has units of a round for some runs and joules for others would compare nothing.
  if (data.energy.mixed) byId("against").hidden = true;
  const refresh = fallback(byId("curves"), "The curves as a table", () => {
    const shown = data.lines.filter((line, i) => visible[i] && (line.accuracy || line.loss));
    const rounds = [...new Set(shown.flatMap((line) => (line.accuracy || line.loss).rounds))].sort((a, b) => a - b);
    const at = (points, r, show) => {
      const i = points ? points.rounds.indexOf(r) : -1;
      return i < 0 ? "–" : plusMinus(points.mean[i], points.sd[i], show);
    };
    const head = (line) => (accurate ? [`${line.label}: accuracy, %`, "loss", "spent"] : [`${line.label}: loss`, "spent"]);
    return table([data.clock.title, ...shown.flatMap(head)], rounds.map((r) => [number(inUnits(r)),
      ...shown.flatMap((line) => [...(accurate ? [at(line.accuracy, r, percent)] : []), at(line.loss, r, (v) => number(v, 3)), number(line.loss?.spent[line.loss.rounds.indexOf(r)])])]));
  });
  redraw.push(render, refresh);
  render();
}

const TRAINED = "a coloured cell is a round in which the client trained, and its colour is the client's scale. The server rule may use other weights; the audit below includes both.";
const ARRIVED = "a coloured cell is a round of time in which updates of the client arrived, and its colour is their weight relative to the client's share of the data, added up.";

function oneRun() {
  const select = byId("run");
  data.runs.forEach((run, i) => select.append(make("option", { value: i },
    `${data.lines[run.line].label}, seed ${run.seed}${run.name ? ` (${run.name})` : ""}${run.state === "done" ? "" : `, ${run.state}`}`)));
  const raster = new Raster(byId("raster"), byId("raster-legend"));
  const run = () => data.runs[Number(select.value)];
  const strips = () => batteryStrips(byId("battery-chart"), run());
  const counts = fallback(byId("participation"), "Counts, client by client", () => raster.counts());
  const levels = fallback(byId("battery"), "The levels as a table", () => batteryTable(run()));
  const render = () => {
    const fleet = data.fleets[run().fleet];
    const notes = [];
    if (fleet.ids.length < fleet.clients) notes.push(`A sample of ${fleet.ids.length} of ${plural(fleet.clients, "client")} is shown, evenly from every energy group.`);
    if (run().cut) notes.push(`The first ${run().raster.rounds.toLocaleString("en-US")} of ${plural(run().done, "round")} are shown.`);
    byId("raster-note").textContent = notes.join(" ");
    byId("battery-note").textContent = `${data.lines[run().line].label}, seed ${run().seed}; the first ${plural(run().battery.rounds, "round")}.`;
    byId("raster-cell").textContent = run().raster.arrivals ? ARRIVED : TRAINED;
    raster.show(run());
    strips();
    counts();
    levels();
  };
  select.addEventListener("change", render);
  onResize(byId("battery-chart"), strips);
  render();
  return () => { raster.paint(); raster.drawLegend(); };
}

function onResize(host, render) {
  let width = host.clientWidth;
  new ResizeObserver(() => host.clientWidth !== width && ((width = host.clientWidth), render())).observe(host);
}

function groups() {
  const known = data.lines.some((line) => Object.keys(line.groups).length);
  byId("groups").hidden = !known;
  byId("cycle-note").hidden = !data.lines.some((line) => Object.keys(line.groups).some((label) => label.startsWith("E=")));
  byId("classes").hidden = !data.lines.some((line) => line.classes);
  const bars = () => groupBars(byId("group-chart"));
  if (known) {
    redraw.push(bars, fallback(byId("groups"), "The bars as a table", groupTable));
    onResize(byId("group-chart"), bars);
    bars();
  }
  const classes = () => heat(byId("class-table"));
  redraw.push(classes);
  classes();
}

function results() {
  const input = byId("target");
  if (data.target === null) byId("target-box").remove();
  else if (data.measure.percent) input.value = (100 * data.target).toFixed(1);
  else {
    fill(input, { step: "any" }, []);
    ["min", "max"].forEach((name) => input.removeAttribute(name));
    input.value = data.target;
    byId("target-unit").remove();
  }
  const table = new SortedTable(byId("result-table"), () => resultColumns(data.target === null ? null : input));
  input.addEventListener("input", () => table.render());
  redraw.push(() => table.render());
  table.render();
  byId("differences").hidden = data.differences === null;
  if (data.differences === null) return;
  byId("reference").textContent = data.differences.reference;
  differenceTable(byId("difference-table"), data.differences);
}

function weights() {
  const render = () => histograms(byId("weight-charts"));
  redraw.push(render, fallback(byId("weights"), "The histograms as a table", weightTable));
  render();
}

document.querySelectorAll(".energy-unit").forEach((place) => { place.textContent = data.energy.words; });
document.querySelectorAll(".measure").forEach((place) => { place.textContent = data.measure.name; });
document.querySelectorAll(".Measure").forEach((place) => { place.textContent = data.measure.name[0].toUpperCase() + data.measure.name.slice(1); });
if (!data.measure.percent) {
  byId("difference-unit").textContent = `In ${data.measure.name}`;
  byId("group-samples").textContent = "'s samples of their own"; // without classes there are no labels to weight by
}
document.querySelectorAll(".evaluated-on").forEach((place) => { place.textContent = data.evaluated_on; });
byId("late-rounds").textContent = data.late_rounds;
byId("dark-note").hidden = data.clock.dark.length === 0;
document.querySelectorAll(".asynchronous").forEach((place) => { place.hidden = !data.clock.asynchronous; });
if (data.clock.title !== "rounds") byId("against-time").textContent = "time";
toggles();
sweepSection();
curves();
groups();
arrivals();
results();
energy();
const recolour = oneRun();
weights();
settings(byId("settings-body"));
verdictList(byId("verdicts"));
environments(byId("environment-body"));
theme(recolour);
document.documentElement.dataset.ready = String(Math.round(performance.now()));
