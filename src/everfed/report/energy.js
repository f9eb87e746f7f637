// Where the energy went: a stacked bar a method, and the books below as a table that can be sorted.

const outgoing = () => data.energy.accounts.filter((account) => !account.in);
// What an account of this line comes to, and all that came in before any was imagined.
const booked = (line, key) => data.lines[line].final[key]?.mean || 0;
const available = (line) => booked(line, "initial") + booked(line, "harvested");

function energyLegend(host) {
  const never = data.energy.accounts.some((a) => a.key === "shortfall");
  host.append(...outgoing().map(({ key, name, hint }) => make("span", {},
    make("i", { class: `swatch part ${key}` }), make("b", {}, name), ` ${hint}`)),
  make("span", {}, make("i", { class: "swatch mark" }), make("b", {}, "mark"), ` what was there: ${data.energy.accounts.filter((a) => a.in && a.key !== "shortfall").map((a) => a.name).join(" and ")}${never ? "; a bar beyond it spends what never came" : ""}`));
}

function energyBars(host) {
  const shown = data.lines.map((_, i) => i).filter((i) => visible[i] && data.lines[i].final.spent);
  const total = (i) => outgoing().reduce((sum, { key }) => sum + booked(i, key), 0);
  // Units of a round and joules have no common scale: then each bar has its own.
  const ends = data.lines.map((_, i) => Math.max(total(i), available(i)));
  const widest = (i) => (data.energy.mixed ? ends[i] : Math.max(...ends)) || 1;
  host.replaceChildren(...shown.map((i) => {
    const { label } = data.lines[i];
    const parts = outgoing().map(({ key, name }) => [key, name, booked(i, key)]).filter(([, , value]) => value > 0);
    const words = (name, value) => `${name} ${amountText(value)} ${data.energy.unit}, ${number((100 * value) / total(i), 3)} %`;
    return make("div", { class: "stack-row" }, make("span", {}, key(i), label),
      make("div", { class: "stack", role: "img", "aria-label": `${label}: ${parts.map(([, name, value]) => words(name, value)).join("; ")}` },
        ...parts.map(([account, name, value]) => make("div", {
          class: `part ${account}`, "data-line": i, "data-account": account, style: { width: `${(100 * value) / widest(i)}%`, "--own": colour(i) },
          onpointermove: (event) => showTip(event.clientX, event.clientY, make("div", { class: "row" }, key(i), make("span", {}, `${label}: ${words(name, value)}`))),
          onpointerleave: hideTip })),
        make("i", { class: "mark", style: { left: `${(100 * available(i)) / widest(i)}%` } })));
  }));
}

function energyColumns() {
  const out = [["method", (i) => ({ sort: data.lines[i].label, text: data.lines[i].label })]];
  for (const { key, name, hint } of data.energy.accounts) out.push([name, final(key, amountText), hint]);
  out.push(["wasted, %", final("wasted_part", (v) => percent(v)), "the part of the harvest that came when the battery was full"]);
  if (data.lines.some((line) => line.final.brownouts?.mean > 0))
    out.push(["brown-outs", final("brownouts", amountText), "rounds that a battery did not last through; their work is lost"]);
  return out;
}

function energy() {
  if (data.energy.mixed) byId("energy-note").textContent = "Each bar has a scale of its own, since units and joules have none in common.";
  energyLegend(byId("energy-legend"));
  const bars = () => energyBars(byId("energy-bars"));
  const books = new SortedTable(byId("energy-table"), energyColumns);
  redraw.push(bars, () => books.render());
  bars();
  books.render();
}
