// A whole session with Anthropic's SDK for TypeScript: a confirmed and a denied call, and a custom tool. Arguments:
// address, key, two prompts; and the address of an MCP server, where a model server is the agent and runs no commands.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: process.argv[3], maxRetries: 0 });
const { agents, environments, sessions } = client.beta;
const [asks, calls, desk] = process.argv.slice(4);
const toolset = {
  type: "agent_toolset_20260401",
  configs: [{ name: "bash", enabled: true, permission_policy: { type: "always_ask" } }],
};

const agent = await agents.create({
  model: desk ? "small" : "codex-5",
  name: "Helper",
  mcp_servers: desk ? [{ type: "url", name: "desk", url: desk }] : [],
  tools: [
    desk ? { type: "mcp_toolset", mcp_server_name: "desk" } : toolset,
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
const results = seen.filter((event) => /^agent\.(mcp_)?tool_result$/.test(event.type));
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
