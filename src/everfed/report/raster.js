// Who trained when: one pixel a client and round on a canvas, coloured by the scale of the update.

// Viridis, each theme without the end that would vanish in its background.
const RAMP = {
  light: ["#7ad151", "#22a884", "#2a788e", "#414487", "#440154"],
  dark: ["#414f8f", "#2a8a8e", "#35b779", "#a5db36", "#fde725"],
};

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function ramp(part, dark) {
  const stops = RAMP[dark ? "dark" : "light"].map(rgb);
  const at = Math.min(0.9999, Math.max(0, part)) * (stops.length - 1);
  const [i, f] = [Math.floor(at), at % 1];
  return stops[i].map((v, k) => Math.round(v + f * (stops[i + 1][k] - v)));
}

function bytes(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

// A function (row, round) -> place of the scale + 1, or 0 if the client did not train.
function participation(run) {
  const { bits, codes, row_scales: rows } = run.raster;
  const n = data.fleets[run.fleet].ids.length;
  const raw = bytes(bits ?? codes);
  if (codes !== undefined) return (row, round) => raw[round * n + row];
  const stride = Math.ceil(n / 8);
  return (row, round) => ((raw[round * stride + (row >> 3)] >> (row & 7)) & 1 ? rows[row] : 0);
}

class Raster {
  constructor(host, legend) {
    Object.assign(this, { host, legend, cursor: null });
    new ResizeObserver(() => this.run && this.host.clientWidth !== this.width && this.render()).observe(host);
  }

  show(run) {
    Object.assign(this, { run, joined: participation(run), cursor: null });
    this.render();
  }

  colours(dark) {
    const scales = this.run.raster.scales;
    const [low, high] = [Math.log(scales[0] || 1), Math.log(scales.at(-1) || 1)];
    return scales.map((s) => ramp(high > low ? (Math.log(s) - low) / (high - low) : 0.55, dark));
  }

  render() {
    this.width = this.host.clientWidth;
    const fleet = data.fleets[this.run.fleet];
    const [n, rounds] = [fleet.ids.length, this.run.raster.rounds];
    const longest = Math.max(...fleet.groups.map((group) => group.label.length));
    const beside = longest > 8 ? Math.min(Math.max(118, longest * 6.4), Math.max(118, this.width * 0.25)) : 52;
    const room = this.width - beside;
    // At least a pixel a cell, so that no participation is lost; what is wider than the page scrolls.
    const cellWidth = Math.max(1, room / rounds);
    const cellHeight = Math.max(1, Math.min(12, Math.floor(440 / n)));
    const size = { width: `${rounds * cellWidth}px`, height: `${n * cellHeight}px` };
    const canvas = (this.canvas = make("canvas", { width: rounds, height: n, tabindex: 0, role: "img", class: "raster", style: size,
      "aria-label": `Participation of ${n} clients in ${rounds} rounds. Arrow keys read single pixels; the counts are in the table below.` }));
    this.paint();
    const labels = make("div", { class: "rows", style: { height: size.height, "flex-basis": `${beside}px` } });
    const overlay = make("div", { class: "lines" });
    let [row, free] = [0, -Infinity]; // of many groups, the names that have room
    for (const group of fleet.groups) {
      const middle = (row + group.rows / 2) * cellHeight;
      if (middle >= free) {
        labels.append(make("span", { style: { top: `${middle}px`, width: `${beside - 4}px` }, title: group.label }, group.label));
        free = middle + 15;
      }
      if (row && fleet.groups.length <= 30) overlay.append(make("i", { style: { top: `${row * cellHeight}px`, width: size.width } }));
      row += group.rows;
    }
    const axis = draw("svg", { class: "chart below", width: rounds * cellWidth + 12, height: 38, "aria-hidden": "true" });
    for (const [v, text] of timeTicks(0, inUnits(rounds), Math.max(2, (rounds * cellWidth) / 90))) {
      const at = (v / data.clock.per_round) * cellWidth;
      axis.append(draw("line", { x1: at + 0.5, x2: at + 0.5, y1: 0, y2: 4, class: "axis" }),
        draw("text", { x: at, y: 17, class: at < 14 ? "tick" : at > rounds * cellWidth - 14 ? "tick end" : "tick middle" }, text));
    }
    axis.append(draw("text", { x: rounds * cellWidth, y: 34, class: "title end" }, timeTitle));
    this.host.replaceChildren(labels, make("div", { class: "wide" }, canvas, overlay, axis));
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [Math.floor(((event.clientY - box.top) / box.height) * n), Math.floor(((event.clientX - box.left) / box.width) * rounds)];
    };
    canvas.addEventListener("pointermove", (event) => this.tell(...at(event), event.clientX, event.clientY));
    for (const name of ["pointerleave", "blur"]) canvas.addEventListener(name, hideTip);
    canvas.addEventListener("keydown", (event) => this.press(event, n, rounds));
    this.drawLegend();
  }

  paint() {
    const dark = isDark();
    const palette = this.colours(dark);
    const { width, height } = this.canvas;
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(width, height);
    let joined = 0;
    for (let row = 0; row < height; row++)
      for (let r = 0; r < width; r++) {
        const code = this.joined(row, r);
        if (!code) continue;
        joined++;
        image.data.set([...palette[code - 1], 255], (row * width + r) * 4);
      }
    context.putImageData(image, 0, 0);
    this.canvas.dataset.joined = joined;
  }

  drawLegend() {
    const { scales } = this.run.raster;
    const palette = this.colours(isDark());
    const every = Math.max(1, Math.ceil(scales.length / 8));
    const shown = scales.map((_, i) => i).filter((i) => i % every === 0 || i === scales.length - 1);
    this.legend.replaceChildren(make("span", { class: "muted" }, !scales.length ? "nobody trained" : this.run.raster.arrivals ? "arrived with weight" : "trained with scale"),
      ...shown.map((i) => make("span", {}, make("i", { class: "swatch", style: { background: `rgb(${palette[i]})` } }), number(scales[i], 3))));
  }

  tell(row, round, clientX, clientY) {
    const fleet = data.fleets[this.run.fleet];
    if (row < 0 || round < 0 || row >= fleet.ids.length || round >= this.run.raster.rounds) return hideTip();
    const code = this.joined(row, round);
    const { scales, arrivals } = this.run.raster;
    const did = arrivals ? ["nothing arrived", "arrived, weight"] : ["did not train", "trained, scale"];
    const what = code ? `${did[1]} ${number(scales[code - 1], 4)}` : did[0];
    showTip(clientX, clientY, make("div", { class: "head" }, `client ${fleet.ids[row]}, cycle ${fleet.cycles[row]}`), `round ${round}: ${what}`);
  }

  press(event, n, rounds) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, round] = this.cursor || [0, step[1] > 0 ? -1 : 0];
    this.cursor = [Math.max(0, Math.min(n - 1, row + step[0])), Math.max(0, Math.min(rounds - 1, round + step[1]))];
    const box = this.canvas.getBoundingClientRect();
    this.tell(...this.cursor, box.left + ((this.cursor[1] + 0.5) / rounds) * box.width, box.top + ((this.cursor[0] + 0.5) / n) * box.height);
  }

  counts() {
    const fleet = data.fleets[this.run.fleet];
    const rows = fleet.ids.map((id, row) => {
      let count = 0;
      for (let r = 0; r < this.run.raster.rounds; r++) count += this.joined(row, r) ? 1 : 0;
      const { arrivals } = this.run.raster;
      return [`client ${id}`, String(fleet.cycles[row]), String(arrivals ? arrivals[row] : count)];
    });
    return table(["client", "cycle", this.run.raster.arrivals ? "updates arrived" : "rounds trained in"], rows, `Participation in ${plural(this.run.raster.rounds, "round")}`);
  }
}
