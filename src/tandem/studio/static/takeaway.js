// What one takes away from the front: figure, table, policy, scenario, command; and the operating point of a server.

import { api } from "./api.js";
import { announce, clearProblem, confirmDialog, copyText, downloadBlob, h, setCommand, setText, showProblem } from "./dom.js";
import { frontFigure, plotly } from "./figures.js";
import { notify, runById, state } from "./state.js";
import { LIMITS, weights } from "./units.js";

export class TakeAway {
  constructor(front) {
    this.front = front;
    this.command = h("code", { testid: "command", tabindex: 0, "aria-label": "Command that picks this policy" }, "–");
    this.copy = h(
      "button",
      {
        type: "button",
        class: "small",
        testid: "copy-command",
        onclick: () => copyText(this.command.textContent, this.copy),
      },
      "Copy",
    );
    this.note = h("p", { class: "muted", testid: "command-note" }, "\u00a0");
    this.links = [
      ["front.csv", "Table (CSV)", "take-csv"],
      ["policy.safetensors", "Policy file", "take-policy"],
      ["scenario.yaml", "Scenario (YAML)", "take-scenario"],
    ].map(([file, text, testid]) =>
      ({ file, link: h("a", { class: "button small", download: "", testid }, text) }));
    const figure = (format) => h(
      "button",
      {
        type: "button",
        class: "small",
        testid: `take-${format}`,
        onclick: (event) => this.figure(format, event.currentTarget),
      },
      `Figure (${format.toUpperCase()})`,
    );
    this.heading = h("span", { class: "muted" });
    this.element = h("section", { class: "card takeaway", "aria-labelledby": "take-title" },
      h("h2", { id: "take-title" }, "Take away ", this.heading),
      h("div", { class: "files" }, figure("png"), figure("svg"),
        h(
          "button",
          { type: "button", class: "small", testid: "take-space", onclick: () => this.space() },
          "3-D view (PNG)",
        ),
        ...this.links.map(({ link }) => link)),
      h("div", { class: "command" }, this.command, this.copy), this.note);
  }

  /** Follow the active run. */
  refresh() {
    const run = runById(state.active);
    setText(this.heading, run ? `from ${run.name}` : "");
    for (const { file, link } of this.links) {
      if (!run) continue;
      link.href = api.download(run.id, file);
      link.download = `${run.name.split("/").pop()}-${file}`;
    }
    const connected = Boolean(state.session?.server);
    this.front.use.disabled = !connected;
    this.front.use.title = connected ? `Sets the operating point of ${state.session.server}` : "Start the studio with --server URL to use a policy on a server.";
  }

  setCommand(command) {
    setCommand(this.command, command ?? "No policy is within the limits.");
    this.copy.disabled = command === null;
    this.showSelection();
  }

  showSelection() {
    const { selection } = state;
    const picked = this.front.pickedIndex;
    if (picked === null || picked === undefined) setText(this.note, "Change the limits to get a command.");
    else if (selection?.run === state.active && selection.index !== picked) {
      setText(
        this.note,
        `This command picks policy ${picked} (dashed ring). Policy ${selection.index} was selected by hand.`,
      );
    } else setText(this.note, `This command prints policy ${picked} in a terminal.`);
  }

  async figure(format, button) {
    button.disabled = true;
    try {
      const Plotly = await plotly();
      const figure = frontFigure(this.front.group.model, state.limits);
      await Plotly.downloadImage(
        figure,
        {
          format, filename: "tandem-front", width: figure.layout.width, height: figure.layout.height,
          scale: format === "png" ? 2 : 1,
        },
      );
      announce(`The figure was written as ${format.toUpperCase()}.`);
    } catch (error) {
      showProblem(`The figure could not be made: ${error.message ?? error}`, "figure");
    }
    button.disabled = false;
  }

  /** The rotated view as it is on the screen, on an opaque ground. */
  space() {
    // A panel that is scrolled away may show an older state.
    this.front.space.draw(true, true);
    const { base, points, overlay } = this.front.space;
    const canvas = h("canvas", { width: base.width, height: base.height });
    const context = canvas.getContext("2d");
    context.fillStyle = this.front.group.colours.panel;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(base, 0, 0);
    context.drawImage(points, 0, 0);
    context.drawImage(overlay, 0, 0);
    canvas.toBlob((blob) => downloadBlob(blob, "tandem-front-3d.png"));
  }

  /** Set the operating point of the connected server, after a question. */
  async usePolicy() {
    const wanted = this.front.wanted();
    const limits = LIMITS.filter(({ key }) => wanted[key] !== null).map(({ key, label, unit }) => `${label.toLowerCase()} ${wanted[key]}${unit === "share" ? "" : ` ${unit}`}`);
    const picked = this.front.pickedIndex;
    const lines = [
      `Server: ${state.session.server}`,
      `Preference: ${wanted.preference ? weights(wanted.preference) : "none, the server takes the knee"}`,
      `Limits: ${limits.length ? limits.join(", ") : "none"}`,
    ];
    if (state.selection && picked !== state.selection.index) {
      lines.push(
        `The server picks by preference and limits. It does not take policy ${state.selection.index}, which was selected by hand.`,
      );
    }
    if (!(await confirmDialog("Use this policy on the server?", lines, "Use this policy"))) return;
    try {
      state.server = await api.operate(wanted);
      clearProblem("server");
      notify("server");
      setText(
        this.front.pickResult,
        `The server ${state.server.url} uses this operating point now${state.server.policy?.index !== undefined ? ` (its policy ${state.server.policy.index})` : ""}.`,
      );
      announce("The operating point of the server was set.");
    } catch (error) {
      showProblem(error.message, "server");
    }
  }
}
