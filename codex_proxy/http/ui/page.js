// The page: its panes, and what they show of the server's state. Nothing is fetched while the tab is hidden.
import {
  Failed, WORKER_TURNS, cell, clockTime, copyButton, count, events, facts, h, json, key, named, ofTurn, request, seconds,
  shown, table, trouble, turnName,
} from "./lib.js";
import { BETA } from "./feed.js";
import { playground } from "./playground.js";
import { sessions } from "./sessions.js";
import { filesOfRequest } from "./turn_files.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");

/** The panes by the hash of their address. Each returns its content; `signal` is aborted when it is left. */
const PANES = {
  sessions: ["Sessions", sessions],
  now: ["Now", now],
  turns: ["Turns", turns],
  stored: ["Stored", stored],
  playground: ["Playground", playground],
  usage: ["Usage", usage],
  connect: ["Connect", connect],
};

let leave = new AbortController();

async function show() {
  const [name, argument] = location.hash.slice(1).split("/", 2);
  const [title, pane] = PANES[name] ?? PANES.sessions;
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  state("");
  document.title = `${title} – codex-proxy`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.textContent === title) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    const content = await pane({ argument: argument && decodeURIComponent(argument), signal });
    if (!signal.aborted) main.replaceChildren(...[content].flat());
  } catch (error) {
    if (signal.aborted) return;
    const isOfKey = error instanceof Failed && (error.status === 401 || error.message.startsWith("Too many wrong keys"));
    if (isOfKey) main.replaceChildren(keyForm(error));
    else main.replaceChildren(trouble(error), h("button", { type: "button", onclick: show }, "Try again"));
  }
}

/** What a header can carry. */
const SENDABLE = /^[ -~\u00a0-\u00ff]+$/;

function keyForm(error) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, name: "key", pattern: SENDABLE.source.slice(1, -1),
    title: "A key has letters, digits and signs that a header can carry." });
  const use = (event) => {
    event.preventDefault();
    sessionStorage.clear(); // drafts of another key
    key.set(input.value.trim());
    location.reload(); // what another key has asked, and was answered, is forgotten
  };
  return h("form", { class: "card", onsubmit: use },
    h("h2", {}, "This server asks for a key"),
    key.get() && trouble(error),
    h("label", {}, h("span", {}, "Key"), input),
    h("p", { class: "soft" }, "It is kept for this tab alone. The operator makes one with ",
      h("code", {}, "codex-proxy keys add NAME"), "."),
    h("div", { class: "row" }, h("button", { class: "main" }, "Use this key"),
      key.get() && h("button", { type: "button", onclick: () => { sessionStorage.clear(); location.reload(); } }, "Go on without a key")));
}

// --- live data ----------------------------------------------------------------------------------

const RETRY_MS = 2000;

function state(text, bad = false) {
  if (connection.textContent !== text) connection.textContent = text;
  connection.className = bad ? "bad" : "";
}

/** Calls `each` with every message of the server's stream until `signal` is aborted; a hidden tab has none. */
async function follow(signal, each) {
  while (!signal.aborted) {
    await visible();
    const stop = new AbortController();
    const hidden = () => document.hidden && stop.abort();
    const left = () => stop.abort();
    document.addEventListener("visibilitychange", hidden);
    signal.addEventListener("abort", left);
    try {
      const answer = await request("/ui/api/live", { signal: stop.signal });
      state("live");
      await events(answer, (found) => found.forEach(({ data }) => each(JSON.parse(data))));
      throw new Failed("The server has closed the connection.", 0);
    } catch (error) {
      if (signal.aborted) return;
      if (!stop.signal.aborted) {
        state(error.status === 0 ? "no connection, trying again" : shown(error.message, 200), true);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    } finally {
      document.removeEventListener("visibilitychange", hidden);
      signal.removeEventListener("abort", left);
    }
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const seen = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", seen);
      resolve();
    };
    document.addEventListener("visibilitychange", seen);
  });
}

// --- Now ----------------------------------------------------------------------------------------

