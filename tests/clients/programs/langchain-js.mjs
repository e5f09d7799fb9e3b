import { ChatOpenAI } from "@langchain/openai";
import { tool } from "@langchain/core/tools";
import { readFileSync } from "node:fs";
import { BASE, KEY, LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, SCHEMA, TEXT, WEATHER, run } from "./checks.mjs";

const model = new ChatOpenAI({ model: MODEL, apiKey: KEY, configuration: { baseURL: BASE }, maxRetries: 0 });
const said = (content) => [{ role: "user", content }];

await run(JSON.parse(readFileSync("node_modules/@langchain/openai/package.json")).version, {
  async text() {
    let text = "";
    for await (const part of await model.stream(TEXT)) text += part.text;
    return text;
  },
  async tools() {
    const weather = tool(async () => "sunny", { name: "get_weather", description: "The weather.", schema: PARAMETERS });
    const able = model.bindTools([weather]);
    const messages = said(WEATHER);
    const first = await able.invoke(messages);
    messages.push(first, await weather.invoke(first.tool_calls[0]));
    return (await able.invoke(messages)).text;
  },
  async schema() {
    return await model.withStructuredOutput(SCHEMA, { name: "person", method: "jsonSchema" }).invoke(PERSON);
  },
  async images() {
    const content = [{ type: "text", text: LOOK }, { type: "image_url", image_url: { url: PIXEL } }];
    return (await model.invoke(said(content))).text;
  },
  async cancel() {
    const leaving = new AbortController();
    try {
      for await (const _ of await model.stream(LONG, { signal: leaving.signal })) leaving.abort();
    } catch (error) {
      if (!leaving.signal.aborted) throw error;
    }
    return true;
  },
});
