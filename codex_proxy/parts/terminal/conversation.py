"""A session of the Agents API as a client has it: its events in their order, also over a broken connection, and what
can be done with it. Methods raise `UserError`.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlsplit

from codex_proxy.commands.running_server import NOT_OURS, RefusedError, Server
from codex_proxy.core.faults import UserError
from codex_proxy.surfaces.models import DEFAULT_NAME

Object: TypeAlias = dict[str, Any]
"""An object of the API."""

SESSIONS: Final = "/agents/sessions"
EVENTS: Final = "/agents/session_events"
SHOWN_ITEMS: Final = 50
"""How many items of a session are shown when it is opened."""
KEY_HEADER: Final = "Idempotency-Key"
IN_WORKTREE: Final = {"X-Codex-Worktree": "true"}
"""The header of a request for a session that works in a folder of its own."""
ENDS: Final = ("completed", "failed", "cancelled")
"""How turns end."""
MAX_HELD: Final = 10_000
"""Maximum events that are held while a session is being made."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds until the server is asked again after the connection broke: twice as many each time."""


class Listener:
    """Learns what happens to a conversation. By default its methods do nothing."""

    def on_event(self, event: Object) -> None:
        """Takes an event of the session."""

    def on_item(self, item: Object) -> None:
        """Takes a whole item that the session had before its events are followed."""

    def on_summary(self) -> None:
        """Is called when `Conversation.summary` has changed."""

    def on_lost(self, message: str) -> None:
        """Is called when the connection or the session is lost. If it comes back, items that were open come again."""


