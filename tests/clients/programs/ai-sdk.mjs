import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { readFileSync } from "node:fs";
import { BASE, KEY, LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, SCHEMA, TEXT, WEATHER, run } from "./checks.mjs";

const provider = createOpenAICompatible({
  name: "codex-proxy", baseURL: BASE, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider(MODEL);

await run(JSON.parse(readFileSync("node_modules/ai/package.json")).version, {
  async text() {
    let text = "";
    for await (const part of streamText({ model, prompt: TEXT }).textStream) text += part;
    return text;
  },
  async tools() {
    const get_weather = tool({ inputSchema: jsonSchema(PARAMETERS), execute: async () => "sunny" });
    return (await generateText({ model, prompt: WEATHER, tools: { get_weather }, stopWhen: stepCountIs(3) })).text;
  },
  async schema() {
    const output = Output.object({ schema: jsonSchema(SCHEMA) });
    return (await generateText({ model, prompt: PERSON, output })).output;
  },
  async images() {
    const content = [{ type: "text", text: LOOK }, { type: "image", image: PIXEL }];
    return (await generateText({ model, messages: [{ role: "user", content }] })).text;
  },
  async cancel() {
    const leaving = new AbortController();
    for await (const _ of streamText({ model, prompt: LONG, abortSignal: leaving.signal }).textStream) break;
    leaving.abort();
    return true;
  },
});
