// View 3: a fleet round by round: the replay of an episode, or the last rounds of a connected server.

import { api } from "./api.js";
import { PolicyChoice } from "./choose.js";
import { clearProblem, debounce, h, markReady, oncePerFrame, setText, showProblem, svg } from "./dom.js";
import { drawFigure, plotly } from "./figures.js";
import { themeColours } from "./palette.js";
import { finished, front, listen, runById, select, state } from "./state.js";
import { count, fixed, percent, seconds } from "./units.js";

const SPEEDS = [1, 2, 5, 10, 20]; // rounds per second
const LIVE_ROUNDS = 60;
const DEVICES_AT_FIRST = 100;

export function create(root, go) {
  return new Fleet(root, go);
}

class Fleet {
  constructor(root) {
    this.episode = null;
    this.at = 0;
    this.playing = false;
    this.source = h(
      "select",
      { class: "source", testid: "fleet-source", onchange: () => this.load() },
      h("option", { value: "replay" }, "Replay of a simulated episode"),
      h("option", { value: "live" }, "Live from the server"),
    );
    this.choice = new PolicyChoice("fleet", "policy", () => {
      select(this.choice.value.run, this.choice.value.index);
      this.load();
    });
    this.seed = h(
      "input",
      {
        type: "number", step: 1, min: 0, placeholder: "default", testid: "fleet-seed",
        oninput: debounce(() => this.load(), 400),
      },
    );
    this.replayOnly = [...this.choice.elements, h("label", {}, "Seed", this.seed)];
    this.busy = h("span", { class: "busy-text", role: "status", testid: "fleet-status" });
    this.empty = h("p", { class: "empty", testid: "fleet-empty", hidden: true });
    this.content = h("div", {}, this.buildPlayer(), this.buildGrid());
    this.bar = h("div", { class: "bar card" }, h("label", {}, "Show", this.source), ...this.replayOnly, this.busy);
    root.append(this.bar, this.empty, this.content);
    this.redraw = oncePerFrame(() => this.drawRound());
    listen("theme", () => this.visible && this.episode && this.drawPlots());
  }

  buildPlayer() {
    const button = (testid, text, label, action) => h(
      "button",
      { type: "button", testid, "aria-label": label, title: label, onclick: action },
      text,
    );
    this.play = button("play", "Play", "Play", () => this.setPlaying(!this.playing));
    this.play.classList.add("primary");
    this.slider = h(
      "input",
      {
        type: "range",
        min: 0,
        max: 0,
        value: 0,
        testid: "fleet-slider",
        "aria-label": "Round",
        oninput: () => this.goTo(Number(this.slider.value), true),
      },
    );
    this.speed = h(
      "select",
      { testid: "speed", "aria-label": "Speed", onchange: () => this.playing && this.setPlaying(true) },
      ...SPEEDS.map((speed) => h("option", { value: speed, selected: speed === 5 }, `${speed} rounds/s`)),
    );
    this.roundText = h("span", { class: "round", testid: "fleet-round" });
    return h("section", { class: "card player", "aria-label": "Player" },
      button("step-back", "◀", "One round back", () => this.goTo(this.at - 1, true)),
      this.play,
      button("step", "▶", "One round on", () => this.goTo(this.at + 1, true)),
      this.slider,
      this.roundText,
      this.speed);
  }

