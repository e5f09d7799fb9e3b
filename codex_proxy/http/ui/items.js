// The items of a conversation, each as an element that grows while the agent works. What the agent, a tool or a file says
// is text: nothing of it becomes an element but by `markdown.js`.
import { changesOfItem } from "./changes.js";
import { diffView } from "./diff.js";
import { copyButton, h, seconds, shown } from "./lib.js";
import { markdownView } from "./markdown.js";
import { outputView } from "./output.js";

/**
 * The view of an item of the Agents API. `actions`: what a person may do with it, all optional: `comment(path, line, text)`,
 * `fork(itemId)`, `edit(itemId, text)` with the text of the person's message, `openSubagent(id)`.
 * Returns `element`, `update(item)` for a newer object of the item, and `delta(event)` for an event about it.
 */
export function itemView(item, actions = {}) {
  const element = h("article", { class: "item" });
  let view = null;
  let latest = item;
  let pending = []; // deltas since the last frame
  const draw = () => {
    if (!view || view.kind !== kindOf(latest)) {
      view = makerOf(latest)(latest, actions);
      view.kind = kindOf(latest);
      element.className = `item ${view.kind}`;
      element.setAttribute("aria-label", shown(view.label, 100));
      element.replaceChildren(...view.nodes);
    }
    view.update?.(latest);
    view.draw?.();
    element.hidden = Boolean(view.empty?.());
    element.setAttribute("aria-busy", String(latest.status === "in_progress"));
  };
  const flush = () => {
    const events = pending;
    pending = [];
    for (const event of events) view.delta?.(event);
    if (events.length) view.draw?.();
    element.hidden = Boolean(view.empty?.());
  };
  draw();
  return {
    element,
    update(newer) {
      flush();
      latest = newer;
      draw();
    },
    delta(event) {
      pending.push(event);
      if (pending.length === 1) onFrame(() => pending.length && flush());
    },
  };
}

let frame = []; // what is to be done in the next frame, of all items

function onFrame(action) {
  frame.push(action);
  if (frame.length > 1) return;
  requestAnimationFrame(() => {
    const actions = frame;
    frame = [];
    for (const each of actions) each();
  });
}

const VIEWS = {
  message: (item) => (item.role === "user" ? userMessage : agentMessage),
  reasoning: () => reasoning,
  command_execution: (item) => (changesOf(item) ? fileChange : command),
  web_search_call: () => webSearch,
  mcp_call: () => mcpCall,
  function_call: () => functionCall,
  function_call_output: () => functionOutput,
  agent_message: () => subagentCall,
};

const kindOf = (item) => makerOf(item).name;

function makerOf(item) {
  if (Object.hasOwn(VIEWS, item.type)) return VIEWS[item.type](item);
  return /_subagents?(?:_input)?_call$/.test(item.type) ? subagentCall : unknown;
}

const STATES = { in_progress: "at work", failed: "failed", incomplete: "cut" };

/** A word for the state of an item, if it is not simply done. */
function stateOf(item) {
  const told = STATES[item.status];
  return told ? h("span", { class: `state ${item.status === "in_progress" ? "soft" : "bad"}` }, told) : null;
}

const json = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

// --- messages ---------------------------------------------------------------------------------------

const textOf = (item) => (item.content ?? []).map((part) => part?.text).filter((text) => typeof text === "string").join("\n");

function messageActions(item, actions, text) {
  return h("div", { class: "item-actions" }, copyButton("Copy", text),
    actions.fork && h("button", { type: "button", onclick: () => actions.fork(item.id) }, "Fork from here"));
}

function userMessage(item, actions) {
  const parts = (item.content ?? []).map(partOf);
  const body = h("div", { class: "said" }, parts);
  const text = textOf(item);
  const foot = messageActions(item, actions, text);
  if (actions.edit) foot.append(h("button", { type: "button", onclick: () => actions.edit(item.id, text) }, "Edit and send again"));
  return { label: "You", nodes: [h("p", { class: "who" }, "You"), body, foot] };
}