const LIVE_COLUMNS = [
  { name: "Turn" }, { name: "Key" }, { name: "API" }, { name: "Agent" }, { name: "Model" }, { name: "Mode" }, { name: "Doing" },
  { name: "First word", number: true }, { name: "Running", number: true }, { name: "Tokens", number: true },
  { name: "" },
];

/** The agent of a turn is shown where there are several. */
const columnsFor = (agents, columns) => columns.filter(({ name }) => name !== "Agent" || agents.length > 1);

/** The cell of a row in the column of this name. */
const cellOf = (row, column) => [...row.cells].find(({ dataset }) => dataset.name === column);

const STATE_MS = 10_000;
const SETTLE_MS = 1000; // after a turn has begun or ended: then its process has, too

/** What is said above turns if the server has several workers. `worker` is 0 if it has one. */
const ofWorker = (worker) => worker ? `This server has several workers, and any of them answers a request. These are the turns of worker ${worker} alone; reload the page to see another one.` : "";

async function now({ signal }) {
  const found = await json("/ui/api/state", { signal });
  const rows = new Map();
  const columns = columnsFor(found.agents, LIVE_COLUMNS);
  const { box, body } = table("Running turns", columns, []);
  box.classList.add("stack");
  const none = h("p", { class: "soft" }, "No turn is running.");
  const whose = h("p", { class: "soft" });
  const summary = h("span", { class: "soft" });
  const started = new Map();
  const update = (message) => {
    for (const turn of message.turns.toReversed()) {
      const old = rows.get(turn.id);
      if (turn.end !== null) {
        old?.remove();
        rows.delete(turn.id);
        started.delete(turn.id);
        continue;
      }
      const row = liveRow(turn, old, columns);
      started.set(turn.id, [turn.started, row.querySelector(".running")]);
      if (!old) body.prepend(row);
      rows.set(turn.id, row);
    }
    for (const [id, tokens] of Object.entries(message.estimates)) {
      const row = rows.get(Number(id));
      const place = row && cellOf(row, "Tokens");
      if (place && !place.dataset.reported) place.textContent = tokensOf({ output: null, estimated: tokens });
    }
    if (message.running !== running) settling ??= setTimeout(refresh, SETTLE_MS);
    running = message.running;
    whose.textContent = ofWorker(message.worker);
    summary.textContent = ` ${count(message.running)} running, ${count(message.queued)} waiting`;
    none.hidden = rows.size > 0;
    box.hidden = rows.size === 0;
  };
  const about = h("div", {}, serverParts(found));
  const refresh = async () => {
    settling = null;
    if (signal.aborted || document.hidden || about.contains(document.activeElement)) return;
    const newest = await json("/ui/api/state", { signal }).catch(() => null); // that no server answers is shown above
    if (newest) about.replaceChildren(...serverParts(newest));
  };
  let { running } = found;
  let settling = null;
  update({ ...found, turns: [], estimates: {} });
  const tick = setInterval(() => {
    if (document.hidden) return;
    for (const [since, place] of started.values()) place.textContent = seconds(Date.now() / 1000 - since);
  }, 1000);
  const poll = setInterval(refresh, STATE_MS);
  signal.addEventListener("abort", () => [tick, poll].forEach(clearInterval));
  follow(signal, update);
  return [h("h2", {}, "Turns", summary), whose, none, box, about];
}

/** What is shown of the server below its turns: what to do, the agents, the server itself. */
function serverParts(found) {
  return [
    found.findings.length ? [h("h2", {}, "To do"), h("div", { class: "cards" }, found.findings.map(finding))] : null,
    h("h2", {}, "Agents", h("span", { class: "soft" }, found.worker ? ` of worker ${found.worker}` : "")),
    h("div", { class: "cards" }, found.agents.map(agentCard)),
    found.mcp.length ? [h("h2", {}, "MCP servers"), h("div", { class: "cards" }, found.mcp.map(toolServer))] : null,
    h("h2", {}, "Server"),
    h("div", { class: "card" }, facts([
      ["up for", seconds(Date.now() / 1000 - found.started)],
      ["workspace", found.workdir], ["sandbox", found.sandbox],
      ["key", found.keys_required ? found.key : "none is required"],
    ])),
  ].flat().filter(Boolean);
}

