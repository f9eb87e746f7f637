// The result table with its target, the heat table of classes, settings, verdicts, environment.

const spreadText = (value, digits) => {
  if (!value || value.mean === null) return "–";
  const show = digits === "%" ? (v) => percent(v) : (v) => (Math.abs(value.mean) < 10 && digits < 5 ? v.toFixed(digits) : number(v, 5));
  return value.runs > 1 && value.sd > 0 ? `${show(value.mean)} ± ${digits === 5 ? number(value.sd, 2) : show(value.sd)}` : show(value.mean);
};

// First evaluation at or above the target, run by run: [{rounds, spent} or null].
function reached(line, target) {
  return data.runs.filter((run) => run.line === line).map((run) => {
    const i = run.accuracy.findIndex((a) => a !== null && a >= target - 1e-12);
    return i < 0 ? null : { rounds: run.rounds[i], spent: run.spent[i] };
  });
}

// Mean and sd as the other columns have them, and how many seeds got there if not all did.
function toTarget(line, target, what) {
  const all = reached(line, target);
  const values = all.filter((r) => r !== null).map((r) => r[what]);
  if (!values.length) return { sort: Infinity, text: "never" };
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const sd = values.length > 1 ? Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / (values.length - 1)) : 0;
  const some = values.length < all.length ? ` (${values.length} of ${all.length} seeds)` : "";
  return { sort: mean, text: `${number(mean, 3)}${sd > 0 ? ` ± ${number(sd, 2)}` : ""}${some}` };
}

class Results {
  constructor(host, input) {
    Object.assign(this, { host, input, by: null, down: true });
    if (input) input.addEventListener("input", () => this.render());
  }

  columns() {
    const final = (name, digits) => (i) => ({ sort: data.lines[i].final[name]?.mean ?? -Infinity, text: spreadText(data.lines[i].final[name], digits) });
    const target = this.input ? Number(this.input.value) / 100 : null;
    const known = data.lines.some((line) => line.final.accuracy);
    const out = [["method", (i) => ({ sort: data.lines[i].label, text: data.lines[i].label })]];
    if (known) out.push(["accuracy, %", final("accuracy", "%")], ["worst group, %", final("worst_group", "%")]);
    out.push(["loss", final("loss", 3)], ["participations", final("participations", 5)], ["harvested", final("harvested", 5)],
      ["spent", final("spent", 5)], ["wasted", final("wasted", 5)]);
    if (data.lines.some((line) => line.final.shortfall.mean > 0.0001)) out.push(["never harvested", final("shortfall", 5)]);
    if (known) out.push(["energy to target", (i) => toTarget(i, target, "spent")], ["rounds to target", (i) => toTarget(i, target, "rounds")]);
    return out;
  }

  render() {
    const columns = this.columns();
    const rows = data.lines.map((_, i) => i).filter((i) => visible[i]).map((i) => ({ i, cells: columns.map(([, cell]) => cell(i)) }));
    if (this.by !== null) {
      const order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a === b ? 0 : a < b ? -1 : 1);
      rows.sort((a, b) => (this.down ? -1 : 1) * order(a.cells[this.by].sort, b.cells[this.by].sort));
    }
    const head = columns.map(([name], c) => {
      const sorted = this.by === c ? (this.down ? "descending" : "ascending") : null;
      const press = () => {
        this.down = this.by === c ? !this.down : c > 0;
        this.by = c;
        this.render();
        this.host.querySelectorAll("thead button")[c].focus();
      };
      return make("th", { scope: "col", "aria-sort": sorted }, make("button", { type: "button", onclick: press }, name));
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
      make("p", { class: "muted" }, `Audited: ${who}, ${plural(v.rounds, "round")}, ${v.seeds} seeds.`));
  }));
}

function settings(host) {
  const { columns, rows, shared } = data.settings;
  host.append(make("div", { class: "scroll" }, table(columns, rows, "What differs")),
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
