// The server's stream of all sessions of a key, read again after every break. It runs in a worker or in a tab.
import { events } from "./lib.js";

export const BETA = { "OpenAI-Beta": "agents=v1" };

/** The session of an event. */
export const sessionOf = (event) => event.session_id ?? event.session?.id ?? event.subagent?.session_id ?? "";

/** Whether a message is for every tab, whichever session it shows. */
export const isForAll = ({ type }) => type === "connection" || type === "agent.session.deleted" || type.startsWith("agent.session.summar");

const RETRY_MS = 2000;
const FINAL = new Set([400, 401, 403, 404]); // to ask again would not change the answer

/**
 * Reads the stream until the returned function is called. `tell` gets lists of messages: events as the server sends
 * them, and `{type: "connection", state, message}`, whose state is "live", "broken" (it is tried again) or "refused".
 */
export function readFeed(key, tell) {
  const stop = new AbortController();
  const headers = key ? { Authorization: `Bearer ${key}`, ...BETA } : BETA;
  const connection = (state, message = "") => tell([{ type: "connection", state, message }]);
  const once = async () => {
    const answer = await fetch("/v1/agents/session_events?include_obfuscation=false", { headers, signal: stop.signal });
    if (!answer.ok) {
      const text = await answer.text();
      let message = `HTTP ${answer.status}`;
      try {
        message = JSON.parse(text).error.message;
      } catch {
        // It is not one of the server's own errors: its status says enough.
      }
      connection(FINAL.has(answer.status) ? "refused" : "broken", message);
      return !FINAL.has(answer.status);
    }
    connection("live");
    await events(answer, (found) => tell(found.map(({ data }) => JSON.parse(data))));
    connection("broken", "The server has closed the connection.");
    return true;
  };
  const run = async () => {
    let again = true;
    while (again && !stop.signal.aborted) {
      try {
        again = await once();
      } catch {
        if (!stop.signal.aborted) connection("broken", "The server does not answer.");
      }
      if (again && !stop.signal.aborted) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  };
  run();
  return () => stop.abort();
}

const LONGEST_OPEN = 1 << 20; // characters of an open item

/**
 * What has been told of items that have not ended: they are in no list, and a tab that shows their session later than
 * they began gets it from here.
 */
export function openItems() {
  const sessions = new Map(); // by session and item: the events so far, the pieces of a text joined
  const note = (event) => {
    const session = sessionOf(event);
    const id = event.item?.id ?? event.item_id;
    if (event.turn && event.turn.completed_at) sessions.delete(session);
    if (!session || !id) return;
    const items = sessions.get(session) ?? new Map();
    sessions.set(session, items);
    if (event.type === "agent.session.turn.item.done") items.delete(id);
    else if (event.item) {
      if (event.item.status === "in_progress") items.set(id, { events: [event], size: 0 });
    } else if (items.has(id)) add(items.get(id), event);
  };
  return {
    note: (messages) => messages.forEach(note),
    /** The events of a session's open items. */
    of: (session) => [...(sessions.get(session)?.values() ?? [])].flatMap(({ events: told }) => told),
    forget: () => sessions.clear(),
  };
}

function add(item, event) {
  const last = item.events.at(-1);
  item.size += event.delta?.length ?? 0;
  if (item.size > LONGEST_OPEN) return; // its end comes with the whole
  if (event.delta !== undefined && last.type === event.type && last.summary_index === event.summary_index) {
    item.events[item.events.length - 1] = { ...last, delta: last.delta + event.delta };
  } else item.events.push(event);
}
