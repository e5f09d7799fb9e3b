// What a web page can do to a server on this machine, whoever's page it is. Each deed adds one finding; `read` is what
// the page could read of the answer (null: nothing). Deeds whose answer nobody can read prove themselves on the server.
"use strict";

const plan = JSON.parse(document.getElementById("plan").textContent);
const target = plan.target;
const findings = [];

// Short where nothing should come: a refused request is over at once, so only a hole makes anything wait.
const patience = plan.listed ? 20000 : 2000;

function within(promise) {
  return Promise.race([promise, new Promise((_, fail) => setTimeout(() => fail(new Error("silence")), patience))]);
}

async function deed(name, act) {
  try {
    findings.push({ name, read: (await within(act())) ?? null });
  } catch (error) {
    findings.push({ name, read: null, error: String(error) });
  }
}

async function body(promise) {
  const answer = await promise;
  return answer.type === "opaque" ? null : `${answer.status} ${await answer.text()}`;
}

const options = { credentials: "include", redirect: "follow", cache: "no-store" };
const json = { "Content-Type": "application/json" };

function everyRoute() {
  return plan.routes.flatMap(({ method, path }) => {
    const sends = !["GET", "HEAD"].includes(method);
    const url = target + path;
    const content = sends ? JSON.stringify(plan.bodies[path] ?? {}) : undefined;
    const plain = sends ? { "Content-Type": "text/plain" } : {};
    const attempts = [
      deed(`cors ${method} ${path}`, () => body(fetch(url, { ...options, method, body: content, headers: plain }))),
      deed(`preflight ${method} ${path}`, () =>
        body(fetch(url, { ...options, method, body: content, headers: { ...json, Authorization: "Bearer guess" } })),
      ),
    ];
    if (["GET", "HEAD", "POST"].includes(method))
      attempts.push(
        deed(`no-cors ${method} ${path}`, () =>
          body(fetch(url, { ...options, method, mode: "no-cors", body: content, headers: plain })),
        ),
      );
    return attempts;
  });
}

function element(kind, attribute, url) {
  return new Promise((done) => {
    const made = document.createElement(kind);
    if (kind === "link") made.rel = "stylesheet";
    made.onload = () => done(kind === "iframe" || kind === "object" ? inside(made) : `${kind} loaded`);
    made.onerror = () => done(null);
    made[attribute] = url;
    document.body.append(made);
  });
}

// What can be read inside a frame; a frame of another origin gives nothing, or throws.
function inside(frame) {
  const page = frame.contentDocument;
  return page === null ? null : page.body.textContent || null;
}

let frames = 0;

function form(url, enctype, fields) {
  const name = `frame${frames++}`;
  const frame = document.createElement("iframe");
  frame.name = name;
  const made = document.createElement("form");
  Object.assign(made, { method: "POST", action: url, enctype, target: name });
  for (const [key, value] of Object.entries(fields)) {
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name: key, value });
    made.append(input);
  }
  document.body.append(frame, made);
  return new Promise((done) => {
    frame.onload = () => frame.contentDocument?.URL === "about:blank" || done(inside(frame));
    made.submit();
  });
}

// `{"a": "` and `"}` around the "=" that a form of plain text puts between name and value: valid JSON.
function smuggled(value) {
  const text = JSON.stringify({ ...value, user: "=" });
  const cut = text.lastIndexOf("=");
  return { [text.slice(0, cut)]: text.slice(cut + 1) };
}

function socket(path) {
  return new Promise((done) => {
    const made = new WebSocket(target.replace("http", "ws") + path);
    made.onopen = () => made.send(JSON.stringify({ type: "response.create", ...plan.bodies["/v1/responses"] }));
    made.onmessage = (message) => done(message.data);
    made.onerror = made.onclose = () => done(null);
  });
}

function events(path) {
  return new Promise((done) => {
    const made = new EventSource(target + path, { withCredentials: true });
    made.onopen = () => done("opened");
    made.onmessage = (message) => done(message.data);
    made.onerror = () => (made.close(), done(null));
  });
}

function request(method, path, type) {
  return new Promise((done, fail) => {
    const made = new XMLHttpRequest();
    made.open(method, target + path);
    made.setRequestHeader("Content-Type", type);
    made.onload = () => done(`${made.status} ${made.responseText}`);
    made.onerror = () => fail(new Error("refused"));
    made.send(JSON.stringify(plan.bodies[path]));
  });
}

function fromWorker(script) {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  return new Promise((done) => {
    const worker = new Worker(url);
    worker.onmessage = (message) => done(message.data);
    worker.onerror = () => done(null);
  });
}

// A frame without an origin of its own: what it sends says `Origin: null`, like a file's or a data: address's page.
function fromSandbox(path) {
  const script = `
    const plan = ${JSON.stringify(plan)};
    const sent = { method: "POST", body: JSON.stringify(plan.bodies["${path}"]) };
    const tell = (read) => parent.postMessage({ sandbox: "${path}", read }, "*");
    fetch("${target}${path}", { ...sent, mode: "no-cors", headers: { "Content-Type": "text/plain" } })
      .then(() => fetch("${target}${path}", { ...sent, headers: { "Content-Type": "application/json" } }))
      .then((answer) => answer.text()).then(tell, () => tell(null));`;
  return new Promise((done) => {
    addEventListener("message", (message) => {
      if (message.data.sandbox === path) done(message.data.read);
    });
    const frame = document.createElement("iframe");
    frame.sandbox = "allow-scripts allow-forms";
    frame.srcdoc = `<script>${script}</` + `script>`;
    document.body.append(frame);
  });
}

