// An agent's Markdown as elements. All of its text becomes text nodes: HTML is shown as it is written, and nothing is
// loaded. The cost is linear in the length of the text, whatever it holds.
import { inlineInto } from "./inline.js";
import { copyButton, h, shown } from "./lib.js";

/** Characters that are read as Markdown; what is beyond them is shown as it is. */
const LONGEST = 200_000;
const DEEPEST = 8; // quotes and lists in each other: what is deeper is text
const MOST_COLUMNS = 64;

/** The nodes of a whole text. */
export function markdown(text) {
  const view = markdownView();
  view.update(text);
  return [...view.element.childNodes];
}

/**
 * Markdown that grows: `update(text)` takes the whole text so far, which begins with the one before, and makes only the
 * last block anew. Another text begins from nothing.
 */
export function markdownView() {
  const element = h("div", { class: "markdown" });
  let seen = "";
  let start = 0; // where the last block begins in the text
  let last = null; // the last block
  let tail = null; // what is beyond LONGEST
  const clear = () => {
    element.replaceChildren();
    [seen, start, last, tail] = ["", 0, null, null];
  };
  const update = (text) => {
    if (!text.startsWith(seen)) clear();
    if (text === seen && element.firstChild) return;
    if (seen.length < LONGEST) {
      const found = blocksOf(linesOf(text.slice(start, LONGEST)), 0);
      if (last && sameCode(last, found[0])) {
        last.code.textContent = found[0].code.textContent; // what is selected in it, and its button, stay
        found[0] = { ...last, from: found[0].from };
      } else last?.node.remove();
      for (const { node } of found) if (node !== last?.node) element.append(node);
      last = found.at(-1) ?? null;
      start += last?.from ?? 0;
    }
    if (text.length > LONGEST) {
      tail ??= element.appendChild(h("pre", { tabindex: "0", "aria-label": "Rest of the text" }));
      tail.append(shown(text.slice(Math.max(LONGEST, seen.length)), Infinity));
    }
    seen = text;
  };
  return { element, update };
}

const sameCode = (old, made) => Boolean(old.code && made?.code && old.language === made.language);

// --- blocks -----------------------------------------------------------------------------------------

const BLANK = /^\s*$/;
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}(?! )| (?= )|$)/;
const UNDERLINE = /^ {0,3}(?:=+|-+)[ \t]*$/;

/** The lines of a text, each with the place where it begins. */
function linesOf(text) {
  let from = 0;
  return text.split("\n").map((raw) => {
    const line = { text: raw.replace(/^[ \t]+/, (space) => space.replaceAll("\t", "    ")).replace(/\r$/, ""), from };
    from += raw.length + 1;
    return line;
  });
}

const isOnly = (text, char) => text === char.repeat(text.length);
const indentOf = (text) => text.search(/[^ ]|$/);

/** The blocks of some lines: each `{node, from}`, and `code` and `language` for one of code. */
function blocksOf(lines, depth) {
  const found = [];
  for (let at = 0; at < lines.length; ) {
    if (BLANK.test(lines[at].text)) {
      at += 1;
      continue;
    }
    let made = null;
    for (const reader of READERS) if ((made = reader(lines, at, depth))) break;
    made ??= paragraph(lines, at);
    found.push({ ...made, from: lines[at].from });
    at = made.next;
  }
  return found;
}

function fenced(lines, at) {
  const opened = FENCE.exec(lines[at].text);
  if (!opened) return null;
  const [, fence, info] = opened;
  const indent = indentOf(lines[at].text);
  const closes = (text) => indentOf(text) < 4 && text.trim().length >= fence.length && isOnly(text.trim(), fence[0]);
  let next = at + 1;
  while (next < lines.length && !closes(lines[next].text)) next += 1;
  const body = lines.slice(at + 1, next).map(({ text }) => text.slice(Math.min(indent, indentOf(text))));
  return { ...codeBlock(body.join("\n"), info.split(/\s/, 1)[0]), next: next + 1 };
}

function indented(lines, at) {
  if (indentOf(lines[at].text) < 4) return null;
  let next = at + 1;
  while (next < lines.length && (indentOf(lines[next].text) >= 4 || BLANK.test(lines[next].text))) next += 1;
  const body = lines.slice(at, next).map(({ text }) => text.slice(4));
  return { ...codeBlock(body.join("\n").trimEnd(), ""), next };
}

/** A block of code, whose button copies what is shown. */
function codeBlock(text, language) {
  const code = h("code", {}, shown(text, Infinity));
  const name = shown(language, 40);
  const pre = h("pre", { tabindex: "0", "aria-label": name ? `Code in ${name}` : "Code" }, code);
  const head = h("div", { class: "code-head" }, h("span", {}, name), copyButton("Copy", () => code.textContent));
  return { node: h("div", { class: "code-block" }, head, pre), code, language };
}

function heading(lines, at) {
  const opened = HEADING.exec(lines[at].text);
  if (!opened) return null;
  const text = withoutHashes(lines[at].text.slice(opened[0].length));
  return { node: inlineInto(headingOf(opened[1].length), text), next: at + 1 };
}

/** A heading below those of the page. Which levels an answer leaves out, a reader of headings is not to stumble over. */
const headingOf = (level) => h("h3", { class: `level-${level}` });

function withoutHashes(text) {
  const whole = text.trimEnd();
  let end = whole.length;
  while (end && whole[end - 1] === "#") end -= 1;
  return end === 0 || whole[end - 1] === " " ? whole.slice(0, end).trim() : whole.trim();
}

