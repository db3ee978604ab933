// View 1: the fronts of one or several runs, limits, a preference, and the policy that they pick.

import { api } from "./api.js";
import { clearProblem, debounce, h, latestOnly, markReady, measureInteraction, oncePerFrame, setText, showProblem } from "./dom.js";
import { runStyle } from "./palette.js";
import { Group, Projection, Space } from "./panel.js";
import { Parallel } from "./parallel.js";
import { finished, front, listen, place, select, state, writeAddress } from "./state.js";
import { symbolIcon } from "./runs.js";
import { TakeAway } from "./takeaway.js";
import { Triangle } from "./triangle.js";
import { LIMITS, OBJECTIVES, count, fixed, interval, percent, seconds } from "./units.js";

const AXES = [
  ...OBJECTIVES.map(({ key, name, title, digits }) => ({ key, name, title, digits })),
  { key: "violation_rate", name: "violations", title: "violations (% of rounds)", digits: 2, scale: 100 },
  { key: "discarded_share", name: "discarded", title: "discarded (% of samples)", digits: 2, scale: 100 },
];

export function create(root, go) {
  return new Front(root, go);
}

class Front {
  constructor(root, go) {
    this.root = root;
    this.go = go;
    this.empty = h("p", { class: "empty", testid: "front-empty", hidden: true });
    this.group = new Group({
      onChoose: (found, event) => this.choose(found, event),
      onStep: (direction, objective, event) => this.step(direction, objective, event),
      tooltip: (layer, k) => this.tooltip(layer, k),
    });
    this.build();
    this.redraw = oncePerFrame(() => this.draw(false));
    this.redrawLater = debounce(() => this.redraw(), 120);
    this.redrawMarks = oncePerFrame(() => this.drawMarks());
    this.pick = latestOnly((started) => this.requestPick(started));
    this.evaluate = latestOnly((preference) => this.requestEvaluation(preference));
    this.evaluateSoon = debounce((preference) => this.evaluate(preference), 200);
    listen("shown", () => this.visible && this.load());
    listen("selection", () => this.visible && this.onSelection());
    listen("theme", () => this.onTheme());
    listen("server", () => this.takeAway.refresh());
  }

  build() {
    const panel = (name, testid, hint) => {
      const host = h("div", { testid });
      return [
        h(
          "figure",
          { class: "card plot" },
          h("figcaption", {}, h("b", {}, name), h("span", { class: "hint" }, hint)),
          host,
        ),
        host,
      ];
    };
    const [space, spaceHost] = panel("All three objectives", "plot-space", "drag to rotate");
    const plots = [
      ["Accuracy and latency", 1, 0], ["Accuracy and energy", 2, 0], ["Latency and energy", 2, 1],
    ].map(([name, x, y]) => {
      const [figure, host] = panel(name, `plot-${OBJECTIVES[y].name}-${OBJECTIVES[x].name}`, "drag to zoom");
      return { figure, host, x, y };
    });
    this.space = new Space(spaceHost, this.group);
    this.projections = plots.map(({ host, x, y }) => new Projection(host, this.group, x, y));

    const [parallelFigure, parallelHost] = panel(
      "Parallel coordinates",
      "plot-parallel",
      "drag along an axis to keep a range",
    );
    parallelFigure.classList.add("wide");
    this.parallel = new Parallel(parallelHost, this.group, AXES, (event) => this.onFilter(event, false));
    parallelFigure.querySelector("figcaption").append(
      h(
        "button",
        {
          type: "button", class: "quiet small", testid: "brush-clear",
          onclick: (event) => this.parallel.clearAll(event),
        },
        "Remove all ranges",
      ),
    );

    this.takeAway = new TakeAway(this);
    this.table = h("tbody", {});
    this.tableNote = h("p", { class: "muted", testid: "compare-note" });
    const head = ["Run", "Hypervolume (s·J)", "Share of best known", "Sparsity", "Policies (counted)", "Within limits"];
    this.content = h(
      "div",
      { class: "front" },
      h("div", { class: "plots" }, space, ...plots.map(({ figure }) => figure), parallelFigure),
      h(
        "div",
        { class: "controls" },
        this.buildLimits(),
        this.buildPreference(),
        this.buildPolicy(),
        this.takeAway.element,
      ),
      h("section", { class: "card wide", "aria-labelledby": "compare-title" },
        h("h2", { id: "compare-title" }, "Runs over each other"),
        h(
          "div",
          { class: "scroll" },
          h(
            "table",
            { testid: "compare" },
            h(
              "thead",
              {},
              h("tr", {}, ...head.map((text, k) => h("th", { scope: "col", class: k > 0 ? "number" : null }, text))),
            ),
            this.table,
          ),
        ),
        this.tableNote),
    );
    this.root.append(this.empty, this.content);
  }

