// Uploads, lists, reads and deletes a file with each vendor's SDK for TypeScript; prints what came back.
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import OpenAI, { toFile as toOpenAIFile } from "openai";

const url = process.argv[2];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const found = {};

const one = await openai.files.create({
  file: await toOpenAIFile(Buffer.from("Hello."), "a.txt"),
  purpose: "user_data",
  expires_after: { anchor: "created_at", seconds: 3600 },
});
const other = await anthropic.beta.files.upload({ file: await toFile(Buffer.from("World."), "b.txt") });
found.openai = [one.object, one.filename, one.bytes, one.expires_at - one.created_at];
found.anthropic = [other.type, other.filename, other.size_bytes, other.expires_at];
found.texts = [
  await (await openai.files.content(one.id)).text(),
  await (await anthropic.beta.files.download(one.id)).text(),
];
found.listed = [[], []];
for await (const file of openai.files.list({ limit: 1 })) found.listed[0].push(file.filename);
for await (const file of anthropic.beta.files.list({ limit: 1 })) found.listed[1].push(file.filename);
found.deleted = [(await openai.files.delete(one.id)).deleted, (await anthropic.beta.files.delete(other.id)).type];
found.missing = [];
for (const ask of [() => openai.files.retrieve(one.id), () => anthropic.beta.files.retrieveMetadata(one.id)]) {
  await ask().catch((error) => found.missing.push(error.status));
}
console.log(JSON.stringify(found));
