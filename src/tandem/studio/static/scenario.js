// View 5: a scenario from a preset with changed fields, checked by the Python side, and a quick training on it.

import { api } from "./api.js";
import { clearProblem, debounce, h, latestOnly, markReady, setText, showProblem } from "./dom.js";
import { listen, runs, state } from "./state.js";

export function create(root, go) {
  return new Scenario(root, go);
}

class Scenario {
  constructor(root, go) {
    Object.assign(this, { root, go });
    this.check = latestOnly(() => this.requestCheck());
    this.checkSoon = debounce(() => this.check(), 250);
    listen("session", () => this.built && this.showBusy());
  }

  async show() {
    this.visible = true;
    if (!this.built) {
      this.answer = await api.scenario();
      clearProblem("view");
      this.build();
      this.setPreset(this.answer.presets.includes("paper") ? "paper" : this.answer.presets[0]);
    }
    this.showBusy();
    await this.check();
    markReady("scenario");
  }

  hide() {
    this.visible = false;
  }

  build() {
    this.built = true;
    this.preset = h(
      "select",
      { testid: "preset", onchange: () => this.setPreset(this.preset.value) },
      ...this.answer.presets.map((name) => h("option", { value: name }, name)),
    );
    this.fields = this.answer.fields.map((field) => {
      const id = `field-${field.path.replaceAll(".", "-")}`;
      const input = h(
        "input",
        {
          type: "text",
          id,
          testid: `scenario-${field.path}`,
          spellcheck: "false",
          autocomplete: "off",
          "aria-describedby": field.help ? `${id}-help` : null,
          oninput: () => this.onInput(),
        },
      );
      const box = h(
        "label",
        { for: id },
        h("span", {}, field.label, field.unit ? h("span", { class: "unit" }, ` (${field.unit})`) : null),
        h("span", { class: "field" }, input),
        field.help ? h("span", { class: "help", id: `${id}-help` }, field.help) : null,
      );
      return { ...field, input, box };
    });
    this.result = h(
      "p",
      { class: "check-result", testid: "scenario-problem", "aria-live": "polite" },
      "Checking the scenario ...",
    );
    this.yaml = h("pre", { class: "yaml", testid: "scenario-yaml", tabindex: 0, "aria-label": "Scenario as YAML" });
    this.algorithm = h(
      "select",
      { testid: "algorithm" },
      ...state.session.algorithms.map((name) => h("option", { value: name }, name)),
    );
    this.seed = h("input", { type: "number", min: 0, step: 1, value: 0, testid: "training-seed" });
    this.name = h(
      "input",
      {
        type: "text", value: this.freeName(), title: `Folder in ${state.session.out}`, spellcheck: "false",
        testid: "training-name",
      },
    );
    this.start = h("button", { type: "submit", class: "primary", testid: "start-training" }, "Start quick training");
    this.note = h("p", { class: "muted", testid: "training-note" }, "\u00a0");
    const form = h("form", { class: "start", onsubmit: (event) => this.submit(event) },
      h("label", {}, "Algorithm", this.algorithm),
      h("label", {}, "Seed", this.seed),
      h("label", {}, "Name of the run", this.name),
      this.start);
    this.root.append(h("div", { class: "scenario-grid" },
      h("div", { class: "side" },
        h("section", { class: "card" },
          h(
            "div",
            { class: "row" },
            h("h2", {}, "Scenario"),
            h("label", { class: "field" }, "Preset", this.preset),
            h(
              "button",
              {
                type: "button", class: "small", testid: "scenario-reset",
                onclick: () => this.setPreset(this.preset.value),
              },
              "Reset",
            ),
          ),
          h("div", { class: "fields" }, ...this.fields.map(({ box }) => box)), this.result),
        h("section", { class: "card" }, h("h2", {}, "Quick training"), form, this.note)),
      h("section", { class: "card" }, h("h2", {}, "YAML of this scenario"), this.yaml)));
  }

  freeName() {
    const used = new Set(runs().map((run) => run.name.split("/").pop()));
    let n = 1;
    while (used.has(`studio-${n}`)) n++;
    return `studio-${n}`;
  }

  setPreset(name) {
    this.preset.value = name;
    for (const { path, input } of this.fields) input.value = this.answer.values[name][path] ?? "";
    this.onInput();
  }

  /** The fields that differ from the preset. */
  changes() {
    const values = this.answer.values[this.preset.value];
    return Object.fromEntries(this.fields.filter(({ path, input }) => input.value.trim() !== (values[path] ?? "")).map(({ path, input }) => [path, input.value.trim()]));
  }

  onInput() {
    const changes = this.changes();
    for (const { path, box } of this.fields) box.classList.toggle("changed", path in changes);
    this.checkSoon();
  }

  async requestCheck() {
    const changes = this.changes();
    try {
      const answer = await api.check(this.preset.value, changes);
      clearProblem("scenario");
      this.valid = answer.valid;
      this.result.classList.toggle("problem", !answer.valid);
      const number = Object.keys(changes).length;
      const same = number ? `${number} ${number === 1 ? "field differs" : "fields differ"} from the preset` : "It is the preset";
      setText(this.result, answer.valid ? `The scenario is valid. ${same}.` : answer.problem);
      if (answer.valid) setText(this.yaml, answer.yaml);
      for (const { path, input } of this.fields) {
        // The messages name the field by its path.
        const named = !answer.valid && answer.problem.includes(path);
        input.setAttribute("aria-invalid", named);
      }
    } catch (error) {
      showProblem(error.message, "scenario");
    }
    this.showBusy();
  }

  showBusy() {
    const training = runs().find((run) => run.status === "training");
    this.start.disabled = this.valid === false || this.starting === true;
    setText(
      this.note,
      this.valid === false ? "Correct the scenario to start a training." : training ? `${training.name} is training now. Two trainings share the processor and take longer.` : "A quick training takes about a minute. It is shown in the view Training.",
    );
  }

  async submit(event) {
    event.preventDefault();
    const name = this.name.value.trim();
    const seed = Number(this.seed.value);
    if (!name) return showProblem("Give the run a name.", "scenario");
    if (!Number.isInteger(seed) || seed < 0) return showProblem(
      "The seed must be a whole number of at least 0.",
      "scenario",
    );
    this.starting = true;
    this.showBusy();
    try {
      const answer = await api.train(
        { preset: this.preset.value, changes: this.changes(), algorithm: this.algorithm.value, seed, name },
      );
      clearProblem("scenario");
      this.go("training", { run: answer.id, command: answer.command });
    } catch (error) {
      showProblem(error.message, "scenario");
    }
    this.starting = false;
    this.name.value = this.name.value === name && name.startsWith("studio-") ? this.freeName() : name;
    this.showBusy();
  }
}
