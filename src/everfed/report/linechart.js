// Mean lines with a band of one sd: crosshair, drag to zoom, keyboard, double click to reset.

// The height at which a curve crosses an x between two of its points; null outside of them.
function between(s, at) {
  const good = s.x.map((_, i) => i).filter((i) => s.mean[i] !== null && s.x[i] !== null);
  const after = good.findIndex((i) => s.x[i] >= at);
  if (after < 1) return null;
  const [a, b] = [good[after - 1], good[after]];
  return s.mean[a] + ((at - s.x[a]) / (s.x[b] - s.x[a] || 1)) * (s.mean[b] - s.mean[a]);
}

class LineChart {
  // series(): [{line, x, mean, sd}] as they are now; options: name, xTitle(), timed(), yTitle, unit, log(), bounds
  constructor(host, series, options) {
    Object.assign(this, { host, series, options, zoom: null, at: null });
    this.svg = draw("svg", { tabindex: 0, role: "img", class: "chart" });
    this.reset = make("button", { type: "button", class: "reset", hidden: true, onclick: () => this.setZoom(null) }, "Reset zoom");
    host.append(this.reset, this.svg);
    this.listen();
    new ResizeObserver(() => this.host.clientWidth !== this.width && this.render()).observe(host);
  }

  full() {
    const xs = this.series().flatMap((s) => s.x).filter((v) => v !== null);
    return xs.length ? [0, Math.max(...xs) || 1] : [0, 1];
  }

  domains() {
    const x = this.zoom || this.full();
    const log = this.options.log && this.options.log();
    const values = [];
    for (const s of this.series()) {
      s.x.forEach((v, i) => {
        if (v < x[0] || v > x[1] || s.mean[i] === null) return;
        values.push(s.mean[i] - (s.sd[i] || 0), s.mean[i] + (s.sd[i] || 0));
      });
      if (this.zoom) values.push(...x.map((edge) => between(s, edge)).filter((v) => v !== null));
    }
    const usable = log ? values.filter((v) => v > 0) : values;
    if (!usable.length) return { x, y: log ? [0.1, 1] : [0, 1], log };
    let [low, high] = [Math.min(...usable), Math.max(...usable)];
    if (log) return { x, y: [low / 1.15, high * 1.15], log };
    if (!this.zoom) low = Math.min(0, low);
    if (low === 0 && high === 0) return { x, y: [0, this.options.bounds?.[1] ?? 1], log };
    const margin = (high - low || Math.abs(high) || 1) * 0.05;
    const bounds = this.options.bounds || [-Infinity, Infinity];
    low = low === 0 ? 0 : Math.max(bounds[0], low - margin);
    return { x, y: [low, Math.min(bounds[1], high + margin)], log };
  }

  render() {
    this.width = this.host.clientWidth;
    const [width, height] = [Math.max(260, this.width), 300];
    const frame = (this.frame = { left: 46, right: width - 12, top: 26, bottom: height - 42 });
    const { x: dx, y: dy, log } = this.domains();
    const x = (this.x = scale(dx, [frame.left, frame.right]));
    const y = (this.y = scale(dy, [frame.bottom, frame.top], log));
    const clip = `clip-${this.options.name}`;
    const grid = draw("g");
    const xTicks = (this.options.timed() ? timeTicks : ticks)(...dx, width / 90);
    const titles = { x: isDated(xTicks) ? "date" : this.options.xTitle(), y: this.options.yTitle };
    if (this.options.timed()) shade(grid, frame, x);
    axes(grid, frame, x, y, xTicks, log ? logTicks(...dy) : ticks(...dy, 6), titles);
    const shown = this.series();
    const marks = draw("g", { "clip-path": `url(#${clip})`, class: shown.length > 6 ? "many" : null });
    for (const s of shown) this.mark(marks, s, dy, log);
    this.cross = draw("g", { class: "cross" });
    this.brush = draw("rect", { class: "brush", y: frame.top, height: frame.bottom - frame.top, visibility: "hidden" });
    // The whole of a marker at the ends, but nothing that goes on beyond them.
    const over = this.zoom ? 0 : 6;
    const area = { x: frame.left, y: frame.top - 4, width: frame.right - frame.left + over, height: frame.bottom - frame.top + 8 };
    fill(this.svg, {
      viewBox: `0 0 ${width} ${height}`, "aria-label": `${this.options.yTitle} against ${titles.x}. ${this.spoken()}`,
      "data-x": dx.join(" "), "data-y": dy.join(" "), "data-log": log ? "1" : "0",
      "data-frame": [frame.left, frame.right, frame.bottom, frame.top].join(" "),
    }, []);
    this.svg.replaceChildren(draw("clipPath", { id: clip }, draw("rect", area)), grid, marks, this.brush, this.cross);
    this.reset.hidden = !this.zoom;
  }

