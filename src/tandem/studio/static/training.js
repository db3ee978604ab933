// View 4: a training while it runs: hypervolume over rounds, and the points of its growing front.

import { api } from "./api.js";
import { announce, clearProblem, confirmDialog, h, markReady, setCommand, setText, showProblem } from "./dom.js";
import { drawFigure } from "./figures.js";
import { runStyle } from "./palette.js";
import { Group, Projection } from "./panel.js";
import { listen, runById, runs, state } from "./state.js";
import { OBJECTIVES, count, fixed, percent, seconds } from "./units.js";

const POLL_MS = 1000;

export function create(root, go) {
  return new Training(root, go);
}

class Training {
  constructor(root, go) {
    this.go = go;
    this.choice = h("select", { testid: "training-run", onchange: () => this.open(this.choice.value) });
    this.status = h("p", { class: "training-status", testid: "training-status", "aria-live": "polite" });
    this.message = h("p", { class: "muted training-message", testid: "training-message" });
    this.command = h("code", { testid: "training-command" });
    this.commandBox = h("div", { class: "command", hidden: true }, this.command);
    this.cancel = h(
      "button",
      { type: "button", testid: "cancel", hidden: true, onclick: () => this.requestCancel() },
      "Cancel training",
    );
    this.front = h(
      "button",
      { type: "button", class: "primary", testid: "open-front", hidden: true, onclick: () => this.openFront() },
      "Open front",
    );
    this.fill = h("i", {});
    this.progress = h(
      "div",
      {
        class: "progress", role: "progressbar", "aria-label": "Progress of the training", "aria-valuemin": 0,
        "aria-valuemax": 100, testid: "training-progress",
      },
      this.fill,
    );
    this.hypervolume = h(
      "div",
      { class: "chart", testid: "training-hypervolume", role: "img", "aria-label": "Hypervolume over rounds" },
    );
    this.group = new Group({ tooltip: (layer, k) => this.tooltip(k) });
    this.hints = [];
    const figures = [
      ["Accuracy and latency", 1, 0], ["Accuracy and energy", 2, 0], ["Latency and energy", 2, 1],
    ].map(([name, x, y]) => {
      const host = h("div", { testid: `training-${OBJECTIVES[y].name}-${OBJECTIVES[x].name}` });
      new Projection(host, this.group, x, y);
      const hint = h("span", { class: "hint" });
      this.hints.push(hint);
      return h("figure", { class: "card plot" }, h("figcaption", {}, h("b", {}, name), hint), host);
    });
    this.empty = h("p", { class: "empty", testid: "training-empty", hidden: true });
    this.content = h("div", {},
      h(
        "section",
        { class: "card" },
        h("div", { class: "row wrap" }, h("h2", {}, "Training"), this.choice, this.cancel, this.front),
        this.progress,
        this.status,
        this.message,
        this.commandBox,
      ),
      h(
        "div",
        { class: "training-grid" },
        h(
          "figure",
          { class: "card plot" },
          h("figcaption", {}, h("b", {}, "Hypervolume"), h("span", { class: "hint" }, "of the sampled policies")),
          this.hypervolume,
        ),
        ...figures,
      ));
    root.append(this.empty, this.content);
    listen("session", () => this.visible && this.fillChoice());
    listen("theme", () => this.onTheme());
  }

  async show({ run, command } = {}) {
    this.visible = true;
    if (command) {
      this.commandBox.hidden = false;
      setCommand(this.command, command);
    }
    if (run !== undefined) this.run = run;
    this.fillChoice();
    if (!this.run) return markReady("training");
    await this.open(this.run);
  }

  hide() {
    this.visible = false;
    clearTimeout(this.timer);
  }

  fillChoice() {
    const known = runs().filter((run) => run.status !== "broken");
    // A training that has just started may not be in the list yet; its id is known.
    if (!this.run) this.run = (known.find((run) => run.status === "training") ?? known.find((run) => run.status === "unfinished") ?? known.at(-1))?.id;
    const none = !this.run;
    this.empty.hidden = !none;
    this.content.hidden = none;
    if (none) setText(
      this.empty,
      "No training runs. Start one in the view Scenario, or with 'tandem train paper --preset quick' in a terminal.",
    );
    const options = known.map((run) => h(
      "option",
      { value: run.id, selected: run.id === this.run },
      `${run.name} (${run.status})`,
    ));
    if (this.run && !known.some((run) => run.id === this.run)) options.unshift(
      h("option", { value: this.run, selected: true }, "new training"),
    );
    if (options.map((option) => option.textContent + option.selected).join() === this.options) return;
    this.options = options.map((option) => option.textContent + option.selected).join();
    this.choice.replaceChildren(...options);
  }