  buildLimits() {
    this.within = h("p", { class: "muted", testid: "within", "aria-live": "polite" }, "\u00a0");
    this.limits = LIMITS.map((limit) => {
      const slider = h(
        "input",
        {
          type: "range", min: 0, max: 1000, step: 1, testid: limit.testid,
          "aria-label": `${limit.label} (${limit.unit})`,
        },
      );
      const number = h(
        "input",
        {
          type: "number",
          step: "any",
          placeholder: "none",
          testid: `${limit.testid}-number`,
          "aria-label": `${limit.label}, as a number (${limit.unit})`,
        },
      );
      slider.addEventListener("input", (event) => {
        const [low, high] = this.group.model.ranges[limit.objective];
        const share = slider.value / 1000;
        // The loose end of the slider means no limit.
        const loose = limit.sign > 0 ? share <= 0 : share >= 1;
        const digits = OBJECTIVES[limit.objective].digits;
        state.limits[limit.key] = loose ? null : Number((low + share * (high - low)).toFixed(digits));
        this.showLimit(limit.key, slider);
        this.onFilter(event, true);
      });
      number.addEventListener("input", (event) => {
        const value = number.value.trim() === "" ? null : Number(number.value);
        if (value !== null && !Number.isFinite(value)) return;
        state.limits[limit.key] = value;
        this.showLimit(limit.key, number);
        this.onFilter(event, true);
      });
      return { ...limit, slider, number };
    });
    return h("section", { class: "card", "aria-labelledby": "limits-title" },
      h("div", { class: "row" }, h("h2", { id: "limits-title" }, "Limits"),
        h(
          "button",
          { type: "button", class: "quiet small", testid: "limits-clear", onclick: (event) => this.clearLimits(event) },
          "Remove",
        )),
      ...this.limits.map(({ label, short, unit, slider, number }) =>
        h(
          "div",
          { class: "limit", title: label },
          h("span", { "aria-hidden": "true" }, short),
          slider,
          number,
          h("span", { class: "unit" }, unit),
        )),
      this.within);
  }

  buildPreference() {
    this.activeSelect = h(
      "select",
      {
        testid: "active-run",
        "aria-label": "Run to pick from",
        onchange: (event) => this.setActive(event.target.value, event),
      },
    );
    const host = h("div", {});
    this.triangle = new Triangle(host, {
      onInput: (preference, event) => this.onPreference(preference, event),
      onRelease: (preference) => this.onRelease(preference),
    });
    this.jumps = [
      ["knee", "Knee"], ["highest accuracy", "accuracy"], ["lowest latency", "latency"], ["lowest energy", "energy"],
    ].map(([name, text]) =>
      h(
        "button",
        {
          type: "button",
          class: "small",
          title: `Select the policy: ${name}`,
          "aria-label": name === "knee" ? null : `Best ${text}`,
          testid: `jump-${name.replace(" ", "-")}`,
          onclick: (event) => this.jump(name, event),
        },
        text,
      ));
    this.jumps[0].dataset.testid = "knee";
    return h("section", { class: "card", "aria-labelledby": "preference-title" },
      h("div", { class: "row" }, h("h2", { id: "preference-title" }, "Preference"), this.activeSelect),
      host,
      h(
        "div",
        { class: "row jumps" },
        this.jumps[0],
        h("span", { class: "muted", "aria-hidden": "true" }, "Best"),
        ...this.jumps.slice(1),
      ));
  }

