// The pane of the sessions: their list, and the conversation of the chosen one with its input. What happens in any of
// them appears as it happens, also while another pane is shown.
import { asSessionCurl, asSessionPython } from "./code.js";
import { NEW, composer, creation, fork } from "./composer.js";
import { conversation } from "./conversation.js";
import { BETA } from "./feed.js";
import { Failed, copyButton, count, h, json, ofTurn, request, seconds, shown, trouble } from "./lib.js";
import { follow, watch } from "./live.js";
import { canAsk, ask as askToNotify, told } from "./notices.js";
import { filesMenu } from "./turn_files.js";

const PAGE = 50;
const TICK_MS = 1000;
const OTHERS_MS = 2000;
const SEARCH_MS = 250;
const STATES = { idle: "idle", in_progress: "working", requires_action: "waits for you", failed: "failed" };
const STEPS = { completed: "✓", in_progress: "▸", pending: "○" };

const pathOf = (id) => `/v1/agents/sessions/${encodeURIComponent(id)}`;

let pane = null; // it is made once: what is shown, and where it was read, stays while another pane is looked at

/** The pane. Its argument is the id of a session. */
export async function sessions({ argument, signal }) {
  if (!pane) {
    try {
      pane = await makePane(signal);
    } catch (error) {
      if (error instanceof Failed && (error.status === 404 || error.code === "store_disabled")) return without(error);
      throw error;
    }
  }
  document.body.classList.add("full");
  signal.addEventListener("abort", () => {
    document.body.classList.remove("full");
    pane.leave();
  });
  pane.open(argument ?? NEW);
  return pane.element;
}

function without({ status, message }) {
  const why = status === 404 ? "This server has no sessions: its part `sessions` is not installed." : `This server keeps no sessions. ${message}`;
  return [h("h2", {}, "Sessions"), h("p", {}, shown(why)),
    h("p", {}, "A single prompt can be sent in the ", h("a", { href: "#playground" }, "playground"), "; ",
      h("a", { href: "#now" }, "Now"), " shows what runs.")];
}

async function makePane(signal) {
  const [first, choices, { data: models }] = await Promise.all([
    json(`/v1/agents/session_summaries?limit=${PAGE}`, { signal, headers: BETA }), json("/ui/api/choices", { signal }), json("/v1/models", { signal })]);
  const known = new Map(); // the newest summaries, by id
  let current = { id: "", talk: null };

  const list = sessionList(known, () => current.id);
  const head = h("div", { class: "session-head" });
  const about = sessionAbout();
  const middle = h("div", { class: "middle" });
  const input = composer({
    choices, models,
    stop: () => request(`${pathOf(current.id)}/events`, { headers: BETA, body: { events: [{ type: "agent.session.input.cancel" }] } }),
    sent: (id) => {
      if (id !== current.id) location.hash = `#sessions/${encodeURIComponent(id)}`;
      else current.talk?.toEnd();
    },
    changed: (id, model) => json(pathOf(id), { headers: BETA, body: { agent: { model } } }),
  });
  const main = h("section", { class: "session", "aria-label": "Session" }, head, middle, about.element, input.element);
  const element = h("div", { class: "sessions" }, list.element, main);

  const summaryOf = () => known.get(current.id);
  const change = async (id, body) => take(await json(`${pathOf(id)}/summary`, { body, headers: BETA }));
  const goTo = (id) => (location.hash = `#sessions/${encodeURIComponent(id)}`);
  const actions = {
    comment: input.comment,
    edit: input.edit,
    fork: (item) => fork(current.id, current.talk.next(item)).then(goTo, input.fail),
    newFolder: () => newFolder(summaryOf()?.folder ?? "", choices.roots),
    forkWithFiles: (turn, folder) => fork(current.id, current.talk.behind(turn), undefined, folder).then(goTo),
    trouble: input.fail,
  };
  const title = titleBar(head, { change, goTo, input, current: () => current.id, lastTurn: () => current.talk?.lastTurn() ?? "" });

  function draw() {
    const summary = summaryOf();
    title.draw(summary);
    about.draw(summary);
    current.talk?.setAsks(summary?.asks ?? []);
    input.state(summary ?? null);
    const words = summary ? summary.title || "A session" : "New session";
    if (element.isConnected) document.title = shown(`${words} – codex-proxy`, 120);
  }

  function take(summary) {
    told(known.get(summary.id), summary, take.seen);
    known.set(summary.id, summary);
    list.take(summary);
    if (summary.id === current.id) draw();
  }

  function remove(id) {
    known.delete(id);
    list.remove(id);
    if (id !== current.id) return;
    if (element.isConnected) goTo(NEW);
    else open(NEW);
  }

  function open(id) {
    const nothingToChoose = !current.id && !first.data.length;
    // Without a session a narrow window begins with a new one, whose address leads back to the list.
    if (nothingToChoose && !location.hash.includes("/")) history.replaceState(null, "", `#sessions/${NEW}`);
    element.classList.toggle("chosen", location.hash.includes("/"));
    if (id === current.id) return requestAnimationFrame(() => current.talk?.restore());
    current.talk?.close();
    const ready = watch(id === NEW ? "" : id);
    current = { id, talk: id === NEW ? null : conversation(id, ready, actions) };
    middle.replaceChildren(current.talk?.element ?? welcome());
    input.show(id, known.get(id) ?? null);

    list.mark(id);
    draw();
    if (id !== NEW && !known.has(id)) {
      json(`${pathOf(id)}/summary`, { headers: BETA }).then(take, (error) => id === current.id && middle.replaceChildren(trouble(error)));
    }
    if (matchMedia("(pointer: fine)").matches) requestAnimationFrame(() => element.isConnected && input.focus());
  }

  for (const each of first.data) known.set(each.id, each);
  list.fill(first);
  follow((messages, seen) => {
    take.seen = seen;
    for (const message of messages) {
      if (message.type === "agent.session.summary") take(message.summary);
      else if (message.type === "agent.session.summaries") message.data.forEach(take);
      else if (message.type === "agent.session.deleted") remove(message.session_id);
      else if (message.type === "missed") current.talk?.resume();
      else if (message.type === "connection") {
        list.say(message.state === "live" ? "" : message.message);
        if (message.state === "live") current.talk?.resume();
      } else current.talk?.take(message);
    }
  });
  /** Reads what the stream does not tell of the open session: it has only what happens in its own process. */
  const readOthers = async () => {
    const { id, talk } = current;
    if (!talk || document.hidden || !element.isConnected) return;
    const summary = await json(`${pathOf(id)}/summary`, { headers: BETA });
    if (id !== current.id || (!summary.turn && JSON.stringify(summary) === JSON.stringify(known.get(id)))) return;
    take(summary);
    await talk.resume(false);
  };
  const followOthers = () => setTimeout(() => readOthers().catch(input.fail).finally(followOthers), OTHERS_MS);
  if (choices.worker) followOthers();
  setInterval(() => {
    if (document.hidden || !element.isConnected) return;
    list.tick();
    about.tick();
  }, TICK_MS);
  return { element, open, leave: () => current.talk?.keepPosition() };
}

