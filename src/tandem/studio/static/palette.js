// Colours and symbols. The Okabe-Ito colours stay apart for colour-blind readers; every run also has its own symbol.

const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#9A8B00"];
const DARK = ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#4C9BE0", "#FFFFFF"];
export const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star"];

export const TRAIN = "#D55E00";
export const SERVE = "#0072B2";
export const SERVE_DARK = "#56B4E9";

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function serveColour() {
  return isDark() ? SERVE_DARK : SERVE;
}

const slots = new Map();

/** The colour and symbol of a run: given when the run is first seen, so they do not change when runs are added. */
export function runStyle(id, dark = isDark()) {
  if (!slots.has(id)) slots.set(id, slots.size);
  const slot = slots.get(id);
  const colour = (dark ? DARK : LIGHT)[slot % 8];
  return { colour, symbol: SYMBOLS[(slot + Math.floor(slot / 8)) % 8] };
}

/** The colours of the style sheet as canvas and Plotly need them. */
export function themeColours() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const read = (name) => {
    // The property itself is an unresolved light-dark(); a computed colour is not.
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const colours = Object.fromEntries([
    "ink", "muted", "line", "panel", "grey", "accent", "mark",
  ].map((name) => [name, read(name)]));
  probe.remove();
  return colours;
}

const POLYGONS = {
  square: [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
  diamond: [[0, -1.2], [1.1, 0], [0, 1.2], [-1.1, 0]],
  "triangle-up": [[0, -1.15], [1.1, 0.85], [-1.1, 0.85]],
  "triangle-down": [[0, 1.15], [1.1, -0.85], [-1.1, -0.85]],
  cross: [
    [-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4],
    [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4],
  ],
};
POLYGONS.x = POLYGONS.cross.map(([x, y]) => [(x - y) * 0.75, (x + y) * 0.75]);
POLYGONS.star = Array.from({ length: 10 }, (_, k) => {
  const radius = k % 2 ? 0.55 : 1.3;
  return [radius * Math.sin((k * Math.PI) / 5), -radius * Math.cos((k * Math.PI) / 5)];
});

/** The outline of a symbol of radius `r` around (x, y), as an SVG path, which canvas understands too. */
export function symbolPath(symbol, r, x = 0, y = 0) {
  if (symbol === "circle") return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
  return `M${POLYGONS[symbol].map(([dx, dy]) => `${x + r * dx},${y + r * dy}`).join("L")}Z`;
}
