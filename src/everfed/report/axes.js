// Scales and axes: where a value lies on the screen, and which values deserve a tick.

// least: the smallest step.
function ticks(low, high, about, least = 0) {
  const span = high - low || 1;
  const raw = Math.max(span / Math.max(1, about), least);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw - 1e-12);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(Number((i * step).toPrecision(12)));
  return out;
}

function logTicks(low, high) {
  const out = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
    for (const m of [1, 2, 5]) out.push(m * 10 ** p);
  const inside = out.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  const decades = inside.filter((v) => Math.abs(Math.log10(v) % 1) < 1e-9);
  return inside.length > 8 && decades.length >= 2 ? decades : inside;
}

// Maps a domain onto pixels, and back.
function scale(domain, range, log = false) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = [f(domain[0]), f(domain[1])];
  const to = (v) => range[0] + ((f(v) - a) / (b - a || 1)) * (range[1] - range[0]);
  to.back = (pixel) => {
    const v = a + ((pixel - range[0]) / (range[1] - range[0])) * (b - a);
    return log ? 10 ** v : v;
  };
  return to;
}

const tickText = (value) =>
  Math.abs(value) >= 10000 ? `${Number((value / 1000).toPrecision(4))}k` : String(Number(value.toPrecision(6)));

// Ticks of time: dates where the fleet has a calendar and some are in sight, else numbers; [value, text] each.
function timeTicks(low, high, about) {
  // Rounds are whole, unless one has zoomed in between two.
  const least = data.clock.title === "rounds" && high - low >= 1 ? 1 : 0;
  const numbers = ticks(low, high, about, least).map((v) => [v, tickText(v)]);
  const dates = (data.clock.dates ?? []).map(([round, text]) => [inUnits(round), text]).filter(([v]) => v >= low - 1e-9 && v <= high + 1e-9);
  if (dates.length < 2) return numbers;
  const every = Math.ceil(dates.length / Math.max(2, about));
  return dates.filter((_, i) => i % every === 0);
}

const isDated = (shown) => shown.some((tick) => Array.isArray(tick) && data.clock.dates?.some(([, text]) => text === tick[1]));

// Spells in which nobody harvests, behind everything else, where they are wide enough to be seen as such.
function shade(group, frame, x) {
  for (const spell of data.clock.dark) {
    const [from, to] = spell.map((round) => Math.min(frame.right, Math.max(frame.left, x(inUnits(round)))));
    if (to - from >= 1) group.append(draw("rect", { x: from, width: to - from, y: frame.top, height: frame.bottom - frame.top, class: "dark-spell" }));
  }
}

// Grid, tick labels and axis titles into a group; ticks of x are values, or pairs of a value and its text.
function axes(group, frame, x, y, xTicks, yTicks, titles) {
  const { left, right, top, bottom } = frame;
  for (const v of yTicks) {
    group.append(
      draw("line", { x1: left, x2: right, y1: y(v), y2: y(v), class: "grid" }),
      draw("text", { x: left - 7, y: y(v) + 4, class: "tick end" }, tickText(v)));
  }
  for (const tick of xTicks) {
    const [v, text] = Array.isArray(tick) ? tick : [tick, tickText(tick)];
    group.append(
      draw("line", { x1: x(v), x2: x(v), y1: bottom, y2: bottom + 4, class: "axis" }),
      draw("text", { x: x(v), y: bottom + 17, class: "tick middle" }, text));
  }
  group.append(
    draw("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }),
    draw("text", { x: right, y: bottom + 34, class: "title end" }, titles.x),
    draw("text", { x: left, y: titles.at ?? top - 9, class: "title" }, titles.y));
}