function liveRow(turn, old, columns) {
  const stop = async (event) => {
    event.target.disabled = true;
    await ofTurn(turn.id, "/cancel", { method: "POST" }).catch((error) => state(error.message, true));
  };
  const changing = { Doing: turn.doing, "First word": seconds(turn.first), Tokens: tokensOf(turn) };
  if (old) {
    if (turn.output !== null) cellOf(old, "Tokens").dataset.reported = "";
    cellOf(old, "Model").replaceChildren(modelOf(turn));
    for (const [name, value] of Object.entries(changing)) {
      const place = cellOf(old, name);
      if (place.textContent !== shown(value)) place.textContent = shown(value);
    }
    return old;
  }
  const values = {
    Turn: h("a", { href: `#turns/${turn.id}` }, turnName(turn)), Key: turn.owner, API: turn.api, Agent: turn.agent,
    Model: modelOf(turn), Mode: turn.mode, Running: seconds(Date.now() / 1000 - turn.started), ...changing,
    "": h("button", { type: "button", onclick: stop, "aria-label": `Cancel turn ${turn.id}` }, "Cancel"),
  };
  const row = named(h("tr", {}, columns.map(({ name, number }) => cell(values[name], { number, text: name === "Doing" }))), columns);
  cellOf(row, "Running").classList.add("running");
  return row;
}

/** The name of the model that the client asked for and, where it differs, the agent's name of the one that answers. */
function modelOf({ model, response_model: own }) {
  return h("span", {}, shown(model), own && own !== model && [" ", h("span", { class: "soft" }, shown(own))]);
}

/** The tokens that a turn has written; with a ~ if they are an estimate, because the agent has not reported them yet. */
function tokensOf({ output, estimated }) {
  if (output !== null) return count(output);
  return estimated ? `~${count(estimated)}` : "–";
}

function finding({ name, status, message, advice }) {
  return h("div", { class: "card" },
    h("h3", { class: status === "failed" ? "bad" : "warn" }, name),
    h("p", {}, shown(message)), advice && advice !== message && h("p", { class: "soft" }, shown(advice)));
}

function agentCard(agent) {
  const health = agent.trouble ? h("span", { class: "bad" }, shown(agent.trouble)) : h("span", { class: "good" }, "ready");
  const off = Object.entries(agent.off ?? {}).map(([feature, names]) => `${feature} (${names.join(", ")})`).join("; ");
  const { idle, busy, restarts } = agent.processes;
  const processes = idle + busy + restarts ? `${busy} busy, ${idle} idle, ${restarts} ended unexpectedly` : "none runs";
  return h("section", { class: "card" },
    h("h3", {}, shown(agent.name), " ", h("span", { class: "soft" }, shown(agent.version ?? ""))),
    agent.fake && h("p", { class: "warn" }, "This is the fake agent: its answers are made up."),
    facts([["health", health],
      ["requests", agent.breaker === "half-open" && "one is sent as a trial, after failures in a row"],
      ["processes", !agent.breaker && processes], ["off", off], ["warning", agent.warning]]),
    agent.processes.each.length ? processTable(agent) : null);
}

function toolServer({ name, status, tools, trouble }) {
  const about = { ready: ["good", `ready, tools: ${count(tools)}`], starting: ["soft", "starting"], failed: ["bad", shown(trouble)] };
  const [kind, words] = about[status];
  return h("section", { class: "card" }, h("h3", {}, shown(name)), h("p", { class: kind }, words));
}

const PROCESS_COLUMNS = [{ name: "Process" }, { name: "Turns now", number: true }, { name: "So far", number: true }, { name: "Memory", number: true }];

function processTable(agent) {
  const number = { number: true };
  return table(`Processes of ${agent.name}`, PROCESS_COLUMNS, agent.processes.each.map((each) => h("tr", {},
    cell(each.pid), cell(count(each.turns_running), number), cell(count(each.turns_served), number),
    cell(each.memory ? `${count(Math.round(each.memory / 2 ** 20))} MiB` : "–", number)))).box;
}

// --- Turns --------------------------------------------------------------------------------------

