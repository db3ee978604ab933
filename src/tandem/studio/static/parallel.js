// Parallel coordinates: a line per policy over several axes. A range on an axis greys out the policies outside it.

import { h } from "./dom.js";
import { Coverage, clearedContext, makeImage, rgb, watchVisible } from "./raster.js";
import { fixed, ticks } from "./units.js";

const TOP = 44;
const BOTTOM = 16;
const SIDE = 74;

export class Parallel {
  /** `axes` is [{name, title, digits}]; `onBrush(event)` is called after a range changed. */
  constructor(host, group, axes, onBrush) {
    Object.assign(this, { host, group, axes, onBrush });
    this.ranges = axes.map(() => null); // [low, high] of the data, or null without a range
    host.classList.add("panel", "parallel");
    this.lines = h("canvas", { "aria-hidden": "true" });
    this.base = h("canvas", { "aria-hidden": "true" });
    this.overlay = h(
      "canvas",
      { role: "img", "aria-label": `Parallel coordinates of ${axes.map((axis) => axis.name).join(", ")}` },
    );
    host.append(this.lines, this.base, this.overlay);
    this.handles = axes.map((axis, a) => [this.makeHandle(axis, a, 0), this.makeHandle(axis, a, 1)]);
    host.append(...this.handles.flat());
    this.overlay.addEventListener("pointerdown", (event) => this.onDown(event));
    this.overlay.addEventListener("pointermove", (event) => {
      this.overlay.style.cursor = this.axisAt(this.position(event)[0]) >= 0 ? "crosshair" : "";
    });
    this.overlay.addEventListener("dblclick", (event) => this.clear(this.axisAt(this.position(event)[0]), event));
    new ResizeObserver(() => this.resize()).observe(host);
    this.watch = watchVisible(host, () => this.stale && this.draw(true, true));
  }

  makeHandle(axis, a, end) {
    const handle = h("div", {
      class: "handle",
      role: "slider",
      tabindex: 0,
      "aria-orientation": "vertical",
      "aria-label": `${axis.title}: ${end ? "upper" : "lower"} end of the range`,
      testid: `brush-${axis.name}-${end ? "high" : "low"}`,
    });
    handle.addEventListener("keydown", (event) => {
      const [low, high] = this.domain[a];
      const step = (event.shiftKey ? 0.1 : 0.02) * (high - low);
      const move = { ArrowUp: step, ArrowDown: -step, PageUp: 5 * step, PageDown: -5 * step }[event.key];
      if (event.key === "Escape" || event.key === "Delete") return this.clear(a, event);
      if (!move) return;
      event.preventDefault();
      const range = [...(this.ranges[a] ?? [low, high])];
      range[end] = end ? Math.max(
        range[0],
        Math.min(high, range[1] + move),
      ) : Math.min(range[1], Math.max(low, range[0] + move));
      this.setRange(a, range, event);
    });
    handle.addEventListener("pointerdown", (event) => this.dragEnd(event, a, end));
    return handle;
  }

