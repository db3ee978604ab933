// The list of runs: state of each, and check boxes that lay their fronts over each other.

import { h, svg } from "./dom.js";
import { runStyle, symbolPath } from "./palette.js";
import { notify, runs, state, writeAddress } from "./state.js";
import { count, fixed, seconds } from "./units.js";

/** The symbol of a run in its colour. */
export function symbolIcon(id) {
  const { colour, symbol } = runStyle(id);
  return svg(
    "svg",
    { class: "symbol", viewBox: "-8 -8 16 16", "aria-hidden": "true" },
    svg("path", { d: symbolPath(symbol, 5), fill: colour }),
  );
}

export function drawRuns(list, go) {
  if (!state.session) return;
  const focused = document.activeElement?.closest?.("#runs") ? document.activeElement.dataset.testid : null;
  const items = runs().map((run) => item(run, go));
  list.replaceChildren(
    ...(items.length ? items : [h("li", { class: "muted" }, "No runs. Start one in the view Scenario.")]),
  );
  // The list is drawn again while runs progress; the focus must not be lost.
  if (focused) list.querySelector(`[data-testid="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function item(run, go) {
  const details = run.status === "broken" ? null : `${run.devices} devices, seed ${run.seed}, preset ${run.preset}, ${count(run.rounds)} rounds, ${seconds(run.wall_s)}`;
  const attributes = { class: `run ${run.status}`, testid: `run-${run.id}`, title: details };
  const name = h("span", { class: "name", title: run.name }, run.name);
  if (run.status === "broken") {
    return h(
      "li",
      attributes,
      h("div", { class: "run-head" }, h("span", { class: "badge", "aria-hidden": "true" }, "!"), name),
      h("p", { class: "problem" }, `Broken: ${run.problem}`),
    );
  }
  const what = h("p", { class: "muted" }, [run.algorithm, run.scenario].filter(Boolean).join(" · "));
  if (run.status === "finished") {
    const box = h("input", {
      type: "checkbox", testid: `show-run-${run.id}`, checked: state.shown?.has(run.id),
      onchange: (event) => {
        if (event.target.checked) state.shown.add(run.id);
        else state.shown.delete(run.id);
        notify("shown");
        writeAddress();
      },
    });
    return h(
      "li",
      attributes,
      h("label", { class: "run-head" }, box, symbolIcon(run.id), name),
      what,
      h("p", { class: "muted" }, `${count(run.policies)} policies, HV ${fixed(run.hypervolume, 1)} s·J`),
    );
  }
  const text = run.status === "training" ? `Training: ${count(run.rounds)} rounds` : "Not finished";
  return h("li", attributes,
    h("div", { class: "run-head" }, h("span", { class: `badge ${run.status}`, "aria-hidden": "true" }), name), what,
    h(
      "p",
      {},
      h(
        "button",
        { type: "button", class: "link", testid: `watch-${run.id}`, onclick: () => go("training", { run: run.id }) },
        text,
      ),
    ),
    run.problem ? h("p", { class: "problem" }, run.problem) : null);
}