/** A folder for a copy: beside that of the session if the key may work there, else in it; of a worktree in a root. */
function newFolder(folder, roots) {
  if (!roots.some((root) => `${folder}/`.startsWith(root === "/" ? root : `${root}/`))) return `${roots[0] ?? ""}/fork`;
  const above = `${folder.slice(0, folder.lastIndexOf("/"))}/`;
  return roots.some((root) => above.startsWith(root === "/" ? root : `${root}/`)) ? `${folder}-fork` : `${folder}/fork`;
}

const welcome = () => h("div", { class: "welcome" }, h("h2", {}, "What shall the agent do?"),
  h("p", { class: "soft" }, "A session is a conversation with an agent, which goes on while you look elsewhere and is found again at the left."));

// --- the list --------------------------------------------------------------------------------------

function sessionList(known, current) {
  const rows = new Map();
  const items = h("ul", { class: "session-list" });
  const status = h("p", { class: "soft", role: "status" });
  const trouble = h("p", { class: "bad", role: "status" });
  const search = h("input", { type: "search", name: "search", "aria-label": "Search sessions", placeholder: "Search" });
  const archived = h("input", { type: "checkbox", name: "archived" });
  const more = h("button", { type: "button", hidden: true }, "More");
  const notify = h("button", { type: "button", hidden: !canAsk(), title: "On the desktop, when something waits or ends in a hidden tab" }, "Notify me");
  let order = 0; // of the list's requests: an older answer than the newest request's is not shown
  let timer = null;

  const load = async (after = "") => {
    const mine = ++order;
    const query = new URLSearchParams({ limit: PAGE, archived: archived.checked, ...(search.value.trim() ? { search: search.value.trim() } : {}), ...(after ? { after } : {}) });
    try {
      const page = await json(`/v1/agents/session_summaries?${query}`, { headers: BETA });
      if (mine !== order) return;
      for (const each of page.data) known.set(each.id, each);
      fill(page, Boolean(after));
    } catch (error) {
      if (mine === order) status.textContent = shown(error.message, 300);
    }
  };

  const fill = (page, behind = false) => {
    if (!behind) {
      rows.clear();
      items.replaceChildren();
    }
    for (const each of page.data) if (!rows.has(each.id)) items.append(rowOf(each));
    more.hidden = !page.has_more;
    more.onclick = () => load(page.last_id);
    const nothing = search.value.trim() || archived.checked ? "No session fits." : "There is no session yet.";
    status.textContent = rows.size ? "" : nothing;
  };

  const rowOf = (summary) => {
    const words = h("span", { class: "soft" });
    const title = h("span", { class: "title" });
    const link = h("a", { href: `#sessions/${encodeURIComponent(summary.id)}` }, title, words);
    const row = { element: h("li", {}, link), title, words, link, summary };
    rows.set(summary.id, row);
    drawRow(row);
    return row.element;
  };

  const drawRow = ({ title, words, link, summary }) => {
    const state = STATES[summary.status] ?? summary.status;
    const text = [summary.agent, (summary.folder ?? "").split("/").at(-1), state, ageOf(summary)].filter(Boolean).map((each) => shown(each, 60)).join(" · ");
    if (words.textContent !== text) words.textContent = text;
    const name = shown(summary.title || "A session", 120);
    if (title.textContent !== name) title.textContent = name;
    link.dataset.state = summary.status;
    if (summary.id === current()) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  };

  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(load, SEARCH_MS);
  });
  archived.addEventListener("change", () => load());
  notify.addEventListener("click", async () => {
    await askToNotify();
    notify.hidden = !canAsk();
  });

  return {
    element: h("aside", { class: "session-side", "aria-label": "Sessions" },
      h("a", { class: "button main", href: `#sessions/${NEW}` }, "New session"),
      h("form", { role: "search", onsubmit: (event) => { event.preventDefault(); load(); } }, search,
        h("label", { class: "inline" }, archived, "Archived")),
      trouble, status, h("nav", { "aria-label": "Sessions" }, items), more, notify),
    fill,
    /** Shows what has changed of a session: the one with the newest activity is the first. */
    take(summary) {
      const row = rows.get(summary.id);
      const fits = summary.archived === archived.checked;
      if (!row) {
        if (fits && !search.value.trim()) items.prepend(rowOf(summary));
      } else if (!fits) {
        row.element.remove();
        rows.delete(summary.id);
      } else {
        const newer = summary.last_active_at > row.summary.last_active_at;
        row.summary = summary;
        drawRow(row);
        if (newer && items.firstChild !== row.element && !row.element.contains(document.activeElement)) items.prepend(row.element);
      }
      if (rows.size) status.textContent = "";
    },
    remove(id) {
      rows.get(id)?.element.remove();
      rows.delete(id);
      if (!rows.size) status.textContent = "There is no session yet.";
    },
    mark: () => rows.forEach(drawRow),
    tick: () => rows.forEach(drawRow),
    say: (words) => (trouble.textContent = shown(words, 300)),
  };
}

