// Names, units and number formats. One place, so that every view writes a quantity in the same way.

export const OBJECTIVES = [
  { key: "accuracy", name: "accuracy", unit: "share", title: "accuracy (share)", higher: true, digits: 3 },
  { key: "latency_s", name: "latency", unit: "s", title: "latency (s)", higher: false, digits: 2 },
  { key: "energy_j", name: "energy", unit: "J", title: "energy (J)", higher: false, digits: 1 },
];

export const LIMITS = [
  {
    key: "min_accuracy", testid: "limit-accuracy", objective: 0, label: "Accuracy at least", short: "accuracy ≥",
    unit: "share", sign: 1,
  },
  {
    key: "max_latency_s", testid: "limit-latency_s", objective: 1, label: "Latency at most", short: "latency ≤",
    unit: "s", sign: -1,
  },
  {
    key: "max_energy_j", testid: "limit-energy_j", objective: 2, label: "Energy at most", short: "energy ≤", unit: "J",
    sign: -1,
  },
];

// Short forms of docs/system-model.md.
export const CONSTRAINTS = {
  C1: "round longer than its limit",
  C2: "queue over its limit",
  C3: "buffer over its limit",
  C4: "training without data",
  C5: "inference longer than the round",
  C6: "mode neither train nor serve",
  C7: "power outside its range",
  C8: "frequency outside its range",
};

const known = (x) => x !== null && x !== undefined && Number.isFinite(x);

export function fixed(x, digits) {
  return known(x) ? x.toFixed(digits) : "–";
}

export function percent(x, digits = 1) {
  return known(x) ? `${(100 * x).toFixed(digits)} %` : "–";
}

/** A value of objective number `o` with its unit, such as "2.31 s"; accuracy is a share and has none. */
export function quantity(o, x) {
  const objective = OBJECTIVES[o];
  if (!known(x)) return "–";
  return o === 0 ? fixed(x, objective.digits) : `${fixed(x, objective.digits)} ${objective.unit}`;
}

export function interval(o, x, half_width) {
  const objective = OBJECTIVES[o];
  if (!known(half_width)) return quantity(o, x);
  const unit = o === 0 ? "" : ` ${objective.unit}`;
  const digits = half_width > 0 ? Math.min(
    4,
    Math.max(objective.digits, Math.ceil(-Math.log10(half_width)) + 1),
  ) : objective.digits;
  return `${fixed(x, digits)} ± ${fixed(half_width, digits)}${unit}`;
}

export function count(x) {
  return known(x) ? Math.round(x).toLocaleString("en") : "–";
}

export function seconds(x) {
  if (!known(x)) return "–";
  if (x < 120) return `${x.toFixed(x < 10 ? 1 : 0)} s`;
  if (x < 7200) return `${Math.floor(x / 60)} min ${Math.round(x % 60)} s`;
  return `${Math.floor(x / 3600)} h ${Math.round((x % 3600) / 60)} min`;
}

/** Per cents without decimals that add up to 100. */
export function wholePercent(preference) {
  const raw = preference.map((w) => 100 * w);
  const whole = raw.map((x) => Math.floor(x + 1e-9));
  const order = [0, 1, 2].sort((p, q) => raw[q] - whole[q] - (raw[p] - whole[p]));
  const missing = Math.round(100 - whole.reduce((a, b) => a + b, 0));
  for (let k = 0; k < missing; k++) whole[order[k]] += 1;
  return whole;
}

export function weights(preference) {
  return wholePercent(preference).map((w, o) => `${OBJECTIVES[o].name} ${w} %`).join(", ");
}

/** About `n` round numbers that cover an interval. */
export function ticks([low, high], n) {
  const raw = (high - low) / n;
  if (!(raw > 0)) return { values: [low], digits: 2 };
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) values.push(k * step);
  return { values, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}
