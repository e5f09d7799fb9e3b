// Agents and environments with Anthropic's SDK for TypeScript.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "no key", maxRetries: 0 });
const { agents, environments } = client.beta;

const made = await agents.create({
  model: "codex-5",
  name: "Weather",
  tools: [
    {
      type: "custom",
      name: "get_weather",
      description: "Returns the weather of a city.",
      input_schema: { type: "object", properties: { city: { type: "string" } } },
    },
  ],
});
const changed = await agents.update(made.id, { version: made.version, system: "Be kind." });
let stale;
try {
  await agents.update(made.id, { version: made.version, system: "Be rude." });
} catch (error) {
  stale = [error instanceof Anthropic.ConflictError, error.status];
}
const versions = [];
for await (const each of agents.versions.list(made.id, { limit: 1 })) versions.push(each.version);
const archived = await agents.archive(made.id);

for (const name of ["a", "b", "c"]) await environments.create({ name, config: { type: "cloud" } });
const names = [];
for await (const each of environments.list({ limit: 2 })) {
  names.push(each.name);
  await environments.delete(each.id);
}
console.log(
  JSON.stringify({
    null: [made.description === null, made.archived_at === null, made.multiagent === null],
    changed: [changed.version, changed.system],
    stale,
    versions,
    archived: archived.archived_at !== null,
    names,
  }),
);
