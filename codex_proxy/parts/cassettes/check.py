"""Renders the answers of cassettes anew with today's code, and says what differs. Two answers are compared in a
form in which ids are numbers in their order, times 0, and the deltas of a text one event.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from codex_proxy.app.logs import configure
from codex_proxy.app.server import Server, make_server
from codex_proxy.core.json_values import is_json
from codex_proxy.core.turn import Turn
from codex_proxy.files.private import replace_file, temporary_folder
from codex_proxy.parts.cassettes.content import CONTENT_FIELDS, content_of, differences
from codex_proxy.parts.cassettes.file_lines import group_similar_lines
from codex_proxy.parts.cassettes.format import SUFFIX, Answer, Cassette, Request, sent_data, text_of
from codex_proxy.parts.cassettes.replay import Folder, ReplayAgent
from codex_proxy.parts.cassettes.scrubbing import zero_numbers, zero_times
from codex_proxy.parts.cassettes.serving import CASSETTE_HEADER
from codex_proxy.parts.cassettes.settings import CassetteError
from codex_proxy.settings.fields import Settings

COMPARED_FIELDS: Final = tuple(name for name in CONTENT_FIELDS if name != "model")
"""The parts of a turn that are compared; the model's name is not, since it depends on the agent's list of models."""
ANSWER_SECONDS: Final = 60.0
_ID: Final = re.compile(r"[!#-\[\]-~]{1,200}")
"""Matches a recorded id, which may stand in JSON as it is."""
_SESSION: Final = re.compile(r"POST (/v1)?/agents/")
POLL_SECONDS: Final = 0.01


class CassetteCheck(msgspec.Struct, frozen=True):
    """A cassette, and the answer of today's code to its request."""

    cassette: Cassette
    answer: Answer
    turn: Turn | None
    """The turn that today's code has read; None if none was started."""
    read: list[str]
    """The parts of the request that are read differently."""
    diff: list[str]
    """The diff of the answers in lines; empty if they are the same."""

    @property
    def same(self) -> bool:
        return not self.read and not self.diff


async def check_folder(folder: Folder) -> list[CassetteCheck]:
    """Checks every cassette of a folder but those of sessions. Raises `CassetteError` if a server cannot replay
    one.
    """
    groups: dict[bytes, list[Cassette]] = {}
    checked = {name: each for name, each in folder.cassettes.items() if not _is_of_session(each)}
    for cassette in checked.values():
        groups.setdefault(msgspec.json.encode(cassette.settings, order="deterministic"), []).append(cassette)
    found: dict[str, CassetteCheck] = {}
    for cassettes in groups.values():
        async with _replay_server(folder, cassettes[0].settings) as (server, session):
            answers = _Answers(server, session)
            for cassette in cassettes:
                found[cassette.name] = await answers.check(cassette)
    return [found[name] for name in checked]


def _is_of_session(cassette: Cassette) -> bool:
    """Whether the request was one of a session, which the session's other requests have to precede and to end."""
    return _SESSION.match(cassette.request.line) is not None


def update(folder: Folder, result: CassetteCheck) -> None:
    """Writes today's answer into the cassette. Raises `OSError`."""
    cassette, turn = result.cassette, result.turn
    content = cassette.content if turn is None else content_of(turn)
    cassette = msgspec.structs.replace(cassette, answer=result.answer, content=content)
    path = folder.path if folder.path.is_file() else folder.path / f"{cassette.name}{SUFFIX}"
    beside = cassette.name.rpartition("/")[0]
    after = cassette.after.removeprefix(f"{beside}/") if beside else cassette.after
    with replace_file(path) as out:
        out.writelines(text_of(msgspec.structs.replace(cassette, after=after)))


@asynccontextmanager
async def _replay_server(
    folder: Folder, recorded: Mapping[str, Any]
) -> AsyncIterator[tuple[Server, aiohttp.ClientSession]]:
    with temporary_folder("check") as (place, _):
        settings = isolated_settings(
            Path(place),
            store="memory",
            heartbeat_interval=0,
            cassettes={"replay": folder.path, "files": False},
            **recorded,
        )
        server = await make_server(settings, {})
        try:
            await server.start()
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as session:
                yield server, session
        finally:
            await server.stop()


def isolated_settings(folder: Path, **own: Any) -> Settings:
    """Returns settings of a server that keeps its files in `folder`: `own`, and for all other settings the
    defaults.
    """
    fields = Settings.model_fields.items()
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields}
    common = {"agent": "fake", "port": 0, "workdir": folder, "state_dir": folder, "drain_ms": 0}
    return Settings(**defaults | common | own)