const TURN_COLUMNS = [
  { name: "Turn" }, { name: "Started" }, { name: "Key" }, { name: "API" }, { name: "Agent" }, { name: "Model" }, { name: "Mode" },
  { name: "First word", number: true }, { name: "Total", number: true }, { name: "Input", number: true },
  { name: "Output", number: true }, { name: "End" },
];

async function turns({ argument, signal }) {
  if (argument) return oneTurn(argument, signal);
  const { data, agents } = await json("/ui/api/turns", { signal });
  const columns = columnsFor(agents, TURN_COLUMNS);
  const rows = data.map((turn) => {
    const values = {
      Turn: h("a", { href: `#turns/${turn.id}` }, turnName(turn)), Started: clockTime(turn.started), Key: turn.owner, API: turn.api,
      Agent: turn.agent, Model: modelOf(turn), Mode: turn.mode, "First word": seconds(turn.first), Total: seconds(turn.seconds),
      Input: count(turn.input), Output: tokensOf(turn), End: endOf(turn),
    };
    return h("tr", {}, columns.map(({ name, number }) => cell(values[name], { number, text: name === "End" })));
  });
  const { box } = table("Turns", columns, rows);
  box.classList.add("stack");
  return [
    h("h2", {}, "The last turns ", h("span", { class: "soft" }, "since the server started")),
    h("p", { class: "soft" }, ofWorker(Math.floor((data[0]?.id ?? 0) / WORKER_TURNS))),
    rows.length ? box : h("p", { class: "soft" }, "There was no turn yet."),
  ];
}

function endOf(turn) {
  if (turn.end === null) return h("span", { class: "soft" }, turn.doing || "running");
  return turn.error ? h("span", { class: "bad" }, shown(turn.error)) : turn.end;
}

async function oneTurn(id, signal) {
  const turn = await (await ofTurn(id, "", { signal })).json();
  const timeline = turn.events.map(({ at, event, detail }) => h("li", {},
    h("span", { class: "number" }, seconds(at)), h("span", {}, event.replaceAll("_", " ")),
    h("span", { class: "soft" }, shown(detail))));
  const files = turn.mode === "agent" && turn.request_id ? await filesOfRequest(turn.request_id, turn.folder, turn.started, signal) : [];
  return [
    h("p", {}, h("a", { href: "#turns" }, "All turns")),
    h("h2", {}, `Turn ${turnName(turn)}`),
    h("div", { class: "card" }, facts([
      ["request", turn.request_id], ["started", clockTime(turn.started)], ["key", turn.owner], ["API", turn.api],
      ["agent", turn.agent], ["model", modelOf(turn)], ["mode", turn.mode], ["folder", turn.folder], ["first word", seconds(turn.first)],
      ["total", seconds(turn.seconds)], ["tokens", `${count(turn.input)} in, ${tokensOf(turn)} out`],
      ["end", endOf(turn)], ["message", turn.message],
    ])),
    turn.recorded ? h("div", { class: "row" },
      copyButton("Copy as cassette", async () => (await ofTurn(id, "/cassette")).text())) : null,
    ...files,
    h("h3", {}, "Timeline"),
    h("ol", { class: "timeline" }, timeline),
    turn.events_left_out ? h("p", { class: "soft" }, `${count(turn.events_left_out)} more events are not kept.`) : null,
  ].filter(Boolean);
}

// --- Stored -------------------------------------------------------------------------------------

/** What is stored, by the path of its list: its title, what a search looks at, and how a line is made. */
const STORED = {
  stored: ["Stored responses", "Search by id or text", storedLine],
  conversations: ["Conversations", "Search by id or metadata", conversationLine],
};