  async open(id) {
    this.run = id;
    const call = (this.call = {});
    clearTimeout(this.timer);
    const poll = async () => {
      if (!this.visible || this.call !== call) return;
      let again = true;
      try {
        const answer = await api.training(id);
        if (this.call !== call) return;
        clearProblem("training");
        await this.draw(answer);
        again = answer.status === "training";
      } catch (error) {
        if (this.call === call) showProblem(error.message, "training");
      }
      if (again && this.visible && this.call === call) this.timer = setTimeout(poll, POLL_MS);
    };
    await poll();
    if (this.visible) markReady("training");
  }

  async draw(answer) {
    this.answer = answer;
    const rounds = answer.rounds.at(-1) ?? 0;
    const share = answer.status === "finished" ? 1 : answer.planned_rounds ? Math.min(1, rounds / answer.planned_rounds) : 0;
    this.fill.style.transform = `scaleX(${share})`;
    this.progress.setAttribute("aria-valuenow", Math.round(100 * share));
    const wall = answer.wall_s.at(-1);
    const names = {
      training: "Training", finished: "Finished", unfinished: "Stopped before the end", broken: "Broken",
    };
    const parts = [
      `${names[answer.status]}: ${percent(share, 0)}, ${count(rounds)} of ${count(answer.planned_rounds)} rounds`,
      seconds(wall ?? null),
      answer.status === "training" && share > 0.02 && wall ? `about ${seconds((wall / share) * (1 - share))} left` : null,
      answer.hypervolume.length ? `hypervolume ${fixed(answer.hypervolume.at(-1), 2)} s·J` : null,
      answer.policies.length ? `${count(answer.policies.at(-1))} policies` : null,
      answer.violation_rate.length ? `violations in ${percent(answer.violation_rate.at(-1), 1)} of rounds` : null,
      answer.stage.at(-1) ? `stage ${answer.stage.at(-1)}` : null,
    ];
    setText(
      this.status,
      rounds ? `${parts.filter(Boolean).join(" · ")}.` : "The training starts. It compiles first, which takes some seconds.",
    );
    setText(this.message, answer.message ?? "");
    this.cancel.hidden = !(answer.own && answer.status === "training");
    this.front.hidden = !(answer.status === "finished" && runById(this.run)?.status === "finished");
    this.drawPoints(answer.points);
    await this.drawHypervolume(answer);
  }

  drawPoints(points) {
    const known = this.answer.status === "finished" ? "front of the run" : "non-dominated so far";
    for (const hint of this.hints) setText(hint, points.length ? known : "no points yet");
    const columns = OBJECTIVES.map((_, o) => points.map((point) => point[o]));
    const style = runStyle(this.run);
    const ranges = columns.map((column, o) => {
      const low = Math.min(...column);
      const high = Math.max(...column);
      if (!points.length) return [[0, 1], [0, 5], [0, 40]][o];
      const margin = 0.05 * (high - low) || 0.05 * Math.abs(high) || 0.5;
      return [low - margin, high + margin];
    });
    this.group.setModel({
      layers: [{
        id: this.run, name: "", ...style, columns, index: points.map((_, k) => k),
        ok: new Uint8Array(points.length).fill(1),
      }],
      reference: [],
      ranges,
      limits: [null, null, null],
      active: this.run,
      selected: null,
      picked: null,
      hovered: null,
      evaluated: null,
    });
    this.group.draw();
  }

  tooltip(k) {
    const point = this.answer.points[k];
    return OBJECTIVES.map(({ name, digits, unit }, o) => `${name} ${fixed(point[o], digits)}${o ? ` ${unit}` : ""}`);
  }

  drawHypervolume(answer) {
    const { colour, symbol } = runStyle(this.run);
    const traces = [{
      type: "scatter",
      mode: "lines+markers",
      x: answer.rounds,
      y: answer.hypervolume,
      text: answer.stage,
      line: { color: colour, width: 2 },
      marker: { color: colour, symbol, size: answer.rounds.length > 80 ? 3 : 5 },
      hovertemplate: "round %{x:,}: %{y:.2f} s·J (%{text})<extra></extra>",
    }];
    return drawFigure(this.hypervolume, traces, {
      margin: { l: 56, r: 14, t: 8, b: 40 },
      xaxis: { title: { text: "rounds" }, range: [0, Math.max(answer.planned_rounds || 1, answer.rounds.at(-1) ?? 1)] },
      yaxis: { title: { text: "hypervolume (s·J)" }, rangemode: "tozero" },
    });
  }

  onTheme() {
    this.group.applyTheme();
    if (this.visible && this.answer) this.draw(this.answer);
  }

  async requestCancel() {
    if (!(await confirmDialog(
      "Cancel this training?",
      ["The run is kept and can be resumed later."],
      "Cancel training",
    ))) return;
    try {
      const answer = await api.cancel(this.run);
      setText(this.message, answer.message);
      announce(answer.message);
      await this.open(this.run);
      if (!this.answer.message) setText(this.message, answer.message);
    } catch (error) {
      showProblem(error.message, "training");
    }
  }

  openFront() {
    state.shown.add(this.run);
    state.active = this.run;
    state.selection = null;
    this.go("front");
  }
}
