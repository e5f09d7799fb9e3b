// The rest of a session with Anthropic's SDK for TypeScript: its runner of tools, previews, a file, an interrupt and
// threads. Arguments: address, key, model, whether the agent has subagents and a folder, then the four prompts.
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [baseURL, apiKey, model, inFolder, calls, reads, counts, delegates] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const { agents, environments, files, sessions } = client.beta;
const wholeAgent = inFolder === "yes";
const say = (...content) => ({ type: "user.message", content });
const text = (words) => ({ type: "text", text: words });
const saidIn = (event) => event.content.map((block) => block.text).join("");

const inputSchema = { type: "object", properties: { city: { type: "string" } } };
const weather = { type: "custom", name: "get_weather", description: "Returns the weather of a city.", input_schema: inputSchema };
const agent = await agents.create({
  model,
  name: "Worker",
  tools: wholeAgent ? [{ type: "agent_toolset_20260401" }, weather] : [weather],
  ...(wholeAgent ? { multiagent: { type: "coordinator", agents: [{ type: "self" }] } } : {}),
});
const environment = await environments.create({ name: "work", config: { type: "cloud" } });
const session = await sessions.create({
  agent: { type: "agent_with_overrides", id: agent.id, version: agent.version, system: "Be brief." },
  environment_id: environment.id,
});

/** Sends events, and returns what comes until the session rests; `act` sees each event. */
async function turn(events, act = () => {}, query = {}) {
  const seen = [];
  const stream = await sessions.events.stream(session.id, query);
  await sessions.events.send(session.id, { events });
  for await (const event of stream) {
    seen.push(event);
    await act(event);
    if (event.type === "session.status_idle" && event.stop_reason.type !== "requires_action") return seen;
  }
  throw new Error("the stream ended within a turn");
}

// The SDK's own runner answers the calls of a turn.
const asked = [];
const run = ({ city }) => {
  asked.push(city);
  return "sunny";
};
const description = "Returns the weather of a city.";
const getWeather = betaTool({ name: "get_weather", inputSchema, description, run });
const stop = new AbortController();
const dispatched = [];
const runner = (async () => {
  const calls = sessions.events.toolRunner(session.id, { tools: [getWeather], signal: stop.signal });
  for await (const call of calls) dispatched.push([call.name, call.posted, call.isError]);
})();
const withCalls = await turn([say(text(calls))]);
stop.abort();
await runner.catch((error) => {
  if (!stop.signal.aborted) throw error;
});

// A file in a message, whose answer is read as previews, which are a beginning of what comes whole.
const file = await files.upload({ file: await toFile(Buffer.from("A blue heron."), "notes.txt") });
const document = { type: "document", source: { type: "file", file_id: file.id } };
const read = await turn([say(text(reads), document)], undefined, { event_deltas: ["agent.message"] });
const whole = read.find((event) => event.type === "agent.message");
const deltas = read.filter((event) => event.type === "event_delta" && event.event_id === whole.id);
const previewed = deltas.map((event) => event.delta.content.text).join("");

// An interrupt ends a turn, and the next one goes on.
let interrupted = false;
const cut = await turn([say(text(counts))], async (event) => {
  if (event.type !== "span.model_request_start" || interrupted) return;
  interrupted = true;
  await sessions.events.send(session.id, { events: [{ type: "user.interrupt" }] });
});

// Subagents have threads of their own.
const told = { threads: 1, childEvents: 0 };
if (wholeAgent) {
  await turn([say(text(delegates))]);
  const threads = [];
  for await (const thread of sessions.threads.list(session.id)) threads.push(thread);
  const child = threads.find((thread) => thread.parent_thread_id !== null);
  told.threads = threads.length;
  for await (const _ of sessions.threads.events.list(child.id, { session_id: session.id })) told.childEvents += 1;
}

const found = await sessions.retrieve(session.id);
const counted = [];
for await (const event of sessions.events.list(session.id, { order: "desc", types: ["user.message"] }))
  counted.push(event.id);
await files.delete(file.id);
const deleted = await sessions.delete(session.id);
console.log(
  JSON.stringify({
    asked,
    dispatched,
    answered: withCalls.filter((event) => event.type === "user.custom_tool_result").map(saidIn),
    readsTheFile: saidIn(whole).includes("A blue heron."),
    previews: deltas.length > 0 && saidIn(whole).startsWith(previewed),
    interrupted: [cut.at(-1).stop_reason.type, cut.some((event) => event.type === "session.error")],
    threads: told.threads,
    childHasEvents: told.childEvents > 0,
    system: found.agent.system,
    messages: counted.length,
    deleted: deleted.type,
  }),
);