async function stored({ argument, signal }) {
  if (argument?.startsWith("conv_")) return oneConversation(argument, signal);
  const path = argument === "conversations" ? argument : "stored";
  if (argument && path === "stored") return oneResponse(argument, signal);
  const [title, what, line] = STORED[path];
  const list = h("div", { class: "list" });
  const search = h("input", { type: "search", name: "search", "aria-label": what });
  const load = async (after) => {
    const query = new URLSearchParams({ search: search.value.trim(), ...(after ? { after } : {}) });
    try {
      const page = await json(`/ui/api/${path}?${query}`, { signal });
      if (!after) list.replaceChildren();
      list.lastElementChild?.matches("button") && list.lastElementChild.remove();
      list.append(...page.data.map(line));
      if (page.has_more) {
        list.append(h("button", { type: "button", onclick: () => load(page.last_id) }, "More"));
      }
      if (!list.children.length) {
        list.append(h("p", { class: "soft" }, search.value.trim() ? "Nothing is stored that fits." : "Nothing is stored yet."));
      }
    } catch (error) {
      if (!signal.aborted) list.replaceChildren(trouble(error));
    }
  };
  await load();
  const submit = (event) => {
    event.preventDefault();
    load();
  };
  return [
    h("h2", {}, title, " ", path === "stored" ? h("a", { href: "#stored/conversations" }, "Conversations")
      : h("a", { href: "#stored" }, "Stored responses")),
    h("form", { class: "row", onsubmit: submit, role: "search" },
      h("label", { class: "wide" }, h("span", {}, what), search), h("button", {}, "Search")),
    list,
  ];
}

function storedLine(each) {
  const conversation = each.conversation && [" · ", h("a", { href: `#stored/${encodeURIComponent(each.conversation)}` }, "its conversation")];
  return storedCard(each.id, each.text || "an answer without text",
    [clockTime(each.created_at), each.model, each.status].filter(Boolean), conversation);
}

function conversationLine(each) {
  const metadata = Object.entries(each.metadata).map(([name, value]) => `${name}: ${value}`).join(" · ");
  return storedCard(each.id, metadata || `A conversation of ${clockTime(each.created_at)}`, metadata ? [clockTime(each.created_at)] : []);
}

/** A stored object in a list: its headline is what it says, below it are other words about it, and its id. */
function storedCard(id, headline, about, more) {
  const link = (text) => h("a", { href: `#stored/${encodeURIComponent(id)}` }, text);
  return h("article", { class: "card" }, h("h3", {}, link(shown(headline, 300))),
    h("p", { class: "soft" }, about.map((each) => `${shown(each, 80)} · `), link(shown(id, 80)), more));
}

/** A row with buttons for one stored object: copy it, delete it, and `more`. `list` is the pane that is shown after a deletion. */
function storedButtons(id, path, object, list, ...more) {
  const remove = async () => {
    if (!confirm(`Delete ${id}?`)) return;
    await request(path, { method: "DELETE" });
    location.hash = list;
  };
  return h("div", { class: "row" }, copyButton("Copy as JSON", JSON.stringify(object, null, 2)),
    h("button", { type: "button", onclick: remove }, "Delete"), more);
}

/** Makes a session that continues a stored response, and shows it. */
async function goOn(path) {
  const session = await json(`${path}/session`, { body: {}, headers: BETA });
  location.hash = `#sessions/${encodeURIComponent(session.id)}`;
}

async function oneConversation(id, signal) {
  const path = `/v1/conversations/${encodeURIComponent(id)}`;
  const list = h("div", { class: "list" });
  const more = async (after) => {
    const page = await json(`${path}/items?limit=100&order=asc${after ? `&after=${encodeURIComponent(after)}` : ""}`, { signal });
    list.lastElementChild?.matches("button") && list.lastElementChild.remove();
    list.append(...page.data.map((item) => h("article", { class: "card" },
      h("h3", {}, shown(item.role ?? item.type, 80), " ", h("span", { class: "soft" }, shown(item.id, 80))),
      h("pre", { tabindex: "0" }, shown(textOf(item))))));
    if (page.has_more) list.append(h("button", { type: "button", onclick: () => more(page.last_id) }, "More"));
  };
  const [conversation] = await Promise.all([json(path, { signal }), more()]);
  return [
    h("p", {}, h("a", { href: "#stored/conversations" }, "All conversations")),
    h("h2", {}, `Conversation of ${clockTime(conversation.created_at)}`),
    h("p", { class: "soft" }, shown(id, 80)),
    facts(Object.entries(conversation.metadata)),
    storedButtons(id, path, conversation, "#stored/conversations"),
    h("h3", {}, "Items"), list,
  ];
}