/** A part of a message or of an output: its text, its image, or the name of its file. */
function partOf(part) {
  if (typeof part?.text === "string") return h("p", { class: "plain" }, shown(part.text, Infinity));
  const address = part?.image_url?.url ?? part?.image_url;
  if (part?.type === "input_image" && typeof address === "string") return imageOf(address);
  const name = part?.filename ?? part?.file_id ?? part?.file_url;
  if (part?.type === "input_file") return h("p", { class: "attached" }, "File: ", shown(name ?? "without a name", 300));
  return h("pre", { tabindex: "0", "aria-label": "Part of the message" }, shown(json(part)));
}

/** An image that the message holds. One of the web is not loaded. */
function imageOf(address) {
  if (/^data:image\/(?:png|jpeg|gif|webp);base64,/.test(address)) {
    return h("img", { src: address, alt: "An image of the message", loading: "lazy" });
  }
  return h("p", { class: "attached" }, "Image: ", shown(address, 300));
}

function agentMessage(item, actions) {
  const answer = markdownView();
  let text = "";
  const state = h("span");
  const foot = messageActions(item, actions, () => text);
  return {
    label: "The agent",
    nodes: [answer.element, state, foot],
    empty: () => !text,
    draw: () => answer.update(text),
    update(newer) {
      const ended = newer.status !== "in_progress";
      text = textOf(newer) || (ended ? "" : text);
      state.replaceChildren(...(ended ? [stateOf(newer) ?? ""] : []));
      foot.hidden = !ended;
    },
    delta(event) {
      if (event.type.endsWith("output_text.delta")) text += event.delta;
      if (event.type.endsWith("output_text.done")) text = event.text;
    },
  };
}

function reasoning() {
  const parts = []; // the text of each part of the summary
  const body = markdownView();
  const name = h("span");
  return {
    label: "Reasoning",
    nodes: [h("details", {}, h("summary", {}, name), body.element)],
    empty: () => !parts.some(Boolean),
    draw: () => body.update(Array.from(parts, (part) => part ?? "").join("\n\n")),
    update(newer) {
      const told = (newer.summary ?? []).map((part) => part.text ?? "");
      if (told.some(Boolean)) parts.splice(0, parts.length, ...told);
      name.textContent = newer.status === "in_progress" ? "Reasoning …" : "Reasoning";
    },
    delta(event) {
      const at = Math.min(event.summary_index ?? 0, MOST_PARTS);
      if (event.type.endsWith("text.delta")) parts[at] = (parts[at] ?? "") + event.delta;
      if (event.type.endsWith("text.done")) parts[at] = event.text;
    },
  };
}

const MOST_PARTS = 1000; // of a summary; what comes behind them is a part of the last one

// --- commands and changes ---------------------------------------------------------------------------

const changesOf = (item) => (typeof item.command === "string" ? changesOfItem(item.command, item.output) : null);

function command(item) {
  const line = h("code", { class: "command" }, shown(item.command, 2000));
  const facts = h("p", { class: "soft facts" });
  const output = outputView();
  const whole = String(item.command ?? "");
  const long = whole.length > 2000 ? h("details", {}, h("summary", {}, "The whole command"), h("pre", { tabindex: "0" }, shown(whole, Infinity))) : null;
  return {
    label: `Command ${whole}`,
    draw: output.draw,
    nodes: [h("div", { class: "item-head" }, h("span", { class: "kind" }, "Ran"), " ", line), long, facts, output.element].filter(Boolean),
    update(newer) {
      const { exit_code: code, duration_ms: ms, cwd } = newer;
      const ended = code !== null && code !== undefined && h("span", { class: code === 0 ? "good" : "bad" }, code === 0 ? "exit code 0" : `exit code ${code}`);
      const time = typeof ms === "number" && h("span", {}, seconds(ms / 1000));
      const told = [stateOf(newer), ended, time, cwd && h("span", { class: "folder" }, `in ${shown(cwd, 500)}`)].filter(Boolean);
      facts.replaceChildren(...told.flatMap((each, at) => (at ? [" · ", each] : [each])));
      if (typeof newer.output === "string") output.set(newer.output);
      else if (newer.status !== "in_progress") output.set("");
    },
    delta(event) {
      if (event.type.endsWith("output.delta")) output.add(event.delta);
    },
  };
}

