// What every pane uses: elements, requests, streams and formats. Text of others only ever becomes a text node.

/** Makes an element. `props`: attributes; `on*` functions become listeners; false, null and undefined are left out. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const LONGEST = 20_000;

/** Marks of direction, and characters without a width that no script needs. */
const UNSEEN = /[\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb]|[\u{1d173}-\u{1d17a}]|[\u{e0000}-\u{e0fff}]/gu;
const codePoint = (c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Text as it may be shown: control characters become visible, what is not seen is named, and a long text is cut. */
export function shown(text, longest = LONGEST) {
  const whole = String(text ?? "");
  const cut = whole.length > longest ? `${whole.slice(0, longest)}… (${whole.length - longest} more)` : whole;
  return cut
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f]/g, "\u2421")
    .replace(UNSEEN, (c) => `<${codePoint(c)}>`);
}

/** What looks like nothing or like a space: also joiners, which emoji and some scripts need, and lone surrogates. */
const INEXACT = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]|(?! )\p{Zs}/gu;
const MOST_MARKS = 2000;

/**
 * The nodes of a text of which every character can be seen: whoever decides about it must know it exactly. Line breaks
 * and tabs stay. Each other character that is not seen is a mark with its number, so that no text can pretend to be one.
 */
export function exactly(text) {
  const whole = String(text ?? "");
  const nodes = [];
  let place = 0;
  for (const found of whole.matchAll(INEXACT)) {
    if (found[0] === "\n" || found[0] === "\t") continue;
    if (nodes.length >= 2 * MOST_MARKS) break;
    if (found.index > place) nodes.push(whole.slice(place, found.index));
    nodes.push(h("mark", { class: "unseen" }, codePoint(found[0])));
    place = found.index + found[0].length;
  }
  const rest = whole.slice(place);
  if (rest) nodes.push(rest.replace(INEXACT, (c) => (c === "\n" || c === "\t" ? c : `<${codePoint(c)}>`)));
  return nodes;
}

// --- requests -----------------------------------------------------------------------------------

const STORED_KEY = "codex-proxy-key";

export const key = {
  get: () => sessionStorage.getItem(STORED_KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(STORED_KEY, value) : sessionStorage.removeItem(STORED_KEY)),
};

