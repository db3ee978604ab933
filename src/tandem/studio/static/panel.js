// Canvas panels that show the policies of several runs: two-dimensional projections and a rotatable space.
//
// Plain canvas, not Plotly: thousands of points in four panels must follow a slider within a frame, and Plotly's
// scatter3d needs WebGL, which tablets, remote desktops and browsers under test may lack.
//
// All panels of a group share one model:
//   layers     [{id, name, colour, symbol, columns: 3 arrays [P], ok: Uint8Array [P], index: [P]}]
//   reference  [[accuracy, latency, energy], ...], the faint front
//   ranges     [[low, high] x 3]
//   limits     [number | null x 3]
//   active     id of the layer on top
//   selected, picked, hovered    {layer, k} | null
//   evaluated  {objectives, half_width} | null

import { h } from "./dom.js";
import { symbolPath, themeColours } from "./palette.js";
import { clearedContext, makeImage, makeStamp, press, watchVisible } from "./raster.js";
import { OBJECTIVES, fixed, ticks } from "./units.js";

const REACH = 14; // px: a click or a hover takes the nearest point within this distance

export class Panel {
  constructor(host, group, label) {
    this.group = group;
    this.host = host;
    this.base = h("canvas", { "aria-hidden": "true" });
    this.points = h("canvas", { "aria-hidden": "true" });
    this.overlay = h("canvas", { tabindex: 0, role: "img", "aria-label": label });
    host.classList.add("panel");
    host.append(this.base, this.points, this.overlay);
    this.places = []; // per layer: {x, y} on the canvas, of the last drawing
    group.panels.push(this);
    new ResizeObserver(() => this.resize()).observe(host);
    // What is scrolled away is drawn when it is scrolled back, or when the page has time.
    this.watch = watchVisible(host, () => this.stale && this.draw(true, true));
    this.overlay.addEventListener("pointermove", (event) => this.onMove(event));
    this.overlay.addEventListener("pointerleave", () => group.hover(null, this));
    this.overlay.addEventListener("keydown", (event) => this.onKey(event));
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.host;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.width === width && this.height === height && this.ratio === ratio) return;
    Object.assign(this, { width, height, ratio });
    for (const canvas of [this.base, this.points, this.overlay]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.image = makeImage(this.points.width, this.points.height);
    this.draw();
  }

  context(canvas) {
    return clearedContext(canvas, this);
  }

  /** Draw everything. Without `moved`, the policies are where they were and only what passes has changed. */
  draw(moved = true, hidden = false) {
    const { model } = this.group;
    if (!this.width || !model || this.waits(hidden)) return;
    if (moved || this.places.length !== model.layers.length || this.axesShowLimits) this.drawBase(model);
    if (moved || this.places.length !== model.layers.length) this.places = model.layers.map((layer) => this.placesOf(layer));
    this.drawPoints(model.layers);
    this.drawOverlay(true);
  }

  /** Whether drawing is put off, since the panel is scrolled away. */
  waits(hidden) {
    this.stale = !hidden && !this.watch.isVisible();
    if (this.stale) this.watch.later();
    return this.stale;
  }

  drawBase(model) {
    const context = this.context(this.base);
    this.prepare();
    this.drawAxes(context);
    context.save();
    this.clip(context);
    context.fillStyle = this.group.colours.muted;
    context.globalAlpha = 0.55;
    for (const point of model.reference) {
      const [x, y] = this.project(point[0], point[1], point[2]);
      context.fillRect(x - 1.2, y - 1.2, 2.4, 2.4);
    }
    context.restore();
  }

