import { Ollama } from "ollama";
import { readFileSync } from "node:fs";
import { LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, ROOT, SCHEMA, TEXT, WEATHER, run } from "./checks.mjs";

const client = new Ollama({ host: ROOT });
const said = (content, more = {}) => [{ role: "user", content, ...more }];
const tools = [{ type: "function", function: { name: "get_weather", description: "", parameters: PARAMETERS } }];

await run(JSON.parse(readFileSync("node_modules/ollama/package.json")).version, {
  async text() {
    let text = "";
    for await (const part of await client.chat({ model: MODEL, messages: said(TEXT), stream: true })) text += part.message.content;
    return text;
  },
  async tools() {
    const messages = said(WEATHER);
    for (;;) {
      const { message } = await client.chat({ model: MODEL, messages, tools });
      if (!message.tool_calls?.length) return message.content;
      messages.push(message, { role: "tool", tool_name: message.tool_calls[0].function.name, content: "sunny" });
    }
  },
  async schema() {
    return JSON.parse((await client.chat({ model: MODEL, messages: said(PERSON), format: SCHEMA })).message.content);
  },
  async images() {
    const images = [PIXEL.split(",")[1]];
    return (await client.generate({ model: MODEL, prompt: LOOK, images })).response;
  },
  async cancel() {
    const stream = await client.chat({ model: MODEL, messages: said(LONG), stream: true });
    for await (const _ of stream) break;
    stream.abort();
    return true;
  },
});
