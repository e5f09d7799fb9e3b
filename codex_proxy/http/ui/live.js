// What happens in the sessions, as it happens. All tabs of a browser share one connection, which a worker keeps: the
// browser would give a server only six. Where there is no such worker, each tab has its own.
import { isForAll, openItems, readFeed, sessionOf } from "./feed.js";
import { key } from "./lib.js";

const listeners = new Set();
let started = false;
let state = { watched: "", visible: !document.hidden };
let send = () => {};
let isWatched = () => {};

/**
 * Calls `listener` with lists of messages from now on: events of all sessions' summaries, those of the watched session,
 * and `{type: "connection"}` (see `readFeed`). Its second argument says whether any tab of the browser is visible.
 */
export function follow(listener) {
  listeners.add(listener);
  start();
}

/** Chooses the session whose events come; an empty id for none. Returns when every later event comes. */
export function watch(id) {
  state = { ...state, watched: id };
  send({ watched: id });
  return new Promise((resolve) => (isWatched = resolve));
}

function tell(messages, seen) {
  if (messages.some(({ type, id }) => type === "watched" && id === state.watched)) isWatched();
  for (const each of listeners) each(messages, seen);
}

function start() {
  if (started) return;
  started = true;
  state = { ...state, visible: !document.hidden }; // the page may have been loaded in the background
  document.addEventListener("visibilitychange", () => {
    state = { ...state, visible: !document.hidden };
    send({ visible: state.visible });
    // What was not sent to the hidden tab is read.
    if (state.visible) tell([{ type: "missed" }], true);
  });
  if (typeof SharedWorker === "undefined") ownConnection();
  else sharedConnection();
}

function sharedConnection() {
  const worker = new SharedWorker("/ui/live_worker.js", { type: "module", name: "codex-proxy" });
  const join = () => send({ join: key.get(), ...state });
  send = (message) => worker.port.postMessage(message);
  worker.addEventListener("error", ownConnection, { once: true });
  worker.port.addEventListener("message", ({ data }) => tell(data.messages, data.seen));
  worker.port.start();
  join();
  addEventListener("pagehide", () => send({ leave: true }));
  addEventListener("pageshow", ({ persisted }) => persisted && join());
}

function ownConnection() {
  const open = openItems();
  send = ({ watched: id }) => id !== undefined && queueMicrotask(() => tell([{ type: "watched", id }, ...open.of(id)], state.visible));
  isWatched();
  readFeed(key.get(), (messages) => {
    if (messages.some(({ type }) => type === "connection")) open.forget();
    open.note(messages);
    tell(messages.filter((each) => isForAll(each)
      || sessionOf(each) === state.watched), state.visible);
  });
}