class _Answers:
    """Sends recorded requests to one server."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        assert isinstance(server.agent, ReplayAgent)
        self._agent = server.agent
        self._url = f"http://127.0.0.1:{server.port}"
        self._session = session
        self._ids: dict[str, str] = {}
        """Today's ids by the recorded ones."""

    async def check(self, cassette: Cassette) -> CassetteCheck:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._answer(cassette)
        except (TimeoutError, aiohttp.ClientError) as error:
            why = "no answer came" if isinstance(error, TimeoutError) else str(error)
            raise CassetteError(f"The request of {cassette.name} failed: {why}. Record it anew.") from error
        recorded = cassette.answer
        self._match_ids(recorded, answer)
        turn = self._agent.take_last()
        content = None if turn is None else content_of(turn)
        read = [] if content is None else differences(content, cassette.content, COMPARED_FIELDS)
        return CassetteCheck(
            cassette,
            self._with_recorded_ids(answer),
            turn,
            [*map(str, read)],
            diff(events_of(recorded), events_of(answer)),
        )

    async def _answer(self, cassette: Cassette) -> Answer:
        recorded = cassette.request
        headers = {**recorded.headers, CASSETTE_HEADER: cassette.name}
        request = msgspec.structs.replace(
            recorded, headers=headers, body=self._with_todays_ids(recorded.body)
        )
        answer = await answer_to(self._session, self._url, request)
        if cassette.answer.final is None or answer.status != 200:
            return answer
        said = answer.body if answer.sent is None else next(iter(answer.sent), None)
        response = said.get("response", said) if isinstance(said, dict) else {}
        if response.get("object") != "response":
            return answer
        return msgspec.structs.replace(answer, final=await self._wait_for_final(response["id"]))

    def _with_todays_ids(self, body: Any) -> msgspec.Raw:
        text = msgspec.json.encode(body).decode()
        for recorded, today in self._ids.items():
            if recorded in text:
                text = text.replace(f'"{recorded}"', f'"{today}"')
        return msgspec.Raw(text.encode())

    async def _wait_for_final(self, id: str) -> Any:
        while True:
            async with self._session.get(f"{self._url}/v1/responses/{id}") as reply:
                found = msgspec.json.decode(await reply.read())
            if found.get("status") not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(POLL_SECONDS)

    def _match_ids(self, recorded: Answer, today: Answer) -> None:
        for old, new in zip(ids_of(recorded), ids_of(today), strict=False):
            if old != new and _ID.fullmatch(old):
                self._ids[old] = new

    def _with_recorded_ids(self, answer: Answer) -> Answer:
        text = zero_numbers(zero_times(msgspec.json.encode(answer)))
        for recorded, today in self._ids.items():
            text = text.replace(today.encode(), recorded.encode())
        return msgspec.json.decode(text, type=Answer)


async def answer_to(session: aiohttp.ClientSession, server: str, request: Request) -> Answer:
    method, _, path = request.line.partition(" ")
    body = msgspec.json.encode(request.body)
    if request.socket:
        return await _answer_on_socket(session, server + path, request.headers, body)
    headers = {**request.headers, "Content-Type": "application/json"}
    async with session.request(method, server + path, data=body, headers=headers) as reply:
        said = await reply.read()
    if reply.content_type == "text/event-stream":
        return Answer(reply.status, None, _decoded(said.strip().split(b"\n\n")))
    if reply.content_type == "application/x-ndjson":
        return Answer(reply.status, None, _decoded(said.splitlines()))
    return Answer(
        reply.status, msgspec.json.decode(said) if is_json(said) else said.decode("utf-8", "replace")
    )


def _decoded(events: list[bytes]) -> list[Any]:
    return msgspec.json.decode(msgspec.json.encode(list(map(sent_data, events))), type=list[Any])


