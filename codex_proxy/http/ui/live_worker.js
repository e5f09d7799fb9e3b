// The worker that all tabs of a browser share: one connection for each key, whatever the number of tabs.
import { isForAll, openItems, readFeed, sessionOf } from "./feed.js";

const BATCH_MS = 16;

/** The feeds by key. Each has its tabs: `{port, watched, visible, waiting, timer}`. */
const feeds = new Map();

/** The messages of a list that a tab needs: a hidden one and one that shows another session gets no event of the session. */
function wanted(tab, messages) {
  return messages.filter((each) => isForAll(each)
    || (tab.visible && tab.watched && sessionOf(each) === tab.watched));
}

function tellAll(feed, messages) {
  const last = messages.findLast(({ type }) => type === "connection");
  if (last) {
    feed.connection = last;
    feed.open.forget();
  }
  feed.open.note(messages);
  for (const tab of feed.tabs) give(feed, tab, wanted(tab, messages));
}

/** Gives messages to a tab: those of some milliseconds together, since each delivery costs it time. */
function give(feed, tab, messages) {
  if (!messages.length) return;
  tab.waiting.push(...messages);
  tab.timer ??= setTimeout(() => {
    const seen = Boolean(feed && [...feed.tabs].some(({ visible }) => visible));
    tab.port.postMessage({ messages: tab.waiting, seen });
    tab.waiting = [];
    tab.timer = null;
  }, BATCH_MS);
}

function join(tab, key) {
  let feed = feeds.get(key);
  if (!feed) {
    feeds.set(key, (feed = { tabs: new Set(), connection: null, open: openItems(), stop: () => {} }));
    const mine = feed;
    feed.stop = readFeed(key, (messages) => tellAll(mine, messages));
  }
  feed.tabs.add(tab);
  if (feed.connection) give(feed, tab, [feed.connection]);
  return feed;
}

function leave(tab, feed) {
  if (!feed?.tabs.delete(tab) || feed.tabs.size) return;
  feed.stop();
  for (const [key, each] of feeds) if (each === feed) feeds.delete(key);
}

addEventListener("connect", ({ ports: [port] }) => {
  const tab = { port, watched: "", visible: true, waiting: [], timer: null };
  let feed = null;
  port.addEventListener("message", ({ data }) => {
    if ("visible" in data) tab.visible = data.visible;
    if ("join" in data) {
      leave(tab, feed);
      feed = join(tab, data.join);
    }
    if ("watched" in data) {
      tab.watched = data.watched;
      give(feed, tab, [{ type: "watched", id: data.watched }]);
    }
    if (data.leave) leave(tab, feed);
    else if (feed && tab.visible) give(feed, tab, feed.open.of(tab.watched));
  });
  port.start();
});
