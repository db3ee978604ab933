// View 2: what one policy does, or two side by side on the same seed.

import { api } from "./api.js";
import { PolicyChoice } from "./choose.js";
import { clearProblem, debounce, h, markReady, setText, showProblem } from "./dom.js";
import { drawFigure, plotly } from "./figures.js";
import { isDark, serveColour, themeColours } from "./palette.js";
import { finished, front, listen, place, runById, select, state } from "./state.js";
import { CONSTRAINTS, OBJECTIVES, interval, percent } from "./units.js";

export function create(root) {
  return new Policy(root);
}

class Policy {
  constructor(root) {
    this.first = new PolicyChoice("policy", "policy", () => {
      select(this.first.value.run, this.first.value.index);
      this.load();
    });
    this.second = new PolicyChoice("second", "second policy", () => this.load(), true);
    this.seed = h(
      "input",
      {
        type: "number", step: 1, min: 0, placeholder: "default", testid: "seed",
        oninput: debounce(() => this.load(), 400),
      },
    );
    this.busy = h("span", { class: "busy-text", role: "status" });
    this.empty = h("p", { class: "empty", testid: "policy-empty", hidden: true });
    this.sides = h("div", { class: "sides" });
    this.bar = h(
      "div",
      { class: "bar card" },
      ...this.first.elements,
      ...this.second.elements,
      h("label", {}, "Seed", this.seed),
      this.busy,
    );
    root.append(this.empty, this.bar, this.sides);
    listen("theme", () => this.visible && this.drawn && this.draw());
    listen("shown", () => this.visible && this.show());
  }

  async show() {
    this.visible = true;
    const known = finished();
    const none = !known.length;
    this.empty.hidden = !none;
    this.bar.hidden = this.sides.hidden = none;
    if (none) {
      setText(
        this.empty,
        "There is no finished run, so there is no policy to show. Start a training in the view Scenario.",
      );
      return markReady("policy");
    }
    let chosen = state.selection && runById(state.selection.run)?.status === "finished" ? state.selection : null;
    if (!chosen) {
      const answer = await front(known[0].id);
      chosen = { run: known[0].id, index: answer.landmarks.knee ?? answer.policies.index[0] };
      select(chosen.run, chosen.index);
    }
    await Promise.all([this.first.set(chosen), this.second.set(this.second.value)]);
    await this.load();
  }

  hide() {
    this.visible = false;
  }

  /** Read the episodes of the chosen policies; an older answer must not overwrite a newer one. */
  async load() {
    const call = (this.call = {});
    const seed = this.seed.value.trim() === "" ? null : Number(this.seed.value);
    if (seed !== null && (!Number.isInteger(seed) || seed < 0)) return showProblem(
      "The seed must be a whole number of at least 0.",
      "policy",
    );
    const chosen = [this.first.value, this.second.value].filter(Boolean);
    setText(this.busy, "Simulating the episode. The first time takes some seconds ...");
    // Plotly is read and compiled while the server simulates. Its failure is shown when it is needed.
    plotly().catch(() => {});
    try {
      const sides = await Promise.all(chosen.map(async ({ run, index }) => {
        const [answer, episode] = await Promise.all([front(run), api.episode(run, index, seed)]);
        return { answer, episode, index, k: place(answer, index) };
      }));
      if (this.call !== call) return;
      clearProblem("policy");
      this.drawn = sides;
      await this.draw();
    } catch (error) {
      if (this.call === call) showProblem(error.message, "policy");
    }
    if (this.call !== call) return;
    setText(this.busy, "");
    if (this.visible) markReady("policy");
  }

  async draw() {
    const single = this.drawn.length === 1;
    this.sides.className = single ? "sides" : "sides two";
    const parts = this.drawn.map((side, s) => build(side, single, s));
    this.sides.replaceChildren(...parts.map((part) => part.element));
    // Both sides have the same axes, or one could not compare them.
    const shared = {
      latency: Math.max(...this.drawn.map(({ episode }) => episode.latency_quantiles?.latency_s.at(-1) ?? 0)),
      queue: Math.max(...this.drawn.map(({ episode }) => Math.max(...episode.queue.flat().map((q) => q ?? 0)))),
    };
    await Promise.all(parts.map((part) => part.draw(shared)));
  }
}