  buildPolicy() {
    this.pickResult = h("p", { class: "pick", testid: "pick-result", "aria-live": "polite" }, "\u00a0");
    this.policyTitle = h("h2", { testid: "selected-policy" }, "No policy selected");
    this.values = OBJECTIVES.map((objective) => h("dd", { testid: `selected-${objective.key}` }, "–"));
    this.violations = h("dd", { testid: "selected-violation_rate" }, "–");
    this.evaluated = h("p", { class: "evaluated", testid: "evaluated", "aria-live": "polite" });
    this.open = h(
      "button",
      { type: "button", class: "primary", testid: "open-policy", disabled: true, onclick: () => this.go("policy") },
      "Open policy",
    );
    this.use = h(
      "button",
      { type: "button", testid: "use-policy", onclick: () => this.takeAway.usePolicy() },
      "Use this policy",
    );
    return h("section", { class: "card policy-card" }, this.policyTitle, this.pickResult,
      h(
        "dl",
        {},
        ...OBJECTIVES.flatMap((objective, o) => [h("dt", {}, objective.name), this.values[o]]),
        h("dt", {}, "violations"),
        this.violations,
      ),
      this.evaluated, h("div", { class: "row" }, this.open, this.use));
  }

  // --- data ---

  async show() {
    this.visible = true;
    if (!state.session) return;
    await this.load();
  }

  hide() {
    this.visible = false;
  }

  /** Read the fronts to show, build the model and draw it. */
  async load() {
    const ids = finished().map((run) => run.id).filter((id) => state.shown.has(id));
    const answers = await Promise.allSettled(ids.map(front));
    const problems = answers.filter((answer) => answer.status === "rejected").map((answer) => answer.reason.message);
    if (problems.length) showProblem(problems.join(" "), "front");
    else clearProblem("front");
    const fronts = answers.filter((answer) => answer.status === "fulfilled").map((answer) => answer.value).filter((answer) => answer.policies.index.length);
    this.content.hidden = !fronts.length;
    this.empty.hidden = fronts.length > 0;
    if (!fronts.length) {
      setText(this.empty, this.emptySentence());
      this.group.model = null;
      return markReady("front");
    }
    const before = this.group.model;
    const layers = fronts.map((answer) => ({
      id: answer.id, name: answer.name, front: answer, ...runStyle(answer.id),
      columns: OBJECTIVES.map(({ key }) => answer.policies[key]),
      index: answer.policies.index, ok: new Uint8Array(answer.policies.index.length),
    }));
    const scenarios = new Set(fronts.map((answer) => answer.scenario));
    const reference = [...scenarios].flatMap((scenario) => fronts.find((answer) => answer.scenario === scenario && answer.best_known)?.best_known.points ?? []);
    this.group.setModel(
      {
        layers, reference, ranges: ranges(layers, reference), limits: [null, null, null], active: null, selected: null,
        picked: null, hovered: null, evaluated: before?.evaluated ?? null,
      },
    );
    this.parallel.setData(layers.map(({ front: answer }) => AXES.map(({ key, scale }) => (scale ? answer.policies[key].map((value) => (value === null ? null : scale * value)) : answer.policies[key]))));
    this.fillActive(layers);
    this.fillTable(layers);
    for (const limit of LIMITS) this.showLimit(limit.key);
    this.triangle.set(state.preference);
    this.filter();
    this.draw(true, true);
    const chosen = state.selection && layers.some((layer) => layer.id === state.selection.run);
    this.onSelection();
    await this.requestPick(null, !chosen);
    markReady("front");
  }