function fileChange(item, actions) {
  const changes = changesOf(item);
  const done = item.status === "completed";
  const title = `${done ? "Changed" : "Wanted to change"} ${changes.length === 1 ? "a file" : `${changes.length} files`}`;
  const head = h("div", { class: "item-head" }, h("span", { class: "kind" }, title), " ", stateOf(item));
  return { label: title, nodes: [head, diffView(changes, { comment: actions.comment })] };
}

// --- calls ------------------------------------------------------------------------------------------

/** A folded box whose line says what it is about. */
function folded(line, ...contents) {
  return h("details", {}, h("summary", {}, line), contents);
}

const block = (name, value) => (value === null || value === undefined || value === "" ? null
  : [h("p", { class: "soft" }, name), h("pre", { tabindex: "0", "aria-label": name }, shown(json(value), 200_000))]);

/** The view of a call, whose whole contents follow from its newest object. */
function callView(label, contentsOf) {
  const box = h("div");
  return {
    label,
    nodes: [box],
    update(newer) {
      const open = box.querySelector("details")?.open;
      box.replaceChildren(...contentsOf(newer).flat(Infinity).filter(Boolean));
      const made = box.querySelector("details");
      if (made && open) made.open = true;
    },
  };
}

const titled = (kind, name, item) => [h("span", { class: "kind" }, kind), " ", h("code", {}, shown(name, 300)), " ", stateOf(item)];

function webSearch() {
  return callView("Web search", (item) => {
    const { query, queries, url } = item.action ?? {};
    const asked = query ?? queries?.join(", ") ?? url ?? "";
    return [h("div", { class: "item-head" }, titled(item.status === "in_progress" ? "Searches the web" : "Searched the web", asked, item))];
  });
}

function mcpCall(item) {
  return callView(`Call of ${item.name}`, (newer) => [folded(titled("Called", `${newer.server_label} · ${newer.name}`, newer),
    block("Arguments", newer.arguments), block("Output", newer.output), block("Error", newer.error))]);
}

function functionCall(item) {
  return callView(`Call of ${item.name}`, (newer) => [folded(titled("Called your function", newer.name, newer), block("Arguments", newer.arguments))]);
}

function functionOutput() {
  return callView("Output of your function", (item) => {
    const parts = Array.isArray(item.output) ? item.output.map(partOf) : block("Output", item.output);
    return [folded(titled("Got the output of your function", "", item), parts, block("Error", item.error))];
  });
}

const ABOUT_SUBAGENTS = {
  create_subagent_call: "Started a subagent", send_subagent_input_call: "Told a subagent", agent_message: "A subagent said",
  wait_for_subagents_call: "Waited for subagents", interrupt_subagent_call: "Interrupted a subagent",
  close_subagent_call: "Closed a subagent", resume_subagent_call: "Opened a subagent again",
};

function subagentCall(item, actions) {
  const title = ABOUT_SUBAGENTS[item.type] ?? "Called a subagent";
  return callView(title, (newer) => {
    const own = newer.type === "agent_message" ? [newer.sender_agent_id] : [newer.recipient_agent_id, ...(newer.recipient_agent_ids ?? [])];
    const opens = actions.openSubagent ? own.filter(Boolean).map((id) => h("button", { type: "button", onclick: () => actions.openSubagent(id) }, `Open ${shown(id, 60)}`)) : [];
    const head = h("div", { class: "item-head" }, h("span", { class: "kind" }, title), " ", newer.model && h("span", { class: "soft" }, shown(newer.model, 100)), " ", stateOf(newer), opens);
    const text = textOf(newer);
    if (!text) return [head];
    const view = markdownView();
    view.update(text);
    return [head, text.length > 600 ? folded("What was said", view.element) : view.element];
  });
}

function unknown(item) {
  return callView(`An item of the type ${item.type}`, (newer) => [folded(titled("Item", newer.type, newer), block("As JSON", newer))]);
}
