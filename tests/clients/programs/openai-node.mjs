import OpenAI from "openai";
import { readFileSync } from "node:fs";
import { BASE, KEY, LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, SCHEMA, TEXT, WEATHER, run } from "./checks.mjs";

const client = new OpenAI({ baseURL: BASE, apiKey: KEY, maxRetries: 0 });
const tools = [{ type: "function", function: { name: "get_weather", parameters: PARAMETERS } }];
const said = (content) => [{ role: "user", content }];

await run(JSON.parse(readFileSync("node_modules/openai/package.json")).version, {
  async text() {
    const stream = await client.chat.completions.create({ model: MODEL, messages: said(TEXT), stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
    return text;
  },
  async tools() {
    const runner = client.chat.completions.runTools({
      model: MODEL,
      messages: said(WEATHER),
      tools: [{ type: "function", function: { ...tools[0].function, function: () => "sunny", parse: JSON.parse } }],
    });
    return await runner.finalContent();
  },
  async schema() {
    const format = { type: "json_schema", json_schema: { name: "person", strict: true, schema: SCHEMA } };
    const answer = await client.chat.completions.create({ model: MODEL, messages: said(PERSON), response_format: format });
    return JSON.parse(answer.choices[0].message.content);
  },
  async images() {
    const content = [{ type: "text", text: LOOK }, { type: "image_url", image_url: { url: PIXEL } }];
    return (await client.chat.completions.create({ model: MODEL, messages: said(content) })).choices[0].message.content;
  },
  async cancel() {
    const stream = await client.chat.completions.create({ model: MODEL, messages: said(LONG), stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
    return true;
  },
});