  drawPoints(layers) {
    const { image, ratio } = this;
    const { left, right, top, bottom } = this.inside();
    image.packed.fill(0);
    // What fails is drawn first, so that it never covers what passes.
    for (const pass of [0, 1]) {
      for (const l of this.group.order()) {
        const { x, y } = this.places[l];
        const { ok, id } = layers[l];
        const stamp = this.group.stamps.get(id)[pass];
        for (let k = 0; k < x.length; k++) {
          if (ok[k] !== pass || x[k] < left || x[k] > right || y[k] < top || y[k] > bottom) continue;
          press(image, stamp, Math.round(x[k] * ratio), Math.round(y[k] * ratio));
        }
      }
    }
    this.points.getContext("2d").putImageData(image.image, 0, 0);
  }

  placesOf(layer) {
    const [a, l, e] = layer.columns;
    const x = new Float32Array(a.length);
    const y = new Float32Array(a.length);
    for (let k = 0; k < a.length; k++) {
      const at = this.project(a[k], l[k], e[k]);
      x[k] = at[0];
      y[k] = at[1];
    }
    return { x, y };
  }

  /** Draw what changes without the points: the marks of the selected, picked, hovered and evaluated policy. */
  drawOverlay(hidden = false) {
    const { model, colours } = this.group;
    if (!this.width || !model || this.waits(hidden)) return;
    const context = this.context(this.overlay);
    context.save();
    this.clip(context);
    const at = (mark) => (mark && this.places[mark.layer] ? [
      this.places[mark.layer].x[mark.k], this.places[mark.layer].y[mark.k],
    ] : null);
    ring(context, at(model.hovered), 7, 1.5, colours.muted, colours.panel);
    ring(context, at(model.picked), 11, 2, colours.mark, colours.panel, [3, 2.5]);
    ring(context, at(model.selected), 7.5, 2.5, colours.mark, colours.panel);
    if (model.evaluated) this.drawEvaluated(context, model.evaluated);
    context.restore();
    this.drawExtra?.(context);
  }

  drawEvaluated(context, { objectives, half_width }) {
    const { colours } = this.group;
    const [x, y] = this.project(...objectives);
    context.strokeStyle = colours.mark;
    context.lineWidth = 1.25;
    context.beginPath();
    for (const o of this.shownObjectives) {
      const half = half_width?.[o];
      if (!half) continue;
      const ends = [-half, half].map((d) => this.project(...objectives.map((value, i) => (i === o ? value + d : value))));
      context.moveTo(...ends[0]);
      context.lineTo(...ends[1]);
    }
    context.stroke();
    const star = new Path2D(symbolPath("star", 6.5, x, y));
    context.fillStyle = colours.panel;
    context.lineWidth = 4;
    context.strokeStyle = colours.panel;
    context.stroke(star);
    context.fillStyle = colours.mark;
    context.fill(star);
  }

  /** Return the nearest policy within reach, if any; policies that pass are preferred over grey ones. */
  nearest(x, y) {
    let best = null;
    let smallest = REACH * REACH;
    this.places.forEach((place, layer) => {
      const { ok } = this.group.model.layers[layer];
      for (let k = 0; k < place.x.length; k++) {
        const distance = (place.x[k] - x) ** 2 + (place.y[k] - y) ** 2 + (ok[k] ? 0 : 60);
        if (distance < smallest) {
          smallest = distance;
          best = { layer, k };
        }
      }
    });
    return best;
  }

  position(event) {
    const box = this.overlay.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  onMove(event) {
    if (event.buttons) return;
    this.group.hover(this.nearest(...this.position(event)), this, this.position(event));
  }

  clickAt(event) {
    const found = this.nearest(...this.position(event));
    if (found) this.group.choose(found, event);
  }

  onKey() {}
}

function ring(context, at, radius, width, colour, halo, dash = []) {
  if (!at) return;
  context.beginPath();
  context.arc(at[0], at[1], radius, 0, 2 * Math.PI);
  context.lineWidth = width + 2;
  context.strokeStyle = halo;
  context.stroke();
  context.setLineDash(dash);
  context.lineWidth = width;
  context.strokeStyle = colour;
  context.stroke();
  context.setLineDash([]);
}

/** Two of the three objectives. Drag to zoom, double click or Escape to zoom out. */
export class Projection extends Panel {
  constructor(host, group, horizontal, vertical) {
    const names = `${OBJECTIVES[vertical].name} over ${OBJECTIVES[horizontal].name}`;
    super(host, group, `Policies: ${names}. Left and right arrow keys select the next policy of the active run.`);
    this.shownObjectives = [horizontal, vertical];
    this.axesShowLimits = true;
    this.zoom = null; // [[x low, x high], [y low, y high]]
    this.overlay.addEventListener("pointerdown", (event) => this.onDown(event));
    this.overlay.addEventListener("dblclick", () => this.setZoom(null));
  }

