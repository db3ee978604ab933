// Two lists to choose a policy: the run, and the policy of its front.

import { h } from "./dom.js";
import { finished, front } from "./state.js";
import { OBJECTIVES, quantity } from "./units.js";

export class PolicyChoice {
  /** `onChange()` is called when the user chose; `value` is {run, index} or null. */
  constructor(testid, label, onChange, optional = false) {
    this.optional = optional;
    this.value = null;
    this.onChange = onChange;
    this.run = h("select", { testid: `${testid}-run`, onchange: () => this.chooseRun(this.run.value) });
    this.policy = h("select", { class: "policy", testid: `${testid}-index`, onchange: () => this.choosePolicy() });
    this.elements = [
      h("label", {}, `Run of the ${label}`, this.run),
      h("label", {}, label[0].toUpperCase() + label.slice(1), this.policy),
    ];
  }

  /** Show a value without calling `onChange`. */
  async set(value) {
    this.value = value;
    const options = finished().map((run) => h("option", { value: run.id, selected: run.id === value?.run }, run.name));
    if (this.optional) options.unshift(h("option", { value: "", selected: !value }, "none"));
    this.run.replaceChildren(...options);
    await this.fill();
  }

  async fill() {
    const { value } = this;
    this.policy.disabled = !value;
    if (!value) return this.policy.replaceChildren(h("option", {}, "–"));
    const answer = await front(value.run);
    if (this.value !== value) return;
    const names = Object.entries(answer.landmarks);
    const p = answer.policies;
    this.policy.replaceChildren(...p.index.map((index, k) => {
      const landmark = names.filter(([, at]) => at === index).map(([name]) => name);
      const objectives = OBJECTIVES.map(({ key }, o) => quantity(o, p[key][k])).join(", ");
      return h(
        "option",
        { value: index, selected: index === value.index },
        `${index}: ${objectives}${landmark.length ? ` (${landmark.join(", ")})` : ""}`,
      );
    }));
  }

  async chooseRun(id) {
    if (id === "") this.value = null;
    else {
      const answer = await front(id);
      this.value = { run: id, index: answer.landmarks.knee ?? answer.policies.index[0] };
    }
    await this.fill();
    this.onChange();
  }

  choosePolicy() {
    this.value = { run: this.value.run, index: Number(this.policy.value) };
    this.onChange();
  }
}
