// The HTTP interface of the Python side. Every failure becomes an Error whose message is a sentence for the page.

async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: options.body ? { "Content-Type": "application/json" } : {} });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The studio does not answer. Check that 'tandem studio' is still running, then try again.");
  }
  let body = null;
  try {
    body = await answer.json();
  } catch {
    // Fall through: the status decides what to say.
  }
  if (answer.ok && body !== null) return body;
  const sentence = typeof body?.detail === "string" ? body.detail : `The studio answered ${answer.status} to ${path.split("?")[0]}.`;
  throw Object.assign(new Error(sentence), { status: answer.status });
}

const send = (method, path, body) => request(path, { method, body: JSON.stringify(body) });
const run = (id) => `/api/runs/${encodeURIComponent(id)}`;

export const api = {
  session: () => request("/api/session"),
  front: (id) => request(`${run(id)}/front`),
  pick: (id, wanted) => send("POST", `${run(id)}/pick`, wanted),
  evaluate: (id, preference) => send("POST", `${run(id)}/evaluate`, { preference }),
  episode: (id, policy, seed) => request(
    `${run(id)}/episode?${new URLSearchParams(seed === null ? { policy } : { policy, seed })}`,
  ),
  training: (id) => request(`${run(id)}/training`),
  scenario: () => request("/api/scenario"),
  check: (preset, changes) => send("POST", "/api/scenario/check", { preset, changes }),
  train: (wanted) => send("POST", "/api/trainings", wanted),
  cancel: (id) => request(`/api/trainings/${encodeURIComponent(id)}`, { method: "DELETE" }),
  server: () => request("/api/server"),
  liveEpisode: (last) => request(`/api/server/episode?last=${last}`),
  operate: (point) => send("PUT", "/api/server/operating-point", point),
  download: (id, file) => `${run(id)}/${file}`,
};