/** An answer that is not a success; `status` is 0 if there was none, `code` and `param` those of the error. */
export class Failed extends Error {
  constructor(message, status, code = "", param = "") {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

export function headers(more = {}) {
  return key.get() ? { Authorization: `Bearer ${key.get()}`, ...more } : more;
}

/** Sends a request and returns its `Response`. Throws `Failed` for an error, and where no server answers. */
export async function request(path, { body, ...options } = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body), method: "POST" };
  const given = headers(body === undefined ? {} : { "Content-Type": "application/json" });
  let answer;
  try {
    answer = await fetch(path, { ...sent, ...options, headers: { ...given, ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed("The server does not answer.", 0);
  }
  if (!answer.ok) {
    const text = await answer.text();
    let message = text.slice(0, 500);
    let code = "";
    let param = "";
    try {
      ({ message, code, param } = JSON.parse(text).error);
    } catch {
      // It is not one of the server's own errors: its text is all there is.
    }
    throw new Failed(message || `HTTP ${answer.status}`, answer.status, code, param);
  }
  return answer;
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

/** Calls `each` with a list of `{event, data}` for every piece of a stream of server-sent events that arrives. */
export async function events(answer, each) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const blocks = (rest + (value ?? "")).split("\n\n");
    rest = done ? "" : blocks.pop();
    const found = [];
    for (const block of blocks) {
      const lines = block.split("\n");
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      const name = lines.find((line) => line.startsWith("event:"));
      if (data.length) found.push({ event: name ? name.slice(6).trim() : "", data: data.join("\n") });
    }
    if (found.length) each(found);
    if (done) return;
  }
}

// --- turns ---------------------------------------------------------------------------------------

export const WORKER_TURNS = 1_000_000; // the numbers of the turns of worker 2 begin at 2,000,000
const WORKER_TRIES = 40;

/** The number of a turn as it is shown: 2-17 is the 17th of worker 2. */
export const turnName = ({ id }) => (id < WORKER_TURNS ? String(id) : `${Math.floor(id / WORKER_TURNS)}-${id % WORKER_TURNS}`);

/**
 * Sends a request about one turn, by its number or its request's id: again, on a new connection, as long as another
 * worker than the turn's has got it.
 */
export async function ofTurn(id, path = "", options = {}, workers = Number(id) >= WORKER_TURNS) {
  for (let left = workers ? WORKER_TRIES : 1; ; left--) {
    try {
      return await request(`/ui/api/turns/${encodeURIComponent(id)}${path}`, options);
    } catch (error) {
      if (error.status !== 404 || left <= 1) throw error;
    }
  }
}

// --- formats ------------------------------------------------------------------------------------

const COUNT = new Intl.NumberFormat("en");

export const count = (value) => (value === null || value === undefined ? "–" : COUNT.format(value));

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(value % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

export function clockTime(epoch) {
  const date = new Date(epoch * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

// --- parts of pages -----------------------------------------------------------------------------

/** Copies a text; returns whether it did. A page of another machine has no `navigator.clipboard` without TLS. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const focused = document.activeElement;
  const area = h("textarea", { value: text, "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}

export function copyButton(label, text) {
  const button = h("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    const copied = await Promise.resolve(typeof text === "function" ? text() : text).then(copy, () => false);
    button.textContent = copied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

const ROLES = { TR: "row", TH: "columnheader", TD: "cell" };

/** Gives the cells of a row the names of their columns, which a narrow window shows beside them instead of above. */
export function named(row, columns) {
  for (const [index, each] of [...row.cells].entries()) each.dataset.name = columns[index].name;
  for (const each of [row, ...row.cells]) each.setAttribute("role", ROLES[each.tagName]); // styles may take it away
  return row;
}

/** A table in a box that scrolls. `columns`: `{name, number}`; `caption` names it for screen readers. */
export function table(caption, columns, rows) {
  const body = h("tbody", { role: "rowgroup" }, rows.map((row) => named(row, columns)));
  const head = columns.map(({ name, number }) => h("th", { scope: "col", class: number && "number" }, name));
  const made = h("table", { role: "table", "aria-label": caption },
    h("thead", { role: "rowgroup" }, named(h("tr", {}, head), columns)), body);
  return { box: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made), body };
}

export function cell(value, { number, text } = {}) {
  return h("td", { class: number ? "number" : text ? "text" : null }, value instanceof Node ? value : shown(value));
}

export function facts(entries) {
  return h("dl", {}, entries.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false).map(
    ([name, value]) => [h("dt", {}, name), h("dd", {}, value instanceof Node ? value : shown(value))]));
}

/**
 * The choice of a model, which is also that of its agent: with several agents their models are in groups. The name of an
 * agent means its default model; it is there for agents that list none. `facts`: the objects of models by their ids.
 */
export function modelSelect(value, facts, agents) {
  const option = (name) => h("option", { value: name }, shown(name, 80));
  const names = [...facts.keys()];
  const group = (agent) => {
    const own = names.filter((name) => facts.get(name).agent === agent);
    return h("optgroup", { label: agent }, (own.length ? own : [agent]).map(option));
  };
  const ofNone = names.filter((name) => agents.length < 2 || !agents.includes(facts.get(name).agent));
  const select = h("select", { "aria-label": "Model" }, ofNone.map(option), agents.length < 2 ? [] : agents.map(group));
  select.value = value;
  if (!select.value) select.value = names[0] ?? agents[0];
  return select;
}

export const trouble = (error) => h("p", { class: "bad", role: "alert" }, shown(error.message));