function specials() {
  const chat = "/v1/chat/completions";
  const asked = plan.bodies[chat];
  const there = plan.reads.map((path) => target + path);
  const post = { ...options, method: "POST", body: JSON.stringify(asked) };
  return [
    ...there.flatMap((url) => [
      deed(`img ${url}`, () => element("img", "src", url)),
      deed(`script ${url}`, () => element("script", "src", url)),
      deed(`stylesheet ${url}`, () => element("link", "href", url)),
      deed(`iframe ${url}`, () => element("iframe", "src", url)),
      deed(`object ${url}`, () => element("object", "data", url)),
      deed(`video ${url}`, () => element("video", "src", url)),
      deed(`module ${url}`, async () => Object.keys(await import(url)).join() || "imported"),
      deed(`worker ${url}`, () => fromWorker(`importScripts(${JSON.stringify(url)}); postMessage("imported")`)),
    ]),
    deed("worker fetch", () =>
      fromWorker(`fetch("${target}/v1/models").then((it) => it.text()).then(postMessage, () => postMessage(null))`),
    ),
    deed("form urlencoded", () => form(target + chat, "application/x-www-form-urlencoded", asked)),
    deed("form multipart", () => form(target + chat, "multipart/form-data", asked)),
    deed("form text", () => form(target + chat, "text/plain", smuggled(asked))),
    deed("form text, responses", () =>
      form(target + "/v1/responses", "text/plain", smuggled(plan.bodies["/v1/responses"])),
    ),
    deed("no-cors JSON blob", () =>
      body(fetch(target + chat, { ...post, mode: "no-cors", body: new Blob([post.body], { type: json["Content-Type"] }) })),
    ),
    deed("no-cors without a type", () =>
      body(fetch(target + chat, { ...post, mode: "no-cors", body: new TextEncoder().encode(post.body) })),
    ),
    deed("no-cors without a referrer", () =>
      body(fetch(target + chat, { ...post, mode: "no-cors", referrerPolicy: "no-referrer" })),
    ),
    deed("keepalive", () => body(fetch(target + chat, { ...post, mode: "no-cors", keepalive: true }))),
    deed("keepalive JSON", () => body(fetch(target + chat, { ...post, keepalive: true, headers: json }))),
    deed("beacon", async () => void navigator.sendBeacon(target + chat, post.body)),
    deed("beacon JSON", async () => void navigator.sendBeacon(target + chat, new Blob([post.body], { type: json["Content-Type"] }))),
    deed("ping", async () => {
      const link = document.createElement("a");
      Object.assign(link, { href: "#", ping: target + chat });
      document.body.append(link);
      link.click();
    }),
    // A page may send itself whatever it likes; a redirect then takes it to the server.
    deed("redirected JSON", () => body(fetch(`/redirect?to=${target}${chat}`, { ...post, headers: json }))),
    deed("redirected form", () => form(`/redirect?to=${target}${chat}`, "text/plain", smuggled(asked))),
    deed("redirected image", () => element("img", "src", `/redirect?to=${target}/v1/models`)),
    // Other names of the same address, which a browser may take for another network or another site.
    ...["0.0.0.0", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]"].flatMap((name) => {
      const url = `http://${name}:${new URL(plan.server).port}${chat}`;
      return [
        deed(`no-cors to ${name}`, () => body(fetch(url, { ...post, mode: "no-cors" }))),
        deed(`JSON to ${name}`, () => body(fetch(url, { ...post, headers: json }))),
        deed(`image from ${name}`, () => element("img", "src", url.replace(chat, "/v1/models"))),
      ];
    }),
    deed("XHR text", () => request("POST", chat, "text/plain")),
    deed("XHR JSON", () => request("POST", chat, "application/json")),
    deed("sandboxed frame", () => fromSandbox(chat)),
    ...["/v1/responses", "/responses"].map((path) => deed(`websocket ${path}`, () => socket(path))),
    ...plan.reads.map((path) => deed(`events ${path}`, () => events(path))),
  ];
}

// What a page that the operator has listed is for.
function uses() {
  const chat = target + "/v1/chat/completions";
  const sent = (path, more) => ({ method: "POST", headers: { ...json, Authorization: "Bearer any" }, body: JSON.stringify({ ...plan.bodies[path], ...more }) });
  return [
    deed("models", () => body(fetch(target + "/v1/models"))),
    deed("chat", () => body(fetch(chat, sent("/v1/chat/completions")))),
    deed("chat stream", () => body(fetch(chat, sent("/v1/chat/completions", { stream: true })))),
    deed("response, read again and deleted", async () => {
      const made = await (await fetch(target + "/v1/responses", sent("/v1/responses"))).json();
      const one = `${target}/v1/responses/${made.id}`;
      return [await body(fetch(one)), await body(fetch(one, { method: "DELETE" })), (await fetch(one)).status].join("\n");
    }),
    deed("conversation", () => body(fetch(target + "/v1/conversations", sent("/v1/conversations")))),
    deed("request id", async () => (await fetch(target + "/v1/models")).headers.get("x-request-id")),
    deed("socket", () => socket("/v1/responses")),
  ];
}

async function main() {
  await Promise.all(plan.listed ? uses() : [...everyRoute(), ...specials()]);
  await fetch("/found", { method: "POST", body: JSON.stringify(findings) });
  if (plan.next) location.href = plan.next;
}

main();
