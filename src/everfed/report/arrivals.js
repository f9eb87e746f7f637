// What arrives in asynchronous runs, by energy group.

const MEASURES = [
  ["rate-chart", "rate", "updates of a client, per round", "Updates per round", null],
  ["weight-chart", "weight", "weight per round, relative to share", "Weight", 1],
  ["stale-chart", "staleness", "staleness, versions", "Staleness", null],
];

function arrivals() {
  const known = data.lines.map((_, i) => i).filter((i) => data.lines[i].arrivals);
  byId("arrivals").hidden = !known.length;
  if (!known.length) return;
  const shown = () => known.filter((i) => visible[i]);
  const say = (v) => plusMinus(v.mean, v.sd, (n) => number(n, 3), " (sd)");
  for (const [id, name, title, what, dashed] of MEASURES) {
    const render = () => barsByGroup(byId(id), shown(), {
      value: (i, label) => data.lines[i].arrivals.groups[label]?.[name], title, what, dashed, say, tick: (v) => number(v, 2) });
    redraw.push(render);
    onResize(byId(id), render);
    render();
  }
  const columns = () => [
    ["method", (i) => ({ sort: data.lines[i].label, text: data.lines[i].label })],
    ...[["updates", "updates that arrived"], ["versions", "versions of the model that were made"],
      ["staleness", "mean number of versions made between download and arrival"], ["stalest", "the most of them"],
      ["steps", "mean number of local steps of an update"]].map(([name, hint]) => [name, ofMoments((line) => line.arrivals[name], amountText), hint])];
  const totals = new SortedTable(byId("arrival-table"), columns, shown);
  redraw.push(() => totals.render(), fallback(byId("arrivals"), "The bars as a table", () => arrivalTable(shown(), say)));
  totals.render();
}

const arrivalTable = (lines, say) => {
  const labels = [...new Set(lines.flatMap((i) => Object.keys(data.lines[i].arrivals.groups)))];
  const rows = lines.flatMap((i) => MEASURES.map(([, name, title]) => [`${data.lines[i].label}: ${title}`,
    ...labels.map((label) => (data.lines[i].arrivals.groups[label]?.[name] ? say(data.lines[i].arrivals.groups[label][name]) : "–"))]));
  return table(["method", ...labels], rows, "Mean ± standard deviation over seeds");
};