/** The text of an item of a conversation; its JSON if it is no message. */
function textOf(item) {
  if (item.type !== "message") return JSON.stringify(item, null, 2);
  return item.content.map((part) => part.text ?? part.refusal ?? `[${part.type}]`).join("\n");
}

function headlineOf({ output }) {
  const parts = output.flatMap((item) => (item.type === "message" ? item.content : []));
  return parts.map((part) => part.text ?? part.refusal ?? "").join(" ").trim() || "An answer without text";
}

async function oneResponse(id, signal) {
  const path = `/v1/responses/${encodeURIComponent(id)}`;
  const [response, input, chain] = await Promise.all([
    json(path, { signal }),
    json(`${path}/input_items?limit=100&order=asc`, { signal }),
    json(`/ui/api/stored/${encodeURIComponent(id)}/tree`, { signal }),
  ]);
  const line = (each) => {
    if (each.id === id) return h("strong", {}, shown(each.id, 80));
    if (each.deleted) return h("span", { class: "soft" }, `${shown(each.id, 80)} (deleted)`);
    return h("a", { href: `#stored/${encodeURIComponent(each.id)}` }, shown(each.id, 80));
  };
  const branch = (each) => h("li", {}, line(each),
    each.next.length ? h("ul", { class: "tree" }, each.next.map(branch)) : null);
  return [
    h("p", {}, h("a", { href: "#stored" }, "All stored responses")),
    h("h2", {}, shown(headlineOf(response), 120)),
    h("p", { class: "soft" }, [clockTime(response.created_at), response.model, response.status, id].map((each) => shown(each, 80)).join(" · ")),
    storedButtons(id, path, response, "#stored", h("button", { type: "button", onclick: () => goOn(path).catch((error) => main.prepend(trouble(error))) }, "Continue")),
    h("h3", {}, "Chain"), h("ul", { class: "tree" }, branch(chain)),
    h("h3", {}, "Input"), h("pre", { tabindex: "0" }, shown(JSON.stringify(input.data, null, 2))),
    h("h3", {}, "Response"), h("pre", { tabindex: "0" }, shown(JSON.stringify(response, null, 2))),
  ];
}

// --- Usage --------------------------------------------------------------------------------------

const DAYS = 14;

async function usage({ signal }) {
  const start = Math.floor(Date.now() / 86_400_000 - DAYS + 1) * 86_400;
  const query = `start_time=${start}&bucket_width=1d&limit=${DAYS}&group_by=model`;
  const [page, limits] = await Promise.all([
    json(`/v1/usage?${query}`, { signal }),
    json("/v1/usage/limits", { signal }).catch((error) => ({ error })),
  ]);
  const days = page.data.map((bucket) => ({ start: bucket.start_time, rows: bucket.results }));
  const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);
  const models = new Map();
  for (const row of days.flatMap((day) => day.rows)) {
    const all = models.get(row.model) ?? { input_tokens: 0, output_tokens: 0, num_model_requests: 0 };
    for (const field of Object.keys(all)) all[field] += row[field] ?? 0;
    models.set(row.model, all);
  }
  const rows = [...models].map(([model, all]) => h("tr", {}, cell(model), cell(count(all.num_model_requests), { number: true }),
    cell(count(all.input_tokens), { number: true }), cell(count(all.output_tokens), { number: true })));
  const columns = [{ name: "Model" }, { name: "Turns", number: true }, { name: "Input", number: true }, { name: "Output", number: true }];
  const figures = days.map((day) => ({ day: new Date(day.start * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" }),
    input: sum(day.rows, "input_tokens"), output: sum(day.rows, "output_tokens") }));
  return [
    h("h2", {}, `Tokens of the last ${DAYS} days`),
    rows.length
      ? [h("p", {}, h("span", { class: "key input" }), "input ", h("span", { class: "key output" }), "output"),
          h("div", { class: "card plotted" }, plot(figures)), table("Tokens by model", columns, rows).box]
      : h("p", { class: "soft" }, "There was no turn in these days."),
    h("h2", {}, "Limits of the account"),
    h("div", { class: "cards" }, limitCards(limits)),
  ].flat();
}

