// A session with OpenAI's SDK for JavaScript: created and streamed, continued by the helper, with a function.
import OpenAI from "openai";

const [address, model, hello, weatherQuestion] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "no key", maxRetries: 0 });
const agents = client.beta.agents;
const weather = {
  type: "function",
  name: "get_weather",
  description: "Returns the weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } } },
};

const types = [];
let id;
const created = await agents.sessions.create({
  environment: { type: "none" },
  agent: { model, tools: [weather] },
  input: hello,
  stream: true,
});
for await (const event of created) {
  types.push(event.type);
  if (event.session) id = event.session.id;
}

const asked = [];
const stream = agents.sessions.stream(id, {
  input: weatherQuestion,
  toolHandlers: {
    get_weather: (given) => {
      asked.push(given);
      return "sunny";
    },
  },
});
const result = await stream.finalResult();

const items = [];
for await (const item of agents.sessions.items.list(id, { order: "asc", limit: 2 })) items.push(item.type);
const deleted = await agents.sessions.delete(id);
console.log(JSON.stringify({ types, asked, text: result.output_text ?? result.outputText, items, deleted: deleted.deleted }));