  buildGrid() {
    this.rows = h("tbody", { testid: "devices" });
    const head = [
      "Device", "Mode", "Queue (requests)", "Buffer (samples)", "Data age (s)", "Model age (s)", "Frequency (GHz)",
      "Power (W)", "Energy (J)", "Accuracy", "Latency (s)", "Shield", "Violated",
    ];
    this.more = h(
      "button",
      { type: "button", class: "small", hidden: true, onclick: () => this.buildRows(Infinity) },
      "Show all devices",
    );
    this.changes = h(
      "ul",
      { class: "changes", testid: "shield-changes", tabindex: 0, "aria-label": "Changes by the shield in this round" },
    );
    this.changesTitle = h("h2", {}, "Changed by the shield");
    this.strips = h(
      "div",
      { class: "chart strips", testid: "fleet-plot", role: "img", "aria-label": "Round length and means over rounds" },
    );
    this.facts = h("span", { class: "hint", testid: "fleet-facts" });
    return h("div", { class: "fleet-grid" },
      h("figure", { class: "card plot" }, h("figcaption", {}, h("b", {}, "Rounds"), this.facts), this.strips),
      h(
        "section",
        { class: "card" },
        h(
          "div",
          { class: "scroll" },
          h(
            "table",
            { class: "devices" },
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                ...head.map((text, k) => h("th", { scope: "col", class: k > 3 && k < 11 ? "number" : null }, text)),
              ),
            ),
            this.rows,
          ),
        ),
        this.more,
      ),
      h("section", { class: "card" }, this.changesTitle, this.changes));
  }

  async show() {
    this.visible = true;
    this.source.options[1].disabled = !state.session.server;
    this.source.options[1].textContent = state.session.server ? `Live: ${state.session.server}` : "Live (start the studio with --server URL)";
    const known = finished();
    if (!known.length && state.session.server) this.source.value = "live";
    this.source.options[0].disabled = !known.length;
    const nothing = !known.length && !state.session.server;
    if (known.length) {
      let chosen = state.selection && runById(state.selection.run)?.status === "finished" ? state.selection : null;
      if (!chosen) {
        const answer = await front(known[0].id);
        chosen = { run: known[0].id, index: answer.landmarks.knee ?? answer.policies.index[0] };
      }
      await this.choice.set(chosen);
    }
    this.bar.hidden = nothing;
    if (nothing) {
      this.showEmpty(
        "There is nothing to watch. Start a training in the view Scenario, or start the studio with '--server URL' to see a live fleet.",
      );
      return markReady("fleet");
    }
    await this.load();
  }

  hide() {
    this.visible = false;
    this.setPlaying(false);
    clearTimeout(this.timer);
  }

  showEmpty(sentence) {
    this.empty.hidden = sentence === null;
    this.content.hidden = sentence !== null;
    if (sentence !== null) setText(this.empty, sentence);
  }

  async load() {
    clearTimeout(this.timer);
    this.setPlaying(false);
    const live = this.source.value === "live";
    for (const element of this.replayOnly) element.hidden = live;
    const call = (this.call = {});
    setText(
      this.busy,
      live ? "Reading the last rounds ..." : "Simulating the episode. The first time takes some seconds ...",
    );
    plotly().catch(() => {});
    const seed = this.seed.value.trim() === "" ? null : Number(this.seed.value);
    try {
      const episode = live ? await api.liveEpisode(LIVE_ROUNDS) : await api.episode(
        this.choice.value.run,
        this.choice.value.index,
        seed,
      );
      if (this.call !== call) return;
      clearProblem("fleet");
      setText(this.busy, "");
      await this.take(episode, live ? episode.numbers.length - 1 : 0);
      if (live) this.follow(call);
    } catch (error) {
      if (this.call !== call) return;
      setText(this.busy, "");
      showProblem(error.message, "fleet");
      if (!this.episode) this.showEmpty(error.message);
      // A server that restarts is found again.
      if (live) this.timer = setTimeout(() => this.visible && this.load(), 3000);
    }
    if (this.visible) markReady("fleet");
  }

  /** Read the server every second. The newest round is shown unless the user went to another. */
  follow(call) {
    this.setPlaying(true);
    const again = async () => {
      if (!this.visible || this.call !== call) return;
      try {
        const episode = await api.liveEpisode(LIVE_ROUNDS);
        if (this.call !== call) return;
        clearProblem("fleet");
        const number = this.episode?.numbers[this.at];
        const kept = Math.max(0, episode.numbers.indexOf(number));
        await this.take(episode, this.playing ? episode.numbers.length - 1 : kept);
      } catch (error) {
        if (this.call === call) showProblem(error.message, "fleet");
      }
      this.timer = setTimeout(again, 1000);
    };
    this.timer = setTimeout(again, 1000);
  }

  async take(episode, at) {
    const before = this.episode;
    this.episode = episode;
    if (!episode.numbers.length) {
      this.showEmpty(
        episode.live ? "The server has recorded no round yet. Rounds appear here as soon as its devices report." : "This episode has no rounds.",
      );
      return;
    }
    this.showEmpty(null);
    this.at = Math.min(Math.max(0, at), episode.numbers.length - 1);
    this.slider.max = episode.numbers.length - 1;
    if (before?.devices.join() !== episode.devices.join() || !this.cells) this.buildRows(DEVICES_AT_FIRST);
    this.drawRound();
    await this.drawPlots();
  }

  buildRows(most) {
    const devices = this.episode.devices.slice(0, most);
    this.more.hidden = devices.length === this.episode.devices.length;
    setText(this.more, `Show all ${this.episode.devices.length} devices`);
    this.cells = devices.map((name) => {
      const level = (kind) => {
        const fill = h("i", { class: kind });
        const text = h("span", {});
        return { box: h("div", { class: "level" }, fill, text), fill, text };
      };
      const number = () => h("td", { class: "number" });
      const cell = {
        shape: svg("path", {}), mode: h("span", {}), queue: level("queue"), data: level("buffer"),
        data_age_s: number(), model_age_s: number(), frequency_hz: number(), power_w: number(), energy_j: number(),
        accuracy: number(), latency_s: number(), shield: h("td", { class: "shield" }),
        violated: h("td", { class: "violated" }),
      };
      cell.row = h("tr", {}, h("th", { scope: "row" }, name),
        h(
          "td",
          {},
          h(
            "span",
            { class: "mode" },
            svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, cell.shape),
            cell.mode,
          ),
        ),
        h("td", {}, cell.queue.box),
        h("td", {}, cell.data.box),
        cell.data_age_s,
        cell.model_age_s,
        cell.frequency_hz,
        cell.power_w,
        cell.energy_j,
        cell.accuracy,
        cell.latency_s,
        cell.shield,
        cell.violated);
      return cell;
    });
    this.rows.replaceChildren(...this.cells.map((cell) => cell.row));
    this.drawRound();
  }

  setPlaying(playing) {
    this.playing = playing;
    clearInterval(this.ticker);
    setText(this.play, playing ? "Pause" : "Play");
    this.play.setAttribute("aria-label", playing ? "Pause" : "Play");
    if (!playing || !this.episode) return;
    if (this.episode.live) return this.goTo(this.episode.numbers.length - 1);
    if (this.at >= this.episode.numbers.length - 1) this.goTo(0);
    this.ticker = setInterval(() => {
      if (this.at >= this.episode.numbers.length - 1) this.setPlaying(false);
      else this.goTo(this.at + 1);
    }, 1000 / Number(this.speed.value));
  }

  goTo(at, byHand = false) {
    if (!this.episode) return;
    if (byHand) this.setPlaying(false);
    this.at = Math.min(Math.max(0, at), this.episode.numbers.length - 1);
    this.redraw();
  }

  drawRound() {
    const { episode: e, at: t } = this;
    if (!e || !this.cells) return;
    this.slider.value = t;
    setText(
      this.roundText,
      `Round ${e.numbers[t]} · at ${fixed(e.time_s[t], 1)} s · ${fixed(e.duration_s[t], 2)} s long`,
    );
    this.slider.setAttribute("aria-valuetext", `round ${e.numbers[t]}`);
    this.cells.forEach((cell, n) => {
      const mode = e.train[t][n] === null ? "none" : e.train[t][n] ? "train" : "serve";
      setText(cell.mode, mode === "none" ? "–" : mode);
      // Shape and word, not colour alone: a triangle trains, a circle serves.
      cell.shape.setAttribute("d", mode === "train" ? "M6,1L11.5,11L0.5,11Z" : "M1,6a5,5 0 1,0 10,0a5,5 0 1,0 -10,0Z");
      cell.shape.setAttribute("class", `shape-${mode}`);
      drawLevel(cell.queue, e.queue[t][n], e.limits.queue_max);
      drawLevel(cell.data, e.data[t][n], e.limits.data_max);
      setText(cell.data_age_s, fixed(e.data_age_s[t][n], 1));
      setText(cell.model_age_s, fixed(e.model_age_s[t][n], 1));
      setText(cell.frequency_hz, fixed(e.frequency_hz[t][n] === null ? null : e.frequency_hz[t][n] / 1e9, 2));
      setText(cell.power_w, fixed(e.power_w[t][n], 2));
      setText(cell.energy_j, fixed(e.energy_j[t][n], 1));
      setText(cell.accuracy, fixed(e.accuracy[t][n], 3));
      setText(cell.latency_s, fixed(e.latency_s[t][n], 2));
      setText(cell.violated, e.violated[t][n] ?? "");
      setText(cell.shield, e.changed[t][n] ? "changed" : "");
      cell.shield.title = e.changed[t][n] ?? "";
      cell.row.classList.toggle("changed", Boolean(e.changed[t][n]));
    });
    const changes = e.changed[t].map((text, n) => [text, e.devices[n]]).filter(([text]) => text);
    setText(this.changesTitle, `Changed by the shield in this round: ${changes.length}`);
    const nothing = h("li", { class: "muted" }, "Nothing. All actions were taken as the policy chose them.");
    const items = changes.map(([text, name]) => h("li", {}, h("b", {}, `${name}: `), text));
    this.changes.replaceChildren(...(items.length ? items : [nothing]));
    this.moveCursor();
  }

  moveCursor() {
    if (!this.plotted || this.moving) return;
    // Plotly is slower than the player; while it draws, later cursors wait.
    this.moving = plotly()
      .then((Plotly) => Plotly.relayout(this.strips, { shapes: this.cursor() }))
      .finally(() => {
        const drawn = this.cursorAt;
        this.moving = null;
        if (drawn !== this.at) this.moveCursor();
      });
  }

  cursor() {
    this.cursorAt = this.at;
    const x = this.episode.numbers[this.at];
    const { mark, muted } = themeColours();
    const suffix = (k) => (k ? k + 1 : "");
    const shapes = [0, 1, 2, 3].map((k) => ({
      type: "line", xref: `x${suffix(k)}`, yref: `y${suffix(k)} domain`, x0: x, x1: x, y0: 0, y1: 1,
      line: { color: mark, width: 1.5 },
    }));
    const longest = this.episode.limits.round_max_s;
    if (longest) shapes.push(
      {
        type: "line", xref: "x domain", yref: "y", x0: 0, x1: 1, y0: longest, y1: longest,
        line: { color: muted, dash: "dash", width: 1 },
      },
    );
    return shapes;
  }

  async drawPlots() {
    const { episode: e } = this;
    const colour = themeColours().accent;
    // Four small plots: beside each other if the page is wide, otherwise two by two.
    const columns = this.strips.clientWidth > 820 ? 4 : 2;
    const strips = [
      ["round length (s)", e.duration_s, "s", 2], ["accuracy (share)", e.means.accuracy, "", 3],
      ["latency (s)", e.means.latency_s, "s", 2], ["energy (J)", e.means.energy_j, "J", 1],
    ];
    const axes = {};
    const margin = 54 / (this.strips.clientWidth || 1000); // for the numbers and the title of an axis
    const traces = strips.map(([title, y, unit, digits], k) => {
      const suffix = k ? k + 1 : "";
      const [column, row] = [k % columns, Math.floor(k / columns)];
      const width = 1 / columns;
            axes[`xaxis${suffix}`] = {
              domain: [column * width + margin, (column + 1) * width - 0.008],
              anchor: `y${suffix}`,
              nticks: 5,
              title: { text: "round", standoff: 3 },
            };
      axes[`yaxis${suffix}`] = {
        domain: columns === 4 ? [0, 1] : row ? [0, 0.4] : [0.6, 1],
        anchor: `x${suffix}`,
        nticks: 4,
        title: { text: title, standoff: 4 },
        automargin: false,
        ...(k === 0 ? { range: [
          0,
          1.08 * Math.max(e.limits.round_max_s ?? 0, ...e.duration_s.map((x) => x ?? 0)),
        ] } : {}),
      };
      return {
        type: "scatter",
        mode: "lines",
        x: e.numbers,
        y,
        xaxis: `x${suffix}`,
        yaxis: `y${suffix}`,
        line: { color: colour, width: 1.4 },
        hovertemplate: `round %{x}: %{y:.${digits}f} ${unit}<extra></extra>`,
      };
    });
    await drawFigure(
      this.strips,
      traces,
      { margin: { l: 4, r: 4, t: 6, b: 36 }, ...axes, shapes: this.cursor(), hovermode: "x", dragmode: false },
    );
    if (!this.plotted) this.strips.on(
      "plotly_click",
      (event) => this.goTo(this.episode.numbers.indexOf(event.points[0].x), true),
    );
    this.plotted = true;
    const rounds = e.numbers.length;
    setText(
      this.facts,
      `${e.title}: ${count(rounds)} rounds, ${seconds(e.time_s[rounds - 1] + e.duration_s[rounds - 1] - e.time_s[0])}${e.violation_rate === null ? "" : `, ${percent(e.violation_rate, 2)} of rounds violate a constraint`}. Means over devices; click to go to a round.`,
    );
  }
}

function drawLevel({ box, fill, text }, value, limit) {
  const share = value === null || !limit ? 0 : Math.min(1, value / limit);
  fill.style.transform = `scaleX(${share})`;
  box.classList.toggle("full", share >= 0.999);
  setText(text, value === null ? "–" : limit ? `${count(value)} / ${count(limit)}` : count(value));
}
