// An agent's question for permission, as a card: all that is asked can be seen, and nothing is answered by mistake.
import { diffView } from "./diff.js";
import { formOf } from "./forms.js";
import { exactly, h, shown } from "./lib.js";

const UNREADY = 500; // milliseconds in which a card that has just appeared or moved takes no answer
const MOVED = 4; // pixels
const FINAL = [403, 404, 409]; // answers that another try does not change

/**
 * The card of a question (`request_id`, `name`, `arguments`, `message`, `server_label`, `digest`, `rule`, `form`).
 * `answer({decision, digest, for_session, message, content})` sends the answer; the promise's rejection is told in the card.
 * The event `answered` tells the card that the question is open no longer: it says so if it was answered elsewhere, and
 * removes itself. The event `closed` tells it that it is shown no longer.
 */
export function askCard(ask, answer) {
  const status = h("p", { role: "status" });
  const words = h("textarea", { rows: "1", maxlength: "2000" });
  const button = (label, given, kind) => h("button", { type: "button", class: kind, onclick: () => send(given) }, label);
  const form = ask.form && ask.name === "ask_user" ? formOf(ask.arguments.fields) : null;
  const buttons = [
    button(form ? "Send" : "Allow once", { decision: "approve" }, "main"),
    ask.rule ? button("Allow this kind for the session", { decision: "approve", for_session: true }) : null,
    button("Decline", { decision: "deny" }),
  ].filter(Boolean);
  const card = h("section", { class: "ask", "aria-label": "Question of the agent" },
    h("h3", {}, form ? "The agent asks you" : "May the agent do this?"), h("p", {}, exactly(ask.message)), form?.element ?? contentsOf(ask),
    ask.rule ? h("p", { class: "rule" }, h("b", {}, "This kind for the session: "), exactly(ask.rule)) : null,
    h("label", {}, h("span", {}, "Words for the agent if you decline (optional)"), words),
    h("div", { class: "buttons" }, buttons), status);
  const guard = guarded(card, buttons);
  let sent = false;
  const send = async (given) => {
    if (sent) return;
    sent = true;
    guard.stop();
    status.className = "soft";
    status.textContent = "Sending …";
    const message = given.decision === "deny" && words.value.trim();
    const content = given.decision === "approve" && form?.values();
    try {
      await answer({ ...given, digest: ask.digest, ...(message ? { message } : {}), ...(content ? { content } : {}) });
      status.textContent = given.decision !== "approve" ? "Declined." : form ? "Sent." : "Allowed.";
      card.classList.add("answered");
    } catch (error) {
      status.className = "bad";
      status.textContent = troubleOf(error);
      if (FINAL.includes(error.status)) return;
      sent = false;
      guard.start();
    }
  };
  card.addEventListener("answered", () => {
    if (sent) return card.remove();
    sent = true;
    guard.stop();
    card.classList.add("answered");
    status.className = "soft";
    status.textContent = "This was answered elsewhere, or the turn has ended.";
    return setTimeout(() => card.remove(), 10_000);
  });
  card.addEventListener("closed", guard.end);
  guard.start();
  return card;
}

function troubleOf({ status, message }) {
  const told = shown(message, 500);
  if (status === 409) return `Nothing was sent to the agent: ${told} It may have been answered elsewhere, or be another question now.`;
  if (status === 403) return `This key may not answer: ${told}`;
  return `The answer was not taken: ${told}`;
}

// --- what is asked ----------------------------------------------------------------------------------

const json = (value) => (typeof value === "string" ? value : JSON.stringify(value ?? null, null, 2));

function exactBlock(name, value) {
  if (value === null || value === undefined || value === "") return null;
  return h("div", { class: "fact" }, h("p", { class: "soft" }, name), h("pre", { tabindex: "0", "aria-label": name }, exactly(json(value))));
}

/** Everything that is asked for; below it the same as JSON, which holds what no other form may tell. */
function contentsOf({ name, arguments: given, server_label: label, form }) {
  const whole = h("details", {}, h("summary", {}, "As JSON"), h("pre", { tabindex: "0", "aria-label": "As JSON" }, exactly(json(given))));
  if (label === "agent" && name === "run_command") {
    return [exactBlock("Command", given.command), exactBlock("In the folder", given.cwd), exactBlock("The agent's reason", given.reason), whole];
  }
  if (label === "agent" && name === "apply_patch" && Array.isArray(given.changes)) {
    return [diffView(given.changes, { exact: true }), exactBlock("The agent's reason", given.reason), whole];
  }
  if (form && name === "open_url" && /^https?:/i.test(given.url)) {
    return [exactBlock("Address", given.url), h("p", {}, h("a", { href: given.url, target: "_blank", rel: "noopener noreferrer" }, "Open it in another tab")), whole];
  }
  const tool = name === "permissions" ? given.tool : name;
  return [exactBlock(label === "agent" ? "Tool" : `Tool of the MCP server ${shown(label, 200)}`, tool),
    exactBlock("Arguments", name === "permissions" ? given.arguments : given),
    name === "permissions" ? exactBlock("The agent's reason", given.reason) : null, whole];
}

// --- against mistakes -------------------------------------------------------------------------------

/**
 * Takes no press of the buttons within `UNREADY` after the card has come into view, has moved, or its tab has: what a
 * person was about to press was something else. Also a press that began before is none.
 */
function guarded(card, buttons) {
  let readyAt = Infinity;
  let place = null;
  let early = false; // whether the last press began too early
  let active = false;
  let ended = false;
  const look = () => {
    const { left, top, width } = card.getBoundingClientRect();
    const moved = !place || Math.abs(place.left - left) > MOVED || Math.abs(place.top - top) > MOVED;
    if (!width) [place, readyAt] = [null, Infinity];
    else if (moved) [place, readyAt] = [{ left, top }, performance.now() + UNREADY];
    return performance.now() >= readyAt;
  };
  const tell = (ready) => {
    for (const each of buttons) each.setAttribute("aria-disabled", String(!ready));
  };
  const follow = () => {
    if (!active) return;
    tell(look());
    requestAnimationFrame(follow);
  };
  const onPress = (event) => {
    if (!buttons.includes(event.target.closest?.("button"))) return;
    const ready = active && look();
    if (event.type !== "click") early = !ready || event.repeat;
    if (ready && !early) return;
    if (event.key === "Tab") return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (event.type === "click") early = false;
  };
  for (const type of ["pointerdown", "keydown", "click"]) card.addEventListener(type, onPress, { capture: true });
  const onVisible = () => (place = null);
  const stop = () => {
    active = false;
    document.removeEventListener("visibilitychange", onVisible); // it would keep the card
    tell(false);
  };
  return {
    start() {
      if (ended) return;
      [active, place] = [true, null];
      document.addEventListener("visibilitychange", onVisible);
      requestAnimationFrame(follow);
    },
    stop,
    /** Stops for ever. */
    end() {
      ended = true;
      stop();
    },
  };
}
