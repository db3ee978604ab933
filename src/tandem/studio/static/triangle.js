// The preference triangle: a point whose distances to the sides are the weights of the three objectives.

import { h, svg } from "./dom.js";
import { OBJECTIVES, weights, wholePercent } from "./units.js";

const CORNERS = [[120, 22], [16, 176], [224, 176]]; // accuracy, latency, energy
const STEP = 0.02;

export class Triangle {
  /** `onInput(preference, event)` is called with every move, `onRelease(preference)` when the move ends. */
  constructor(host, { onInput, onRelease }) {
    Object.assign(this, { onInput, onRelease });
    this.preference = null;
    this.handle = svg("g", {
      class: "knob",
      role: "slider",
      tabindex: 0,
      testid: "triangle-handle",
      "aria-label": "Preference. Up and down change the weight of accuracy, left moves to latency, right to energy.",
      "aria-valuemin": 0,
      "aria-valuemax": 100,
    });
    this.handle.append(svg("circle", { r: 15, class: "hit" }), svg("circle", { r: 8, class: "dot" }));
    const lines = [0.25, 0.5, 0.75].flatMap((share) =>
      [0, 1, 2].map((o) => {
        // Points where the weight of objective o is `share`.
        const ends = [1, 2].map((d) => mix([0, 1, 2].map((i) => (i === o ? share : i === (o + d) % 3 ? 1 - share : 0))));
        return svg("line", { x1: ends[0][0], y1: ends[0][1], x2: ends[1][0], y2: ends[1][1], class: "grid" });
      }),
    );
    this.area = svg("polygon", { points: CORNERS.map((corner) => corner.join()).join(" "), class: "area" });
    this.drawing = svg(
      "svg",
      { viewBox: "0 0 240 204", class: "triangle", testid: "triangle" },
      this.area,
      ...lines,
      svg("text", { x: 120, y: 13, "text-anchor": "middle" }, "accuracy"),
      svg("text", { x: 4, y: 196 }, "latency"),
      svg("text", { x: 236, y: 196, "text-anchor": "end" }, "energy"),
      this.handle,
    );
    this.inputs = OBJECTIVES.map((objective, o) =>
      h("input", {
        type: "number", min: 0, max: 100, step: 1, testid: `weight-${objective.name}`, id: `weight-${objective.name}`,
        onchange: (event) => this.setWeight(o, Number(event.target.value) / 100, event),
      }),
    );
    host.append(
      this.drawing,
      h("div", { class: "weights" }, ...OBJECTIVES.map((objective, o) =>
        h(
          "label",
          { for: `weight-${objective.name}` },
          objective.name,
          h("span", { class: "field" }, this.inputs[o], "%"),
        ))),
    );
    this.drawing.addEventListener("pointerdown", (event) => this.onDown(event));
    this.handle.addEventListener("keydown", (event) => this.onKey(event));
    this.set(null);
  }

  /** Show a preference; null shows the centre as an empty knob. */
  set(preference) {
    this.preference = preference;
    const shown = preference ?? [1 / 3, 1 / 3, 1 / 3];
    const [x, y] = mix(shown);
    this.handle.setAttribute("transform", `translate(${x} ${y})`);
    this.handle.classList.toggle("unset", preference === null);
    this.handle.setAttribute("aria-valuenow", Math.round(100 * shown[0]));
    this.handle.setAttribute("aria-valuetext", preference ? weights(preference) : "no preference: the knee is picked");
    const rounded = preference ? wholePercent(preference) : null;
    this.inputs.forEach((input, o) => {
      if (document.activeElement !== input || !rounded) input.value = rounded ? rounded[o] : "";
      input.placeholder = "–";
    });
  }

  change(preference, event) {
    this.set(preference);
    this.onInput(preference, event);
  }

  setWeight(o, wanted, event) {
    const weight = Math.min(1, Math.max(0, wanted || 0));
    const before = this.preference ?? [1 / 3, 1 / 3, 1 / 3];
    const rest = 1 - before[o];
    const others = before.map((w) => (rest > 1e-9 ? (w / rest) * (1 - weight) : (1 - weight) / 2));
    others[o] = weight;
    this.change(others, event);
    this.onRelease(others);
  }

  onDown(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.handle.focus({ preventScroll: true });
    this.drawing.setPointerCapture(event.pointerId);
    const move = (moved) => this.change(this.at(moved), moved);
    const up = () => {
      this.drawing.removeEventListener("pointermove", move);
      this.drawing.removeEventListener("pointerup", up);
      this.drawing.removeEventListener("pointercancel", up);
      this.onRelease(this.preference);
    };
    this.drawing.addEventListener("pointermove", move);
    this.drawing.addEventListener("pointerup", up);
    this.drawing.addEventListener("pointercancel", up);
    move(event);
  }

  at(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.drawing.getScreenCTM().inverse());
    return closest(barycentric(point.x, point.y));
  }

  onKey(event) {
    const step = event.shiftKey ? 5 * STEP : STEP;
    const move = {
      ArrowUp: [step, -step / 2, -step / 2],
      ArrowDown: [-step, step / 2, step / 2],
      ArrowLeft: [0, step, -step],
      ArrowRight: [0, -step, step],
    }[event.key];
    if (!move) return;
    event.preventDefault();
    const before = this.preference ?? [1 / 3, 1 / 3, 1 / 3];
    this.change(closest(before.map((w, o) => w + move[o])), event);
    this.onRelease(this.preference);
  }
}

function mix(preference) {
  return [0, 1].map((axis) => preference.reduce((sum, w, o) => sum + w * CORNERS[o][axis], 0));
}

function barycentric(x, y) {
  const [[ax, ay], [bx, by], [cx, cy]] = CORNERS;
  const area = (by - cy) * (ax - cx) + (cx - bx) * (ay - cy);
  const a = ((by - cy) * (x - cx) + (cx - bx) * (y - cy)) / area;
  const b = ((cy - ay) * (x - cx) + (ax - cx) * (y - cy)) / area;
  return [a, b, 1 - a - b];
}

/** Return weights of at least 0 with sum 1. */
function closest(raw) {
  const cut = raw.map((w) => Math.max(0, w));
  const sum = cut[0] + cut[1] + cut[2];
  // Three decimals are what the command shows; the pick and the command then agree.
  const rounded = cut.map((w) => Math.round((1000 * w) / sum) / 1000);
  const largest = rounded.indexOf(Math.max(...rounded));
  rounded[largest] = 1 - rounded.reduce((total, w, o) => (o === largest ? total : total + w), 0);
  return rounded;
}