  prepare() {
    const [horizontal, vertical] = this.shownObjectives;
    this.box = { left: 54, right: this.width - 12, top: 12, bottom: this.height - 38 };
    const [xs, ys] = this.zoom ?? [this.group.model.ranges[horizontal], this.group.model.ranges[vertical]];
    this.domain = [xs, ys];
    this.sx = (this.box.right - this.box.left) / (xs[1] - xs[0]);
    this.sy = (this.box.bottom - this.box.top) / (ys[1] - ys[0]);
  }

  project(a, l, e) {
    const point = [a, l, e];
    const [horizontal, vertical] = this.shownObjectives;
    return [
      this.box.left + (point[horizontal] - this.domain[0][0]) * this.sx,
      this.box.bottom - (point[vertical] - this.domain[1][0]) * this.sy,
    ];
  }

  inside() {
    return this.box;
  }

  clip(context) {
    const { left, right, top, bottom } = this.box;
    context.beginPath();
    context.rect(left - 8, top - 8, right - left + 16, bottom - top + 12);
    context.clip();
  }

  drawAxes(context) {
    const { colours, model } = this.group;
    const { left, right, top, bottom } = this.box;
    const [horizontal, vertical] = this.shownObjectives;
    this.drawLimits(context, model.limits);
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.fillStyle = colours.muted;
    const across = ticks(this.domain[0], Math.max(3, (right - left) / 52));
    context.textAlign = "center";
    context.textBaseline = "top";
    context.beginPath();
    for (const value of across.values) {
      const x = Math.round(left + (value - this.domain[0][0]) * this.sx) + 0.5;
      context.moveTo(x, top);
      context.lineTo(x, bottom);
      context.fillText(fixed(value, across.digits), x, bottom + 5);
    }
    const up = ticks(this.domain[1], Math.max(3, (bottom - top) / 50));
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of up.values) {
      const y = Math.round(bottom - (value - this.domain[1][0]) * this.sy) + 0.5;
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.fillText(fixed(value, up.digits), left - 6, y);
    }
    context.stroke();
    context.fillStyle = colours.ink;
    context.textAlign = "center";
    context.textBaseline = "bottom";
    context.fillText(OBJECTIVES[horizontal].title, (left + right) / 2, this.height - 4);
    context.save();
    context.translate(8, (top + bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textBaseline = "middle";
    context.fillText(OBJECTIVES[vertical].title, 0, 0);
    context.restore();
  }

  drawLimits(context, limits) {
    const { left, right, top, bottom } = this.box;
    const { colours } = this.group;
    this.shownObjectives.forEach((o, axis) => {
      if (limits[o] === null) return;
      const at = axis === 0 ? left + (limits[o] - this.domain[0][0]) * this.sx : bottom - (limits[o] - this.domain[1][0]) * this.sy;
      const edge = Math.min(Math.max(at, axis === 0 ? left : top), axis === 0 ? right : bottom);
      const higherFails = o !== 0;
      context.fillStyle = colours.grey;
      context.globalAlpha = 0.16;
      if (axis === 0) higherFails ? context.fillRect(edge, top, right - edge, bottom - top) : context.fillRect(left, top, edge - left, bottom - top);
      else higherFails ? context.fillRect(left, top, right - left, edge - top) : context.fillRect(
        left,
        edge,
        right - left,
        bottom - edge,
      );
      context.globalAlpha = 1;
      context.strokeStyle = colours.muted;
      context.setLineDash([5, 4]);
      context.beginPath();
      axis === 0 ? (context.moveTo(edge, top), context.lineTo(edge, bottom)) : (context.moveTo(left, edge), context.lineTo(right, edge));
      context.stroke();
      context.setLineDash([]);
    });
  }

  setZoom(zoom) {
    this.zoom = zoom;
    this.draw();
  }

  onDown(event) {
    if (event.button !== 0) return;
    const start = this.position(event);
    let end = null;
    // A finger scrolls the page; only a mouse or a pen draws a rectangle.
    const zooms = event.pointerType !== "touch";
    if (zooms) this.overlay.setPointerCapture(event.pointerId);
    const move = (moved) => {
      const now = this.position(moved);
      if (!zooms || Math.hypot(now[0] - start[0], now[1] - start[1]) < 6) return;
      end = now;
      this.rectangle = [start, end];
      this.drawOverlay();
    };
    const up = (released) => {
      this.overlay.removeEventListener("pointermove", move);
      this.overlay.removeEventListener("pointerup", up);
      this.overlay.removeEventListener("pointercancel", up);
      this.rectangle = null;
      if (released.type === "pointercancel") return;
      if (!end) this.clickAt(released);
      else this.zoomTo(start, end);
    };
    this.overlay.addEventListener("pointermove", move);
    this.overlay.addEventListener("pointerup", up);
    this.overlay.addEventListener("pointercancel", up);
  }

  zoomTo(start, end) {
    const xs = [start[0], end[0]].map((x) => this.domain[0][0] + (x - this.box.left) / this.sx).sort((a, b) => a - b);
    const ys = [start[1], end[1]].map((y) => this.domain[1][0] + (this.box.bottom - y) / this.sy).sort((a, b) => a - b);
    this.setZoom([xs, ys]);
  }

  drawExtra(context) {
    if (!this.rectangle) return;
    const [[x0, y0], [x1, y1]] = this.rectangle;
    const { colours } = this.group;
    context.strokeStyle = colours.accent;
    context.fillStyle = colours.accent;
    context.globalAlpha = 0.12;
    context.fillRect(x0, y0, x1 - x0, y1 - y0);
    context.globalAlpha = 1;
    context.strokeRect(x0, y0, x1 - x0, y1 - y0);
  }

  onKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") this.setZoom(null);
    if (!step) return;
    event.preventDefault();
    this.group.step(step, this.shownObjectives[0], event);
  }
}

/** All three objectives. Drag or arrow keys rotate, double click resets. */
export class Space extends Panel {
  constructor(host, group) {
    super(host, group, "Policies in three dimensions: accuracy, latency and energy. Arrow keys rotate the view.");
    this.shownObjectives = [0, 1, 2];
    this.reset();
    this.overlay.addEventListener("pointerdown", (event) => this.onDown(event));
    this.overlay.addEventListener("dblclick", () => {
      this.reset();
      this.draw();
    });
  }