  /** Set the values: per layer one column per axis, in the order of the axes. */
  setData(columns) {
    this.columns = columns;
    this.domain = this.axes.map((axis, a) => {
      let [low, high] = [Infinity, -Infinity];
      for (const layer of columns) {
        for (const value of layer[a]) {
          if (value === null) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
      if (!(low <= high)) return [0, 1];
      if (low === high) return low > 0 ? [0, 2 * low] : [low, low + 1];
      return [low, high];
    });
  }

  /** Whether policy k of a layer is inside all ranges. */
  inside(layer, k) {
    for (let a = 0; a < this.ranges.length; a++) {
      const range = this.ranges[a];
      if (!range) continue;
      const value = this.columns[layer][a][k];
      if (value === null || value < range[0] || value > range[1]) return false;
    }
    return true;
  }

  active() {
    return this.ranges.some((range) => range !== null);
  }

  clear(a, event) {
    if (a < 0) return;
    this.ranges[a] = null;
    this.onBrush(event);
  }

  clearAll(event) {
    this.ranges.fill(null);
    this.onBrush(event);
  }

  setRange(a, range, event) {
    const [low, high] = this.domain[a];
    // A range over the whole axis is none; policies without a value then pass again.
    this.ranges[a] = range[0] <= low && range[1] >= high ? null : range;
    this.onBrush(event);
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.host;
    const ratio = window.devicePixelRatio || 1;
    if (!width || (this.width === width && this.height === height && this.ratio === ratio)) return;
    Object.assign(this, { width, height, ratio });
    for (const canvas of [this.lines, this.base, this.overlay]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.image = makeImage(this.lines.width, this.lines.height);
    this.coverage = new Coverage(this.lines.width, this.lines.height);
    this.draw();
  }

  x(a) {
    return SIDE + (a * (this.width - 2 * SIDE)) / (this.axes.length - 1);
  }

  y(a, value) {
    const [low, high] = this.domain[a];
    return this.height - BOTTOM - ((value - low) / (high - low)) * (this.height - TOP - BOTTOM);
  }

  value(a, y) {
    const [low, high] = this.domain[a];
    const share = (this.height - BOTTOM - y) / (this.height - TOP - BOTTOM);
    return low + Math.min(1, Math.max(0, share)) * (high - low);
  }

  context(canvas) {
    return clearedContext(canvas, this);
  }

  /** Add the line of one policy to the path. Values that are not known leave a gap. */
  trace(context, columns, k) {
    let pen = false;
    for (let a = 0; a < this.axes.length; a++) {
      const value = columns[a][k];
      if (value === null) pen = false;
      else if (pen) context.lineTo(this.xs[a], this.y(a, value));
      else {
        context.moveTo(this.xs[a], this.y(a, value));
        pen = true;
      }
    }
  }

  /** Draw everything; without `moved`, only the lines and marks. */
  draw(moved = true, hidden = false) {
    const { model } = this.group;
    if (!this.width || !this.columns || !model || this.waits(hidden)) return;
    this.xs = this.axes.map((_, a) => this.x(a));
    this.drawLines(model);
    if (moved) this.drawAxes(this.context(this.base));
    this.drawOverlay(true);
  }

  /** Whether drawing is put off, since the panel is scrolled away. */
  waits(hidden) {
    this.stale = !hidden && !this.watch.isVisible();
    if (this.stale) this.watch.later();
    return this.stale;
  }

  drawLines({ layers }) {
    const { image, coverage } = this;
    const number = layers.reduce((sum, layer) => sum + layer.ok.length, 0);
    const alpha = number > 1000 ? 0.12 : number > 300 ? 0.25 : 0.5;
    const order = this.group.order();
    image.packed.fill(0);
    coverage.clear();
    for (const l of order) this.cover(layers[l], l, 0);
    coverage.paint(image, rgb(this.group.colours.grey), 0.4 * alpha);
    for (const l of order) {
      coverage.clear();
      this.cover(layers[l], l, 1);
      coverage.paint(image, rgb(layers[l].colour), alpha);
    }
    this.lines.getContext("2d").putImageData(image.image, 0, 0);
  }

  /** Count the lines of a layer that pass (1) or fail (0). */
  cover({ ok }, l, pass) {
    const columns = this.columns[l];
    const { ratio, coverage } = this;
    for (let a = 1; a < this.axes.length; a++) {
      const [x0, x1] = [this.xs[a - 1] * ratio, this.xs[a] * ratio];
      const [left, right] = [columns[a - 1], columns[a]];
      for (let k = 0; k < ok.length; k++) {
        if (ok[k] !== pass || left[k] === null || right[k] === null) continue;
        coverage.line(x0, this.y(a - 1, left[k]) * ratio, x1, this.y(a, right[k]) * ratio);
      }
    }
  }

  drawAxes(context) {
    const { colours } = this.group;
    context.textBaseline = "middle";
    this.axes.forEach((axis, a) => {
      const x = this.xs[a];
      context.strokeStyle = colours.muted;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, TOP);
      context.lineTo(x, this.height - BOTTOM);
      context.stroke();
      context.textAlign = "center";
      context.fillStyle = colours.ink;
      // Name and unit below each other: beside each other, the titles of neighbours would touch.
      const [name, unit] = axis.title.split(" (");
      context.fillText(name, x, 10);
      context.fillStyle = colours.muted;
      context.fillText(`(${unit}`, x, 25);
      context.textAlign = "right";
      const { values, digits } = ticks(this.domain[a], 4);
      for (const value of values) {
        const y = this.y(a, value);
        const text = fixed(value, Math.max(digits, 0));
        const width = context.measureText(text).width;
        context.fillStyle = colours.panel;
        context.globalAlpha = 0.8;
        context.fillRect(x - 9 - width, y - 7, width + 3, 14);
        context.globalAlpha = 1;
        context.fillStyle = colours.ink;
        context.fillText(text, x - 7, y);
        context.fillRect(x - 4, y - 0.5, 4, 1);
      }
    });
  }

  drawOverlay(hidden = false) {
    const { model, colours } = this.group;
    if (!this.width || !this.columns || !model || this.waits(hidden)) return;
    const context = this.context(this.overlay);
    for (const [mark, width, dash] of [
      [model.hovered, 1.5, []], [model.picked, 2, [5, 4]], [model.selected, 2.5, []],
    ]) {
      if (!mark || !this.columns[mark.layer]) continue;
      context.beginPath();
      this.trace(context, this.columns[mark.layer], mark.k);
      context.lineWidth = width + 2;
      context.strokeStyle = colours.panel;
      context.stroke();
      context.setLineDash(dash);
      context.lineWidth = width;
      context.strokeStyle = colours.mark;
      context.stroke();
      context.setLineDash([]);
    }
    this.placeHandles(context);
  }

  placeHandles(context) {
    const { colours } = this.group;
    this.axes.forEach((axis, a) => {
      const range = this.ranges[a] ?? this.domain[a];
      const ends = range.map((value) => this.y(a, value));
      if (this.ranges[a]) {
        context.fillStyle = colours.accent;
        context.globalAlpha = 0.3;
        context.fillRect(this.x(a) - 6, ends[1], 12, ends[0] - ends[1]);
        context.globalAlpha = 1;
      }
      this.handles[a].forEach((handle, end) => {
        handle.style.transform = `translate(${this.x(a) - 9}px, ${ends[end] - 5}px)`;
        handle.classList.toggle("set", this.ranges[a] !== null);
        handle.setAttribute("aria-valuemin", this.domain[a][0].toFixed(axis.digits));
        handle.setAttribute("aria-valuemax", this.domain[a][1].toFixed(axis.digits));
        handle.setAttribute("aria-valuenow", range[end].toFixed(axis.digits));
      });
    });
  }

  position(event) {
    const box = this.overlay.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  axisAt(x) {
    return this.axes.findIndex((_, a) => Math.abs(this.x(a) - x) < 16);
  }

  onDown(event) {
    const [x, y] = this.position(event);
    const a = this.axisAt(x);
    if (a < 0 || event.button !== 0) return;
    const from = this.value(a, y);
    this.drag(event, this.overlay, (moved) => {
      const to = this.value(a, this.position(moved)[1]);
      if (Math.abs(this.y(a, to) - this.y(a, from)) > 3) this.setRange(
        a,
        [Math.min(from, to), Math.max(from, to)],
        moved,
      );
    });
  }

  dragEnd(event, a, end) {
    this.drag(event, event.currentTarget, (moved) => {
      const range = [...(this.ranges[a] ?? this.domain[a])];
      range[end] = this.value(a, this.position(moved)[1]);
      if (range[0] <= range[1]) this.setRange(a, range, moved);
    });
  }

  drag(event, element, move) {
    element.setPointerCapture(event.pointerId);
    const up = () => {
      element.removeEventListener("pointermove", move);
      element.removeEventListener("pointerup", up);
      element.removeEventListener("pointercancel", up);
    };
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerup", up);
    element.addEventListener("pointercancel", up);
  }
}