/** How long nothing has happened, in words: it changes once a minute. */
function ageOf({ last_active_at: since }) {
  const age = Date.now() / 1000 - since;
  return age < 60 ? "now" : seconds(age).replace(/ \d+ (s|min|h)$/, "");
}

// --- the title, and what can be done with the session ---------------------------------------------------

function titleBar(head, { change, goTo, input, current, lastTurn }) {
  const back = h("a", { class: "back", href: "#sessions" }, "All sessions");
  const name = h("h2", {});
  const words = h("p", { class: "soft" });
  const run = (work) => async () => { try { await work(); } catch (error) { input.fail(error); } };
  const rename = h("button", { type: "button", onclick: () => edit() }, "Rename");
  const archive = h("button", { type: "button", onclick: run(() => change(current(), { archived: !summary.archived })) }, "Archive");
  const copy = h("button", { type: "button", onclick: run(async () => goTo(await fork(current()))) }, "Fork");
  const resume = h("span", {});
  const recording = copyButton("Copy the last turn as cassette", async () => (await ofTurn(lastTurn(), "/cassette")).text());
  const more = h("details", { class: "menu", ontoggle: () => more.open && findRecording() }, h("summary", {}, "Copy as …"), h("div", { class: "row" },
    copyButton("Copy as curl", () => asCode(asSessionCurl)), copyButton("Copy as Python", () => asCode(asSessionPython)), recording, resume));
  const files = filesMenu(() => summary);
  const buttons = h("div", { class: "row" }, rename, archive, copy, more, files);
  const bar = h("div", { class: "title-bar" }, name);
  let summary = null;

  /** Offers the recording of the last turn where the server has one. */
  const findRecording = async () => {
    recording.hidden = true;
    const turn = lastTurn() && (await ofTurn(lastTurn()).then((answer) => answer.json(), () => null));
    recording.hidden = !turn?.recorded;
  };

  const asCode = async (code) => {
    return code(creation(summary, input.content() ?? (await lastMessage(current())) ?? [{ type: "input_text", text: "Hello." }]));
  };

  const edit = () => {
    const field = h("input", { "aria-label": "Title", value: summary.title, maxlength: "200" });
    const done = () => {
      bar.replaceChildren(name);
      rename.focus();
    };
    const form = h("form", { onsubmit: (event) => {
      event.preventDefault();
      change(current(), { title: field.value.trim() || null }).catch(input.fail);
      done();
    } }, field, h("button", {}, "Save"));
    form.addEventListener("keydown", (event) => event.key === "Escape" && done());
    bar.replaceChildren(form);
    field.select();
  };

  head.append(back, bar, words, buttons);
  return {
    draw(newSummary) {
      if (newSummary?.id !== summary?.id) {
        bar.replaceChildren(name);
        files.open = false;
      }
      summary = newSummary ?? null;
      name.textContent = summary ? shown(summary.title || "A session", 200) : "New session";
      words.replaceChildren(...(summary ? placeOf(summary) : []));
      buttons.hidden = !summary;
      files.hidden = summary?.mode === "model";
      if (!summary) return;
      archive.textContent = summary.archived ? "Restore" : "Archive";
      const command = summary.resume ?? "";
      if (resume.dataset.command === command) return;
      resume.dataset.command = command;
      resume.replaceChildren(command ? copyButton("Copy the terminal command", command) : "");
      resume.title = command;
    },
  };
}

