// Changes of files as tables: in one column or beside each other, with line numbers, and a comment on each line.
import { changesOf, linesOfChange } from "./changes.js";
import { exactly, h, shown } from "./lib.js";

const FOLDED = 400; // lines of a file: longer ones are folded at first
const UNFOLDED = 1200; // lines of all files that are not
const ROWS = 500; // rows that are added at a time
const FILES = 100; // files that are added at a time
const LONGEST_LINE = 2000;
const KINDS = { add: "Added", delete: "Deleted", update: "Changed" };
const NAMES = { "+": "added", "-": "removed" };

/**
 * The element of a diff: a text in the forms of git, of `apply_patch` or of the sessions' items, or changes
 * `{path, kind, diff, moved_to}`; these may bring a word for their kind (`title`), the `counts` of their lines, and a `note`
 * that is shown before these. `comment(path, line, text)`: called for a comment on a line; its number is that after the
 * change, for a removed line that before it, and null where the diff has no numbers. `exact`: whether each line is shown
 * whole, with all that cannot be seen.
 */
export function diffView(diff, { comment, exact = false } = {}) {
  const files = (typeof diff === "string" ? changesOf(diff) : diff).map((change) => ({ change, lines: linesOfChange(change) }));
  const state = { split: false, comment, exact, drawn: new Set(), unfolded: 0 };
  const show = (split) => {
    state.split = split;
    for (const [name, button] of Object.entries(buttons)) button.setAttribute("aria-pressed", String((name === "split") === split));
    for (const redraw of state.drawn) redraw();
  };
  const button = (label, split) => h("button", { type: "button", "aria-pressed": String(split === state.split), onclick: () => show(split) }, label);
  const buttons = { unified: button("Unified", false), split: button("Split", true) };
  const body = h("div", { class: "files" });
  addInSteps(body, files, FILES, (file) => fileView(file, state), "files");
  return h("div", { class: "diff" }, h("div", { class: "diff-head", role: "group", "aria-label": "Form of the diff" }, buttons.unified, buttons.split), body);
}

/** Adds elements to a parent, `size` at a time: a button adds the next ones. */
function addInSteps(parent, values, size, make, what) {
  let at = 0;
  const more = h("button", { type: "button", class: "more", onclick: () => add(true) });
  const add = (focus) => {
    more.remove();
    const made = values.slice(at, at + size).map(make);
    for (const each of made) parent.append(each);
    at += made.length;
    if (at < values.length) {
      more.textContent = `Show ${Math.min(size, values.length - at)} more of ${values.length - at} ${what}`;
      parent.append(more);
      if (focus) more.focus();
    }
  };
  add(false);
}

const said = (text, exact) => (exact ? exactly(text) : shown(text, LONGEST_LINE));

function fileView({ change, lines }, state) {
  const counts = change.counts ?? { "+": 0, "-": 0 };
  if (!change.counts) for (const { mark } of lines) if (mark in counts) counts[mark] += 1;
  const kind = change.title ?? (change.moved_to ? "Moved" : (KINDS[change.kind] ?? "Changed"));
  const name = h("span", { class: "path" }, said(change.path, state.exact), change.moved_to ? [" → ", said(change.moved_to, state.exact)] : null);
  const summary = h("summary", {}, h("span", { class: "kind" }, kind), " ", name, " ",
    h("span", { class: "counts" }, h("span", { class: "good" }, `+${counts["+"]}`), " ", h("span", { class: "bad" }, `−${counts["-"]}`)),
    lines.length > FOLDED ? h("span", { class: "soft" }, ` ${lines.length} lines`) : null);
  const box = h("details", { class: "file" }, summary, change.note && h("p", { class: "soft" }, shown(change.note, 500)));
  let drawn = null;
  const draw = () => {
    const made = lines.length ? linesView(change.path, lines, state) : h("p", { class: "soft" }, change.note ? "" : "No lines are told.");
    if (drawn) drawn.replaceWith(made);
    else box.append(made);
    drawn = made;
  };
  box.addEventListener("toggle", () => {
    if (box.open && !drawn) open();
  });
  const open = () => {
    draw();
    state.drawn.add(draw);
  };
  state.unfolded += lines.length;
  if (lines.length <= FOLDED && state.unfolded <= UNFOLDED) {
    box.open = true;
    open();
  }
  return box;
}

// --- the lines of a file ----------------------------------------------------------------------------

function linesView(path, lines, state) {
  const body = h("tbody");
  const rows = state.split ? pairsOf(lines) : lines;
  const make = state.split ? (pair) => splitRow(pair, state) : (line) => unifiedRow(line, state);
  const label = `Changes of ${shown(path, 200)}`;
  const head = state.split ? ["Line before", "Before", "Line after", "After"] : ["Line before", "Line after", "Change"];
  const table = h("table", { class: state.split ? "lines split" : "lines", "aria-label": label },
    h("thead", { class: "hidden" }, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), body);
  const box = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
  const rest = h("tr", { class: "rest" });
  addRows(body, rows, make, rest, state.split ? 4 : 3);
  if (state.comment) commentable(table, path, state);
  return box;
}