  emptySentence() {
    if (finished().length) return "No run is shown. Check one or several runs in the list of runs.";
    if (state.session.runs.some((run) => run.status === "training")) return "No run is finished yet. See the view Training for the one that is training.";
    return "There is no finished run. Start a training in the view Scenario, or run 'tandem train paper --preset quick --out runs/demo' and open 'tandem studio runs/demo'.";
  }

  fillActive(layers) {
    if (!layers.some((layer) => layer.id === state.active)) state.active = layers[0].id;
    this.activeSelect.replaceChildren(...layers.map((layer) => h(
      "option",
      { value: layer.id, selected: layer.id === state.active },
      layer.name,
    )));
    this.takeAway.refresh();
  }

  fillTable(layers) {
    this.table.replaceChildren(...layers.map((layer) => {
      const { front: answer } = layer;
      const best = answer.best_known?.hypervolume;
      layer.withinCell = h("td", { class: "number" });
      return h("tr", { testid: `compare-${layer.id}` },
        h(
          "th",
          { scope: "row" },
          symbolIcon(layer.id),
          layer.name,
          h("span", { class: "what" }, `${answer.algorithm}, ${answer.scenario}, ${answer.devices} devices`),
        ),
        h("td", { class: "number" }, fixed(answer.hypervolume, 2)),
        h("td", { class: "number" }, best ? percent(answer.hypervolume / best) : "not known"),
        h("td", { class: "number" }, fixed(answer.sparsity, 3)),
        h("td", { class: "number" }, `${count(layer.index.length)} (${count(answer.cardinality)})`),
        layer.withinCell);
    }));
    const points = new Set(layers.map(({ front: answer }) => answer.reference.join()));
    const [a, l, e] = layers[0].front.reference;
    const known = layers.some(({ front: answer }) => answer.best_known);
    setText(this.tableNote, points.size > 1
      ? "These runs have different reference points, so their hypervolumes cannot be compared."
      : `Reference point of the hypervolume: accuracy ${fixed(a, 2)}, latency ${fixed(l, 1)} s, energy ${fixed(e, 1)} J. Counted are the non-dominated policies within the tolerated violation rate.${known ? " Small grey dots: the best known front of the scenario." : ""}`);
  }

  layer(id) {
    return this.group.model?.layers.findIndex((layer) => layer.id === id) ?? -1;
  }

  mark(run, index) {
    const layer = this.layer(run);
    if (layer < 0) return null;
    const k = place(this.group.model.layers[layer].front, index);
    return k < 0 ? null : { layer, k };
  }

  tooltip(l, k) {
    const layer = this.group.model.layers[l];
    const p = layer.front.policies;
    return [
      `policy ${p.index[k]} of ${layer.name}`,
      ...OBJECTIVES.map(({ key, name }, o) => `${name} ${interval(o, p[key][k], p[`${key}_half_width`]?.[k])}`),
      `violations ${percent(p.violation_rate[k], 2)} of rounds`,
    ];
  }

  // --- drawing ---

  /** Decide which policies pass the limits and the ranges. */
  filter() {
    const { model } = this.group;
    const { min_accuracy, max_latency_s, max_energy_j } = state.limits;
    const [a0, l1, e1] = [min_accuracy ?? -Infinity, max_latency_s ?? Infinity, max_energy_j ?? Infinity];
    model.limits = [min_accuracy, max_latency_s, max_energy_j];
    model.active = state.active;
    const brushed = this.parallel.active();
    let passing = 0;
    let all = 0;
    model.layers.forEach((layer, l) => {
      const [a, la, e] = layer.columns;
      let own = 0;
      for (let k = 0; k < a.length; k++) {
        const passes = a[k] >= a0 && la[k] <= l1 && e[k] <= e1 && (!brushed || this.parallel.inside(l, k));
        layer.ok[k] = passes ? 1 : 0;
        own += layer.ok[k];
      }
      setText(layer.withinCell, count(own));
      passing += own;
      all += a.length;
    });
    setText(
      this.within,
      `${count(passing)} of ${count(all)} policies within the ${brushed ? "limits and ranges" : "limits"}`,
    );
  }

