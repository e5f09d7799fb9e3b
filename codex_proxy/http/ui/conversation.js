// The middle of the sessions: one session's turns and items, as they are stored and as they happen.
import { askCard } from "./asks.js";
import { BETA } from "./feed.js";
import { itemView } from "./items.js";
import { clockTime, count, h, json, request, seconds, shown } from "./lib.js";
import { turnFiles } from "./turn_files.js";

const PAGE = 100;
const MOST = 10_000; // items that are loaded without being asked for
const CHUNK = 50; // items, or turns
const FRAME_MS = 8; // the time of a frame that events may take
const MOST_WAITING = 20_000; // events that wait for a frame, before the items are read instead
const NEAR_END = 48; // pixels
const SUBAGENT_MS = 2000;
const RETRY_MS = 2000;
const FINAL = new Set([400, 401, 403, 404]); // to ask again would not change the answer

/** What an item looked like before its beginning was missed, by the type of its first event that came. */
const UNKNOWN = {
  "agent.session.turn.output_text.delta": { type: "message", role: "assistant", phase: null, content: [] },
  "agent.output.command_execution_output.delta": { type: "command_execution", command: "…", cwd: null, output: null, exit_code: null, duration_ms: null },
  "agent.session.turn.reasoning_summary_text.delta": { type: "reasoning", summary: [] },
};

const api = (path, options = {}) => json(`/v1/agents/sessions/${path}`, { ...options, headers: BETA });

/** Where each session was read, by its id: an item and its distance from the top. The end, if there is none. */
const positions = new Map();

/**
 * One session's conversation. `ready`: a promise of the moment from which all its events come. `actions`: those of `itemView` (without `openSubagent`), those of
 * `turnFiles`, `answered(askId, body)`, which sends the answer to a question, and `trouble(error)`.
 */
