// What every client is asked to do. A program gives a function for each thing that its client can; the result is one line.
export const BASE = process.env.BASE_URL;
export const ROOT = BASE.replace(/\/v1$/, "");
export const KEY = "none";
// What is said to another agent than the fake one, by the name of the check.
const ASKED = JSON.parse(process.env.ASKED);
export const MODEL = process.env.MODEL;
export const TEXT = ASKED.text ?? "[[fake:text say='Hello there.']]";
export const WEATHER = ASKED.tools ?? "What is the weather in Bern? Call get_weather.";
export const PERSON = ASKED.schema ?? "Who?";
export const LOOK = ASKED.images ?? "[[fake:echo]]";
export const LONG = ASKED.cancel ?? "[[fake:text n=20000 delay=5]]";
export const PIXEL = process.env.PIXEL;
export const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};

const HOLDS = {
  text: (said) => said === "Hello there.",
  tools: (said) => said.includes("sunny"),
  schema: (said) => JSON.stringify(Object.keys(said).sort()) === '["age","name"]',
  images: (said) => /"images": ?1/.test(said),
  cancel: (said) => said === true,
};

export async function run(version, checks) {
  const results = {};
  for (const [name, holds] of Object.entries(HOLDS)) {
    if (!checks[name]) continue;
    try {
      const said = await checks[name]();
      results[name] = holds(said) ? "yes" : `answered ${JSON.stringify(said)}`.slice(0, 300);
    } catch (error) {
      results[name] = String(error).slice(0, 300);
    }
  }
  console.log(JSON.stringify({ version, results }));
  process.exit(0);
}
