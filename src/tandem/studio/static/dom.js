// Small helpers: elements, messages, timing, clipboard and downloads.

const SVG = "http://www.w3.org/2000/svg";

/** Return a new element. Text always becomes text nodes, so names of runs cannot inject markup. */
export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** Return a new SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "testid") element.dataset.testid = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set the text of an element only if it changes, so that live regions speak once. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Show a command that may only break between its arguments; a browser would break after each hyphen. */
export function setCommand(element, command) {
  if (element.textContent === command) return;
  element.replaceChildren(...command.split(" ").flatMap((word, k) => [k ? " " : null, h("span", {}, word)]).filter((part) => part !== null));
}

/** Show a sentence about a failed request. It stays until it is closed or another request of its kind succeeds. */
export function showProblem(sentence, kind = "general") {
  const box = document.getElementById("message");
  box.hidden = false;
  box.dataset.kind = kind;
  setText(document.getElementById("message-text"), sentence);
}

export function clearProblem(kind = "general") {
  const box = document.getElementById("message");
  if (box.dataset.kind === kind) hideMessage();
}

export function hideMessage() {
  document.getElementById("message").hidden = true;
  document.getElementById("message-text").textContent = "";
}

/** Tell a screen reader what changed. */
export function announce(sentence) {
  setText(document.getElementById("status"), sentence);
}

export function debounce(action, wait_ms) {
  let timer = 0;
  const later = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), wait_ms);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

/** Return a function that runs `action` at most once per frame. */
export function oncePerFrame(action) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      action();
    });
  };
}

/** Return an async function whose calls do not overlap: while one runs, only the latest other call is kept. */
export function latestOnly(action) {
  let running = false;
  let next = null;
  return async function call(...args) {
    if (running) {
      next = args;
      return;
    }
    running = true;
    try {
      await action(...args);
    } finally {
      running = false;
      if (next) {
        const kept = next;
        next = null;
        call(...kept);
      }
    }
  };
}

/** Measure an interaction from its input event to the end of the next frame, as `window.studioLastInteractionMs`. */
export function measureInteraction(event) {
  const start = event?.timeStamp || performance.now();
  requestAnimationFrame(() => {
    // A message is handled after the frame's style, layout and paint; a second frame would add idle time.
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      window.studioLastInteractionMs = performance.now() - start;
    };
    channel.port2.postMessage(0);
  });
}

export async function copyText(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    announce("The command was copied.");
  } catch {
    button.textContent = "Not allowed";
    announce("The browser did not allow copying. Select the command and copy it by hand.");
  }
  setTimeout(() => (button.textContent = before), 1500);
}

export function downloadBlob(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return a modal question as a promise of true or false. */
export function confirmDialog(title, lines, action) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { testid: "confirm", "aria-labelledby": "confirm-title" },
      h("h2", { id: "confirm-title" }, title),
      ...lines.map((line) => h("p", {}, line)),
      h(
        "form",
        { method: "dialog", class: "row end" },
        h("button", { value: "no", class: "quiet" }, "Cancel"),
        h("button", { value: "yes", class: "primary", testid: "confirm-yes" }, action),
      ),
    );
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Mark a view as completely drawn, for tests and measurements. */
export function markReady(view) {
  requestAnimationFrame(() => {
    if (document.getElementById(`view-${view}`).hidden) return;
    document.body.dataset.ready = view;
    performance.mark("studio-ready");
  });
}
