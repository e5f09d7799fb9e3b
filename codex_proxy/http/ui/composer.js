// The input below a conversation: what is said next, with what, and by whom it is answered.
import { BETA } from "./feed.js";
import { Failed, h, json, modelSelect, request, shown, trouble } from "./lib.js";

export const NEW = "new"; // in place of an id: the session that is made with the first message
const MAX_TEXT_FILE = 256 << 10; // bytes
const MAX_IMAGE = 10 << 20; // bytes

/**
 * What is written and not sent, by session: {text, files, comments}; `edits`: the message in whose place it is sent, and
 * `kept` what had been written before that was edited; `sending`: whether the message before it is on its way. One that
 * was not taken has `attempt`, for the next try, and `problem`. Texts outlive a reload of the tab.
 */
const drafts = new Map();
const stored = (id) => `codex-proxy-words ${id}`;
const draftWith = (more) => ({ text: "", files: [], comments: [], edits: "", kept: "", sending: false, attempt: null, problem: null, ...more });

function draftOf(id) {
  if (!drafts.has(id)) drafts.set(id, draftWith(JSON.parse(sessionStorage.getItem(stored(id)) ?? "{}")));
  return drafts.get(id);
}

function keep(id) {
  const { text, edits, kept } = draftOf(id);
  if (text || edits) sessionStorage.setItem(stored(id), JSON.stringify({ text, edits, kept }));
  else sessionStorage.removeItem(stored(id));
}

const joined = (...texts) => texts.filter(Boolean).join("\n\n");

/** A draft that was not taken, with what has been added since. */
const backWith = (draft, added, attempt, problem) => draftWith({
  text: joined(draft.text, added.text), files: [...draft.files, ...added.files], comments: [...draft.comments, ...added.comments],
  edits: draft.edits || added.edits, kept: joined(draft.kept, added.kept), attempt, problem });

/** The settings of the next new session, as they were chosen last. */
const chosen = { model: "", mode: "", folder: "", sandbox: "", worktree: false };

// --- what is sent ----------------------------------------------------------------------------------

/** A comment on a line of a change; not every agent tells the line's number. */
const remarkOf = ({ path, line, text }) => `${path}${line ? `:${line}` : ""}: ${text}`;

/** The parts of a message: comments on lines, the text, then files. */
function contentOf({ text, files, comments }) {
  const remarks = comments.map(remarkOf).join("\n");
  const words = joined(remarks && `Comments on the changes:\n${remarks}`, text.trim());
  return [
    ...(words ? [{ type: "input_text", text: words }] : []),
    ...files.map((file) => file.image ? { type: "input_image", image_url: file.url }
      : { type: "input_text", text: `The file ${file.name}:\n\n${file.text}` }),
  ];
}

/** A key of which there is no other; not by `randomUUID`, which a browser has with TLS only. */
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const messageOf = (content) => ({ role: "user", content });

/** The request that makes a session: its body, and its headers besides those of the API. */
export function creation({ model, mode, folder, sandbox, worktree }, content) {
  const environment = mode === "model" ? { type: "none" } : { type: "self_hosted", workspace_directory: folder, remote_url: "" };
  const more = mode === "model" ? {} : { ...(sandbox && { "X-Codex-Sandbox": sandbox }), ...(worktree && { "X-Codex-Worktree": "true" }) };
  return { body: { agent: { model }, environment, input: [messageOf(content)] }, more };
}

/** `once`, here and below: the same in every try, so that what lost its answer is not done twice. */
async function say(id, content, once) {
  await request(`/v1/agents/sessions/${encodeURIComponent(id)}/events`, {
    headers: { ...BETA, "Idempotency-Key": once }, body: { events: [{ type: "agent.session.input.message", input: [messageOf(content)] }] } });
}

// --- files -----------------------------------------------------------------------------------------

const readAs = (file, how) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result));
  reader.addEventListener("error", () => reject(reader.error));
  reader[how](file);
});

async function fileOf(file) {
  if (file.type.startsWith("image/")) {
    if (file.size > MAX_IMAGE) throw new Failed(`${file.name} is larger than ${MAX_IMAGE >> 20} MiB.`, 400);
    return { name: file.name, image: true, url: await readAs(file, "readAsDataURL") };
  }
  if (file.size > MAX_TEXT_FILE) throw new Failed(`${file.name} is larger than ${MAX_TEXT_FILE >> 10} KiB: name its path instead.`, 400);
  const text = await readAs(file, "readAsText");
  if (text.includes("\u0000") || text.includes("\ufffd")) throw new Failed(`${file.name} is neither an image nor a text.`, 400);
  return { name: file.name, image: false, text };
}

// --- the form --------------------------------------------------------------------------------------

