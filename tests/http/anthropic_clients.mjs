// Asks a server by the clients for JavaScript and prints what each of them makes of the answers, as JSON.
// node anthropic_clients.mjs URL (in a folder with the packages)
import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, jsonSchema, streamText, tool } from "ai";

const url = process.argv[2];
const schema = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ name: "get_weather", description: "Weather of a city", input_schema: schema }];
const asking = (text, more = {}) => ({
  model: "codex-5",
  max_tokens: 1024,
  messages: [{ role: "user", content: text }],
  tools,
  thinking: { type: "adaptive" },
  ...more,
});
// Without ids and the model's state, which differ from answer to answer.
const shown = ({ content, stop_reason, usage }) => ({
  content: content.map(({ type, text, thinking, name, input }) => ({ type, text, thinking, name, input })),
  stop_reason,
  usage: [usage.input_tokens, usage.output_tokens],
});

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const sdk = {};
for (const marker of ["text", "reasoning", "tool_call", "tool_calls", "tool_calls_after_text", "unicode"]) {
  const body = asking(`[[fake:${marker}]]`);
  const whole = await client.messages.create(body);
  const streamed = await client.messages.stream(body).finalMessage();
  sdk[marker] = { whole: shown(whole), streamed: shown(streamed) };
}
const first = await client.messages.create(asking("[[fake:tool_calls]]"));
const results = first.content
  .filter((block) => block.type === "tool_use")
  .map((block) => ({ type: "tool_result", tool_use_id: block.id, content: "sunny" }));
const loop = await client.messages.create({
  ...asking(""),
  messages: [
    { role: "user", content: "[[fake:tool_calls]]" },
    { role: "assistant", content: first.content },
    { role: "user", content: results },
  ],
});
// The runner asks for a thread, which the server refuses, and then sends the whole conversation.
const weatherTool = {
  ...tools[0],
  type: "custom",
  run: async ({ city }) => `sunny in ${city}`,
  parse: (input) => input,
};
const { tools: _, thinking: __, ...plain } = asking("[[fake:tool_calls]]");
const runner = await client.beta.messages.toolRunner({ ...plain, tools: [weatherTool] }).runUntilDone();
const nameOf = async (promise) => promise.then(() => "none", (error) => error.constructor.name);
const errors = {
  context_length: await nameOf(client.messages.create(asking("[[fake:context_length]]"))),
  error_rate_limit: await nameOf(client.messages.create(asking("[[fake:error_rate_limit]]"))),
  error_500: await nameOf(client.messages.create(asking("[[fake:error_500]]"))),
  error_mid_text: await nameOf(client.messages.stream(asking("[[fake:error_mid_text]]")).finalMessage()),
};
const models = [];
for await (const model of client.models.list({ limit: 2 })) models.push(model.id);
const counted = await client.messages.countTokens({ model: "codex-5", messages: [{ role: "user", content: "Hello." }] });

const codex = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })("codex-5");
const weather = tool({
  description: "Weather of a city",
  inputSchema: jsonSchema(schema),
  execute: async ({ city }) => `sunny in ${city}`,
});
const whole = await generateText({ model: codex, prompt: "Hello.", maxRetries: 0 });
const stream = streamText({ model: codex, prompt: "Hello.", maxRetries: 0 });
let text = "";
for await (const piece of stream.textStream) text += piece;
const called = await generateText({
  model: codex,
  prompt: "[[fake:tool_calls]]",
  tools: { get_weather: weather },
  stopWhen: ({ steps }) => steps.length === 2,
  maxRetries: 0,
});
const thought = await generateText({
  model: codex,
  prompt: "[[fake:reasoning]]",
  providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 2048 } } },
  maxRetries: 0,
});
const ai = {
  whole: whole.text,
  streamed: text,
  finish: [whole.finishReason, await stream.finishReason],
  calls: called.steps[0].toolCalls.map(({ toolName, input }) => [toolName, input]),
  told: called.text,
  thought: thought.reasoningText ?? "",
};
console.log(JSON.stringify({ sdk, loop: shown(loop), ran: shown(runner), errors, models, counted: counted.input_tokens, ai }));