function build({ answer, episode, index, k }, single, s) {
  const p = answer.policies;
  const chart = (testid, kind = "") => h("div", { class: `chart ${kind}`, testid, role: "img" });
  const map = chart(s ? "episode-map-2" : "episode-map", "map");
  map.setAttribute("aria-label", "Map of devices and rounds: where the policy trains and where it serves");
  const control = chart(s ? "control-2" : "control");
  control.setAttribute("aria-label", "Frequency and power over queue length");
  const cdf = chart(s ? "latency-cdf-2" : "latency-cdf");
  cdf.setAttribute("aria-label", "Share of served requests within a latency");
  const title = `Policy ${index} of ${answer.name}`;
  const facts = [
    ...OBJECTIVES.map(({ key, name }, o) => [interval(o, p[key][k], p[`${key}_half_width`]?.[k]), name]),
    [
      percent(p.violation_rate[k], 2),
      p.within_tolerance[k] ? "of rounds violate a constraint" : `violate a constraint, over ${percent(answer.tolerance)}`,
    ],
  ];
  const rates = Object.entries(p.violation_rates).map(([name, column]) =>
    h(
      "div",
      { title: `${name}: ${CONSTRAINTS[name] ?? ""}` },
      h("span", {}, `${name} ${CONSTRAINTS[name] ?? ""}`),
      h("span", { class: column[k] > answer.tolerance ? "over number" : "number" }, percent(column[k], 2)),
    ));
  const trained = share(episode.train);
  const element = h("div", { class: single ? "side single" : "side", testid: s ? "side-2" : "side-1" },
    h("section", { class: "card span" }, h("h2", {}, title), h(
      "p",
      { class: "muted" },
      `Means of the front's evaluation with intervals of 95 %. ${answer.algorithm}, ${answer.scenario}, ${answer.devices} devices.`,
    ),
      h(
        "div",
        { class: "facts" },
        ...facts.map(([value, name]) => h("div", { class: "fact" }, h("b", {}, value), h("span", {}, name))),
      ),
      h("div", { class: "rates", testid: s ? "violation-rates-2" : "violation-rates" }, ...rates)),
    h("figure", { class: "card plot span" }, h(
      "figcaption",
      {},
      h("b", {}, "Where it trains and serves"),
      h("span", { class: "hint" }, episode.title),
    ),
      h(
        "div",
        { class: "legend" },
        swatch("var(--train)", `train (${percent(trained)})`),
        swatch("var(--serve)", `serve (${percent(1 - trained)})`),
      ),
      map),
    h("figure", { class: "card plot" }, h("figcaption", {}, h("b", {}, "Frequency and power over queue length")),
      h("div", { class: "legend" }, h("span", {}, "▲ train"), h("span", {}, "● serve")), control),
    h("figure", { class: "card plot" }, h("figcaption", {}, h("b", {}, "Latency of served requests")), cdf));
  return {
    element,
    draw: (shared) => Promise.all(
      [drawMap(map, episode), drawControl(control, episode, shared), drawLatency(cdf, episode, shared)],
    ),
  };
}

function swatch(colour, text) {
  return h("span", {}, h("span", { class: "swatch", style: { background: colour } }), text);
}

function share(train) {
  const flat = train.flat().filter((value) => value !== null);
  return flat.filter(Boolean).length / (flat.length || 1);
}

function drawMap(host, episode) {
  const devices = episode.devices;
  const z = devices.map((_, n) => episode.train.map((row) => (row[n] === null ? null : row[n] ? 1 : 0)));
  const text = z.map((row) => row.map((value) => (value === null ? "unknown" : value ? "train" : "serve")));
  const trainColour = isDark() ? "#e8762c" : "#D55E00";
  return drawFigure(host, [{
    type: "heatmap",
    z,
    x: episode.numbers,
    y: devices,
    text,
    zmin: 0,
    zmax: 1,
    showscale: false,
    xgap: episode.numbers.length > 160 ? 0 : 1,
    ygap: devices.length > 60 ? 0 : 1,
    colorscale: [[0, serveColour()], [0.5, serveColour()], [0.5, trainColour], [1, trainColour]],
    hovertemplate: "%{y}, round %{x}: %{text}<extra></extra>",
  }], {
    margin: { l: 74, r: 10, t: 6, b: 40 }, xaxis: { title: { text: "round" }, showgrid: false, zeroline: false },
    yaxis: { autorange: "reversed", type: "category", showgrid: false, nticks: 12 },
  });
}

