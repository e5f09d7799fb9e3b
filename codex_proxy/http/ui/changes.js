// Reads diffs: which files they change, and the lines of each. The forms: git's, that of `apply_patch`, and that of the
// sessions' items, whose diffs are as the agents tell them.

/** The changes `{path, kind, diff, moved_to, marked}` of a text in the form of git or of `apply_patch`. */
export function changesOf(text) {
  const lines = text.split("\n");
  if (lines.some((line) => /^\*\*\* (?:Add|Update|Delete) File: /.test(line))) return changesOfPatch(lines);
  return changesOfGit(lines);
}

const PATCHED = { Add: "add", Update: "update", Delete: "delete" };

function changesOfPatch(lines) {
  const changes = [];
  for (const line of lines) {
    const begun = /^\*\*\* (Add|Update|Delete) File: ([^]*)$/.exec(line);
    const moved = /^\*\*\* Move to: ([^]*)$/.exec(line);
    if (begun) changes.push({ path: begun[2], kind: PATCHED[begun[1]], diff: [] });
    else if (moved && changes.length) changes.at(-1).moved_to = moved[1];
    else if (!/^\*\*\* (?:Begin|End) Patch|^\*\*\* End of File/.test(line)) changes.at(-1)?.diff.push(line);
  }
  return changes.map((change) => ({ ...change, marked: true, diff: change.diff.join("\n") }));
}

function changesOfGit(lines) {
  const changes = [];
  let left = { old: 0, now: 0 }; // lines of the hunk that are to come: what looks like a header in it is none
  let last = null;
  const begin = (path) => changes.push((last = { path, kind: "update", diff: [], named: false }));
  for (const [at, line] of lines.entries()) {
    if (left.old > 0 || left.now > 0) {
      left = countdown(left, line);
      last.diff.push(line);
    } else if (line.startsWith("diff --git ")) begin(line.slice(11));
    else if (line.startsWith("--- ") && lines[at + 1]?.startsWith("+++ ")) {
      if (!last || last.named) begin("");
      const [old, now] = [pathOf(line, "a/"), pathOf(lines[at + 1], "b/")];
      last.named = true;
      last.kind = old === null ? "add" : now === null ? "delete" : last.kind;
      last.path = old ?? now ?? "";
      if (old !== null && now !== null && old !== now) last.moved_to = now;
    } else if (last && OF_HEADER.test(line)) readHeader(last, line);
    else {
      if (!last) begin("");
      left = hunkOf(line) ?? left;
      last.diff.push(line);
    }
  }
  return changes.map(({ named: _, ...change }) => ({ ...change, marked: true, path: change.path || "(no name)", diff: change.diff.join("\n") }));
}

const OF_HEADER = /^(?:\+\+\+ |index |similarity |(?:old|new) mode |(?:new|deleted) file |rename (?:from|to) )/;

function readHeader(change, line) {
  if (line.startsWith("new file ")) change.kind = "add";
  if (line.startsWith("deleted file ")) change.kind = "delete";
  if (line.startsWith("rename from ")) change.path = line.slice(12);
  if (line.startsWith("rename to ")) change.moved_to = line.slice(10);
}

function pathOf(line, prefix) {
  const path = line.slice(4).split("\t", 1)[0];
  if (path === "/dev/null") return null;
  return path.startsWith(prefix) ? path.slice(2) : path;
}

/** The numbers of a hunk's header: where it begins before and after the change, and how many lines it has. */
function hunkOf(line) {
  const found = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line);
  if (!found) return null;
  const [oldAt, old = 1, nowAt, now = 1] = found.slice(1).map((value) => (value === undefined ? undefined : Number(value)));
  return { oldAt, old, nowAt, now };
}

function countdown(left, line) {
  const mark = line[0];
  return {
    old: left.old - (mark === "+" || mark === "\\" ? 0 : 1),
    now: left.now - (mark === "-" || mark === "\\" ? 0 : 1),
  };
}

/**
 * The changes of an item: the output of a command `apply_patch PATHS`, which has a line `KIND PATH` before each file's diff.
 * Null for another command. The command's paths say which lines are such headers, whatever the diffs hold.
 */
export function changesOfItem(command, output) {
  if (!command.startsWith("apply_patch ") || !output) return null;
  const changes = [];
  let rest = command.slice("apply_patch ".length);
  let begun = null; // the change that is being read, and where its diff begins
  for (let at = 0; at >= 0 && at < output.length; at = nextLine(output, at)) {
    const header = rest ? headerAt(output, at, rest) : null;
    if (!header) {
      if (!begun) return null;
      continue;
    }
    if (begun) changes.push({ ...begun.change, diff: output.slice(begun.from, Math.max(begun.from, at - 1)) });
    begun = { change: { path: header.path, kind: header.kind }, from: Math.min(header.end + 1, output.length) };
    rest = rest.slice(header.path.length + 1);
    at = header.end - 1;
  }
  return begun && !rest ? [...changes, { ...begun.change, diff: output.slice(begun.from) }] : null;
}

const LONGEST_PATH = 4096;
const nextLine = (text, at) => {
  const found = text.indexOf("\n", at);
  return found < 0 ? -1 : found + 1;
};

/** The header that begins at a place of the output, if the next path of the command, which may have spaces, follows. */
function headerAt(output, at, rest) {
  const kind = /(?:add|delete|update) /y;
  kind.lastIndex = at;
  const found = kind.exec(output)?.[0];
  if (!found) return null;
  const from = at + found.length;
  let length = 0;
  while (length < Math.min(rest.length, LONGEST_PATH) && output[from + length] === rest[length]) length += 1;
  const ends = (output[from + length] ?? "\n") === "\n" && (rest[length] ?? " ") === " ";
  return length && ends ? { kind: found.trim(), path: rest.slice(0, length), end: from + length } : null;
}

/**
 * The lines of a change: each with its `mark` ("+", "-", " ", "@" for a header, "\\" for a note), its text, and its
 * numbers before and after (`old`, `now`), null where they are not known. Of a file that is added or deleted agents tell the
 * text alone; the forms of git and of `apply_patch` have marks (`marked`).
 */
export function linesOfChange({ kind, diff, marked = false }) {
  if (!diff) return [];
  const raw = diff.endsWith("\n") ? diff.slice(0, -1).split("\n") : diff.split("\n");
  const whole = { add: "+", delete: "-" }[kind];
  if (whole && !marked) {
    return raw.map((text, at) => numbered(whole, text, at + 1));
  }
  if (raw.every((line) => line.startsWith("+"))) return raw.map((line, at) => numbered("+", line.slice(1), at + 1));
  return linesOfHunks(raw);
}

const numbered = (mark, text, number) => ({ mark, text, old: mark === "-" ? number : null, now: mark === "+" ? number : null });

function linesOfHunks(raw) {
  let at = null; // the numbers of the next line
  return raw.map((line) => {
    const mark = line[0] ?? " ";
    if (line.startsWith("@@")) {
      const hunk = hunkOf(line);
      at = hunk && { old: hunk.oldAt, now: hunk.nowAt };
      return { mark: "@", text: line, old: null, now: null };
    }
    if (!"+- ".includes(mark)) return { mark: "\\", text: line, old: null, now: null };
    const old = mark === "+" || !at ? null : at.old++;
    const now = mark === "-" || !at ? null : at.now++;
    return { mark, text: line.slice(1), old, now };
  });
}
