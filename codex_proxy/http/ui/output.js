// The output of a command, as it comes: of a long one the end is shown, and all of it on demand.
import { copyButton, h, shown } from "./lib.js";

const LINES = 20; // lines of a folded output
const CHARS = 4000; // and its characters
const MOST = 1_000_000; // characters that are kept

/** Returns `element`, `add(text)` for what comes next, `set(text)` for the whole, and `draw()`, to be called after these. */
export function outputView() {
  const text = h("code");
  const pre = h("pre", { class: "printed", tabindex: "0", "aria-label": "Output" }, text);
  const note = h("span", { class: "soft" });
  const button = h("button", { type: "button", "aria-expanded": "false" });
  const head = h("div", { class: "output-head", hidden: true }, note, button, copyButton("Copy", () => shown(whole, Infinity)));
  const element = h("div", { class: "outcome", hidden: true }, head, pre);
  let whole = "";
  let tail = "";
  let lines = 0;
  let left = 0; // characters that are not kept
  let open = false;
  const draw = () => {
    const ending = lastLines(tail);
    const long = whole.length + left > ending.length;
    element.hidden = whole === "";
    head.hidden = !long;
    const [some, all] = [linesIn(ending), lines + (tail.endsWith("\n") ? 0 : 1)];
    note.textContent = left ? `${left} characters of the middle are left out` : open ? "" : `The last ${some} of ${all} lines`;
    button.textContent = open ? "Fold" : "Show all";
    button.setAttribute("aria-expanded", String(open));
    if (!open || !long) text.textContent = shown(ending, Infinity);
  };
  const unfold = () => {
    open = !open;
    if (open) text.textContent = shown(left ? `${whole}\n…\n${tail}` : whole, Infinity);
    draw();
  };
  button.addEventListener("click", unfold);
  const add = (more) => {
    for (let at = more.indexOf("\n"); at >= 0; at = more.indexOf("\n", at + 1)) lines += 1;
    const kept = more.slice(0, MOST - whole.length);
    left += more.length - kept.length;
    whole += kept;
    tail = (tail + more).slice(-CHARS);
    if (open) text.append(shown(kept, Infinity));
  };
  return {
    element,
    add,
    draw,
    set(all) {
      if (all === whole && !left) return;
      [whole, tail, lines, left] = ["", "", 0, 0];
      text.replaceChildren();
      add(all);
    },
  };
}

const linesIn = (text) => text.split("\n").length - (text.endsWith("\n") ? 1 : 0);

function lastLines(text) {
  let at = text.endsWith("\n") ? text.length - 1 : text.length;
  for (let n = 0; n < LINES && at > 0; n++) at = text.lastIndexOf("\n", at - 1);
  return at > 0 ? text.slice(at + 1) : text;
}