function drawControl(host, episode, shared) {
  const colours = { true: isDark() ? "#e8762c" : "#D55E00", false: serveColour() };
  const traces = [];
  for (const mode of [true, false]) {
    const at = [];
    episode.train.forEach((row, t) => row.forEach((value, n) => value === mode && episode.queue[t][n] !== null && at.push([t, n])));
    // A few thousand SVG symbols are slow to draw and show no more than an even sample of them.
    const step = Math.ceil(at.length / 300);
    const some = at.filter((_, k) => k % step === 0);
    const marker = { color: colours[mode], symbol: mode ? "triangle-up" : "circle", size: 5, opacity: 0.65 };
    const x = some.map(([t, n]) => episode.queue[t][n]);
    const name = mode ? "train" : "serve";
    traces.push({
      type: "scatter",
      mode: "markers",
      x,
      y: some.map(([t, n]) => scaled(episode.frequency_hz[t][n], 1e-9)),
      marker,
      name,
      hovertemplate: `${name}: queue %{x}, %{y:.2f} GHz<extra></extra>`,
    });
    traces.push({
      type: "scatter",
      mode: "markers",
      x,
      y: some.map(([t, n]) => episode.power_w[t][n]),
      marker,
      name,
      yaxis: "y2",
      hovertemplate: `${name}: queue %{x}, %{y:.2f} W<extra></extra>`,
    });
  }
  return drawFigure(host, traces, {
    margin: { l: 56, r: 12, t: 8, b: 40 },
    xaxis: {
      title: { text: "queue (requests)" },
      range: [-0.03 * shared.queue, 1.05 * shared.queue || 1],
      anchor: "y2",
    },
    yaxis: {
      title: { text: "frequency (GHz)" },
      domain: [0.55, 1],
      rangemode: "tozero",
      range: upTo(scaled(episode.limits.frequency_max_hz, 1e-9)),
    },
    yaxis2: {
      title: { text: "power (W)" }, domain: [0, 0.45], rangemode: "tozero", range: upTo(episode.limits.power_max_w),
    },
  });
}

const scaled = (value, factor) => (value === null || value === undefined ? null : value * factor);
const upTo = (limit) => (limit ? [-0.04 * limit, 1.08 * limit] : undefined);

function drawLatency(host, episode, shared) {
  const { ink, muted } = themeColours();
  const quantiles = episode.latency_quantiles;
  if (!quantiles) {
    return drawFigure(
      host,
      [],
      {
        xaxis: { visible: false },
        yaxis: { visible: false },
        annotations: [{
          text: "No request was served in this episode.", showarrow: false, x: 0.5, y: 0.5, xref: "paper",
          yref: "paper",
        }],
      },
    );
  }
  const median = quantiles.latency_s[Math.floor(quantiles.share.length / 2)];
  return drawFigure(host, [{
    type: "scatter",
    mode: "lines",
    x: quantiles.latency_s,
    y: quantiles.share.map((q) => 100 * q),
    line: { color: ink, width: 2.2 },
    hovertemplate: "%{y:.0f} % within %{x:.2f} s<extra></extra>",
  }], {
    margin: { l: 56, r: 14, t: 8, b: 40 },
    xaxis: { title: { text: "latency (s)" }, range: [0, 1.03 * shared.latency || 1] },
    yaxis: { title: { text: "requests (%)" }, range: [-2, 103] },
    shapes: [{ type: "line", x0: median, x1: median, y0: 0, y1: 50, line: { color: muted, dash: "dot" } }],
    annotations: [{
      x: median, y: 50, text: `median ${median.toFixed(2)} s`, showarrow: false, xanchor: "left", xshift: 6,
      yshift: -8, font: { color: muted },
    }],
  });
}