  reset() {
    this.azimuth = -0.72;
    this.elevation = 0.42;
  }

  prepare() {
    const { ranges } = this.group.model;
    this.scale = Math.min(this.width / 3.5, this.height / 3.45);
    this.low = ranges.map((range) => range[0]);
    this.factor = ranges.map((range) => 2 / (range[1] - range[0]));
    this.sin = [Math.sin(this.azimuth), Math.sin(this.elevation)];
    this.cos = [Math.cos(this.azimuth), Math.cos(this.elevation)];
  }

  project(a, l, e) {
    return this.view(
      (l - this.low[1]) * this.factor[1] - 1,
      (e - this.low[2]) * this.factor[2] - 1,
      (a - this.low[0]) * this.factor[0] - 1,
    );
  }

  /** From the cube [-1, 1]^3 (latency, energy, accuracy) to the canvas, with a weak perspective. */
  view(x, y, z) {
    const across = x * this.cos[0] - y * this.sin[0];
    const away = x * this.sin[0] + y * this.cos[0];
    const depth = away * this.cos[1] - z * this.sin[1];
    const up = z * this.cos[1] + away * this.sin[1];
    const near = this.scale * (6 / (6 + depth));
    return [this.width / 2 + across * near, this.height / 2 - 16 - up * near];
  }

