// The files that turns have changed: below a turn a line, which opens the diff, and what can be done about it.
import { diffView } from "./diff.js";
import { BETA } from "./feed.js";
import { clockTime, copyButton, count, h, json, request, shown, trouble } from "./lib.js";

const AGAIN_MS = 1000;
const SAVED_MS = 60_000;
const TRIES = 30; // while the snapshot after a turn is being made
const NEAR_SECONDS = 60; // between the snapshot before a turn and its start
const NAMED = 20; // paths that a note names
const KINDS = { added: "add", deleted: "delete", modified: "update" };

const changesAt = (path, turn) => `/v1/${path === null ? "" : `agents/sessions/${path}/`}turns/${encodeURIComponent(turn)}`;

/** What a turn has done to the files; `path`: the session's id in an address, null for a turn outside of sessions. */
export const changesOfTurn = (path, turn, options) => json(`${changesAt(path, turn)}/changes`, { ...options, headers: BETA });

/** The menu about the files of a session: whether they are kept, and what its turns have done to them, as a patch. */
export function filesMenu(summaryOf) {
  const words = h("p", { class: "soft", role: "status" });
  const patch = async () => {
    try {
      return await (await request(`/v1/agents/sessions/${encodeURIComponent(summaryOf().id)}/patch`, { headers: BETA })).text();
    } catch (error) {
      words.textContent = shown(error.message, 500);
      throw error;
    }
  };
  const save = () => patch().then((text) => {
    const address = URL.createObjectURL(new Blob([text], { type: "text/x-patch" }));
    h("a", { href: address, download: "session.patch" }).click();
    setTimeout(() => URL.revokeObjectURL(address), SAVED_MS);
  }, () => null);
  const buttons = h("div", { class: "row", hidden: true }, copyButton("Copy all changes as a patch", patch), h("button", { type: "button", onclick: save }, "Save the patch"),
    h("span", { class: "soft" }, "`git apply --3way` brings it into another folder."));
  const ontoggle = async () => {
    if (!menu.open) return;
    mergeFrom(summaryOf().id).then((parts) => worktree.replaceChildren(...parts));
    const why = await whyNotKept(summaryOf());
    words.textContent = why || "The server keeps the files before and after each turn. Below a turn is what it has changed.";
    buttons.hidden = why !== "";
  };
  const worktree = h("div", {});
  const menu = h("details", { class: "menu", ontoggle }, h("summary", {}, "Files"), words, buttons, worktree);
  return menu;
}

/** Paths in a sentence, the first of many. */
const namedPaths = (paths) => `${paths.slice(0, NAMED).map((each) => shown(each, 200)).join(", ")}${paths.length > NAMED ? ` and ${paths.length - NAMED} more` : ""}`;

/** What brings the work in a session's worktree back; nothing if it has none. */
async function mergeFrom(id) {
  const path = `/v1/agents/sessions/${encodeURIComponent(id)}`;
  const found = await json(`${path}/worktree`, { headers: BETA }).catch((error) => error);
  if (found instanceof Error) return found.status === 404 ? [] : [trouble(found)];
  const { folder, source, repository, left_out: missing } = found;
  const below = h("div", { role: "status" });
  const merge = (body) => json(`${path}/merge`, { headers: BETA, body }).then(({ paths, branch, left_out: left }) => below.replaceChildren(
    h("p", {}, paths.length ? `${paths.length === 1 ? "One file is" : `${count(paths.length)} files are`} merged into ${branch ? `the branch ${shown(branch, 200)}` : shown(source, 500)}.`
      : "There is nothing to merge."),
    left.length ? h("p", {}, `Not merged, only in the worktree: ${namedPaths(left)}.`) : ""), (error) => below.replaceChildren(trouble(error)));
  const branch = h("input", { "aria-label": "New branch", placeholder: "New branch", spellcheck: "false" });
  const onsubmit = (event) => {
    event.preventDefault();
    merge({ branch: branch.value.trim() });
  };
  return [h("p", { class: "soft" }, `This session works in ${shown(folder, 500)}, a copy of ${shown(source, 500)}.${missing.length ? ` It began without ${namedPaths(missing)}.` : ""}`),
    h("div", { class: "row" }, h("button", { type: "button", class: "main", onclick: () => merge({}) }, "Merge"),
      repository && h("form", { class: "row", onsubmit }, branch, h("button", {}, "Merge into a branch"))), below];
}

