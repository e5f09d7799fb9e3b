// A whole session with Anthropic's SDK for TypeScript: a confirmed and a denied command, and a custom tool.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: process.argv[3], maxRetries: 0 });
const { agents, environments, sessions } = client.beta;
const [asks, calls] = process.argv.slice(4);

const agent = await agents.create({
  model: "codex-5",
  name: "Helper",
  tools: [
    {
      type: "agent_toolset_20260401",
      configs: [{ name: "bash", enabled: true, permission_policy: { type: "always_ask" } }],
    },
    {
      type: "custom",
      name: "get_weather",
      description: "Returns the weather of a city.",
      input_schema: { type: "object", properties: { city: { type: "string" } } },
    },
  ],
});
const environment = await environments.create({ name: "here", config: { type: "cloud" } });
const session = await sessions.create({ agent: agent.id, environment_id: environment.id, title: "A session" });

const say = (text) => ({ type: "user.message", content: [{ type: "text", text }] });
const answer = (use, number) =>
  use.type === "agent.custom_tool_use"
    ? { type: "user.custom_tool_result", custom_tool_use_id: use.id, content: [{ type: "text", text: "sunny" }] }
    : number === 0
      ? { type: "user.tool_confirmation", tool_use_id: use.id, result: "deny", deny_message: "Not this one." }
      : { type: "user.tool_confirmation", tool_use_id: use.id, result: "allow" };

const seen = [];
const uses = new Map();
const answered = new Set();
const stream = await sessions.events.stream(session.id);
const prompts = [asks, calls];
await sessions.events.send(session.id, { events: [say(prompts.shift())] });
for await (const event of stream) {
  seen.push(event);
  if (event.type.endsWith("tool_use")) uses.set(event.id, event);
  if (event.type !== "session.status_idle") continue;
  if (event.stop_reason.type === "requires_action") {
    const open = event.stop_reason.event_ids.filter((id) => !answered.has(id));
    for (const id of open) {
      await sessions.events.send(session.id, { events: [answer(uses.get(id), answered.size)] });
      answered.add(id);
    }
  } else if (prompts.length) {
    await sessions.events.send(session.id, { events: [say(prompts.shift())] });
  } else break;
}

const listed = [];
for await (const event of sessions.events.list(session.id, { limit: 3 })) listed.push(event);
const text = (event) => event.content.map((block) => block.text).join("");
const results = seen.filter((event) => event.type === "agent.tool_result");
const found = await sessions.retrieve(session.id);
await sessions.archive(session.id);
let refused;
try {
  await sessions.events.send(session.id, { events: [say("More.")] });
} catch (error) {
  refused = error.status;
}
const deleted = await sessions.delete(session.id);
console.log(
  JSON.stringify({
    said: seen.filter((event) => event.type === "agent.message").map(text),
    results: results.map((event) => [text(event), event.is_error]),
    custom: seen.filter((event) => event.type === "agent.custom_tool_use").map((event) => event.name),
    same: JSON.stringify(listed) === JSON.stringify(seen),
    found: [found.title, found.status],
    refused,
    deleted: deleted.type,
  }),
);
