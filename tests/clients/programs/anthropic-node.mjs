import Anthropic from "@anthropic-ai/sdk";
import { readFileSync } from "node:fs";
import { KEY, LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, ROOT, SCHEMA, TEXT, WEATHER, run } from "./checks.mjs";

const client = new Anthropic({ baseURL: ROOT, apiKey: KEY, maxRetries: 0 });
const asked = (content, more = {}) => ({ model: MODEL, max_tokens: 1024, messages: [{ role: "user", content }], ...more });
const text = (answer) => answer.content.map((block) => (block.type === "text" ? block.text : "")).join("");
const tools = [{ name: "get_weather", input_schema: PARAMETERS }];

await run(JSON.parse(readFileSync("node_modules/@anthropic-ai/sdk/package.json")).version, {
  async text() {
    return text(await client.messages.stream(asked(TEXT)).finalMessage());
  },
  async tools() {
    const first = await client.messages.create(asked(WEATHER, { tools }));
    const call = first.content.find((block) => block.type === "tool_use");
    const messages = [
      ...asked(WEATHER).messages,
      { role: "assistant", content: first.content },
      { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "sunny" }] },
    ];
    return text(await client.messages.create(asked("", { messages, tools })));
  },
  async schema() {
    const output_config = { format: { type: "json_schema", schema: SCHEMA } };
    return JSON.parse(text(await client.messages.create(asked(PERSON, { output_config }))));
  },
  async images() {
    const source = { type: "base64", media_type: "image/png", data: PIXEL.split(",")[1] };
    return text(await client.messages.create(asked([{ type: "text", text: LOOK }, { type: "image", source }])));
  },
  async cancel() {
    const stream = client.messages.stream(asked(LONG));
    for await (const _ of stream) break;
    stream.abort();
    return true;
  },
});
