// A group's batteries under Algorithm 1, round by round: what everfed.advising computes in Python, for the sliders.
// No part of it needs a page, so that a test can run it.

// The four words of Philox4x32-10 at (seed, purpose, client, index), as in everfed.random.
function philox(seed, purpose, client, index) {
  let [c0, c1, c2, c3] = [index >>> 0, 0, client >>> 0, purpose];
  let [k0, k1] = [seed >>> 0, 0];
  for (let round = 0; round < 10; round++) {
    const [high0, low0] = [productHigh(c0, 0xd2511f53), Math.imul(c0, 0xd2511f53)];
    const [high1, low1] = [productHigh(c2, 0xcd9e8d57), Math.imul(c2, 0xcd9e8d57)];
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1 >>> 0, (high0 ^ c3 ^ k1) >>> 0, low0 >>> 0];
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  return [c0, c1, c2, c3];
}

// The upper 32 bits of a product of two numbers of 32 bits, by halves that a double holds exactly.
function productHigh(a, b) {
  const [a0, a1, b0, b1] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
  const middle = a1 * b0 + Math.floor((a0 * b0) / 65536);
  const other = a0 * b1 + (middle % 65536);
  return (a1 * b1 + Math.floor(middle / 65536) + Math.floor(other / 65536)) >>> 0;
}

const [SLOT, COST] = [1, 9]; // purposes of draws
const TOLERANCE = 1e-9;
const LONGEST_CYCLE = 2 ** 31 - 1;
const drawn = new Map(), prices = new WeakMap();

// The rounds in which a device may train: one in every window of `cycle` rounds.
function slotsOf(id, seed, cycle, rounds) {
  const name = `${id} ${seed} ${cycle} ${rounds}`;
  if (!drawn.has(name)) {
    if (drawn.size > 2000) drawn.clear();
    const slots = [];
    for (let window = 0; window * cycle < rounds; window++) {
      const at = window * cycle + (cycle > 1 ? Math.floor((philox(seed, SLOT, id, window)[0] * cycle) / 2 ** 32) : 0);
      if (at < rounds) slots.push(at);
    }
    drawn.set(name, Int32Array.from(slots));
  }
  return drawn.get(name);
}

// What each of these slots costs, in parts of the mean: the sum of four uniform numbers, scaled to the spread.
function pricesOf(id, seed, slots, spread) {
  if (!prices.has(slots)) {
    const bell = (at) => philox(seed, COST, id, at).reduce((sum, word) => sum + word, 0) / 2 ** 32 - 2;
    prices.set(slots, Float64Array.from(slots, (at) => Math.max(1 + spread * Math.sqrt(3) * bell(at), 0)));
  }
  return prices.get(slots);
}

// Supplies: whole numbers of 16 bits in base64, times a scale.
function readTables(packed) {
  return packed.map(({ scale, values }) => {
    const text = atob(values);
    const joules = new Float64Array(text.length / 2);
    for (let i = 0; i < joules.length; i++) joules[i] = scale * (text.charCodeAt(2 * i) + 256 * text.charCodeAt(2 * i + 1));
    return joules;
  });
}

// Joules that a round takes from the battery.
const roundCost = (model, { steps, sent }) => (model.step_j * steps + model.up_j * sent + model.down_j + model.wake_j) / model.discharging;

// Why a round is impossible, or null.
function refusal(model, setting, roundS) {
  const seconds = model.step_s * setting.steps + model.air_s + model.up_s * (setting.sent - 1);
  if (seconds > roundS) return `training and traffic take ${Math.round(seconds)} s, and a round lasts ${Math.round(roundS)} s`;
  const usable = model.capacity_j_per_wh * setting.battery;
  if (!(roundCost(model, setting) <= usable * Math.max(...model.members.map((m) => m.battery)))) return "the battery cannot hold the energy of one round";
  return null;
}

// The cycle that a device has: the one that is set, or as its mean supply allows; one round a day if it cannot idle.
function cycleOf(model, member, setting, roundS) {
  if (setting.cycle) return setting.cycle;
  const unit = roundCost(model, setting);
  const net = (member.mean_j * setting.panel * member.gain * model.charging - model.standby_j) / unit;
  if (net <= 0) return Math.max(1, Math.round(86400 / roundS));
  return Math.min(Math.max(Math.ceil((1 - 1e-12) / net), 1), LONGEST_CYCLE);
}

// setting: panel, battery (Wh), steps, sent (times today's upload), cycle (0: follows).
// monthOf: the number of each round's month. Weight: the mean over the devices of slots that were paid, over slots;
// null where none has a slot.
function simulate(model, setting, tables, roundS, monthOf, seeds) {
  const months = monthOf.length ? monthOf[monthOf.length - 1] + 1 : 1;
  const devices = [];
  const why = refusal(model, setting, roundS);
  const unit = roundCost(model, setting);
  const [keep, standby, enough] = [1 - model.leak, model.standby_j / unit, 1 - TOLERANCE];
  const cycles = [];
  let rounds = 0;
  for (const member of model.members) {
    const slots = new Array(months).fill(0), paid = new Array(months).fill(0);
    devices.push({ slots, paid });
    const joules = tables[member.table];
    rounds = joules.length;
    const cycle = cycleOf(model, member, setting, roundS);
    cycles.push(cycle);
    const gain = (setting.panel * member.gain * model.charging) / unit;
    const capacity = (model.capacity_j_per_wh * setting.battery * member.battery) / unit;
    for (let seed = 0; seed < seeds; seed++) {
      const due = slotsOf(member.id, seed, cycle, rounds);
      const cost = model.cost_spread ? pricesOf(member.id, seed, due, model.cost_spread) : null;
      let level = model.start * capacity, next = 0;
      for (let t = 0; t < rounds; t++) {
        level = level * keep + joules[t] * gain;
        if (level > capacity) level = capacity;
        level = level > standby ? level - standby : 0;
        if (t !== due[next]) continue;
        next++;
        slots[monthOf[t]]++;
        if (why !== null || level < enough) continue;
        const price = cost ? cost[next - 1] : 1;
        if (price - level > price * TOLERANCE) level = 0; // it began, and its battery did not last
        else {
          level = level > price ? level - price : 0;
          paid[monthOf[t]]++;
        }
      }
    }
  }
  const total = (list) => list.reduce((sum, value) => sum + value, 0);
  const days = (rounds * roundS) / 86400;
  const mean = (kept) => (kept.length ? total(kept) / kept.length : null);
  const weight = (count) => mean(devices.filter((d) => count(d.slots)).map((d) => count(d.paid) / count(d.slots)));
  const paid = total(devices.map((d) => total(d.paid)));
  return {
    weight: weight(total), perDay: paid / (model.members.length * seeds) / days, slots: total(devices.map((d) => total(d.slots))), paid,
    byMonth: Array.from({ length: months }, (_, i) => weight((list) => list[i])), cycles, unit, why,
  };
}
