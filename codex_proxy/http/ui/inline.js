// The Markdown within a paragraph, a heading or a cell: emphasis, code and links, as nodes. The cost is linear.
import { h, shown } from "./lib.js";

const DEEPEST = 12; // emphasis in emphasis: what is deeper gets no element
const LONGEST_ADDRESS = 2000;
const SPECIAL = /[\\`*_~[\]<&\n]|!\[|https?:\/\//g;
// The spaces are bounded: a run of them that three parts could take would be tried in every division.
const DESTINATION = /\([ \t\n]{0,16}(?:<([^<>\n]*)>|((?:[^\s()<>]|\([^\s()<>]*\))*))(?:[ \t\n]{1,16}(?:"[^"]*"|'[^']*'))?[ \t\n]{0,16}\)/y;
const ADDRESS = /https?:\/\/[^\s<>[\]"`|]+/y;
const ENTITY = /&(amp|lt|gt|quot|#39);/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" };
const PUNCTUATION = /[\p{P}\p{S}]/u;

/** Appends a text's nodes to an element, and returns the element. */
export function inlineInto(element, text) {
  return built(element, tokensOf(text));
}

/**
 * The tokens of a text: strings, nodes, runs of delimiters `{mark, length, opens, closes}`, and links
 * `{link}` ... `{endOfLink}`.
 */
function tokensOf(text) {
  const state = { text, tokens: [], delimiters: [], brackets: [], spans: codeSpans(text), at: 0 };
  const pattern = new RegExp(SPECIAL);
  while (state.at < text.length) {
    pattern.lastIndex = state.at;
    const found = pattern.exec(text);
    if (!found) break;
    if (found.index > state.at) state.tokens.push(text.slice(state.at, found.index));
    state.at = found.index;
    (READERS[found[0]] ?? bareAddress)(state);
  }
  if (state.at < text.length) state.tokens.push(text.slice(state.at));
  matchDelimiters(state.delimiters, 0);
  return state.tokens;
}

function take(state, length, token) {
  state.tokens.push(token);
  state.at += length;
}

/** Where the runs of backticks are, by their length: the next one of the same length ends a span of code. */
function codeSpans(text) {
  const places = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!places.has(run.length)) places.set(run.length, { at: 0, list: [] });
    places.get(run.length).list.push(index);
  }
  return places;
}

function code(state) {
  const { text, at } = state;
  let length = 1;
  while (text[at + length] === "`") length += 1;
  const runs = state.spans.get(length);
  while (runs && runs.list[runs.at] <= at) runs.at += 1;
  const end = runs?.list[runs.at];
  if (end === undefined) return take(state, length, text.slice(at, at + length));
  const within = text.slice(at + length, end).replaceAll("\n", " ");
  const padded = within.startsWith(" ") && within.endsWith(" ") && within.trim() !== "";
  const stripped = padded ? within.slice(1, -1) : within;
  return take(state, end + length - at, h("code", {}, shown(stripped, Infinity)));
}

