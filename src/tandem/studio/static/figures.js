// Plotly: loaded when a view first needs it (it is 5 MB), with the page's fonts and colours.

import { h } from "./dom.js";
import { runStyle, themeColours } from "./palette.js";
import { OBJECTIVES } from "./units.js";

const FONT = "system-ui, sans-serif";
let loading = null;

/** Return the global of /plotly.min.js. */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/plotly.min.js" });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = null;
      script.remove();
      reject(new Error("plotly.min.js could not be read from the studio."));
    };
    document.head.append(script);
  });
  return loading;
}

export const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

/** A layout in the colours of the page. */
export function layout(extra) {
  const { ink, muted, line } = themeColours();
  const axis = {
    gridcolor: line, zerolinecolor: line, linecolor: muted, tickfont: { color: muted, size: 11 },
    title: { font: { size: 12, color: ink } }, automargin: true,
  };
  const merged = {
    font: { family: FONT, size: 12, color: ink }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 52, r: 14, t: 14, b: 42 },
    showlegend: false,
    hoverlabel: { font: { family: FONT, size: 12 } },
    ...extra,
  };
  for (const name of Object.keys(merged).filter((key) => /^[xy]axis\d*$/.test(key)).concat("xaxis", "yaxis")) {
    const own = merged[name] ?? {};
    merged[name] = { ...axis, ...own, title: { ...axis.title, ...(own.title ?? {}) } };
  }
  return merged;
}

/** Draw a figure into a host whose size the style sheet fixes, so that nothing moves when it appears. */
export async function drawFigure(host, traces, extra) {
  const Plotly = await plotly();
  await Plotly.react(host, traces, layout(extra), CONFIG);
  return host;
}

/** The three projections as one figure for a paper: light, with a legend, what fails in grey. */
export function frontFigure(model, limits) {
  const pairs = [[1, 0], [2, 0], [2, 1]];
  const traces = [];
  const axisName = (letter, n) => (n ? `${letter}${n + 1}` : letter);
  const shapes = [];
  const figureLayout = {
    width: 1260,
    height: 440,
    font: { family: "Helvetica, Arial, sans-serif", size: 13, color: "#111" },
    paper_bgcolor: "#fff",
    plot_bgcolor: "#fff",
    margin: { l: 60, r: 16, t: 16, b: 96 },
    legend: { orientation: "h", y: -0.22, x: 0.5, xanchor: "center" },
    grid: { rows: 1, columns: 3, pattern: "independent", xgap: 0.16 },
    shapes,
  };
  const bound = [limits.min_accuracy, limits.max_latency_s, limits.max_energy_j];
  pairs.forEach(([x, y], n) => {
    const axes = { xaxis: axisName("x", n), yaxis: axisName("y", n), type: "scatter", mode: "markers" };
    const style = {
      showline: true, linecolor: "#111", mirror: true, ticks: "outside", gridcolor: "#e6e6e6", zeroline: false,
    };
    figureLayout[`xaxis${n ? n + 1 : ""}`] = { ...style, title: { text: OBJECTIVES[x].title } };
    figureLayout[`yaxis${n ? n + 1 : ""}`] = { ...style, title: { text: OBJECTIVES[y].title } };
    if (model.reference.length) {
      traces.push({
        ...axes, name: "best known front", legendgroup: "best", showlegend: n === 0,
        x: model.reference.map((p) => p[x]), y: model.reference.map((p) => p[y]), marker: { size: 3, color: "#888" },
      });
    }
    const passingTraces = [];
    for (const layer of model.layers) {
      const { colour, symbol } = runStyle(layer.id, false);
      const places = [...layer.index.keys()];
      const failing = places.filter((k) => !layer.ok[k]);
      const passing = places.filter((k) => layer.ok[k]);
      const trace = (of, more) => ({
        ...axes, x: of.map((k) => layer.columns[x][k]), y: of.map((k) => layer.columns[y][k]), legendgroup: layer.id,
        ...more,
      });
      traces.push(trace(failing, { showlegend: false, marker: { size: 5, symbol, color: "#bbb", opacity: 0.5 } }));
      passingTraces.push(
        trace(
          passing,
          { name: layer.name, showlegend: n === 0, marker: { size: 6, symbol, color: colour, opacity: 0.85 } },
        ),
      );
    }
    // What fails is below what passes, and the active run is on top, as on the page; the legend keeps the list's order.
    const rank = (trace) => (trace.legendgroup === model.active ? 1 : 0);
    traces.push(...passingTraces.map((trace, k) => ({ ...trace, legendrank: k + 1 })).sort((p, q) => rank(p) - rank(q)));
    const { selected, evaluated } = model;
    if (selected) {
      const layer = model.layers[selected.layer];
      traces.push(
        {
          ...axes,
          name: `policy ${layer.index[selected.k]}`,
          legendgroup: "selected",
          showlegend: n === 0,
          x: [layer.columns[x][selected.k]],
          y: [layer.columns[y][selected.k]],
          marker: { size: 15, symbol: "circle-open", color: "#000", line: { width: 2 } },
        },
      );
    }
    if (evaluated) {
      const error = (o) => ({ type: "data", array: [evaluated.half_width?.[o] ?? 0], color: "#000", thickness: 1.2 });
      traces.push(
        {
          ...axes,
          name: "evaluated preference",
          legendgroup: "evaluated",
          showlegend: n === 0,
          x: [evaluated.objectives[x]],
          y: [evaluated.objectives[y]],
          error_x: error(x),
          error_y: error(y),
          marker: { size: 11, symbol: "star", color: "#000" },
        },
      );
    }
    for (const [o, letter] of [[x, "x"], [y, "y"]]) {
      if (bound[o] === null) continue;
      const other = letter === "x" ? "y" : "x";
      shapes.push(
        {
          type: "line", [`${letter}ref`]: axisName(letter, n), [`${other}ref`]: `${axisName(other, n)} domain`,
          [`${letter}0`]: bound[o], [`${letter}1`]: bound[o], [`${other}0`]: 0, [`${other}1`]: 1,
          line: { color: "#666", dash: "dash", width: 1 },
        },
      );
    }
  });
  return { data: traces, layout: figureLayout };
}