/** Where a session works. */
function placeOf(summary) {
  const { agent, model, mode, folder, sandbox, approvals, may_approve: may, forked_from: from } = summary;
  const asked = approvals === "ask" ? `asks before it acts${may ? "" : " (another key answers)"}` : "";
  const words = [agent, model, mode === "model" ? "plain model" : folder, mode === "model" ? "" : sandbox, asked].filter(Boolean);
  const fork = from ? [" · ", h("a", { href: `#sessions/${encodeURIComponent(from)}` }, "a copy of another session")] : [];
  return [words.map((each) => shown(each, 1000)).join(" · "), ...fork];
}

/** The content of the client's last message among the newest items; null if there is none. */
async function lastMessage(id) {
  const { data } = await json(`${pathOf(id)}/items?limit=100&order=desc`, { headers: BETA });
  return data.find(({ role }) => role === "user")?.content ?? null;
}

// --- what goes on ---------------------------------------------------------------------------------------

/** What is told above the input: the plan, messages that wait, the running time, tokens and what is left of the context. */
function sessionAbout() {
  const steps = h("ol", {});
  const progress = h("summary", {});
  const plan = h("details", { class: "plan", open: true }, progress, steps);
  const waiting = h("ul", {});
  const queue = h("div", { class: "queued" }, h("h3", {}, "Not read by the agent yet"), waiting);
  const meter = h("p", { class: "soft meter" });
  const shownNow = new Map();
  /** Calls `make` if a value has changed since the last time: what is looked at is not made anew. */
  const part = (name, value, make) => {
    const text = JSON.stringify(value ?? null);
    if (shownNow.get(name) === text) return;
    shownNow.set(name, text);
    make();
  };
  const element = h("div", { class: "session-about" }, plan, queue, meter);
  return {
    element,
    draw(summary) {
      element.hidden = !summary;
      const { plan: planned, queued, turn, usage, context, cost, status } = summary ?? {};
      part("plan", planned, () => {
        plan.hidden = !planned?.length;
        const done = planned?.filter((step) => step.status === "completed").length;
        progress.textContent = `Plan: ${done} of ${planned?.length} steps`;
        steps.replaceChildren(...(planned ?? []).map((step) => h("li", { class: step.status },
          h("span", { "aria-label": step.status.replaceAll("_", " "), role: "img" }, STEPS[step.status] ?? "○"), " ", shown(step.step, 500))));
      });
      part("queued", queued, () => {
        queue.hidden = !queued?.length;
        waiting.replaceChildren(...(queued ?? []).map(({ text }) => h("li", {}, shown(text, 2000))));
      });
      part("meter", [turn, usage, context, cost, status], () => meter.replaceChildren(...meterOf(turn, usage, context, cost, status)));
    },
    tick() {
      for (const each of meter.querySelectorAll("[data-since]")) each.textContent = seconds(Date.now() / 1000 - each.dataset.since);
    },
  };
}

function meterOf(turn, usage, context, cost, status) {
  const words = [];
  if (turn) words.push(h("span", {}, `${STATES[status] ?? status} for `, h("span", { "data-since": turn.created_at }, seconds(Date.now() / 1000 - turn.created_at))));
  if (usage) words.push(`${count(usage.input_tokens)} tokens in, ${count(usage.output_tokens)} out`);
  if (context?.window) words.push(`${Math.max(0, Math.round(100 - (100 * context.used) / context.window))} % of the context left`);
  else if (context) words.push(`${count(context.used)} tokens of context`);
  if (cost) words.push(`${cost.amount.toFixed(2)} ${cost.currency}`);
  return words.flatMap((each, at) => (at ? [" · ", each] : [each]));
}