function escaped(state) {
  const next = state.text[state.at + 1];
  if (next === "\n") take(state, 2, h("br"));
  else if (next && /[!-/:-@[-`{-~]/.test(next)) take(state, 2, next);
  else take(state, 1, "\\");
}

function lineBreak(state) {
  const before = state.tokens.at(-1);
  const hard = typeof before === "string" && before.endsWith("  ");
  take(state, 1, hard ? h("br") : "\n");
}

function entity(state) {
  ENTITY.lastIndex = state.at;
  const found = ENTITY.exec(state.text);
  take(state, found ? found[0].length : 1, found ? ENTITIES[found[1]] : "&");
}

// --- links ------------------------------------------------------------------------------------------

/** The address of a link that may be followed; null for any other. */
function addressOf(text) {
  if (!text || text.length > LONGEST_ADDRESS || !/^https?:\/\//i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null; // It is no address, so it stays text.
  }
}

function openBracket(state) {
  const length = state.text[state.at] === "!" ? 2 : 1;
  state.brackets.push({ token: state.tokens.length, delimiter: state.delimiters.length, image: length === 2, from: state.at + length });
  take(state, length, state.text.slice(state.at, state.at + length));
}

function closeBracket(state) {
  const bracket = state.brackets.pop();
  DESTINATION.lastIndex = state.at + 1;
  const found = bracket && state.text[state.at + 1] === "(" ? DESTINATION.exec(state.text) : null;
  const href = found && addressOf(found[1] ?? found[2]);
  if (!href) return take(state, 1, "]");
  matchDelimiters(state.delimiters, bracket.delimiter);
  state.delimiters.length = bracket.delimiter;
  state.brackets.length = 0; // no link is in a link
  const told = state.text.slice(bracket.from, state.at);
  state.tokens[bracket.token] = { link: href, image: bracket.image, told };
  return take(state, 1 + found[0].length, { endOfLink: true });
}

/** An address that stands in the text. Its last signs belong to the sentence. */
function bareAddress(state) {
  ADDRESS.lastIndex = state.at;
  let found = ADDRESS.exec(state.text)?.[0] ?? state.text.slice(state.at, state.at + 4);
  const closing = [...found].reduce((sum, char) => sum + (char === "(") - (char === ")"), 0);
  let extra = -closing; // brackets that are closed and were not opened
  let end = found.length;
  for (; end > 0 && /[.,;:!?'*_~)]/.test(found[end - 1]); end--) {
    if (found[end - 1] === ")" && extra-- <= 0) break;
  }
  found = found.slice(0, end);
  const href = addressOf(found);
  if (!href) return take(state, Math.max(found.length, 1), state.text.slice(state.at, state.at + Math.max(found.length, 1)));
  state.tokens.push({ link: href, told: found }, found);
  return take(state, found.length, { endOfLink: true });
}

function angle(state) {
  ADDRESS.lastIndex = state.at + 1;
  const found = ADDRESS.exec(state.text)?.[0];
  const href = found && state.text[state.at + 1 + found.length] === ">" && addressOf(found);
  if (!href) return take(state, 1, "<");
  state.tokens.push({ link: href, told: found }, found);
  return take(state, found.length + 2, { endOfLink: true });
}

/** Whether the text of a link already says where it leads. */
const tellsAddress = (told, href) => told === href || `${told}/` === href;

// --- emphasis ---------------------------------------------------------------------------------------

function delimiter(state) {
  const { text, at } = state;
  const mark = text[at];
  let length = 1;
  while (text[at + length] === mark) length += 1;
  if (mark === "~" && length !== 2) return take(state, length, text.slice(at, at + length));
  const before = text[at - 1] ?? " ";
  const after = text[at + length] ?? " ";
  const left = /\S/.test(after) && (!PUNCTUATION.test(after) || !/\S/.test(before) || PUNCTUATION.test(before));
  const right = /\S/.test(before) && (!PUNCTUATION.test(before) || !/\S/.test(after) || PUNCTUATION.test(after));
  const inWord = mark === "_" && left && right;
  const run = {
    mark, length, left: length, opens: [], closes: [],
    canOpen: left && (!inWord || PUNCTUATION.test(before)),
    canClose: right && (!inWord || PUNCTUATION.test(after)),
  };
  state.delimiters.push(run);
  return take(state, length, run);
}

/** Finds the pairs among the delimiters from a place on. Where no opener was found, none is looked for again. */
function matchDelimiters(delimiters, from) {
  const openers = [];
  const bottoms = new Map();
  for (let at = from; at < delimiters.length; at++) {
    const closer = delimiters[at];
    const key = `${closer.mark}${closer.canOpen}${closer.length % 3}`;
    while (closer.canClose && closer.left) {
      const place = openerOf(openers, closer, bottoms.get(key) ?? 0);
      if (place < 0) {
        bottoms.set(key, openers.length);
        break;
      }
      const opener = openers[place];
      const tag = closer.mark === "~" ? "del" : opener.left > 1 && closer.left > 1 ? "strong" : "em";
      const used = tag === "em" ? 1 : 2;
      opener.left -= used;
      closer.left -= used;
      opener.opens.push(tag);
      closer.closes.push(tag);
      openers.length = opener.left ? place + 1 : place;
      for (const [each, bottom] of bottoms) bottoms.set(each, Math.min(bottom, openers.length));
    }
    if (closer.canOpen && closer.left) openers.push(closer);
  }
}

function openerOf(openers, closer, bottom) {
  for (let place = openers.length - 1; place >= bottom; place--) {
    const opener = openers[place];
    if (opener.mark !== closer.mark) continue;
    const sum = opener.length + closer.length;
    const apart = (opener.canClose || closer.canOpen) && sum % 3 === 0 && opener.length % 3 !== 0;
    if (!apart) return place;
  }
  return -1;
}

// --- nodes ------------------------------------------------------------------------------------------

function built(element, tokens) {
  const open = [element];
  const links = []; // an address within a link's text is no link of its own
  let text = "";
  const flush = () => {
    if (text) open.at(-1).append(shown(text, Infinity));
    text = "";
  };
  const begin = (tag, props) => {
    flush();
    const parent = open.at(-1);
    open.push(open.length > DEEPEST ? parent : parent.appendChild(h(tag, props)));
  };
  const end = () => {
    flush();
    open.pop();
  };
  const beginLink = (token) => {
    if (!links.length) begin("a", { href: token.link, target: "_blank", rel: "noopener noreferrer" });
    if (token.image) text += "Image: ";
    links.push(token);
  };
  const endLink = () => {
    const { link, told } = links.pop();
    if (links.length) return;
    end();
    if (!tellsAddress(told, link)) open.at(-1).append(h("span", { class: "address" }, shown(` (${link})`)));
  };
  for (const token of tokens) {
    if (typeof token === "string") text += token;
    else if (token.link) beginLink(token);
    else if (token.endOfLink) endLink();
    else if (token.mark) {
      for (let left = token.closes.length; left > 0; left--) end();
      text += token.mark.repeat(token.left);
      for (const tag of token.opens.toReversed()) begin(tag);
    } else {
      flush();
      open.at(-1).append(token);
    }
  }
  flush();
  return element;
}

const READERS = {
  "\\": escaped, "`": code, "*": delimiter, "_": delimiter, "~": delimiter, "[": openBracket, "![": openBracket,
  "]": closeBracket, "<": angle, "&": entity, "\n": lineBreak,
};