export function conversation(id, ready, actions) {
  const path = encodeURIComponent(id);
  const turns = new Map(); // by id: {element, body, foot}
  const objects = new Map(); // the API's objects of turns, by id, also of those whose items are not loaded yet
  const views = new Map(); // by the item's id: {view, row, done}
  const guessed = new Map(); // by id: the items that are stored as cut, and shown as at work since their turn goes on
  const order = []; // the ids of items, as they are stored
  const list = h("div", { class: "entries" });
  const asks = h("div", { class: "asks" });
  const content = h("div", { class: "talk-content" }, list, asks);
  const talk = h("div", { class: "talk", tabindex: "0", role: "region", "aria-label": "Conversation" }, content);
  const below = h("button", { type: "button", class: "below", hidden: true, onclick: () => toEnd() }, "New below ↓");
  const earlier = h("button", { type: "button", hidden: true }, "Load earlier items");
  const element = h("div", { class: "talk-box" }, earlier, talk, below);
  const stop = new AbortController();
  const { signal } = stop;
  const files = turnFiles(path, actions, signal);
  let waiting = [];
  let due = false;
  let loaded = false;
  let again = false; // whether something was missed while the items were read
  let failed = false; // whether the first reading has
  let stuck = true;
  let lastTop = 0;

  // --- turns and items ---------------------------------------------------------------------------

  /** The turn of an item; a new one is put at the end, or before all that is in `above`. */
  function turnOf(turnId, above) {
    let found = turns.get(turnId);
    if (!found) {
      const foot = h("p", { class: "turn-end soft" });
      const body = h("div", {});
      found = { element: h("section", { class: "turn", "data-id": turnId }, body, foot), body, foot, files: null };
      turns.set(turnId, found);
      if (objects.has(turnId)) drawEnd(found, objects.get(turnId));
      if (above) above.prepend(found.element);
      else chunkIn(list).append(found.element);
    }
    return found;
  }

  /** Shows below a turn how it ended, and what it has done to the files. */
  function drawEnd(found, turn) {
    found.foot.replaceChildren(...endOf(turn));
    if (!turn.completed_at || found.files) return;
    found.files = h("div", { class: "turn-files" });
    found.foot.after(found.files);
    files.add(turn.id, found.files);
  }

  /** The chunk of the turns, or of a turn's items, at the end or the beginning: the browser skips whole chunks that are out of sight. */
  function chunkIn(place, first = false) {
    const chunk = first ? place.firstElementChild : place.lastElementChild;
    if (chunk?.className === "chunk" && chunk.children.length < CHUNK) return chunk;
    const made = h("div", { class: "chunk" });
    if (first) place.prepend(made);
    else place.append(made);
    return made;
  }

  /**
   * Takes an item: a new one is put at the end, or before all others if `above` is where its turn is put. `told`: whether
   * an event has it. The server stores an item at work as a cut one, as far as it is, when a later one is whole.
   */
  function add(item, above = null, told = false) {
    const known = views.get(item.id);
    if (!told && item.status === "incomplete" && !objects.get(item.turn_id)?.completed_at) {
      if (known) return;
      guessed.set(item.id, item);
      item = { ...item, status: "in_progress" };
    }
    const done = item.status !== "in_progress";
    if (done) guessed.delete(item.id);
    if (known?.done && !done) return;
    if (known && done) {
      known.view.update(item);
      known.done = true;
      return;
    }
    const view = itemView(item, { ...actions, openSubagent: (agent) => openSubagent(agent, view.element) });
    if (known) { // told again from its beginning
      known.row.replaceChildren(view.element);
      known.view = view;
      return;
    }
    const row = h("div", { class: `entry of-${item.role === "user" ? "user" : "agent"}`, "data-id": item.id }, view.element);
    views.set(item.id, { view, row, done });
    const chunk = chunkIn(turnOf(item.turn_id ?? "", above).body, above);
    if (above) {
      order.unshift(item.id);
      chunk.prepend(row);
    } else {
      order.push(item.id);
      chunk.append(row);
    }
  }

  function setTurn(turn) {
    objects.set(turn.id, turn);
    if (turns.has(turn.id)) drawEnd(turns.get(turn.id), turn);
    if (!turn.completed_at) return;
    for (const item of guessed.values()) if (item.turn_id === turn.id) add(item); // it was cut after all
  }

  const kinds = {
    "agent.session.turn.item.added": ({ item }) => add(item, null, true),
    "agent.session.turn.item.done": ({ item }) => add(item, null, true),
    error: ({ error }) => error.code === "stream_interrupted" ? resume() : list.append(h("p", { class: "bad", role: "alert" }, shown(error.message, 2000))),
  };

  function take(event) {
    const kind = kinds[event.type];
    if (kind) kind(event);
    else if (event.turn) setTurn(event.turn);
    else if (event.item_id) {
      if (!views.has(event.item_id) && UNKNOWN[event.type]) {
        add({ id: event.item_id, turn_id: event.turn_id, status: "in_progress", ...UNKNOWN[event.type] });
      }
      const known = views.get(event.item_id);
      if (known && !known.done) known.view.delta(event);
    }
  }

  /** Takes what waits, for a part of a frame: the rest waits for the next one. */
  function frame() {
    due = false;
    if (!loaded) return;
    const end = performance.now() + FRAME_MS;
    let taken = 0;
    while (taken < waiting.length && (taken % 32 || performance.now() < end)) take(waiting[taken++]);
    waiting.splice(0, taken);
    if (waiting.length) schedule();
  }

  function schedule() {
    if (due) return;
    due = true;
    requestAnimationFrame(frame);
  }

  // --- what is stored ------------------------------------------------------------------------------

  async function load() {
    try {
      await ready;
      // The turns first: an item that is cut is at work if its turn was when it was read.
      const newest = await api(`${path}/turns?limit=${PAGE}&order=desc`, { signal });
      const page = await api(`${path}/items?limit=${PAGE}&order=desc`, { signal });
      for (const turn of newest.data.toReversed()) setTurn(turn);
      const first = chunkIn(list);
      for (const item of page.data) add(item, first);
      isLoaded();
      restore();
      loadEarlier(page, newest);
    } catch (error) {
      if (signal.aborted) return;
      failed = true;
      list.replaceChildren(h("p", { class: "bad", role: "alert" }, shown(error.message)));
      if (!FINAL.has(error.status)) setTimeout(() => failed && !signal.aborted && resume(false), RETRY_MS);
    }
  }

  /** Loads what is before: to the beginning, since the browser's search and screen readers look at what is loaded. */
  async function loadEarlier(page, turnPage, most = MOST) {
    const next = (kind, { has_more: more, last_id: last }) => more && order.length + PAGE <= most
      ? api(`${path}/${kind}?limit=${PAGE}&order=desc&after=${encodeURIComponent(last)}`, { signal }) : null;
    try {
      let [items, ends] = [next("items", page), next("turns", turnPage)];
      while (items && !signal.aborted) {
        page = await items;
        turnPage = (await ends) ?? turnPage;
        for (const turn of turnPage.data) setTurn(turn);
        [items, ends] = [next("items", page), next("turns", turnPage)];
        const above = h("div", { class: "chunk" }); // in no document: it costs no layout
        for (let at = 0; at < page.data.length; at += 10) {
          for (const item of page.data.slice(at, at + 10)) add(item, above);
          await new Promise((resolve) => setTimeout(resolve));
        }
        const height = talk.scrollTop < 1 ? content.offsetHeight : 0;
        if (above.childElementCount) list.prepend(above);
        if (height && !stuck) talk.scrollTop += content.offsetHeight - height; // the browser keeps the place but at the top
        await new Promise(requestAnimationFrame);
      }
      earlier.hidden = !page.has_more;
      earlier.onclick = () => loadEarlier(page, turnPage, order.length + MOST);
    } catch (error) {
      if (!signal.aborted) actions.trouble(error);
    }
  }

  /**
   * Reads what was missed: the items behind the last one before which everything is whole. `fresh`: whether what waits
   * is older than what was missed; else it was told after it, such as the beginning of an open item.
   */
  function resume(fresh = true) {
    if (fresh) waiting = [];
    if (failed) {
      failed = false;
      list.replaceChildren();
      return load();
    }
    again = !loaded;
    if (again) return null;
    const open = order.findIndex((each) => !views.get(each).done);
    loaded = false;
    return readBehind(order[open < 0 ? order.length - 1 : open - 1]);
  }

  /** Reads the items behind one, until it succeeds: what comes later must not be shown behind a gap. */
  async function readBehind(after) {
    for (let tries = 0; !signal.aborted; tries++) {
      try {
        const newest = await api(`${path}/turns?limit=${PAGE}&order=desc`, { signal });
        for (const turn of newest.data.toReversed()) setTurn(turn);
        for (let more = true; more;) {
          const page = await api(`${path}/items?limit=${PAGE}&order=asc${after ? `&after=${encodeURIComponent(after)}` : ""}`, { signal });
          for (const item of page.data) add(item);
          more = page.has_more;
          after = page.last_id ?? after;
        }
        if (tries) actions.trouble(null);
        return isLoaded();
      } catch (error) {
        if (signal.aborted) return;
        actions.trouble(error);
        if (FINAL.has(error.status)) return;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  function isLoaded() {
    loaded = true;
    schedule();
    if (again) resume(false);
  }

  // --- subagents -----------------------------------------------------------------------------------

  /** Shows a subagent's conversation below the item that speaks of it, and reads it again while the subagent works. */
  async function openSubagent(agent, place) {
    const mine = h("div", { class: "entries" });
    const words = h("span", {}, "Subagent");
    const box = h("details", { class: "subagent", open: true }, h("summary", {}, words), mine);
    const old = place.parentElement.querySelector(":scope > .subagent");
    if (old) return old.remove();
    place.after(box);
    const problem = h("p", { class: "bad", role: "status" });
    mine.after(problem);
    const at = `${path}/subagents/${encodeURIComponent(agent)}`;
    let after = "";
    const read = async () => {
      const about = await api(at, { signal });
      words.textContent = shown(`Subagent ${about.name ?? ""} (${about.status})`, 200);
      for (let more = true; more;) {
        const page = await api(`${at}/items?limit=${PAGE}&order=asc${after}`, { signal });
        for (const item of page.data) {
          mine.append(h("div", { class: "entry" }, itemView(item, {}).element));
        }
        if (page.last_id) after = `&after=${encodeURIComponent(page.last_id)}`;
        more = page.has_more;
      }
      return about.status === "active";
    };
    const follow = async () => {
      let more = true;
      try {
        if (!document.hidden && box.isConnected) more = await read();
        problem.textContent = "";
      } catch (error) {
        problem.textContent = shown(error.message);
        more = !FINAL.has(error.status);
      }
      if (more && box.parentElement && !signal.aborted) setTimeout(follow, SUBAGENT_MS);
    };
    await follow();
  }

  // --- the reading position ------------------------------------------------------------------------

  function toEnd() {
    stuck = true;
    below.hidden = true;
    talk.scrollTop = talk.scrollHeight;
  }

  talk.addEventListener("scroll", () => {
    const atEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < NEAR_END;
    if (atEnd) {
      stuck = true;
      below.hidden = true;
    } else if (talk.scrollTop < lastTop - 1) stuck = false;
    lastTop = talk.scrollTop;
  }, { passive: true });
  const sizes = new ResizeObserver(() => stuck && (talk.scrollTop = talk.scrollHeight));
  sizes.observe(content);
  sizes.observe(talk);

  function restore() {
    const kept = positions.get(id);
    const row = kept && views.get(kept.item)?.row;
    if (!row) return toEnd();
    stuck = false;
    talk.scrollTop += row.getBoundingClientRect().top - talk.getBoundingClientRect().top - kept.distance;
  }

  function keepPosition() {
    const top = talk.getBoundingClientRect().top;
    const first = stuck ? null : order.find((each) => views.get(each).row.getBoundingClientRect().bottom > top);
    if (!first) return positions.delete(id);
    positions.set(id, { item: first, distance: views.get(first).row.getBoundingClientRect().top - top });
  }

  // --- questions -----------------------------------------------------------------------------------

  const cards = new Map();

  function setAsks(open) {
    for (const [askId, card] of cards) {
      if (open.some(({ request_id }) => request_id === askId)) continue;
      cards.delete(askId);
      card.dispatchEvent(new Event("answered")); // it says so, and removes itself
    }
    const added = open.filter(({ request_id: askId }) => !cards.has(askId));
    for (const ask of added) {
      const card = askCard(ask, (answer) => request(`/v1/agents/sessions/${path}/asks/${encodeURIComponent(ask.request_id)}`,
        { body: answer, headers: BETA }));
      cards.set(ask.request_id, card);
      asks.append(card);
    }
    if (!added.length) return;
    if (!stuck) below.hidden = false;
    else requestAnimationFrame(showAsks);
  }

  /** Shows the beginning of the questions where they are higher than the window: it has what is asked. */
  function showAsks() {
    if (!stuck || asks.offsetHeight < talk.clientHeight) return;
    stuck = false;
    talk.scrollTop += asks.getBoundingClientRect().top - talk.getBoundingClientRect().top;
  }

  load();

  return {
    element,
    setAsks,
    resume,
    toEnd,
    restore,
    keepPosition,
    /** Takes an event of the session. */
    take(event) {
      if (waiting.length > MOST_WAITING) return resume();
      waiting.push(event);
      if (!stuck) below.hidden = false;
      schedule();
    },
    /** The id of the newest turn; empty without one. */
    lastTurn: () => [...list.querySelectorAll(":scope > .chunk > .turn")].at(-1)?.dataset.id ?? "",
    /** The id of the next item behind this one that is whole; empty if there is none: no copy is made before an open one. */
    next: (item) => order.slice(order.indexOf(item) + 1).find((each) => views.get(each).done) ?? "",
    /** The id of the first item behind a turn that is whole; empty if there is none. */
    behind: (turn) => {
      const own = [...turns.get(turn).body.querySelectorAll(":scope > .chunk > .entry")].at(-1)?.dataset.id;
      return order.slice(order.indexOf(own) + 1).find((each) => views.get(each).done) ?? "";
    },
    /** Ends reading, and remembers the reading position. */
    close() {
      keepPosition();
      stop.abort();
      sizes.disconnect();
      for (const card of cards.values()) card.dispatchEvent(new Event("closed"));
    },
  };
}

/** What is said below a turn: how it ended, its time and tokens. */
function endOf(turn) {
  const words = [turn.status.replaceAll("_", " ")];
  if (turn.completed_at > turn.started_at) words.push(seconds(turn.completed_at - turn.started_at));
  if (turn.usage) words.push(`${count(turn.usage.input_tokens)} tokens in, ${count(turn.usage.output_tokens)} out`);
  const at = turn.completed_at ?? turn.created_at;
  return [
    turn.error ? h("span", { class: "bad" }, shown(turn.error.message, 4000), " ") : "",
    turn.completed_at ? `${words.join(" · ")} · ${clockTime(at)}` : "",
  ];
}
