// What the views share: the session, the fronts read so far, and what the user has chosen. The choice is kept in the
// address, so that a reload or a bookmark shows the same.

import { api } from "./api.js";
import { LIMITS } from "./units.js";

export const state = {
  session: null, // of GET /api/session
  fronts: new Map(), // id -> front
  shown: null, // Set of ids drawn over each other; null until the first session
  active: null, // id of the run that the triangle picks from
  limits: { min_accuracy: null, max_latency_s: null, max_energy_j: null },
  preference: null, // [accuracy, latency, energy], sum 1; null means the knee
  selection: null, // {run, index}: the policy that all views show
};

const listeners = new Map();

/** Call `action` whenever something of this name changes: "session", "shown", "theme", "selection". */
export function listen(name, action) {
  if (!listeners.has(name)) listeners.set(name, []);
  listeners.get(name).push(action);
}

export function notify(name) {
  for (const action of listeners.get(name) ?? []) action();
}

export const runs = () => state.session?.runs ?? [];
export const runById = (id) => runs().find((run) => run.id === id);
export const finished = () => runs().filter((run) => run.status === "finished");

const pending = new Map();

/** Return the front of a finished run; it does not change, so it is read once. */
export async function front(id) {
  if (state.fronts.has(id)) return state.fronts.get(id);
  if (!pending.has(id)) pending.set(id, api.front(id).finally(() => pending.delete(id)));
  const answer = await pending.get(id);
  state.fronts.set(id, answer);
  return answer;
}

/** Return the place of a policy in the columns of its front; indices need not be places. */
export function place(answer, index) {
  return answer.policies.index.indexOf(index);
}

export function select(run, index) {
  state.selection = run === null ? null : { run, index };
  notify("selection");
  writeAddress();
}

/** The view that the address names, with its parameters. */
export function readAddress() {
  const [view, query] = location.hash.slice(1).split("?");
  return { view, query: new URLSearchParams(query ?? "") };
}

/** Take the choice from the address. Ids of runs are those of one session, so unknown ones are dropped. */
export function restore(query) {
  const number = (text) => (text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
  if (query.has("runs")) state.shown = new Set(query.get("runs").split(",").filter((id) => runById(id)?.status === "finished"));
  for (const { key } of LIMITS) if (query.has(key)) state.limits[key] = number(query.get(key));
  const preference = query.get("prefer")?.split(",").map(Number);
  const sum = preference?.reduce((a, b) => a + b, 0);
  if (preference?.length === 3 && sum > 0 && preference.every((w) => w >= 0)) state.preference = preference.map((w) => w / sum);
  const [run, index] = (query.get("policy") ?? "").split(":");
  if (runById(run)?.status === "finished" && number(index) !== null) {
    state.selection = { run, index: number(index) };
    state.active = run;
  }
}

let timer = 0;

export function writeAddress() {
  // Browsers limit how often the address may change, and a drag changes it with every event.
  clearTimeout(timer);
  timer = setTimeout(() => {
    const query = new URLSearchParams();
    if (state.shown) query.set("runs", [...state.shown].join(","));
    if (state.selection) query.set("policy", `${state.selection.run}:${state.selection.index}`);
    if (state.preference) query.set("prefer", state.preference.map((w) => w.toFixed(3)).join(","));
    for (const { key } of LIMITS) if (state.limits[key] !== null) query.set(key, String(state.limits[key]));
    const view = readAddress().view || "front";
    history.replaceState(null, "", `#${view}?${query.toString().replaceAll("%2C", ",").replaceAll("%3A", ":")}`);
  }, 300);
}
