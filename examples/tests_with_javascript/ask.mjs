// A program in another language: node ask.mjs BASE_URL API_KEY QUESTION prints the model's answer as it comes.
const [baseUrl, apiKey, question] = process.argv.slice(2);
const answer = await fetch(`${baseUrl}/chat/completions`, {
  method: "POST",
  headers: { "Content-Type": "application/json", Authorization: `Bearer ${apiKey}` },
  body: JSON.stringify({ model: "codex-5", stream: true, messages: [{ role: "user", content: question }] }),
});
if (!answer.ok) {
  console.error(`${answer.status}: ${(await answer.json()).error.message}`);
  process.exit(1);
}
const text = await answer.text();
for (const line of text.split("\n")) {
  if (line.startsWith("data: ") && line !== "data: [DONE]") {
    process.stdout.write(JSON.parse(line.slice(6)).choices[0]?.delta?.content ?? "");
  }
}