  inside() {
    return { left: 0, right: this.width, top: 0, bottom: this.height };
  }

  clip() {}

  drawAxes(context) {
    const { colours, model } = this.group;
    // The walls behind the points: those whose outside faces away from the viewer.
    const wallX = this.sin[0] >= 0 ? 1 : -1;
    const wallY = this.cos[0] >= 0 ? 1 : -1;
    const axes = [
      {
        o: 1, range: model.ranges[1], at: (t) => [t, -wallY, -1], wall: (t) => [[t, wallY, -1], [t, wallY, 1]],
        outward: [0, -wallY],
      },
      {
        o: 2, range: model.ranges[2], at: (t) => [-wallX, t, -1], wall: (t) => [[wallX, t, -1], [wallX, t, 1]],
        outward: [-wallX, 0],
      },
    ];
    context.lineWidth = 1;
    context.strokeStyle = colours.line;
    const line = (from, to) => {
      context.moveTo(...this.view(...from));
      context.lineTo(...this.view(...to));
    };
    const label = (text, [x, y, z], [dx, dy], distance, colour) => {
      context.fillStyle = colour;
      context.fillText(text, ...this.view(x + dx * distance, y + dy * distance, z));
    };
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.beginPath();
    for (const axis of axes) {
      const { values, digits } = ticks(axis.range, 4);
      for (const value of values) {
        const t = ((value - axis.range[0]) / (axis.range[1] - axis.range[0])) * 2 - 1;
        line(axis.at(t), axis.at === axes[0].at ? [t, wallY, -1] : [wallX, t, -1]);
        line(...axis.wall(t));
        label(fixed(value, digits), axis.at(t), axis.outward, 0.2, colours.muted);
      }
    }
    // Accuracy is written at the vertical edge of the walls that is further left.
    const corners = [[wallX, -wallY], [-wallX, wallY]].sort((p, q) => this.view(...p, 0)[0] - this.view(...q, 0)[0]);
    const range = model.ranges[0];
    const { values, digits } = ticks(range, 4);
    context.textAlign = "right";
    for (const value of values) {
      const z = ((value - range[0]) / (range[1] - range[0])) * 2 - 1;
      line([wallX, -wallY, z], [wallX, wallY, z]);
      line([-wallX, wallY, z], [wallX, wallY, z]);
      const [x, y] = this.view(...corners[0], z);
      context.fillStyle = colours.muted;
      context.fillText(fixed(value, digits), x - 5, y);
    }
    for (const [x, y] of [[wallX, -wallY], [-wallX, wallY], [wallX, wallY]]) line([x, y, -1], [x, y, 1]);
    line([-wallX, -wallY, -1], [wallX, -wallY, -1]);
    line([-wallX, -wallY, -1], [-wallX, wallY, -1]);
    context.stroke();
    context.textAlign = "center";
    for (const axis of axes) label(OBJECTIVES[axis.o].title, axis.at(0), axis.outward, 0.62, colours.ink);
    const [x, y] = this.view(...corners[0], 1);
    context.fillStyle = colours.ink;
    context.textAlign = "left";
    context.fillText(OBJECTIVES[0].title, Math.max(4, x - 46), Math.max(8, y - 14));
  }