/** Why the files of a session are not kept, in words; empty if they are. */
async function whyNotKept({ id, sandbox }) {
  if (sandbox === "read-only") return "This session may not write, so no files are kept. Choose another sandbox for a new one.";
  const path = encodeURIComponent(id);
  try {
    const [turn] = (await json(`/v1/agents/sessions/${path}/turns?limit=1`, { headers: BETA })).data;
    if (!turn) return "No turn has begun yet.";
    const { state, reason } = await changesOfTurn(path, turn.id);
    if (state === "failed") return shown(`The files of the last turn are not kept: ${reason}.`, 500);
    if (state !== "off") return "";
  } catch (error) {
    if (error.status !== 404) return shown(error.message, 500);
  }
  return "This server keeps no files of turns. Started with PROXY_SNAPSHOTS=sessions it does: then each turn shows what it has changed, and can be reverted.";
}

/**
 * Shows the changed files of a session's turns in elements, when these come into sight. `actions`: `comment(path, line, text)`,
 * and `forkWithFiles(turn, folder)`, which makes a copy of the session as it was after a turn; `newFolder()` suggests where. All may be missing.
 */
export function turnFiles(path, actions, signal) {
  const turns = new WeakMap(); // by element: the turn's id
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      show(target, turns.get(target));
    }
  });
  signal.addEventListener("abort", () => seen.disconnect());

  async function show(place, turn) {
    try {
      let changes = await changesOfTurn(path, turn, { signal });
      for (let tries = 0; changes.state === "running" && tries < TRIES; tries++) {
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
        changes = await changesOfTurn(path, turn, { signal });
      }
      place.replaceChildren(...viewOf(changes));
    } catch (error) {
      // A server without the part `snapshots` knows no such address.
      if (!signal.aborted && error.status !== 404) place.replaceChildren(trouble(error));
    }
  }

  function viewOf(changes) {
    if (changes.state === "failed") return [h("p", { class: "soft" }, shown(`The files of this turn are not kept: ${changes.reason ?? "no reason is known"}.`, 500))];
    if (changes.state !== "kept" || !changes.data.length) return [];
    const box = h("details", {}, h("summary", {}, ...lineOf(changes)));
    box.addEventListener("toggle", () => {
      box.append(actionsOf(changes), ...notesOf(changes), diffView(changes.data.map(changeOf), { comment: actions.comment }));
    }, { once: true });
    return [box];
  }

  /** The buttons of a turn, and below them what they ask and what came of it. */
  function actionsOf({ turn_id: turn, data }) {
    const below = h("div", {});
    const say = (...children) => below.replaceChildren(...children.flat());
    const files = data.length === 1 ? "the file" : `the ${count(data.length)} files`;
    const asks = (question, label, more, act) => say(question, h("div", { class: "row" }, h("button", { type: "button", class: "main", onclick: () => act(more) }, label),
      h("button", { type: "button", onclick: () => say() }, "Cancel")));
    const revert = (force) => json(`${changesAt(path, turn)}/revert`, { headers: BETA, body: { force } }).then(
      ({ paths, kept }) => say(h("p", { role: "status" }, `${paths.length === 1 ? "One file is" : `${count(paths.length)} files are`} as before this turn.`,
        kept ? ` What was overwritten is kept as ${shown(kept, 80)}.` : "")),
      (error) => error.param === "force" && !force
        ? asks([trouble(error), h("p", {}, "Revert anyway overwrites them; the server keeps what is there now.")], "Revert anyway", true, revert) : say(trouble(error)));
    const askToRevert = () => asks(h("p", {}, `Make ${files} what ${data.length === 1 ? "it was" : "they were"} before this turn? What was said stays.`), "Revert", false, revert);
    const fork = (folder) => actions.forkWithFiles(turn, folder).catch((error) => say(trouble(error)));
    const askForFolder = () => {
      const folder = h("input", { "aria-label": "New folder", value: actions.newFolder(), spellcheck: "false" });
      const onsubmit = (event) => {
        event.preventDefault();
        fork(folder.value.trim());
      };
      say(h("form", { onsubmit }, h("p", {}, "A copy of the session, with the files as they were after this turn, in the new or empty folder"), folder,
        h("div", { class: "row" }, h("button", { class: "main" }, "Fork"), h("button", { type: "button", onclick: () => say() }, "Cancel"))));
      folder.select();
    };
    return h("div", { onkeydown: ({ key }) => key === "Escape" && say() }, h("div", { class: "row" },
      h("button", { type: "button", onclick: askToRevert }, "Revert"),
      actions.forkWithFiles && h("button", { type: "button", onclick: askForFolder }, "Fork with files")), below);
  }

  return {
    /** Shows a turn's files in an element. */
    add(turn, place) {
      turns.set(place, turn);
      seen.observe(place);
    },
  };
}