async def _answer_on_socket(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    sent: list[Any] = []
    async with session.ws_connect(url, headers=headers) as socket:
        await socket.send_str(body.decode())
        async for message in socket:
            sent.append(msgspec.json.decode(message.data))
            if sent[-1].get("type") in LAST_EVENT_TYPES:
                break
    return Answer(101, None, sent)


LAST_EVENT_TYPES: Final = frozenset(
    {"response.completed", "response.failed", "response.incomplete", "error", "response.cancelled"}
)
"""The types of a turn's last event on a WebSocket."""


def report(results: Sequence[CassetteCheck], left_out: int = 0) -> str:
    """Returns the printed report of checks: the diffs, then a line with the numbers. `left_out`: the cassettes that
    were not checked.
    """
    lines = []
    for result in results:
        if result.same:
            continue
        lines.append(f"{result.cassette.name}:")
        lines += [
            f"  the request is read differently: {each.replace('the request', 'today')}"
            for each in result.read
        ]
        lines += [f"  {line}" for line in result.diff]
        lines.append("")
    changed = sum(not result.same for result in results)
    lines.append(
        f"{len(results)} cassettes, {changed} of them differ."
        if changed
        else f"{len(results)} cassettes: as recorded."
    )
    if left_out:
        lines.append(f"{left_out} of the Agents API: they are replayed, but not checked.")
    return "\n".join(lines)


def compare(old: Folder, new: Folder) -> str:
    """Returns the differences between two recordings of the same requests, for example of two releases of an agent."""
    lines, same = [], 0
    for cassette in old.cassettes.values():
        other = next((each for each in new.cassettes.values() if _asks_the_same(each, cassette)), None)
        if other is None:
            lines += [f"{cassette.name}: not in {new.path}", ""]
            continue
        names = (f"{cassette.agent} {cassette.version}".strip(), f"{other.agent} {other.version}".strip())
        wrong = diff(_events_and_files(cassette), _events_and_files(other), names)
        same += not wrong
        if wrong:
            lines += [f"{cassette.name}:", *(f"  {line}" for line in wrong), ""]
    only = [
        each.name
        for each in new.cassettes.values()
        if not any(_asks_the_same(each, mine) for mine in old.cassettes.values())
    ]
    lines += [f"{name}: not in {old.path}" for name in only]
    lines.append(f"{same} of {len(old.cassettes)} requests have the same answer.")
    return "\n".join(lines)


def _events_and_files(cassette: Cassette) -> list[bytes]:
    files = [msgspec.json.encode({"file": each}) for each in cassette.file_lines]
    return [*events_of(cassette.answer), *files]


def _asks_the_same(one: Cassette, other: Cassette) -> bool:
    same_api = one.request.line == other.request.line
    return same_api and not differences(one.content, other.content, ("messages", "tools", "format"))


def run(work: Any) -> Any:
    """Runs a coroutine with a server, and returns its result."""
    configure("error", "console")
    return asyncio.run(work)


TIMES: Final = frozenset(
    {
        *("created", "created_at", "completed_at", "cancelled_at", "failed_at", "expires_at"),
        *("time_to_first_token", "throughput_after_first_token"),
    }
)
IDS: Final = frozenset({"id", "response_id", "previous_response_id", "item_id", "call_id", "tool_use_id"})
OPAQUE_FIELDS: Final = frozenset({"signature", "encrypted_content"})
"""Random or encrypted fields, of which only the presence is compared."""
COUNTED_FIELDS: Final = frozenset({"sequence_number", "obfuscation"})
"""Fields that differ in each event, or depend on the number of deltas."""


def events_of(answer: Answer) -> list[bytes]:
    """Returns the JSON of an answer's status, its events or body, and a background response's final object."""
    numbers: dict[str, str] = {}
    said = [answer.body] if answer.sent is None else answer.sent
    final = [] if answer.final is None else [{"final": answer.final}]
    events = [_comparable(each, numbers) for each in ({"status": answer.status}, *said, *final)]
    groups = group_similar_lines(msgspec.json.encode({"sent": each}) for each in events)
    return [group.with_text(group.text()).removeprefix(b'{"sent":').removesuffix(b"}") for group in groups]


def ids_of(answer: Answer) -> list[str]:
    numbers: dict[str, str] = {}
    _comparable([answer.body, answer.sent, answer.final], numbers)
    return list(numbers)


def diff(
    recorded: Sequence[bytes], today: Sequence[bytes], names: tuple[str, str] = ("recorded", "today")
) -> list[str]:
    """Returns the diff of two answers' events in lines; none if they are the same."""
    old, new = ([line for event in events for line in _lines(event)] for events in (recorded, today))
    return [line.rstrip("\n") for line in difflib.unified_diff(old, new, *names, lineterm="", n=1)]


def _lines(event: bytes) -> list[str]:
    text = event.decode()
    return [text] if len(text) <= 160 else msgspec.json.format(text, indent=1).split("\n")


def _comparable(value: Any, numbers: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            name: _field(name, each, numbers) for name, each in value.items() if name not in COUNTED_FIELDS
        }
    if isinstance(value, list):
        return [_comparable(each, numbers) for each in value]
    return value


def _field(name: str, value: Any, numbers: dict[str, str]) -> Any:
    if (name in TIMES or name.endswith("_duration")) and isinstance(value, int | float | str) and value:
        return 0
    if name in OPAQUE_FIELDS and isinstance(value, str):
        return "..." if value else ""
    if name in IDS and isinstance(value, str) and value:
        kind = value.rpartition("_")[0] or value.partition("-")[0]
        return numbers.setdefault(value, f"{kind} {len(numbers) + 1}")
    return _comparable(value, numbers)
