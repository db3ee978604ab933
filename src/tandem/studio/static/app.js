// Start of the page: tabs, list of runs, theme, and the session that is read again every few seconds.

import { api } from "./api.js";
import { clearProblem, hideMessage, setText, showProblem } from "./dom.js";
import { isDark, runStyle } from "./palette.js";
import { drawRuns } from "./runs.js";
import { finished, listen, notify, readAddress, restore, runs, state, writeAddress } from "./state.js";
import * as front from "./front.js";

// The first view is loaded with the page, the others when they are opened.
const VIEWS = {
  front: async () => front,
  policy: () => import("./policy.js"),
  fleet: () => import("./fleet.js"),
  training: () => import("./training.js"),
  scenario: () => import("./scenario.js"),
};
const SHOWN_AT_FIRST = 8; // as many as there are colours
const POLL_MS = 5000;

const views = new Map();
let current = null;

/** Open a view; `options` go to its `show`. */
export function go(name, options = {}) {
  pending = options;
  if (readAddress().view === name) route();
  else location.hash = `#${name}`;
}

let pending = {};

async function route() {
  const wanted = readAddress().view;
  const name = wanted in VIEWS ? wanted : "front";
  const options = pending;
  pending = {};
  delete document.body.dataset.ready;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const selected = tab.dataset.view === name;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
    document.getElementById(`view-${tab.dataset.view}`).hidden = !selected;
  }
  if (current !== name) views.get(current)?.hide?.();
  current = name;
  document.title = `${name[0].toUpperCase()}${name.slice(1)} - tandem studio`;
  try {
    if (!views.has(name)) {
      const module = await VIEWS[name]();
      if (!views.has(name)) views.set(name, module.create(document.getElementById(`view-${name}`), go));
    }
    if (current === name) await views.get(name).show(options);
  } catch (error) {
    showProblem(error.message, "view");
    console.error(error);
  }
  writeAddress();
}

let before = "";
let first = true;

async function poll() {
  try {
    const session = await api.session();
    clearProblem("session");
    const text = JSON.stringify(session);
    if (text !== before) {
      before = text;
      takeSession(session);
    }
  } catch (error) {
    showProblem(error.message, "session");
  }
  setTimeout(poll, POLL_MS);
}

function takeSession(session) {
  const known = new Set(runs().map((run) => run.id));
  const finishedBefore = new Set(finished().map((run) => run.id));
  state.session = session;
  for (const run of session.runs) if (run.status !== "broken") runStyle(run.id);
  if (first) {
    restore(readAddress().query);
    // A bookmark of another session may name no run of this one.
    if (!state.shown?.size) state.shown = new Set(finished().slice(0, SHOWN_AT_FIRST).map((run) => run.id));
  } else {
    // A run that finishes while the page is open is shown, since somebody waited for it.
    for (const run of finished()) if (!finishedBefore.has(run.id) && state.shown.size < SHOWN_AT_FIRST) state.shown.add(run.id);
    for (const id of known) if (!session.runs.some((run) => run.id === id)) forget(id);
  }
  drawRuns(document.getElementById("runs"), go);
  if (first) {
    first = false;
    if (session.server) readServer();
    route();
  } else {
    notify("session");
    const same = finished().length === finishedBefore.size && finished().every((run) => finishedBefore.has(run.id));
    if (!same) notify("shown");
  }
}

function forget(id) {
  state.shown.delete(id);
  state.fronts.delete(id);
  if (state.selection?.run === id) state.selection = null;
}

async function readServer() {
  try {
    state.server = await api.server();
  } catch (error) {
    state.server = { url: state.session.server, reachable: false, problem: error.message };
  }
  notify("server");
}

function showServer() {
  const element = document.getElementById("server-state");
  const { server } = state;
  if (!server) return;
  setText(
    element,
    server.reachable ? `Connected: ${server.url}, fleet ${server.fleet}` : `Not reachable: ${server.url}`,
  );
  element.title = server.problem ?? "";
  element.classList.toggle("problem", !server.reachable);
}

function setUpTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => go(tab.dataset.view));
    tab.addEventListener("keydown", (event) => {
      const next = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const tabNext = tabs[(next + tabs.length) % tabs.length];
      tabNext.focus();
      go(tabNext.dataset.view);
    });
  });
  window.addEventListener("hashchange", route);
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const draw = () => {
    setText(button, isDark() ? "Light" : "Dark");
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    drawRuns(document.getElementById("runs"), go);
    notify("theme");
  };
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("tandem-studio-theme", theme);
    } catch {
      // Storage can be forbidden; the choice then lasts until the page is closed.
    }
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.session && draw());
  setText(button, isDark() ? "Light" : "Dark");
}

setUpTabs();
setUpTheme();
listen("server", showServer);
document.getElementById("message-close").addEventListener("click", hideMessage);
document.getElementById("skip").addEventListener("click", (event) => {
  // The hash names the view, so the link must not change it.
  event.preventDefault();
  document.getElementById("main").focus();
});
poll();