  draw(moved = true, hidden = false) {
    if (!this.group.model) return;
    this.group.draw(moved, hidden);
    this.parallel.draw(moved, hidden);
  }

  drawMarks() {
    if (!this.group.model) return;
    this.group.drawOverlays();
    this.parallel.drawOverlay();
  }

  onTheme() {
    this.group.applyTheme();
    if (!this.group.model) return;
    for (const layer of this.group.model.layers) Object.assign(layer, runStyle(layer.id));
    this.group.setModel(this.group.model);
    this.fillTable(this.group.model.layers);
    this.filter();
    this.draw();
  }

  // --- input ---

  showLimit(key, source = null) {
    const { slider, number, objective, sign, unit } = this.limits.find((limit) => limit.key === key);
    const value = state.limits[key];
    const [low, high] = this.group.model.ranges[objective];
    const share = value === null ? (sign > 0 ? 0 : 1) : (value - low) / (high - low);
    if (source !== slider) slider.value = Math.round(1000 * share);
    if (source !== number) number.value = value === null ? "" : value;
    slider.setAttribute("aria-valuetext", value === null ? "no limit" : `${value} ${unit}`);
  }

  clearLimits(event) {
    for (const { key } of LIMITS) {
      state.limits[key] = null;
      this.showLimit(key);
    }
    this.onFilter(event, true);
  }

  /** Limits or ranges changed: grey out, and pick again if the limits did. */
  onFilter(event, limitsChanged) {
    if (!this.group.model) return;
    measureInteraction(event);
    this.filter();
    this.redraw();
    if (!limitsChanged) return;
    writeAddress();
    this.pick(event?.timeStamp);
  }

  onPreference(preference, event) {
    state.preference = preference;
    measureInteraction(event);
    this.group.model.evaluated = null;
    this.evaluateSoon.cancel();
    setText(this.evaluated, this.activeFront()?.conditioned ? "Release to evaluate this preference on the spot." : "");
    this.redrawMarks();
    writeAddress();
    this.pick(event?.timeStamp);
  }

  onRelease(preference) {
    if (this.activeFront()?.conditioned && preference) this.evaluateSoon(preference);
  }

  setActive(id, event) {
    state.active = id;
    this.group.model.active = id;
    this.group.model.evaluated = null;
    this.redraw();
    this.evaluated.textContent = "";
    if (event) measureInteraction(event);
    this.takeAway.refresh();
    this.pick(event?.timeStamp);
    this.onRelease(state.preference);
  }

  jump(name, event) {
    measureInteraction(event);
    if (name === "knee") {
      state.preference = null;
      this.triangle.set(null);
      this.group.model.evaluated = null;
      this.evaluated.textContent = "";
      this.pick(event.timeStamp);
      return;
    }
    const answer = this.activeFront();
    const index = answer?.landmarks[name];
    if (index !== undefined) select(answer.id, index);
  }

  choose({ layer, k }, event) {
    measureInteraction(event);
    const { id, index } = this.group.model.layers[layer];
    // The run of a selected policy becomes the one to pick from, so that the page speaks of one run.
    if (state.active !== id) {
      state.active = id;
      this.group.model.active = id;
      this.group.model.evaluated = null;
      this.evaluated.textContent = "";
      this.redrawLater(); // the order of the runs is less urgent than the mark
      this.activeSelect.value = id;
      this.group.model.picked = null;
      this.pickedIndex = null;
      this.takeAway.refresh();
      this.requestPick(null, false);
    }
    select(id, index[k]);
  }

  step(direction, objective, event) {
    const layer = this.layer(state.active);
    if (layer < 0) return;
    const { columns, ok } = this.group.model.layers[layer];
    const order = [...columns[objective].keys()].filter((k) => ok[k]).sort((p, q) => columns[objective][p] - columns[objective][q]);
    if (!order.length) return;
    const selected = this.group.model.selected;
    const at = selected?.layer === layer ? order.indexOf(selected.k) : -1;
    const next = Math.min(order.length - 1, Math.max(0, at + direction));
    this.choose({ layer, k: order[next] }, event);
  }

