// The playground's request as code: for curl, and for the SDKs of Python and TypeScript.
import { headers } from "./lib.js";

/** By API: the method of the SDK, and what prints the text of a stream and of a whole answer. */
const SDKS = {
  chat: {
    method: "chat.completions.create",
    python: {
      stream: 'for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)\nprint()\n',
      whole: "print(answer.choices[0].message.content)\n",
    },
    typescript: {
      stream: 'for await (const chunk of answer) process.stdout.write(chunk.choices[0]?.delta.content ?? "");\nconsole.log();\n',
      whole: "console.log(answer.choices[0].message.content);\n",
    },
  },
  responses: {
    method: "responses.create",
    python: {
      stream: 'for event in answer:\n    if event.type == "response.output_text.delta":\n        print(event.delta, end="", flush=True)\nprint()\n',
      whole: "print(answer.output_text)\n",
    },
    typescript: {
      stream: 'for await (const event of answer) {\n  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);\n}\nconsole.log();\n',
      whole: "console.log(answer.output_text);\n",
    },
  },
  messages: {
    method: "messages.create",
    python: {
      stream: 'for event in answer:\n    if event.type == "content_block_delta" and event.delta.type == "text_delta":\n        print(event.delta.text, end="", flush=True)\nprint()\n',
      whole: 'print("".join(block.text for block in answer.content if block.type == "text"))\n',
    },
    typescript: {
      stream: 'for await (const event of answer) {\n  if (event.type === "content_block_delta" && event.delta.type === "text_delta") process.stdout.write(event.delta.text);\n}\nconsole.log();\n',
      whole: 'console.log(answer.content.map((block) => (block.type === "text" ? block.text : "")).join(""));\n',
    },
  },
};

/** With tools the answer may be calls: it is printed as JSON, each event in a line. */
const PRINTS_JSON = {
  python: { stream: "for event in answer:\n    print(event.to_json(indent=None))\n", whole: "print(answer.to_json())\n" },
  typescript: {
    stream: "for await (const event of answer) console.log(JSON.stringify(event));\n",
    whole: "console.log(JSON.stringify(answer, null, 2));\n",
  },
};

const printing = (api, language, { tools, stream }) => (tools ? PRINTS_JSON : SDKS[api])[language][stream ? "stream" : "whole"];

/** A JSON value as a literal of Python. */
function python(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const list = Array.isArray(value);
  const parts = Object.entries(value).map(([name, each]) => `${inner}${list ? "" : `${JSON.stringify(name)}: `}${python(each, inner)},\n`);
  const [open, close] = list ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join("")}${indent}${close}` : open + close;
}

const base = (api) => (api === "messages" ? location.origin : `${location.origin}/v1`);

export function asCurl(api, { path, body, more }) {
  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const bearer = headers().Authorization ? " -H \"Authorization: Bearer $KEY\"" : "";
  const own = Object.entries({ "Content-Type": "application/json", ...more }).map(([name, value]) => ` -H ${quote(`${name}: ${value}`)}`).join("");
  return `curl -N ${location.origin}${path}${bearer}${own} \\\n  -d ${quote(JSON.stringify(body, null, 1))}\n`;
}

export function asPython(api, { body, more }) {
  const name = api === "messages" ? "Anthropic" : "OpenAI";
  const given = Object.keys(more).length ? { ...body, extra_headers: more } : body;
  const fields = Object.entries(JSON.parse(JSON.stringify(given))).map(([field, value]) => `    ${field}=${python(value, "    ")},\n`);
  return `import os\n\nfrom ${name.toLowerCase()} import ${name}\n\n`
    + `client = ${name}(base_url=${JSON.stringify(base(api))}, api_key=os.environ.get("KEY", "none"))\n`
    + `answer = client.${SDKS[api].method}(\n${fields.join("")})\n${printing(api, "python", body)}`;
}

export function asTypeScript(api, { body, more }) {
  const [name, from] = api === "messages" ? ["Anthropic", "@anthropic-ai/sdk"] : ["OpenAI", "openai"];
  const options = Object.keys(more).length ? `, ${JSON.stringify({ headers: more })}` : "";
  return `import ${name} from "${from}";\n\nconst client = new ${name}({ baseURL: ${JSON.stringify(base(api))}, `
    + `apiKey: process.env.KEY ?? "none" });\nconst answer = await client.${SDKS[api].method}(${JSON.stringify(body, null, 2)}${options});\n`
    + printing(api, "typescript", body);
}

// --- sessions ------------------------------------------------------------------------------------

const SESSIONS = "/v1/agents/sessions";

/** The creation of a session as code for curl, which prints its events. */
export function asSessionCurl({ body, more }) {
  return asCurl("sessions", { path: SESSIONS, body: { ...body, stream: true }, more: { "OpenAI-Beta": "agents=v1", ...more } });
}

/** The creation of a session as code for the SDK of Python, which prints the answer of its first turn. */
export function asSessionPython({ body, more }) {
  const given = Object.keys(more).length ? { ...body, stream: true, extra_headers: more } : { ...body, stream: true };
  const fields = Object.entries(given).map(([field, value]) => `    ${field}=${python(value, "    ")},\n`);
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(base("sessions"))}, api_key=os.environ.get("KEY", "none"))\n`
    + `stream = client.beta.agents.sessions.create(\n${fields.join("")})\nresult = stream.get_final_result()\n`
    + `print(result.session_id)\nprint(result.output_text)\n`;
}