function plot(figures) {
  const most = Math.max(1, ...figures.map(({ input, output }) => input + output));
  const bar = (value, kind, day) => {
    const made = h("div", { class: kind, title: `${day}: ${count(value)} ${kind}` });
    made.style.height = `${(value / most) * 100}%`;
    return made;
  };
  const label = figures.map(({ day, input, output }) => `${day}: ${count(input)} in, ${count(output)} out`).join("; ");
  return h("div", { class: "plot", role: "img", "aria-label": `Tokens by day. ${label}` },
    h("p", { class: "soft" }, `${count(most)} tokens`),
    h("div", { class: "days" }, figures.map(({ day, input, output }) => h("div", {},
      h("div", { class: "bars" }, bar(output, "output", day), bar(input, "input", day)), h("span", { class: "soft" }, day)))));
}

function limitCards(limits) {
  if (limits.error) return h("p", { class: "soft" }, shown(limits.error.message));
  return (limits.data ?? [limits]).map((each) => h("section", { class: "card" },
    h("h3", {}, shown(each.agent ?? "Account")),
    (each.limits ?? []).length
      ? facts(each.limits.flatMap((limit) => limit.windows.map((window) => [
          `${limit.name ?? limit.id ?? ""} ${window.window_seconds ? seconds(window.window_seconds) : window.name}`.trim(),
          `${Math.round(window.used_percent)} % used, resets ${window.resets_at ? clockTime(window.resets_at) : "at an unknown time"}`])))
      : h("p", { class: "soft" }, shown(each.reason ?? "The agent reports none."))));
}

// --- Connect ------------------------------------------------------------------------------------

async function connect({ argument, signal }) {
  const { data } = await json("/ui/api/connect", { signal });
  const chosen = data.find((each) => each.name === argument);
  if (!chosen) {
    return [h("h2", {}, "Connect a client"), !data.length && h("p", { class: "soft" }, "This installation knows no clients."), h("ul", {}, data.map((each) => h("li", {},
      h("a", { href: `#connect/${encodeURIComponent(each.name)}` }, each.title), " ", h("span", { class: "soft" }, marked(each.about)))))];
  }
  return [
    h("p", {}, h("a", { href: "#connect" }, "All clients")),
    h("h2", {}, chosen.title, " ", h("span", { class: "soft" }, marked(chosen.about))),
    ...chosen.blocks.map(({ text, language, file }) => h("section", { class: "block" },
      h("div", { class: "row" }, file && h("span", {}, `In ${file}:`), language && copyButton("Copy", text)),
      h("pre", { tabindex: "0" }, text))),
    ...chosen.notes.map((note) => h("p", {}, marked(note))),
    h("p", { class: "soft" }, "In a terminal: ", h("code", {}, `codex-proxy connect ${chosen.name}`)),
  ];
}

/** The parts of a text in which backticks mark code. */
const marked = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

// --- start --------------------------------------------------------------------------------------

const panes = document.getElementById("panes");
panes.append(...Object.entries(PANES).map(([name, [title]]) => h("a", { href: `#${name}` }, title)));
json("/healthz").then(({ version }) => (document.getElementById("version").textContent = version ?? ""), () => {});
/** Takes a key from the address, where a link has put it, and removes it from there. Returns whether there was one. */
function takeKey() {
  const found = /^#key=(.+)$/.exec(location.hash)?.[1];
  if (!found) return false;
  history.replaceState(null, "", location.pathname);
  const given = decoded(found);
  if (!SENDABLE.test(given)) return false;
  // A link of somebody else must not make another key's sessions out of what is written next.
  if (key.get() && given !== key.get() && !confirm("This link brings another key. Use it instead of yours?")) return false;
  if (given !== key.get()) sessionStorage.clear(); // drafts of another key
  key.set(given);
  return true;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a key with a % that nobody has encoded
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the pane
  main.focus();
});

addEventListener("hashchange", () => {
  if (takeKey()) return location.reload(); // what another key has asked, and was answered, is forgotten
  show();
  main.focus({ preventScroll: true });
});
takeKey();
show();
