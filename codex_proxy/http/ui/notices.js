// Tells of sessions that wait or have ended: to screen readers always, on the desktop if no tab is looked at.
import { h, shown } from "./lib.js";

const region = h("p", { class: "heard", role: "status", "aria-live": "polite" });
document.body.prepend(region);

/** Whether the browser has notifications that the user has neither allowed nor refused. */
export const canAsk = () => typeof Notification !== "undefined" && isSecureContext && Notification.permission === "default";

/** Asks the user; returns whether it is allowed. */
export async function ask() {
  return (await Notification.requestPermission()) === "granted";
}

/** Tells of what a change of a session's summary means. `seen`: whether the user looks at a tab of the page. */
export function told(before, after, seen) {
  const words = meaning(before, after);
  if (!words) return;
  region.textContent = shown(words, 300);
  if (seen || typeof Notification === "undefined" || Notification.permission !== "granted") return;
  const notice = new Notification(shown(after.title || "A session", 80), { body: shown(words, 200), tag: after.id });
  notice.addEventListener("click", () => {
    focus();
    location.hash = `#sessions/${encodeURIComponent(after.id)}`;
    notice.close();
  });
}

function meaning(before, after) {
  const title = after.title || "A session";
  const asked = after.asks.find(({ request_id: id }) => !before?.asks.some((each) => each.request_id === id));
  if (asked) return `${title} asks: ${asked.message || asked.name}`;
  if (!before) return "";
  if (after.status === "requires_action" && before.status !== "requires_action") return `${title} waits for you.`;
  if (before.turn && !after.turn) return after.status === "failed" ? `${title} has failed.` : `${title} has ended its turn.`;
  return "";
}
