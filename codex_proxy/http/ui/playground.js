// The playground: one conversation, sent through several APIs and models side by side, with every event as it comes.
import { asCurl, asPython, asTypeScript } from "./code.js";
import { Failed, copyButton, count, events, h, json, modelSelect, ofTurn, request, seconds, shown, trouble, turnName } from "./lib.js";

const RAW_LINES = 1000;
const RAW_LONGEST = 2000;
const MAX_TOKENS = 8192;

const columnOf = (api, model) => ({ api, model, output: h("div", {}), stop: new AbortController() });

/** What was written and answered stays while the tab is open, and answers go on, also after a look at another pane. */
const draft = {
  prompt: "", system: "", tools: "", format: "", effort: "", mode: "", folder: "", stream: true, files: [],
  columns: [columnOf("chat", "")],
};

const EXAMPLE_TOOLS = JSON.stringify([{
  name: "get_weather", description: "The weather of a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}], null, 2);

// --- requests: the same conversation in each API ---------------------------------------------------

// A conversation is a list of {role: "user", text, files}, {role: "assistant", text, calls} and
// {role: "tool", outputs: [{id, text}]}. A call is {id, name, arguments}, its arguments are JSON text.

const chat = {
  title: "Chat Completions",
  path: "/v1/chat/completions",
  body({ model, system, turns, tools, format, effort, folder, stream }) {
    const messages = turns.flatMap((turn) => {
      if (turn.role === "tool") return turn.outputs.map(({ id, text }) => ({ role: "tool", tool_call_id: id, content: text }));
      if (turn.role === "assistant") {
        const calls = turn.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
        return [{ role: "assistant", content: turn.text || null, ...(calls.length ? { tool_calls: calls } : {}) }];
      }
      const parts = turn.files.map((file) => file.type === "application/pdf"
        ? { type: "file", file: { filename: file.name, file_data: file.url } }
        : { type: "image_url", image_url: { url: file.url } });
      return [{ role: "user", content: parts.length ? [{ type: "text", text: turn.text }, ...parts] : turn.text }];
    });
    return {
      model,
      messages: system ? [{ role: "system", content: system }, ...messages] : messages,
      ...(tools.length ? { tools: tools.map((tool) => ({ type: "function", function: tool })) } : {}),
      ...(format ? { response_format: { type: "json_schema", json_schema: { name: "answer", schema: format } } } : {}),
      ...(effort ? { reasoning_effort: effort } : {}),
      ...(folder ? { metadata: { workdir: folder } } : {}),
      ...(stream ? { stream: true, stream_options: { include_usage: true } } : {}),
    };
  },
  read(answer, { data }) {
    const choice = data.choices?.[0];
    const said = choice?.delta ?? choice?.message;
    if (said?.content) answer.text += said.content;
    if (said?.refusal) answer.text += said.refusal;
    answer.reasoning += said?.reasoning_content ?? "";
    for (const [place, call] of (said?.tool_calls ?? []).entries()) {
      const mine = (answer.calls[call.index ?? place] ??= { id: "", name: "", arguments: "" });
      mine.id ||= call.id ?? "";
      mine.name += call.function?.name ?? "";
      mine.arguments += call.function?.arguments ?? "";
    }
    if (data.usage) answer.usage = { input: data.usage.prompt_tokens, output: data.usage.completion_tokens };
    if (choice?.finish_reason) answer.end = choice.finish_reason;
  },
};

const responses = {
  title: "Responses",
  path: "/v1/responses",
  body({ model, system, turns, tools, format, effort, folder, stream }) {
    const input = turns.flatMap((turn) => {
      if (turn.role === "tool") return turn.outputs.map(({ id, text }) => ({ type: "function_call_output", call_id: id, output: text }));
      if (turn.role === "assistant") {
        const said = turn.text ? [{ role: "assistant", content: turn.text }] : [];
        return [...said, ...turn.calls.map((call) => ({ type: "function_call", call_id: call.id, name: call.name, arguments: call.arguments }))];
      }
      const files = turn.files.map((file) => file.type === "application/pdf"
        ? { type: "input_file", filename: file.name, file_data: file.url } : { type: "input_image", image_url: file.url });
      return [{ role: "user", content: [{ type: "input_text", text: turn.text }, ...files] }];
    });
    return {
      model, input, store: false,
      ...(system ? { instructions: system } : {}),
      ...(tools.length ? { tools: tools.map((tool) => ({ type: "function", ...tool })) } : {}),
      ...(format ? { text: { format: { type: "json_schema", name: "answer", schema: format } } } : {}),
      ...(effort ? { reasoning: { effort } } : {}),
      ...(folder ? { metadata: { workdir: folder } } : {}),
      ...(stream ? { stream: true } : {}),
    };
  },
  read(answer, { data }) {
    if (data.type === "response.output_text.delta" || data.type === "response.refusal.delta") answer.text += data.delta;
    if (data.type === "response.reasoning_summary_text.delta") answer.reasoning += data.delta;
    if (data.type === "error") throw new Failed(data.message, 0);
    const whole = data.object === "response" ? data : data.response;
    if (!whole || !["completed", "incomplete", "failed", "cancelled"].includes(whole.status)) return;
    if (whole.error) throw new Failed(whole.error.message, 0);
    answer.end = whole.incomplete_details?.reason ?? whole.status;
    if (whole.usage) answer.usage = { input: whole.usage.input_tokens, output: whole.usage.output_tokens };
    answer.calls = whole.output.filter((item) => item.type === "function_call")
      .map((item) => ({ id: item.call_id, name: item.name, arguments: item.arguments }));
    if (data.object !== "response") return;
    for (const part of whole.output.flatMap((item) => item.content ?? [])) answer.text += part.text ?? part.refusal ?? "";
    for (const part of whole.output.flatMap((item) => item.summary ?? [])) answer.reasoning += part.text;
  },
};

const EFFORT_TOKENS = { minimal: 1024, low: 1024, medium: 2048, high: 4096, xhigh: 6144 };

const messages = {
  title: "Messages",
  path: "/v1/messages",
  body({ model, system, turns, tools, format, effort, folder, stream }) {
    const base64 = (url) => url.slice(url.indexOf(",") + 1);
    const made = turns.map((turn) => {
      if (turn.role === "tool") {
        return { role: "user", content: turn.outputs.map(({ id, text }) => ({ type: "tool_result", tool_use_id: id, content: text })) };
      }
      if (turn.role === "assistant") {
        const calls = turn.calls.map((call) => ({ type: "tool_use", id: call.id, name: call.name, input: JSON.parse(call.arguments || "{}") }));
        return { role: "assistant", content: [...(turn.text ? [{ type: "text", text: turn.text }] : []), ...calls] };
      }
      const files = turn.files.map((file) => ({ type: file.type === "application/pdf" ? "document" : "image",
        source: { type: "base64", media_type: file.type, data: base64(file.url) } }));
      return { role: "user", content: [...files, { type: "text", text: turn.text }] };
    });
    return {
      model, messages: made, max_tokens: MAX_TOKENS,
      ...(system ? { system } : {}),
      ...(tools.length ? { tools: tools.map(({ parameters, ...tool }) => ({ ...tool, input_schema: parameters })) } : {}),
      ...(format ? { output_config: { format: { type: "json_schema", schema: format } } } : {}),
      ...(effort && EFFORT_TOKENS[effort] ? { thinking: { type: "enabled", budget_tokens: EFFORT_TOKENS[effort] } } : {}),
      ...(folder ? { metadata: { workdir: folder } } : {}),
      ...(stream ? { stream: true } : {}),
    };
  },
  read(answer, { data }) {
    if (data.type === "error") throw new Failed(data.error.message, 0);
    const block = data.content_block;
    if (block?.type === "tool_use") answer.calls.push({ id: block.id, name: block.name, arguments: "" });
    const delta = data.delta ?? {};
    if (delta.type === "text_delta") answer.text += delta.text;
    if (delta.type === "thinking_delta") answer.reasoning += delta.thinking;
    if (delta.type === "input_json_delta") answer.calls.at(-1).arguments += delta.partial_json;
    for (const part of data.type === "message" ? data.content : []) {
      if (part.type === "text") answer.text += part.text;
      if (part.type === "thinking") answer.reasoning += part.thinking;
      if (part.type === "tool_use") answer.calls.push({ id: part.id, name: part.name, arguments: JSON.stringify(part.input) });
    }
    const used = data.usage ?? data.message?.usage;
    if (used) answer.usage = { input: used.input_tokens ?? answer.usage?.input, output: used.output_tokens };
    answer.end = delta.stop_reason ?? data.stop_reason ?? answer.end;
  },
};

const APIS = { chat, responses, messages };

// --- the form ------------------------------------------------------------------------------------

function parsed(text, name) {
  if (!text.trim()) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Failed(`${name}: ${error.message}`, 400);
  }
}

function area(label, field, props = {}) {
  const input = h("textarea", { name: field, value: draft[field], oninput: () => (draft[field] = input.value), ...props });
  return h("label", {}, h("span", {}, label), input);
}

function readFile(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve({ name: file.name, type: file.type, url: reader.result }));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

function fileDrop(say) {
  const list = h("span", { class: "soft" });
  const refresh = () => (list.textContent = draft.files.map((file) => shown(file.name, 60)).join(", "));
  const add = async (files) => {
    for (const file of files) {
      if (file.type === "application/pdf" || file.type.startsWith("image/")) draft.files.push(await readFile(file));
      else say(new Failed(`${file.name} is neither an image nor a PDF.`, 400));
    }
    refresh();
  };
  const picker = h("input", { type: "file", multiple: true, accept: "image/*,application/pdf", onchange: () => add(picker.files) });
  const clear = () => {
    draft.files = [];
    picker.value = "";
    refresh();
  };
  const box = h("div", { class: "drop" }, h("label", {}, h("span", {}, "Images and PDFs (drop them here)"), picker),
    list, " ", h("button", { type: "button", onclick: clear }, "Remove all files"));
  box.addEventListener("dragover", (event) => {
    event.preventDefault();
    box.classList.add("over");
  });
  box.addEventListener("dragleave", () => box.classList.remove("over"));
  box.addEventListener("drop", (event) => {
    event.preventDefault();
    box.classList.remove("over");
    add(event.dataTransfer.files);
  });
  refresh();
  return box;
}

/** The pane. The columns share the prompt and differ in API and model. */
export async function playground({ signal }) {
  const [{ data }, choices] = await Promise.all([json("/v1/models", { signal }), json("/ui/api/choices", { signal })]);
  const facts = new Map(data.map((model) => [model.id, model]));
  const problem = h("div", {});
  const say = (error) => problem.replaceChildren(trouble(error));
  const columns = h("div", { class: "columns" });
  const common = () => {
    const tools = parsed(draft.tools, "Tools") ?? [];
    if (!Array.isArray(tools)) throw new Failed("Tools: this is no list.", 400);
    const { system, effort, stream, mode } = draft;
    const folder = mode === "model" ? "" : draft.folder.trim();
    return { system, tools, format: parsed(draft.format, "Response format"), effort, stream, mode, folder, workers: choices.worker > 0 };
  };
  const draw = () => columns.replaceChildren(...draft.columns.map((each) => column(each, { facts, choices, common, say, draw })));
  const send = (event) => {
    event.preventDefault();
    problem.replaceChildren();
    if (!draft.prompt.trim()) return say(new Failed("Write a prompt first.", 400));
    for (const each of columns.children) each.dispatchEvent(new Event("ask"));
  };
  const effort = chooser("Effort", "effort", [["", "default"], ...["minimal", "low", "medium", "high", "xhigh"].map((value) => [value, value])]);
  const stream = h("input", { type: "checkbox", checked: draft.stream, onchange: () => (draft.stream = stream.checked) });
  const tools = area("Tools: a list of functions with a JSON schema each", "tools", { class: "code", spellcheck: "false" });
  const example = () => {
    draft.tools = EXAMPLE_TOOLS;
    tools.querySelector("textarea").value = EXAMPLE_TOOLS;
  };
  const add = () => {
    draft.columns.push(columnOf(Object.keys(APIS)[draft.columns.length % 3], draft.columns.at(-1)?.model ?? ""));
    draw();
  };
  draw();
  return [
    h("form", { onsubmit: send },
      area("Prompt", "prompt", { required: true, onkeydown: (event) => event.ctrlKey && event.key === "Enter" && send(event) }),
      h("details", {}, h("summary", {}, "System prompt, tools, files, response format"),
        area("System prompt", "system"), tools, h("button", { type: "button", onclick: example }, "Example tool"),
        area("Response format: a JSON schema", "format", { class: "code", spellcheck: "false" }), fileDrop(say)),
      h("div", { class: "row" }, modeChoice(choices),
        effort, h("label", { class: "inline" }, stream, "Stream"),
        h("button", { type: "button", onclick: add }, "Add a column"),
        h("button", { class: "main" }, "Send")),
      h("p", { class: "soft" }, modeWords(choices))),
    problem, columns,
  ];
}

/** A select for a field of the draft. `options`: pairs of a value and its words. */
function chooser(label, field, options) {
  const select = h("select", { name: field, "aria-label": label, onchange: () => (draft[field] = select.value) },
    options.map(([value, words]) => h("option", { value }, words)));
  select.value = draft[field];
  return h("label", {}, h("span", {}, label), select);
}

/** The choice of mode and folder, where the server has agent turns for this key. */
function modeChoice({ builtin_tools, folder, roots }) {
  if (builtin_tools === "never") return [];
  const input = h("input", { name: "folder", value: draft.folder, placeholder: folder, list: "roots", oninput: () => (draft.folder = input.value) });
  return [
    chooser("Mode", "mode", [["", "by the request"], ["agent", "agent"], ["model", "plain model"]]),
    h("label", { class: "wide" }, h("span", {}, "Folder of an agent turn"), input),
    h("datalist", { id: "roots" }, roots.map((value) => h("option", { value }))),
  ];
}

function modeWords({ builtin_tools, roots }) {
  if (builtin_tools === "never") return "Every turn is one of the plain model: agent turns are off here, or for this key.";
  const by = builtin_tools === "always"
    ? "By the request: the agent works in the folder; a model server has no agent turns."
    : "By the request: the agent works in the folder; with a system prompt, a tool or a response format the plain model answers.";
  return `${by} Folders may be inside of ${roots.join(", ")}.`;
}

function column(each, { facts, choices, common, say, draw }) {
  const about = h("p", { class: "soft" });
  const api = h("select", { "aria-label": "API", onchange: () => (each.api = api.value) },
    Object.entries(APIS).map(([value, { title }]) => h("option", { value }, title)));
  const model = modelSelect(each.model, facts, choices.agents);
  const choose = () => {
    each.model = model.value;
    about.textContent = shown(abilities(facts.get(each.model)), 300);
  };
  model.addEventListener("change", choose);
  api.value = each.api;
  choose();
  const remove = () => {
    each.stop.abort();
    draft.columns.splice(draft.columns.indexOf(each), 1);
    draw();
  };
  const box = h("section", { class: "card", "aria-label": "Answer" },
    h("div", { class: "row" }, api, model,
      draft.columns.length > 1 && h("button", { type: "button", onclick: remove, "aria-label": "Remove this column" }, "Remove")),
    about, each.output);
  box.addEventListener("ask", () => {
    try {
      const turns = [{ role: "user", text: draft.prompt, files: [...draft.files] }];
      const conversation = { model: each.model, turns, ...common() };
      each.stop.abort();
      each.output.replaceChildren();
      ask(each.api, conversation, each);
    } catch (error) {
      say(error);
    }
  });
  return box;
}

function abilities(model) {
  if (!model) return "";
  const found = [];
  if (model.display_name) found.push(model.display_name);
  if (model.context_window) found.push(`${count(model.context_window)} tokens of context`);
  if (model.input_modalities) found.push(`reads ${model.input_modalities.join(", ")}`);
  if (model.efforts) found.push(`effort ${model.efforts.join(", ")}`);
  return found.join(" · ");
}

// --- one answer ----------------------------------------------------------------------------------

/** Says which agent runs the turn of an answer, in which mode and folder, and where the turn is shown. */
async function sayPlace(place, reply, workers) {
  const agent = reply.headers.get("x-codex-agent");
  if (agent) place.textContent = shown(agent, 80);
  const found = await ofTurn(reply.headers.get("x-request-id"), "", {}, workers).catch(() => null);
  const turn = await found?.json();
  if (!turn) return;
  const words = turn.mode === "agent" ? `agent turn of ${turn.agent} in ${turn.folder}` : `plain model of ${turn.agent}`;
  place.replaceChildren(`${shown(words, 1000)} · `, h("a", { href: `#turns/${turn.id}` }, `turn ${turnName(turn)}`));
}

/** Sends a conversation and shows the answer in a column; an answer with calls ends in a form that answers them. */
async function ask(api, conversation, column) {
  const { path, body: make, read } = APIS[api];
  const { output } = column;
  const sent = { path, body: make(conversation), more: conversation.mode ? { "X-Codex-Mode": conversation.mode } : {} };
  const text = h("div", { class: "answer", "aria-live": "polite", "aria-busy": "true" });
  const thought = h("div", { class: "answer soft" });
  const thinking = h("details", { hidden: true }, h("summary", {}, "Reasoning"), thought);
  const raw = rawView();
  const status = h("p", { class: "soft", role: "status" }, "waiting…");
  const place = h("p", { class: "soft" });
  const stop = (column.stop = new AbortController());
  const cancel = h("button", { type: "button", onclick: () => stop.abort() }, "Cancel");
  output.append(thinking, text, status, place,
    h("div", { class: "row" }, cancel, copyButton("as curl", () => asCurl(api, sent)),
      copyButton("as Python", () => asPython(api, sent)), copyButton("as TypeScript", () => asTypeScript(api, sent))),
    raw.box);
  const answer = { text: "", reasoning: "", calls: [], usage: null, end: "" };
  const began = performance.now();
  let first = null;
  let due = false;
  let running = true;
  const draw = () => {
    due = false;
    text.textContent = shown(answer.text);
    thought.textContent = shown(answer.reasoning);
    thinking.hidden = !answer.reasoning;
    if (!running) return;
    if (answer.text || answer.calls.length) status.textContent = "answering…";
    else if (answer.reasoning) status.textContent = "thinking…";
  };
  const take = (found) => {
    first ??= (performance.now() - began) / 1000;
    for (const each of found) {
      raw.add(each.event, each.data);
      if (each.data === "[DONE]") continue;
      const data = JSON.parse(each.data);
      if (data.error && !data.object) throw new Failed(data.error.message ?? "The answer failed.", 0);
      read(answer, { data });
    }
    if (!due) {
      due = true;
      requestAnimationFrame(draw); // a thousand events a second are drawn once a frame
    }
  };
  try {
    const reply = await request(sent.path, { body: sent.body, headers: sent.more, signal: stop.signal });
    sayPlace(place, reply, conversation.workers);
    if (conversation.stream) await events(reply, take);
    else take([{ event: "", data: await reply.text() }]);
    const used = answer.usage ? `${count(answer.usage.input)} tokens in, ${count(answer.usage.output)} out · ` : "";
    const total = (performance.now() - began) / 1000;
    running = false;
    status.textContent = `${answer.end || "ended"} · ${used}first after ${seconds(first)}, ${seconds(total)} in all`;
  } catch (error) {
    running = false;
    status.textContent = "";
    if (error.name === "AbortError") status.textContent = "cancelled";
    else status.replaceWith(trouble(error));
  }
  cancel.remove();
  draw();
  text.setAttribute("aria-busy", "false");
  answer.calls = answer.calls.filter(Boolean);
  if (answer.calls.length && !stop.signal.aborted) output.append(callForm(api, conversation, answer, column));
}

function callForm(api, conversation, answer, column) {
  const inputs = answer.calls.map((call) => h("textarea", { class: "code", "aria-label": `Output of ${shown(call.name, 80)}`, required: true }));
  const send = (event) => {
    event.preventDefault();
    form.querySelector("button").disabled = true;
    const outputs = answer.calls.map((call, index) => ({ id: call.id, text: inputs[index].value }));
    const turns = [...conversation.turns, { role: "assistant", text: answer.text, calls: answer.calls }, { role: "tool", outputs }];
    ask(api, { ...conversation, turns }, column);
  };
  const form = h("form", { onsubmit: send }, answer.calls.map((call, index) => h("fieldset", {},
    h("legend", {}, "The model calls ", h("code", {}, shown(call.name, 80))),
    h("pre", { tabindex: "0", "aria-label": "Arguments" }, shown(call.arguments)),
    h("label", {}, h("span", {}, "Your output"), inputs[index]))),
    h("div", { class: "row" }, h("button", { class: "main" }, "Answer the call")));
  return form;
}

/** The events as they come. Only the last `RAW_LINES` stay, added once a frame, so that a fast stream freezes nothing. */
function rawView() {
  const lines = h("pre", { tabindex: "0", "aria-label": "Events" });
  const total = h("span", {}, "0");
  const box = h("details", {}, h("summary", {}, "Events: ", total), lines);
  let waiting = [];
  let seen = 0;
  const flush = () => {
    total.textContent = count(seen);
    const dropped = lines.childNodes.length + waiting.length - RAW_LINES;
    for (let n = 0; n < dropped && lines.firstChild; n++) lines.firstChild.remove();
    lines.append(...waiting.slice(-RAW_LINES));
    waiting = [];
  };
  return {
    box,
    add(event, data) {
      seen += 1;
      waiting.push(`${event ? `${event}  ` : ""}${shown(data, RAW_LONGEST)}\n`);
      if (waiting.length > 2 * RAW_LINES) waiting = waiting.slice(-RAW_LINES);
      if (waiting.length === 1) requestAnimationFrame(flush);
    },
  };
}