/**
 * The files that the turns of a request have changed in a folder, outside of sessions; nothing if they are not kept. `started`: when, in seconds
 * since 1970, for others may have the id of this request. Where several are left, each has its time and folder above it.
 */
export async function filesOfRequest(request, folder, started, signal) {
  const found = await json(`/v1/turns?request_id=${encodeURIComponent(request)}`, { signal }).catch((error) => error);
  if (found instanceof Error) return found.status === 404 ? [] : [trouble(found)];
  const files = turnFiles(null, {}, signal);
  const near = found.data.filter((turn) => turn.folder === folder && Math.abs(turn.created_at - started) < NEAR_SECONDS);
  return near.flatMap(({ id, created_at: created, folder: where }) => {
    const place = h("div", { class: "turn-files" });
    files.add(id, place);
    return near.length > 1 ? [h("p", { class: "soft" }, `${clockTime(created)} in ${shown(where, 500)}`), place] : [place];
  });
}

function lineOf({ data, truncated }) {
  const sum = (name) => data.reduce((all, change) => all + change[name], 0);
  return [`${truncated ? "At least " : ""}${count(data.length)} ${data.length === 1 ? "file" : "files"} changed (`,
    h("span", { class: "good" }, `+${count(sum("additions"))}`), " ", h("span", { class: "bad" }, `−${count(sum("deletions"))}`), ")"];
}

/** What is to be known of a turn's changes besides them. */
function notesOf({ others_wrote: others, newly_ignored: ignored, left_out: left, truncated }) {
  return [
    others && "Another turn wrote in this folder meanwhile: some of the changes may be its.",
    ignored?.length && `Ignored from now on, and kept no more: ${namedPaths(ignored)}`,
    left?.length && `Not kept, and not taken back: ${namedPaths(left)}`,
    truncated && "There is more than is shown here.",
  ].filter(Boolean).map((words) => h("p", { class: "soft" }, words));
}

/** A change as a diff has it. */
function changeOf({ path, kind, diff, binary, additions, deletions, ...states }) {
  const notes = [];
  const [before, after] = [states.size_before, states.size_after];
  const sizes = [before, after].filter((size) => size !== null).map((size) => `${count(size)} bytes`).join(" → ");
  if (binary) notes.push(`Binary: ${sizes}`);
  else if (diff === null && kind !== "mode" && (additions || deletions || before !== after)) notes.push(`The diff is too large to be shown: ${sizes}`);
  const [old, now] = [states.mode_before, states.mode_after];
  if (old !== now && (old && now ? true : LINK === (old ?? now))) notes.push(modesOf(old, now));
  return { path, kind: KINDS[kind] ?? "update", marked: true, title: kind === "mode" ? "Permissions" : kind === "link" ? "Link" : null, diff, counts: { "+": additions, "-": deletions }, note: notes.join(". ") };
}

const LINK = "120000";

function modesOf(old, now) {
  if (old === LINK && now === LINK) return "";
  if (now === LINK) return old ? "The file became a link" : "A new link";
  if (old === LINK) return now ? "The link became a file" : "The link was deleted";
  return `Permissions ${old.slice(-3)} → ${now.slice(-3)}`;
}