  // --- requests ---

  activeFront() {
    return state.fronts.get(state.active);
  }

  wanted() {
    return { preference: state.preference, ...state.limits };
  }

  async requestPick(started, selects = true) {
    const id = state.active;
    if (this.layer(id) < 0) return;
    let answer;
    try {
      answer = await api.pick(id, this.wanted());
    } catch (error) {
      if (this.layer(id) < 0) return;
      this.group.model.picked = null;
      this.pickedIndex = null;
      setText(this.pickResult, error.message);
      this.pickResult.classList.add("problem");
      this.takeAway.setCommand(null);
      this.redrawMarks();
      return;
    }
    if (id !== state.active || this.layer(id) < 0) return;
    this.pickedIndex = answer.index;
    this.pickResult.classList.remove("problem");
    this.group.model.picked = this.mark(id, answer.index);
    // The reason of the command line usually names the policy already.
    const named = answer.reason.toLowerCase().includes(`policy ${answer.index} `);
    setText(this.pickResult, named ? `Picked: ${answer.reason}` : `Picked: policy ${answer.index}. ${answer.reason}`);
    this.takeAway.setCommand(answer.command);
    if (selects) select(id, answer.index);
    else this.onSelection();
    if (started) requestAnimationFrame(() => (window.studioLastPickMs = performance.now() - started));
  }

  async requestEvaluation(preference) {
    const id = state.active;
    setText(this.evaluated, "Evaluating this preference. The first time takes a few seconds ...");
    this.evaluated.classList.add("busy");
    let sentence = "";
    try {
      const answer = await api.evaluate(id, preference);
      if (id === state.active && preference === state.preference && this.group.model) {
        this.group.model.evaluated = answer;
        sentence = `★ On the spot: ${OBJECTIVES.map(({ name }, o) => `${name} ${interval(o, answer.objectives[o], answer.half_width?.[o])}`).join(", ")}; ${answer.seeds} seeds, ${seconds(answer.wall_s)}.`;
      }
    } catch (error) {
      sentence = error.message;
    }
    this.evaluated.classList.remove("busy");
    setText(this.evaluated, sentence);
    this.redrawMarks();
  }

  onSelection() {
    if (!this.group.model) return;
    const { selection } = state;
    const mark = selection && this.mark(selection.run, selection.index);
    this.group.model.selected = mark;
    this.open.disabled = !mark;
    if (mark) {
      const { front: answer, name } = this.group.model.layers[mark.layer];
      const p = answer.policies;
      setText(this.policyTitle, `Policy ${selection.index} of ${name}`);
      this.values.forEach((cell, o) => setText(
        cell,
        interval(o, p[OBJECTIVES[o].key][mark.k], p[`${OBJECTIVES[o].key}_half_width`]?.[mark.k]),
      ));
      setText(
        this.violations,
        `${percent(p.violation_rate[mark.k], 2)} of rounds${p.within_tolerance[mark.k] ? "" : `, over the tolerance of ${percent(answer.tolerance)}`}`,
      );
    } else {
      setText(this.policyTitle, "No policy selected");
      for (const cell of [...this.values, this.violations]) setText(cell, "–");
    }
    this.takeAway.showSelection();
    this.redrawMarks();
  }
}

/** The range of each objective over everything that is drawn, with a margin. */
function ranges(layers, reference) {
  return OBJECTIVES.map((objective, o) => {
    let [low, high] = [Infinity, -Infinity];
    const take = (value) => {
      if (value < low) low = value;
      if (value > high) high = value;
    };
    for (const { columns } of layers) columns[o].forEach(take);
    for (const point of reference) take(point[o]);
    const margin = 0.04 * (high - low) || 0.05 * Math.abs(high) || 0.5;
    return [low - margin, high + margin];
  });
}