const rule = (lines, at) => (RULE.test(lines[at].text) ? { node: h("hr"), next: at + 1 } : null);

function quote(lines, at, depth) {
  if (depth >= DEEPEST || !QUOTE.test(lines[at].text)) return null;
  const within = [];
  let next = at;
  for (; next < lines.length; next++) {
    const { text, from } = lines[next];
    if (QUOTE.test(text)) within.push({ text: text.replace(QUOTE, ""), from });
    else if (!BLANK.test(text) && !begins(lines, next, depth) && !BLANK.test(within.at(-1).text)) within.push({ text, from });
    else break;
  }
  return { node: filled(h("blockquote"), within, depth + 1), next };
}

function filled(element, lines, depth) {
  for (const { node } of blocksOf(lines, depth)) element.append(node);
  return element;
}

/** Whether something else than a paragraph's next line begins here. */
function begins(lines, at, depth) {
  const { text } = lines[at];
  if (FENCE.test(text) || HEADING.test(text) || RULE.test(text)) return true;
  if (depth < DEEPEST && QUOTE.test(text)) return true;
  const item = ITEM.exec(text);
  const starts = item && text.length > item[0].length && /^(?:[-*+]|1[.)])$/.test(item[2]);
  return Boolean(starts && depth < DEEPEST) || isTable(lines, at);
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at].text);
  if (!first || depth >= DEEPEST) return null;
  const kind = first[2].at(-1);
  const ordered = kind === "." || kind === ")";
  const start = ordered && Number.parseInt(first[2], 10);
  const element = h(ordered ? "ol" : "ul", { start: ordered && start !== 1 && String(start) });
  let next = at;
  while (next < lines.length) {
    const item = ITEM.exec(lines[next].text);
    if (!item || item[2].at(-1) !== kind || RULE.test(lines[next].text)) break;
    const read = itemLines(lines, next, item[0].length + (item[3] ? 0 : 1), item[0].length, depth);
    element.append(listItem(read.within, depth));
    next = read.next;
  }
  return { node: element, next };
}

/** The lines of an item, without its marker and indent; `next`: the first line that is none of its own. */
function itemLines(lines, at, indent, marker, depth) {
  const within = [{ text: lines[at].text.slice(marker), from: lines[at].from }];
  let next = at + 1;
  let blanks = 0;
  for (; next < lines.length; next++) {
    const { text, from } = lines[next];
    if (BLANK.test(text)) {
      blanks += 1;
      continue;
    }
    const own = indentOf(text) >= indent;
    if (!own && (blanks || begins(lines, next, depth) || ITEM.test(text))) break;
    for (; blanks; blanks--) within.push({ text: "", from });
    within.push({ text: own ? text.slice(indent) : text, from });
  }
  return { within, next };
}

function listItem(lines, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(lines[0].text);
  if (task) lines[0] = { ...lines[0], text: lines[0].text.slice(task[0].length) };
  const blocks = blocksOf(lines, depth + 1).map(({ node }) => node);
  const item = h("li", { class: task && "task" });
  if (task) {
    const done = task[1] !== " ";
    item.append(h("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "Done" : "To do" }), " ");
  }
  for (const [place, node] of blocks.entries()) {
    if (place === 0 && node.localName === "p") while (node.firstChild) item.append(node.firstChild);
    else item.append(node);
  }
  return item;
}

function isTable(lines, at) {
  const names = lines[at].text;
  const under = lines[at + 1]?.text ?? "";
  if (!names.includes("|") || !/^[ |:-]+$/.test(under.trim().slice(0, 4096))) return false;
  const cells = cellsOf(under);
  return cells.length === cellsOf(names).length && cells.every((cell) => /^:?-+:?$/.test(cell));
}

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  const names = cellsOf(lines[at].text);
  const sides = cellsOf(lines[at + 1].text).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : null));
  const row = (cells, tag) => h("tr", {}, cells.slice(0, names.length).map((cell, place) => inlineInto(h(tag, { class: sides[place] }), cell)));
  const body = h("tbody");
  let next = at + 2;
  for (; next < lines.length && lines[next].text.includes("|"); next++) body.append(row(cellsOf(lines[next].text), "td"));
  const made = h("table", {}, h("thead", {}, row(names, "th")), body);
  return { node: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, made), next };
}

/** The cells of a row of a table. A stroke behind a backslash is text. */
function cellsOf(line) {
  const cells = [];
  let cell = "";
  const text = line.trim();
  for (let at = text.startsWith("|") ? 1 : 0; at < text.length && cells.length < MOST_COLUMNS; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") cell += text[(at += 1)];
    else if (text[at] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else cell += text[at];
  }
  return cell.trim() ? [...cells, cell.trim()] : cells;
}

function paragraph(lines, at) {
  const texts = [lines[at].text];
  let next = at + 1;
  for (; next < lines.length && !BLANK.test(lines[next].text); next++) {
    if (UNDERLINE.test(lines[next].text)) {
      const level = lines[next].text.trim()[0] === "=" ? 1 : 2;
      return { node: inlineInto(headingOf(level), texts.join("\n").trim()), next: next + 1 };
    }
    if (begins(lines, next, 0)) break;
    texts.push(lines[next].text);
  }
  return { node: inlineInto(h("p"), texts.map((text) => text.trimStart()).join("\n").trimEnd()), next };
}

const READERS = [indented, fenced, heading, rule, quote, list, table];