  onDown(event) {
    if (event.button !== 0) return;
    let last = this.position(event);
    const first = last;
    let moved = false;
    this.overlay.setPointerCapture(event.pointerId);
    const move = (now) => {
      const at = this.position(now);
      if (!moved && Math.hypot(at[0] - first[0], at[1] - first[1]) < 4) return;
      moved = true;
      this.rotate((last[0] - at[0]) * 0.009, (at[1] - last[1]) * 0.009);
      last = at;
    };
    const up = (released) => {
      this.overlay.removeEventListener("pointermove", move);
      this.overlay.removeEventListener("pointerup", up);
      this.overlay.removeEventListener("pointercancel", up);
      if (!moved && released.type === "pointerup") this.clickAt(released);
    };
    this.overlay.addEventListener("pointermove", move);
    this.overlay.addEventListener("pointerup", up);
    this.overlay.addEventListener("pointercancel", up);
  }

  rotate(across, up) {
    this.azimuth += across;
    this.elevation = Math.min(1.5, Math.max(0.02, this.elevation + up));
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  onKey(event) {
    const turn = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, 0.08], ArrowDown: [0, -0.08] }[event.key];
    if (!turn) return;
    event.preventDefault();
    this.rotate(...turn);
  }
}

/** Panels that show one model, with one hovered and one selected policy. */
export class Group {
  constructor({ onChoose, onStep, tooltip } = {}) {
    this.panels = [];
    this.model = null;
    this.onChoose = onChoose;
    this.onStep = onStep;
    this.tooltip = tooltip; // (layer, k) -> lines
    this.tip = h("div", { class: "tip", role: "presentation", hidden: true });
    this.applyTheme();
  }

  applyTheme() {
    this.colours = themeColours();
  }

  setModel(model) {
    this.model = model;
    this.makeStamps();
  }

  makeStamps() {
    const ratio = window.devicePixelRatio || 1;
    // Thousands of points need smaller symbols, or they hide each other.
    const points = this.model.layers.reduce((sum, layer) => sum + layer.index.length, 0);
    const radius = points > 1200 ? 2.6 : points > 400 ? 3.1 : 4;
    const { grey, panel } = this.colours;
    this.stamps = new Map(this.model.layers.map(({ id, colour, symbol }) => [
      id,
      [makeStamp(symbol, 0.8 * radius, ratio, grey, 0.3, null), makeStamp(symbol, radius, ratio, colour, 0.9, panel)],
    ]));
  }

  /** The layers from bottom to top: the active run is on top, then in the order of the list. */
  order() {
    const { layers, active } = this.model;
    const rank = (l) => (layers[l].id === active ? -1 : l);
    return [...layers.keys()].sort((p, q) => rank(q) - rank(p));
  }

  draw(moved = true, hidden = false) {
    for (const panel of this.panels) panel.draw(moved, hidden);
  }

  drawOverlays() {
    for (const panel of this.panels) panel.drawOverlay();
  }

  hover(found, panel, at) {
    const before = this.model?.hovered;
    const same = before?.layer === found?.layer && before?.k === found?.k;
    if (!this.model) return;
    this.model.hovered = found;
    if (!same) this.drawOverlays();
    panel.overlay.style.cursor = found ? "pointer" : "";
    this.tip.hidden = !found;
    if (!found || !this.tooltip) return;
    if (this.tip.parentElement !== panel.host) panel.host.append(this.tip);
    if (!same) this.tip.replaceChildren(...this.tooltip(found.layer, found.k).map((line) => h("div", {}, line)));
    const left = at[0] > panel.width / 2;
    Object.assign(this.tip.style, {
      left: left ? "" : `${at[0] + 14}px`,
      right: left ? `${panel.width - at[0] + 14}px` : "",
      top: `${Math.max(2, Math.min(at[1] - 10, panel.height - 92))}px`,
    });
  }

  choose(found, event) {
    this.onChoose?.(found, event);
  }

  step(direction, objective, event) {
    this.onStep?.(direction, objective, event);
  }
}