class Conversation:
    """The session that the user sees, or the wish for a new one, which the first message makes."""

    def __init__(
        self,
        server: Server,
        model: str | None = None,
        agent: str | None = None,
        folder: Path | None = None,
        sandbox: str | None = None,
        *,
        in_worktree: bool = False,
    ) -> None:
        self.server = server
        self.model = model or DEFAULT_NAME
        self._named_model = model
        self._agent = agent
        self.listener = Listener()
        self.id = ""
        self.summary: Object = {}
        """As the server has told it last; empty for a session that is not made yet."""
        self._folder = folder
        self._sandbox = sandbox
        self._in_worktree = in_worktree
        self._last_item = self._turn = ""
        """The newest item that was told as a whole, and the turn that goes on."""
        self._held: list[Object] | None = None
        """Events of all sessions while one is being made, whose id is not known before the answer."""
        self._sending = asyncio.Lock()
        self._attempt: tuple[str, str] | None = None
        """The text that was sent last and whose answer has not come, and its key."""

    @property
    def path(self) -> str:
        """The session's path at the server."""
        return f"{SESSIONS}/{quote(self.id, safe='')}"

    @property
    def at_work(self) -> bool:
        """Whether a turn goes on, also one that waits for an answer."""
        return self.summary.get("status") in ("in_progress", "requires_action")

    @property
    def may_write(self) -> bool:
        """Whether the agent may change files."""
        return self.summary.get("sandbox") not in (None, "read-only")

    # --- what happens -----------------------------------------------------------------------------

    async def follow(self, connected: asyncio.Future[None], patience: float = math.inf) -> None:
        """Tells the listener what happens, for ever. `connected` is done when events come, or has the error that the
        first attempt ended with. `patience`: the seconds without a connection after which it raises `UserError`.
        """
        pause, lost = FIRST_PAUSE, 0.0
        while True:
            try:
                async with aclosing(self.server.events(f"{EVENTS}?include_obfuscation=false")) as events:
                    async for event in events:
                        if event["type"] == "agent.session.summaries" and connected.done():
                            await self.catch_up()
                        elif not connected.done():
                            connected.set_result(None)
                        pause, lost = FIRST_PAUSE, 0.0
                        self._on_any(event)
                if not connected.done():
                    raise UserError(NOT_OURS)
                message = "The server has ended the connection."
            except UserError as error:
                if not connected.done():
                    connected.set_exception(error)
                    return
                message = str(error)
            if pause == FIRST_PAUSE:
                self.listener.on_lost(f"{message} Trying again.")
            if lost >= patience:
                raise UserError(f"{message} The answer goes on in the session: --resume {self.id} shows it.")
            await asyncio.sleep(pause)
            lost += pause
            pause = min(2 * pause, LONGEST_PAUSE)

    async def catch_up(self) -> None:
        """Tells what was missed while there was no connection."""
        if not self.id:
            return
        try:
            await self.refresh()
        except RefusedError as error:
            if error.status != 404:
                raise
            self.leave()
            self.listener.on_lost("The session is gone. The next message begins a new one.")
            return
        async for item in self._items(self._last_item):
            self._tell_item(item)
        for turn in (await self.server.ask("GET", f"{self.path}/turns?limit=1"))["data"]:
            if turn["id"] == self._turn and turn["status"] in ENDS:
                self._on_own({"type": f"agent.session.turn.{turn['status']}", "turn": turn})

    def _on_any(self, event: Object) -> None:
        if self._held is not None and len(self._held) < MAX_HELD:
            self._held.append(event)
        elif event["type"] == "agent.session.summary" and event["summary"]["id"] == self.id:
            self.summary = event["summary"]
            self.listener.on_summary()
        elif self.id and _session_of(event) == self.id:
            self._on_own(event)

    def _on_own(self, event: Object) -> None:
        if "session" in event and self.summary:
            self.summary["status"] = event["session"]["status"]
        if isinstance(event.get("turn"), dict):
            self._turn = "" if event["turn"]["status"] in ENDS else event["turn"]["id"]
        item, added = event.get("item"), event["type"].endswith("added")
        if isinstance(item, dict) and (not added or item.get("role") == "user"):
            self._last_item = item["id"]  # one that goes on is told again after a broken connection
        self.listener.on_event(event)

    def _tell_item(self, item: Object) -> None:
        self._last_item = item["id"]
        self.listener.on_item(item)

    async def refresh(self) -> None:
        """Reads the summary."""
        self.summary = await self.server.ask("GET", f"{self.path}/summary")
        self.listener.on_summary()

    # --- the session ------------------------------------------------------------------------------

    async def send(self, text: str) -> None:
        """Sends a message: it begins a turn, or goes into the one that goes on. The first one makes the session."""
        async with self._sending:
            if not self.id:
                await self._create(text)
                return
            content = [{"type": "input_text", "text": text}]
            message = {"type": "agent.session.input.message", "input": [{"role": "user", "content": content}]}
            headers = {KEY_HEADER: self._key_of(text)}
            await self.server.ask("POST", f"{self.path}/events", {"events": [message]}, headers)
            self._attempt = None

    def _key_of(self, text: str) -> str:
        """Returns the key of an attempt to send a text: that of the last one, if the same text has got no answer."""
        if self._attempt is None or self._attempt[0] != text:
            self._attempt = text, uuid.uuid4().hex
        return self._attempt[1]

    async def _create(self, text: str) -> None:
        body = {"agent": {"model": self.model}, "input": text}
        headers = {"X-Codex-Sandbox": self._sandbox} if self._sandbox else {}
        headers |= IN_WORKTREE if self._in_worktree else {}
        headers[KEY_HEADER] = self._key_of(text)
        wanted = [*self._environments()]
        self._held = []
        try:
            for environment in wanted:
                try:
                    made = await self.server.ask(
                        "POST", SESSIONS, body | {"environment": environment}, headers
                    )
                    break
                except RefusedError as error:  # without a folder of the user's, the next one is as good
                    if environment is wanted[-1] or not error.param.startswith("environment"):
                        raise
            self.leave()
            self.id, self._attempt = made["id"], None
        finally:
            held, self._held = self._held, None
            for event in held:
                self._on_any(event)
        await self.refresh()

    def _environments(self) -> Iterator[Object]:
        """Yields what a new session may have, the best first."""
        if self._folder is not None:
            yield _in_folder(str(self._folder.absolute()))
            return
        if urlsplit(self.server.base_url).hostname in ("127.0.0.1", "localhost", "::1"):
            yield _in_folder(str(Path.cwd()))
        yield _in_folder(".")  # that of the server
        if not self._in_worktree:
            yield {"type": "none"}  # for a model server

    def leave(self) -> None:
        """Leaves the session as it is; the next message makes a new one."""
        self.id, self.summary, self._last_item, self._turn = "", {}, "", ""

    async def resume(self, id: str) -> int:
        """Goes on with another session by its id, or with the newest (`last`), and with the model that was named when
        this program was started. Returns what `open` returns.
        """
        if id == "last":
            newest = await self.newest()
            if not newest:
                raise UserError("There is no session yet. Leave --resume out to begin one.")
            id = newest[0]["id"]
        before = await self.open(id)
        if self._named_model:
            await self.use_model(self._named_model)
            self._named_model = None
        return before

    async def open(self, id: str) -> int:
        """Goes on with another session, and tells its newest items. Returns how many there are before them, at most
        as many again as are told: more are not counted.
        """
        found = await self.server.ask("GET", f"{SESSIONS}/{quote(id, safe='')}/summary")
        self.leave()
        self.id, self.model, self.summary = found["id"], found["model"], found
        page = await self.server.ask("GET", f"{self.path}/items?limit={2 * SHOWN_ITEMS}")
        newest = page["data"][:SHOWN_ITEMS]
        for item in reversed(newest):
            self._tell_item(item)
        self.listener.on_summary()
        return len(page["data"]) - len(newest)

    async def _items(self, after: str) -> Any:
        """Yields the items behind one, or all, oldest first."""
        more = True
        while more:
            place = f"&after={quote(after, safe='')}" if after else ""
            page = await self.server.ask("GET", f"{self.path}/items?order=asc&limit=100{place}")
            for item in page["data"]:
                yield item
            more, after = page["has_more"], page["last_id"]

    async def newest(self) -> list[Object]:
        """Returns the summaries of the newest sessions that are not archived."""
        listed = await self.server.ask("GET", "/agents/session_summaries?limit=50")
        try:
            return [each for each in listed["data"] if isinstance(each["id"], str)]
        except (KeyError, TypeError) as error:
            raise UserError(NOT_OURS) from error

    async def stop(self) -> None:
        """Ends the turn that goes on."""
        await self.server.ask(
            "POST", f"{self.path}/events", {"events": [{"type": "agent.session.input.cancel"}]}
        )

    async def fork(self, back: int, folder: str = "", *, in_worktree: bool = False) -> tuple[str, int]:
        """Goes on with a copy of the session without the last `back` messages of the user and what followed them, in a
        new folder with the files as they were then if one is named, or in a worktree. Returns the text of the first
        message that is left out, and what `open` returns.
        """
        body, text = {}, ""
        if back:
            said = [each async for each in self._items("") if each.get("role") == "user"]
            if back > len(said):
                raise UserError(f"The session has {len(said)} messages of yours.")
            text = "".join(part.get("text", "") for part in said[-back]["content"])
            body = {"before_item": said[-back]["id"]}
        body |= {"folder": folder} if folder else {}
        made = await self.server.ask("POST", f"{self.path}/fork", body, IN_WORKTREE if in_worktree else {})
        return text, await self.open(made["id"])

    async def ended_turn(self, which: str) -> str:
        """Returns the id of a turn that has ended: the newest one, the one that many before its end (`2` is the one
        before the newest), or the one with this id.
        """
        if which and not which.isdecimal():
            return which
        back = int(which[:4] or 1)
        turns = (await self.server.ask("GET", f"{self.path}/turns?limit=100&order=desc"))["data"]
        ended = [turn["id"] for turn in turns if turn["status"] in ENDS]
        if not 1 <= back <= len(ended):
            raise UserError(
                f"The session has {len(ended)} turns that have ended. /diff 1 is about the newest."
            )
        return str(ended[back - 1])

    async def changes(self, turn: str) -> Object:
        """Returns what a turn has done to the files."""
        found: Object = await self._of_files("GET", turn, "changes")
        return found

    async def changes_if_kept(self, turn: str) -> Object | None:
        """Returns what a turn has done to the files; None where that is not known, or the server cannot be asked."""
        try:
            found = await self.changes(turn)
        except UserError:
            return None
        return found if found["state"] == "kept" else None

    async def patch(self) -> bytes:
        """Returns what all turns of the session have done to the files, as a patch of git."""
        return await self.server.read(f"{self.path}/patch")

    async def revert(self, turn: str, *, force: bool) -> Object:
        """Makes the files that a turn has changed what they were before it; `force`: also those that were changed
        since. Raises `RefusedError` with the field `force` for these.
        """
        done: Object = await self._of_files("POST", turn, "revert", {"force": force})
        return done

    async def worktree(self) -> Object | None:
        """Returns the worktree of the session; None if it has none, or the server keeps none."""
        try:
            found: Object = await self.server.ask("GET", f"{self.path}/worktree")
        except RefusedError as error:
            if error.status != 404:
                raise
            return None
        return found

    async def merge(self, branch: str, message: str) -> Object:
        """Brings what was done in the session's worktree into the folder of which that was made, or into a new branch
        of its repository, as a commit with the message.
        """
        body = {name: text for name, text in (("branch", branch), ("message", message)) if text}
        merged: Object = await self.server.ask("POST", f"{self.path}/merge", body)
        return merged

    async def _of_files(self, method: str, turn: str, what: str, body: Any = None) -> Any:
        try:
            return await self.server.ask(method, f"{self.path}/turns/{quote(turn, safe='')}/{what}", body)
        except RefusedError as error:
            if error.status != 404:
                raise
            raise UserError(
                f"There is no turn {turn[:60]} in this session, or the server lacks the part `snapshots`."
            ) from error

    async def change(self, **fields: Any) -> None:
        """Changes the session's `title`, or whether it is `archived`."""
        self.summary = await self.server.ask("POST", f"{self.path}/summary", fields)

    async def begin(self, resume: str | None) -> int:
        """Opens the session that was named when this program was started, or prepares a new one. Returns what `open`
        returns.
        """
        if resume is not None:
            return await self.resume(resume)
        if self._agent:
            await self._choose_agent(self._agent)
        return 0

    async def _choose_agent(self, name: str) -> None:
        models = await self.models()
        if any(each == name or each.startswith(f"{name}/") for each in models):
            self.model = f"{name}/{self._named_model}" if self._named_model else name
            return
        health = await self.server.ask(
            "GET", "/../healthz"
        )  # a server of one agent lists models without its name
        only = health.get("agent", {}).get("name") if isinstance(health, dict) else None
        if only != name:
            several = sorted({each.partition("/")[0] for each in models if "/" in each})
            raise UserError(f"The server has no agent {name}. It has {', '.join(several) or only}.")

    async def models(self) -> list[str]:
        listed = await self.server.ask("GET", "/models")
        try:
            return [str(entry["id"]) for entry in listed["data"]]
        except (KeyError, TypeError) as error:
            raise UserError(NOT_OURS) from error

    async def use_model(self, name: str) -> None:
        """Uses another model from the next turn on."""
        if self.id:
            await self.server.ask("POST", self.path, {"agent": {"model": name}})
        self.model = name

    async def answer(
        self,
        ask: Object,
        decision: Literal["approve", "deny"],
        *,
        for_session: bool = False,
        words: str = "",
        content: Object | None = None,
    ) -> None:
        """Answers a question as it was shown. `content`: the values of a form."""
        body = {"decision": decision, "digest": ask["digest"]}
        body |= {"for_session": True} if for_session else {}
        body |= {"message": words} if words else {}
        body |= {"content": content} if content is not None else {}
        await self.server.ask("POST", f"{self.path}/asks/{quote(ask['request_id'], safe='')}", body)


def _in_folder(folder: str) -> Object:
    return {"type": "self_hosted", "workspace_directory": folder, "remote_url": ""}


def turn_that_ended(event: Object) -> str:
    """Returns the id of the session's turn whose end an event tells; empty for another event."""
    kind, _, end = event["type"].rpartition(".")
    return str(event["turn"]["id"]) if kind == "agent.session.turn" and end in ENDS else ""


def _session_of(event: Object) -> str:
    """Returns the id of the session that an event is of."""
    for name in ("session", "subagent"):
        if isinstance(event.get(name), dict):
            return str(event[name].get("session_id") or event[name].get("id"))
    return str(event.get("session_id"))