  mark(group, s, dy, log) {
    const { x, y } = this;
    const style = data.lines[s.line].style;
    const good = s.mean.map((v, i) => i).filter((i) => s.mean[i] !== null && s.x[i] !== null && (!log || s.mean[i] > 0));
    if (!good.length) return;
    const floor = (v) => (log ? Math.max(v, dy[0] / 10) : v);
    const point = (i, v) => `${x(s.x[i]).toFixed(2)} ${y(floor(v)).toFixed(2)}`;
    const path = good.map((i) => point(i, s.mean[i]));
    if (good.some((i) => s.sd[i] > 0)) {
      const up = good.map((i) => point(i, s.mean[i] + s.sd[i]));
      const down = good.map((i) => point(i, s.mean[i] - s.sd[i])).reverse();
      group.append(draw("path", { d: `M${up.concat(down).join("L")}Z`, class: "band", "data-line": s.line, style: { fill: colour(s.line) } }));
    }
    group.append(draw("path", {
      d: `M${path.join("L")}`, class: `stroke curve${data.lines[s.line].method === "algorithm1" ? " strong" : ""}`, "data-line": s.line,
      style: { stroke: colour(s.line) }, "stroke-dasharray": style.dash.join(" ") || null }));
    const every = Math.max(1, Math.ceil(good.length / 9));
    good.forEach((i, n) => n % every === Math.floor(every / 2) && group.append(marker(style.marker, x(s.x[i]), y(floor(s.mean[i])), s.line)));
  }

  spoken() {
    const last = this.series().map((s) => `${data.lines[s.line].label} ends at ${number(s.mean.at(-1), 3)}${this.options.unit}`);
    return `${last.join(", ")}. Arrow keys move the crosshair.`;
  }

  listen() {
    const place = (event) => {
      const box = this.svg.getBoundingClientRect();
      return ((event.clientX - box.left) / box.width) * Math.max(260, this.width);
    };
    let start = null;
    this.svg.addEventListener("pointerdown", (event) => {
      start = place(event);
      if (event.pointerType === "mouse") this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      const here = place(event);
      if (start !== null && Math.abs(here - start) > 4) {
        fill(this.brush, { x: Math.min(start, here), width: Math.abs(here - start), visibility: "visible" }, []);
      }
      this.point(this.x.back(here), event.clientX, event.clientY);
    });
    this.svg.addEventListener("pointerup", (event) => {
      const here = place(event);
      this.brush.setAttribute("visibility", "hidden");
      if (start !== null && Math.abs(here - start) > 12) {
        const ends = [start, here].map((p) => this.x.back(Math.min(this.frame.right, Math.max(this.frame.left, p))));
        this.setZoom([Math.min(...ends), Math.max(...ends)]);
      }
      start = null;
    });
    const leave = () => {
      start = null;
      this.brush.setAttribute("visibility", "hidden");
      this.cross.replaceChildren();
      hideTip();
    };
    for (const name of ["pointercancel", "pointerleave", "blur"]) this.svg.addEventListener(name, leave);
    this.svg.addEventListener("dblclick", () => this.setZoom(null));
    this.svg.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const xs = [...new Set(this.series().flatMap((s) => s.x))].sort((a, b) => a - b);
    const shown = xs.filter((v) => v >= this.x.back(this.frame.left) - 1e-9 && v <= this.x.back(this.frame.right) + 1e-9);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.setZoom(null);
    if (!step || !shown.length) return;
    event.preventDefault();
    const now = this.at === null ? (step > 0 ? -1 : shown.length) : shown.findIndex((v) => v >= this.at);
    const at = shown[Math.max(0, Math.min(shown.length - 1, now + step))];
    const box = this.svg.getBoundingClientRect();
    this.point(at, box.left + (this.x(at) / Math.max(260, this.width)) * box.width, box.top + 40);
  }

  // Crosshair at the evaluation nearest to a value of x, each line's own.
  point(wanted, clientX, clientY) {
    const rows = [];
    this.cross.replaceChildren();
    let snapped = null;
    const ends = [this.frame.left, this.frame.right].map((end) => this.x.back(end));
    for (const s of this.series()) {
      let best = -1;
      s.x.forEach((v, i) => {
        if (s.mean[i] !== null && v !== null && v >= ends[0] - 1e-9 && v <= ends[1] + 1e-9 && (best < 0 || Math.abs(v - wanted) < Math.abs(s.x[best] - wanted))) best = i;
      });
      if (best < 0) continue;
      if (snapped === null || Math.abs(s.x[best] - wanted) < Math.abs(snapped - wanted)) snapped = s.x[best];
      rows.push([s, best]);
    }
    if (snapped === null) return hideTip();
    this.at = snapped;
    const close = (this.x.back(this.frame.right) - this.x.back(this.frame.left)) / 12;
    const px = this.x(snapped);
    this.cross.append(draw("line", { x1: px, x2: px, y1: this.frame.top, y2: this.frame.bottom }));
    const list = rows.filter(([s, i]) => Math.abs(s.x[i] - snapped) <= close).map(([s, i]) => {
      this.cross.append(draw("circle", { cx: this.x(s.x[i]), cy: this.y(s.mean[i]), r: 4.5, style: { fill: colour(s.line) } }));
      const sd = data.lines[s.line].seeds.length > 1 ? ` ± ${number(s.sd[i], 2)} (sd)` : "";
      const value = make("b", {}, `${number(s.mean[i], 4)}${sd}${this.options.unit}`);
      const away = s.x[i] === snapped ? "" : ` at ${number(s.x[i])}`;
      return [s.mean[i], make("div", { class: "row" }, key(s.line), make("span", {}, data.lines[s.line].label + away), value)];
    });
    list.sort((a, b) => b[0] - a[0]);
    showTip(clientX, clientY, make("div", { class: "head" }, `${this.options.xTitle()}: ${number(snapped)}`), ...list.map(([, row]) => row));
  }

  setZoom(domain) {
    this.zoom = domain;
    this.at = null;
    this.render();
    hideTip();
    if (this.options.onZoom) this.options.onZoom(domain);
  }
}
