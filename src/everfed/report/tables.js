// The result table with its target, the heat table of classes, settings, verdicts, environment.

// Mean ± sd over seeds, or the mean alone where the sd is too small to be seen beside it.
function spreadText(value, show) {
  if (!value || value.mean === null) return "–";
  const sd = value.sd === null ? "0" : show(value.sd, value.mean);
  return Number(sd.replaceAll(",", "")) > 0 ? `${show(value.mean, value.sd)} ± ${sd}` : show(value.mean);
}

// Three digits, from a hundred on four; `beside` has a value to the same places.
function amountText(value, beside = 0) {
  const whole = Number.isInteger(value) && Number.isInteger(beside);
  const size = Math.max(Math.abs(value), Math.abs(beside));
  const places = whole || size === 0 ? 0 : Math.max(0, (size >= 100 ? 3 : 2) - Math.floor(Math.log10(size)));
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

const ofMoments = (moments, show) => (i) => {
  const value = moments(data.lines[i]);
  return { sort: value?.mean ?? -Infinity, text: spreadText(value, show) };
};
const final = (name, show) => ofMoments((line) => line.final[name], show);

// First evaluation as good as the target, run by run: [{time, spent} or null].
function reached(line, target) {
  return data.runs.filter((run) => run.line === line).map((run) => {
    const i = run[data.measure.name].findIndex((v) => v !== null && (data.measure.higher_is_better ? v >= target - 1e-12 : v <= target + 1e-12));
    return i < 0 ? null : { time: inUnits(run.rounds[i]), spent: run.spent[i] };
  });
}

// Mean and sd as the other columns have them, and how many seeds got there if not all did.
function toTarget(line, target, what) {
  const all = reached(line, target);
  const values = all.filter((r) => r !== null).map((r) => r[what]);
  if (!values.length) return { sort: Infinity, text: "never" };
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const sd = values.length > 1 ? Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / (values.length - 1)) : null;
  const some = values.length < all.length ? ` (${values.length} of ${all.length} seeds)` : "";
  return { sort: mean, text: spreadText({ mean, sd, runs: values.length }, amountText) + some };
}

function resultColumns(input) {
  const target = input ? Number(input.value) / (data.measure.percent ? 100 : 1) : null;
  const known = data.lines.some((line) => line.final.accuracy);
  const { name } = data.measure;
  const own = [...new Set(data.lines.flatMap((line) => Object.keys(line.final.metrics)))];
  const fixed = (v) => (Math.abs(v) < 10 ? v.toFixed(3) : number(v, 5));
  const out = [["method", (i) => ({ sort: data.lines[i].label, text: data.lines[i].label })]];
  if (known) out.push(["accuracy, %", final("accuracy", (v) => percent(v)), `of the ${data.evaluated_on} set, by the last model`]);
  if (name === "loss") out.push(["loss", final("loss", fixed), `of the ${data.evaluated_on} set, by the last model; lower is better`]);
  if (known || data.lines.some((line) => line.final.worst_group)) out.push([`worst group${judgedUnit}`, final("worst_group", name === "loss" ? fixed : (v) => percent(v)),
    `${name} for the energy group that the model serves worst`]);
  if (data.lines.some((line) => line.final.late_variation)) out.push([`late variation${judgedUnit}`, final("late_variation", (v) => (name === "loss" ? number(v, 3) : percent(v, 2))),
    `standard deviation of the ${name} over the evaluations in the last ${data.late_rounds} rounds of a run, or in its last quarter if that is shorter`]);
  if (name !== "loss") out.push(["loss", final("loss", fixed)]);
  for (const metric of own) out.push([metric, ofMoments((line) => line.final.metrics[metric], fixed)]);
  out.push(["participations", final("participations", amountText), "updates trained, all clients together"],
    ["fairness", final("fairness", (v) => v.toFixed(3)), "Jain's index of how often each client trained: 1 if all alike, 1/N if one of N alone"]);
  if (input) out.push(["energy to target", (i) => toTarget(i, target, "spent"), `energy spent until the target was first reached, ${data.energy.unit}`],
    [data.clock.title === "rounds" ? "rounds to target" : `time to target, ${data.clock.unit}`, (i) => toTarget(i, target, "time")]);
  return out;
}