function addRows(body, rows, make, rest, columns) {
  let at = 0;
  const more = h("button", { type: "button" });
  rest.append(h("td", { colspan: String(columns) }, more));
  const add = () => {
    for (const row of rows.slice(at, at + ROWS)) rest.before(make(row));
    at = Math.min(at + ROWS, rows.length);
    more.textContent = `Show ${Math.min(ROWS, rows.length - at)} more of ${rows.length - at} lines`;
    if (at === rows.length) rest.remove();
  };
  more.addEventListener("click", add);
  body.append(rest);
  add();
}

/** The lines for two columns: removed lines beside the added ones that follow them. */
function pairsOf(lines) {
  const pairs = [];
  for (let at = 0; at < lines.length; ) {
    if (lines[at].mark !== "-" && lines[at].mark !== "+") {
      pairs.push([lines[at], lines[at++]]);
      continue;
    }
    const removed = [];
    const added = [];
    while (lines[at]?.mark === "-") removed.push(lines[at++]);
    while (lines[at]?.mark === "+") added.push(lines[at++]);
    for (let n = 0; n < Math.max(removed.length, added.length); n++) pairs.push([removed[n] ?? null, added[n] ?? null]);
  }
  return pairs;
}

const CLASSES = { "+": "added", "-": "removed", "@": "hunk", "\\": "hunk", " ": null };

/** The cell of a line's number: with comments, a button, of which one is in the order of the tab key. */
function numberCell(line, number, state) {
  const told = number === null ? "" : String(number);
  if (!state.comment || !line || CLASSES[line.mark] === "hunk") return h("td", { class: "number" }, told);
  const where = number === null ? "this line" : `line ${number}`;
  const name = `Comment on ${where}${NAMES[line.mark] ? `, ${NAMES[line.mark]}` : ""}`;
  const button = h("button", { type: "button", tabindex: "-1", "aria-label": name }, told || "·");
  LINES.set(button, { line, number });
  return h("td", { class: "number" }, button);
}

const LINES = new WeakMap(); // the line of each button

function codeCell(line, state, columns) {
  const kind = line ? CLASSES[line.mark] : "none";
  const mark = line && kind !== "hunk" ? line.mark : "";
  return h("td", { class: `code ${kind ?? ""}`, colspan: columns },
    h("span", { class: "mark" }, mark || " "), NAMES[mark] ? h("span", { class: "hidden" }, `${NAMES[mark]}: `) : null,
    h("span", { class: "text" }, line ? said(line.text, state.exact) : ""));
}

function unifiedRow(line, state) {
  const own = line.mark === "-" ? "old" : "now";
  const cells = ["old", "now"].map((side) => (side === own ? numberCell(line, line[side], state) : h("td", { class: "number" }, line[side] === null ? "" : String(line[side]))));
  return h("tr", { class: CLASSES[line.mark] }, cells, codeCell(line, state));
}

function splitRow([left, right], state) {
  if (left === right && CLASSES[left.mark] === "hunk") {
    return h("tr", { class: "hunk" }, h("td", { class: "number" }), codeCell(left, state, "3"));
  }
  const old = left === right ? h("td", { class: "number" }, left.old === null ? "" : String(left.old)) : numberCell(left, left?.old ?? null, state);
  return h("tr", {}, old, codeCell(left, state), numberCell(right, right?.now ?? null, state), codeCell(right, state));
}

// --- comments ---------------------------------------------------------------------------------------

/** Makes the line numbers of a table buttons that the arrow keys reach, and that open a form for a comment. */
function commentable(table, path, state) {
  const all = () => [...table.querySelectorAll("td.number > button")];
  const first = table.querySelector("td.number > button");
  if (!first) return;
  first.tabIndex = 0;
  const reach = (button) => {
    for (const each of table.querySelectorAll('td.number > button[tabindex="0"]')) each.tabIndex = -1;
    button.tabIndex = 0;
    button.focus();
  };
  table.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !LINES.has(event.target)) return;
    event.preventDefault();
    const buttons = all();
    const place = buttons.indexOf(event.target) + step;
    reach(buttons[Math.max(0, Math.min(buttons.length - 1, place))]);
  });
  table.addEventListener("click", (event) => {
    const told = LINES.get(event.target);
    if (!told) return;
    reach(event.target);
    openForm(event.target, path, told, state);
  });
}

function openForm(button, path, { line, number }, state) {
  const row = button.closest("tr");
  if (row.nextElementSibling?.matches(".comment-form")) return row.nextElementSibling.querySelector("textarea").focus();
  const close = () => {
    made.remove();
    button.focus();
  };
  const area = h("textarea", { rows: "2", "aria-label": `Comment on ${number === null ? "this line" : `line ${number}`}` });
  const add = (event) => {
    event.preventDefault();
    const text = area.value.trim();
    if (!text) return area.focus();
    state.comment(path, number, `${line.mark === " " ? "" : line.mark}${shown(line.text, 200)}\n${text}`);
    made.before(h("tr", { class: "comment" }, h("td", { colspan: "4" }, h("span", { class: "soft" }, "Your comment: "), shown(text))));
    return close();
  };
  const onkeydown = (event) => {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) add(event);
  };
  const form = h("form", { onsubmit: add, onkeydown }, area, h("div", { class: "row" },
    h("button", { class: "main" }, "Add to the next message"), h("button", { type: "button", onclick: close }, "Cancel")));
  const made = h("tr", { class: "comment-form" }, h("td", { colspan: "4" }, form));
  row.after(made);
  return area.focus();
}