/**
 * The input. `choices`: `/ui/api/choices` with `models`, those of `/v1/models`; `stop()` ends the turn that goes on;
 * `sent(id)` is called with the session of a message, which may be a new one; `changed(id, model)` changes a session's model.
 */
export function composer({ choices, models, stop, sent, changed }) {
  let id = NEW;
  let summary = null;
  const facts = new Map(models.map((model) => [model.id, model]));
  const problem = h("div", {});
  const fail = (error) => problem.replaceChildren(error ? trouble(error) : "");
  const text = h("textarea", { rows: "3", "aria-label": "Message", placeholder: "Ask for something. Enter sends, Shift+Enter begins a line." });
  const attached = h("ul", { class: "attached", "aria-label": "Goes with the message" });
  const send = h("button", { class: "main" }, "Send");
  const halt = h("button", { type: "button", hidden: true, onclick: () => { if (matchMedia("(pointer: fine)").matches) text.focus(); stop().catch(fail); } }, "Stop");
  const picker = h("input", { type: "file", multiple: true, hidden: true, onchange: () => add(picker.files) });
  const attach = h("button", { type: "button", onclick: () => picker.click() }, "Attach");
  const settings = h("div", { class: "settings row" });
  const hint = h("p", { class: "soft hint" });
  const form = h("form", { class: "composer", "aria-label": "Message" }, problem, attached, text, picker,
    h("div", { class: "row" }, settings, h("div", { class: "buttons" }, attach, halt, send)), hint);

  // What goes with the message, each with a button that takes it away.
  const draw = () => {
    const draft = draftOf(id);
    const line = (words, remove) => h("li", {}, shown(words, 200), " ",
      h("button", { type: "button", "aria-label": `Remove ${shown(words, 60)}`, onclick: () => { remove(); draw(); text.focus(); } }, "✕"));
    attached.replaceChildren(
      ...(draft.edits ? [line("Sent again in a copy of this session, from before the message", () => endEdit(draft))] : []),
      ...draft.comments.map((each) => line(remarkOf(each), () => draft.comments.splice(draft.comments.indexOf(each), 1))),
      ...draft.files.map((each) => line(each.name, () => draft.files.splice(draft.files.indexOf(each), 1))));
    attached.hidden = !attached.children.length;
    state();
  };

  /** Makes an edited message a new one, in place of what had been written before. */
  const endEdit = (draft) => {
    Object.assign(draft, { edits: "", kept: "", text: draft.kept || draft.text });
    text.value = draft.text;
    keep(id);
  };

  const state = () => {
    const works = id !== NEW && summary?.turn;
    halt.hidden = !works;
    send.textContent = works && !draftOf(id).edits ? "Steer" : "Send";
    hint.textContent = works ? "The agent works. A message goes into its turn if the agent takes it, else it begins the next one." : "";
    text.disabled = Boolean(summary?.archived);
    send.disabled = text.disabled || draftOf(id).sending;
    if (summary?.archived) hint.textContent = "This session is archived: restore it to go on.";
  };

  async function add(files) {
    const of = id; // while files are read another session may be opened
    problem.replaceChildren();
    for (const file of files) await fileOf(file).then((each) => draftOf(of).files.push(each)).catch(fail);
    picker.value = "";
    draw();
  }

  /** Sends a draft. Returns the session that has it; `attempt` has what is the same in a next try. */
  async function deliver(at, draft, content, attempt) {
    if (at === NEW) {
      const { body, more } = creation(chosen, content);
      return (await json("/v1/agents/sessions", { body, headers: { ...BETA, ...more, "Idempotency-Key": attempt.once } })).id;
    }
    if (draft.edits) attempt.copy ||= await fork(at, draft.edits, attempt.once);
    await say(attempt.copy || at, content, attempt.once);
    return attempt.copy || at;
  }

  async function submit() {
    const at = id;
    const draft = draftOf(at);
    const content = contentOf(draft);
    if (!content.length || send.disabled) return;
    problem.replaceChildren();
    const same = JSON.stringify([draft.edits, content, at === NEW && chosen]);
    const attempt = draft.attempt?.same === same ? draft.attempt : { same, copy: "", once: newKey() };
    drafts.set(at, draftWith({ sending: true })); // what is written from now on is the next message
    show(at, summary);
    try {
      const to = await deliver(at, draft, content, attempt);
      const next = draftOf(at);
      next.sending = false;
      if (to !== at && id === at) { // the page goes there, and what was written meanwhile with it
        drafts.set(to, next);
        drafts.set(at, draftWith());
        keep(to);
      }
      if (draft.kept) draftOf(at).text = joined(draft.kept, draftOf(at).text);
      if (id === at) sent(to);
    } catch (error) {
      drafts.set(at, backWith(draft, draftOf(at), attempt, error));
      if (id === at) fail(error);
    }
    keep(at);
    show(id, summary);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  text.addEventListener("input", () => {
    draftOf(id).text = text.value;
    keep(id);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  text.addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add(event.clipboardData.files);
  });
  for (const [type, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    form.addEventListener(type, (event) => {
      event.preventDefault();
      form.classList.toggle("over", over);
      if (type === "drop") add(event.dataTransfer.files);
    });
  }

  function drawSettings() {
    if (id === NEW) return settings.replaceChildren(...newSettings(choices, facts));
    const model = modelSelect(summary?.model ?? "", facts, choices.agents);
    if (summary && model.value !== summary.model) {
      model.prepend(h("option", { value: summary.model }, shown(summary.model, 80)));
      model.value = summary.model;
    }
    model.addEventListener("change", () => changed(id, model.value).catch((error) => {
      model.value = summary.model;
      fail(error);
    }));
    settings.replaceChildren(h("label", {}, h("span", {}, "Model"), model));
  }

  function show(newId, newSummary) {
    const other = newId !== id || !settings.children.length;
    const model = summary?.model;
    id = newId;
    summary = newSummary;
    if (other) fail(draftOf(id).problem);
    if (text.value !== draftOf(id).text) text.value = draftOf(id).text;
    if (other || model !== summary?.model) drawSettings();
    draw();
  }

  return {
    element: form,
    show,
    state: (newSummary) => show(id, newSummary),
    /** Adds a comment on a line of a changed file to the next message. */
    comment(path, line, said) {
      draftOf(id).comments.push({ path, line, text: said });
      draw();
    },
    /** Puts a message into the input, to be sent again in a copy of the session from before it. */
    edit(itemId, said) {
      const draft = draftOf(id);
      Object.assign(draft, { text: said, edits: itemId, kept: draft.edits ? draft.kept : draft.text });
      keep(id);
      text.value = said;
      draw();
      text.focus();
    },
    focus: () => text.focus(),
    fail,
    /** What a message would be sent as now; null if nothing is written. */
    content: () => { const content = contentOf(draftOf(id)); return content.length ? content : null; },
  };
}

/**
 * Makes a copy of a session with the items before one, or with all: one for each key `once`. With a folder also with the
 * files of then, in that folder. Returns its id.
 */
export async function fork(id, beforeItem, once = newKey(), folder = "") {
  const body = { ...(beforeItem ? { before_item: beforeItem } : {}), ...(folder ? { folder } : {}) };
  return (await json(`/v1/agents/sessions/${encodeURIComponent(id)}/fork`, { body, headers: { ...BETA, "Idempotency-Key": once } })).id;
}

/** The choices of a new session: what the key may. */
function newSettings({ agents, plain, builtin_tools, folder, roots, sandboxes, worktrees }, facts) {
  const model = modelSelect(chosen.model, facts, agents);
  const select = (name, options) => h("select", { name }, options.map(([value, words]) => h("option", { value }, words)));
  const mode = select("mode", [["agent", "agent"], ["model", "plain model"]]);
  const sandbox = select("sandbox", sandboxes.map((each) => [each, each]));
  const place = h("input", { name: "folder", value: chosen.folder || folder, list: "session-roots", spellcheck: "false" });
  const labelled = (words, field, kind) => {
    field.setAttribute("aria-label", words);
    return h("label", { class: kind }, h("span", {}, words), field);
  };
  const worktree = h("input", { type: "checkbox", name: "worktree", checked: chosen.worktree, title: "The agent works in a copy of the folder. Files, Merge brings its work back." });
  const ofAgent = [labelled("Folder", place, "wide"), labelled("Sandbox", sandbox)];
  const copies = labelled("In a worktree", worktree);
  sandbox.value = chosen.sandbox || sandboxes.at(-1);
  let wish = chosen.mode || "agent"; // where the model's agent has no agent turns it stays for the next model
  const adapt = () => {
    const acts = builtin_tools !== "never" && !plain.includes(facts.get(model.value)?.agent ?? model.value);
    mode.disabled = !acts;
    mode.value = acts ? wish : "model";
    for (const each of ofAgent) each.hidden = mode.value === "model";
    copies.hidden = !worktrees || mode.value === "model" || sandbox.value === "read-only";
    Object.assign(chosen, { model: model.value, mode: mode.value, folder: place.value.trim() || folder, sandbox: sandbox.value, worktree: worktree.checked && !copies.hidden });
  };
  mode.addEventListener("change", () => (wish = mode.value));
  for (const each of [model, mode, sandbox, place, worktree]) each.addEventListener("change", adapt);
  place.addEventListener("input", adapt);
  adapt();
  return [labelled(agents.length > 1 ? "Agent and model" : "Model", model), labelled("Mode", mode), ...ofAgent, copies,
    h("datalist", { id: "session-roots" }, roots.map((value) => h("option", { value })))];
}