function differenceTable(host, { rows }) {
  const { name } = data.measure;
  const worst = `worst_group_${name}`;
  const points = (v) => `${v < 0 ? "−" : "+"}${judged(Math.abs(v))}`;
  const chance = (p) => (p === null ? "–" : p < 0.0001 ? "< 0.0001" : number(p, 2));
  const cells = (d) => (d ? [points(d.mean) + (d.ci95 ? ` [${points(d.ci95[0])}, ${points(d.ci95[1])}]` : ""), chance(d.p_holm), chance(d.p_flip)] : ["–", "–", "–"]);
  host.append(table(["method", "seeds", name, "p", "p exact", "worst group", "p", "p exact"], rows.map((row) => [
    row.label, String((row[name] || row[worst]).pairs), ...cells(row[name]), ...cells(row[worst])])));
}

// columns(): [[name, cell(line), hint]], and lines() of rows, as they are now.
class SortedTable {
  constructor(host, columns, lines = () => data.lines.map((_, i) => i).filter((i) => visible[i])) {
    Object.assign(this, { host, columns, lines, by: null, down: true });
  }

  render() {
    const columns = this.columns();
    const rows = this.lines().map((i) => ({ i, cells: columns.map(([, cell]) => cell(i)) }));
    if (this.by !== null) {
      const order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a === b ? 0 : a < b ? -1 : 1);
      rows.sort((a, b) => (this.down ? -1 : 1) * order(a.cells[this.by].sort, b.cells[this.by].sort));
    }
    const head = columns.map(([name, , hint], c) => {
      const sorted = this.by === c ? (this.down ? "descending" : "ascending") : null;
      const press = () => {
        this.down = this.by === c ? !this.down : c > 0;
        this.by = c;
        this.render();
        this.host.querySelectorAll("thead button")[c].focus();
      };
      return make("th", { scope: "col", "aria-sort": sorted, title: hint }, make("button", { type: "button", onclick: press }, name));
    });
    this.host.replaceChildren(make("table", { class: "results" }, make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows.map(({ i, cells }) => make("tr", { "data-line": i },
        make("th", { scope: "row" }, key(i), cells[0].text),
        ...cells.slice(1).map((cell, c) => make("td", { "data-column": columns[c + 1][0] }, cell.text)))))));
  }
}

function heat(host) {
  const lines = data.lines.map((_, i) => i).filter((i) => visible[i] && data.lines[i].classes);
  const classes = Math.max(0, ...data.lines.map((line) => (line.classes || []).length));
  const head = make("tr", {}, make("th", { scope: "col" }, "method"),
    ...Array.from({ length: classes }, (_, c) => make("th", { scope: "col" }, String(c))));
  const rows = lines.map((i) => make("tr", {}, make("th", { scope: "row" }, key(i), data.lines[i].label),
    ...data.lines[i].classes.map((value, c) => make("td", {
      "data-line": i, "data-class": c,
      style: value === null ? {} : { "--heat": `${Math.round(55 * value)}%` } }, percent(value, 0)))));
  host.replaceChildren(make("table", { class: "heat" }, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function verdictList(host) {
  host.append(...data.lines.map((line, i) => {
    const v = line.verdict;
    const who = v.audited < v.clients ? `a sample of ${v.audited.toLocaleString("en-US")} of ${plural(v.clients, "client")}` : plural(v.clients, "client");
    return make("div", { class: "verdict", "data-line": i }, make("h3", {}, key(i), line.label),
      make("p", {}, v.verdict[0].toUpperCase() + v.verdict.slice(1)),
      make("p", { class: "muted" }, `Audited: ${who}, ${plural(v.rounds, "round")}, ${v.seeds} seeds, equal parts of the data.`));
  }));
}

function settings(host) {
  const { columns, rows, shared, tables } = data.settings;
  host.append(make("div", { class: "scroll" }, table(columns, rows, "What differs")),
    ...tables.map((one) => make("details", { open: one.rows.length <= 12 }, make("summary", {}, one.name), make("div", { class: "scroll" }, table(one.columns, one.rows)),
      ...(one.shared.length ? [make("p", { class: "muted" }, "Alike in all of them:"), pairs(one.shared)] : []))),
    make("details", { open: shared.length <= 40 }, make("summary", {}, `${plural(shared.length, "setting")} that all runs share`), pairs(shared)));
}

const pairs = (list) => make("dl", {}, ...list.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));

function environments(host) {
  if (!data.environments.length) host.append(make("p", {}, "The runs do not say what they ran on."));
  for (const { runs, values } of data.environments) {
    const names = runs.length > 4 ? `${runs.slice(0, 4).join(", ")} and ${runs.length - 4} more` : runs.join(", ");
    host.append(make("details", {}, make("summary", {}, `${plural(runs.length, "run")}: ${names}`), pairs(values)));
  }
}
