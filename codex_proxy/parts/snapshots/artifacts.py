"""The artifacts of a session: files that its turns have added or changed, and that the settings name by patterns. They
are read from the snapshots, as the turns have left them. The Files API has of each path the newest, unless a later turn
has removed it. Source: docs/snapshots.md#artifacts.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict, TypeVar

from aiohttp import web

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.interfaces import SessionFile
from codex_proxy.core.shown_text import escape, excerpt
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.file_bytes import BYTES, send_bytes
from codex_proxy.http.listing import list_object
from codex_proxy.parts.sessions.records import TURN
from codex_proxy.parts.sessions.request_values import id_in, page_in, sessions_at
from codex_proxy.parts.sessions.service import SESSIONS
from codex_proxy.parts.sessions.sessions import SessionTurn, environment_id
from codex_proxy.parts.snapshots.difference import differences
from codex_proxy.parts.snapshots.git import GitError, ObjectReader
from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.ignored import Rules, parse
from codex_proxy.parts.snapshots.keeper import Keeper
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.parts.snapshots.threads import in_thread
from codex_proxy.surfaces.answers.renderer import Count

R = TypeVar("R")

MAX_ARTIFACTS: Final = 1000
"""Maximum artifacts of a session: the newest ones."""
_TURN: Final = "turn_"
_ID: Final = re.compile(r"file-([0-9a-f]{32})([0-9a-f]{16})")
"""Matches the id of a file: the id of its turn, and the beginning of that of the artifact."""


class SessionArtifact(TypedDict):
    id: str
    object: Literal["agent.session.artifact"]
    session_id: str
    turn_id: str
    environment_id: str
    path: str
    size_bytes: Count
    created_at: Count


class Found(NamedTuple):
    about: SessionArtifact
    """Without its size."""
    path: bytes
    """Below the session's folder."""
    place: str
    digest: str
    """Empty for a file that the turn has removed, or made a link."""


class Patterns:
    """Patterns of paths, written as in a `.gitignore`."""

    def __init__(self, text: str) -> None:
        """`text`: patterns between commas."""
        lines = "\n".join(each.strip() for each in text.split(","))
        self._rules = Rules().with_file(parse(os.fsencode(lines)))

    def match(self, path: bytes) -> bool:
        """Whether a file's path below the session's folder, or a folder in which it is, fits."""
        *folders, name = os.fsdecode(path).split("/")
        rules = self._rules
        for folder in folders:
            if rules.leave_out(folder, is_folder=True):
                return True
            rules = rules.below(folder)
        return rules.leave_out(name, is_folder=False)


PATTERNS: Final = web.AppKey("artifact_patterns", Patterns)


async def list_artifacts(request: web.Request) -> web.Response:
    """Lists the artifacts of a session."""
    asked = page_in(request)
    environment = request.query.get("environment_id")
    found = await _found(request)
    found = [each for each in found if environment in (None, each.about["environment_id"])]
    if asked.order == "asc":
        found.reverse()
    start = 0
    if asked.after is not None:
        places = [place for place, each in enumerate(found) if each.about["id"] == asked.after]
        if not places:
            raise bad_request("The session has no such artifact. Leave 'after' out.", "after")
        start = places[0] + 1
    page: list[Any] = [*await _with_sizes(request, found[start : start + asked.limit])]
    return json_response(list_object(page, has_more=start + asked.limit < len(found)))


async def retrieve_artifact(request: web.Request) -> web.Response:
    """Returns an artifact."""
    [about] = await _with_sizes(request, [await _artifact(request)])
    return json_response(about)


async def retrieve_artifact_content(request: web.Request) -> web.StreamResponse:
    """Returns the bytes of an artifact, or a range of them.

    Breaks the connection off if they end too early.
    """
    found = await _artifact(request)
    [about] = await _with_sizes(request, [found])

    async def read(start: int, stop: int) -> AsyncIterator[bytes]:
        if start < stop:
            yield await content_of(request.app[KEEPER], found, start, stop)

    return await send_bytes(request, os.path.basename(found.path), about["size_bytes"], read)


async def _artifact(request: web.Request) -> Found:
    id = request.match_info["artifact_id"]
    for found in await _found(request):
        if found.about["id"] == id:
            return found
    raise Fault.of(FaultKind.NOT_FOUND, f"Artifact with id '{excerpt(id)}' not found.")


async def _with_sizes(request: web.Request, found: Sequence[Found]) -> list[SessionArtifact]:
    sizes = await sizes_of(request.app[KEEPER], found) if found else {}
    return [{**each.about, "size_bytes": sizes[each.digest]} for each in found]


async def _found(request: web.Request) -> list[Found]:
    """Returns the artifacts of the session, the newest first."""
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    keeper, patterns = request.app.get(KEEPER), request.app.get(PATTERNS)
    if keeper is None or patterns is None:
        return []
    turns = await sessions.store.all_turns(owner, session.id)
    found = await found_in(keeper, patterns, owner, turns)
    return [each for each in found if each.digest][:MAX_ARTIFACTS]


# --- as files of the Files API ---------------------------------------------------------------------


class FilesOfSessions:
    """See `core.interfaces.SessionFiles`."""

    def __init__(self, app: web.Application) -> None:
        self._app = app

    async def of_session(self, owner: str, session: str) -> Sequence[SessionFile]:
        turns = await self._app[SESSIONS].store.all_turns(owner, session)
        newest: dict[bytes, Found] = {}
        for found in await found_in(self._app[KEEPER], self._app[PATTERNS], owner, turns):
            newest.setdefault(found.path, found)
        return await self._shown([each for each in reversed(newest.values()) if each.digest])

    async def find(self, owner: str, id: str) -> SessionFile | None:
        found = await self._found(owner, id)
        return None if found is None else (await self._shown([found]))[0]

    async def read(self, owner: str, id: str, start: int, stop: int) -> bytes | None:
        found = await self._found(owner, id)
        return None if found is None else await content_of(self._app[KEEPER], found, start, stop)

    async def _found(self, owner: str, id: str) -> Found | None:
        parts = _ID.fullmatch(id)
        if parts is None:
            return None
        turn = await self._app[SESSIONS].store.find(owner, TURN, f"{_TURN}{parts[1]}")
        if turn is None:
            return None
        found = await found_in(self._app[KEEPER], self._app[PATTERNS], owner, [turn])
        return next((each for each in found if each.digest and _id_of(each) == id), None)

    async def _shown(self, found: Sequence[Found]) -> list[SessionFile]:
        sizes = await sizes_of(self._app[KEEPER], found) if found else {}
        return [
            SessionFile(
                id=_id_of(each),
                session=each.about["session_id"],
                name=(name := escape(os.path.basename(os.fsdecode(each.path)))),
                media_type=mimetypes.guess_type(name)[0] or BYTES,
                size=sizes[each.digest],
                created_at=each.about["created_at"],
            )
            for each in found
        ]


def _id_of(found: Found) -> str:
    turn = found.about["turn_id"].removeprefix(_TURN)
    return f"file-{turn}{found.about['id'].removeprefix('artifact_')[:16]}"


# --- what the snapshots have ----------------------------------------------------------------------


async def found_in(
    keeper: Keeper, patterns: Patterns, owner: str, turns: Sequence[SessionTurn]
) -> list[Found]:
    """Returns what turns, given oldest first, have done to the files that fit: the newest first. Of what was added or
    changed there are at most the last `MAX_ARTIFACTS`. Raises `Fault`.
    """
    kept: list[tuple[SessionTurn, TurnFiles]] = []
    for turn in reversed(turns):
        files = await keeper.files(owner, turn.id)
        if files is not None and files.state == "kept" and files.before != files.after:
            kept.append((turn, files))

    def read() -> list[Found]:
        all_found: list[Found] = []
        there = 0
        for turn, files in kept:
            with keeper.snapshots_of(files.place).git.reader() as reader:
                for found in _of_turn(reader, patterns, turn, files):
                    all_found.append(found)
                    there += found.digest != ""
                    if there == MAX_ARTIFACTS:
                        return all_found
        return all_found

    return await _reading(read)


def _of_turn(
    reader: ObjectReader, patterns: Patterns, turn: SessionTurn, files: TurnFiles
) -> Iterator[Found]:
    for path, _, after in reversed(differences(reader, files.before, files.after)):
        if not patterns.match(path):
            continue
        key = hashlib.sha256(turn.id.encode() + b"\0" + path).hexdigest()[:32]
        about = SessionArtifact(
            id=f"artifact_{key}",
            object="agent.session.artifact",
            session_id=turn.session,
            turn_id=turn.id,
            environment_id=environment_id(turn.session),
            path=escape(os.path.join(files.folder, os.fsdecode(path))),
            size_bytes=0,
            created_at=turn.completed_at or turn.created_at,
        )
        digest = "" if after is None or after.is_link else after.digest.hex()
        yield Found(about, path, files.place, digest)


async def sizes_of(keeper: Keeper, found: Iterable[Found]) -> dict[str, int]:
    """Returns the bytes of files that are there, by their digests. Raises `Fault`."""

    def read() -> dict[str, int]:
        places: dict[str, set[str]] = {}
        for each in found:
            places.setdefault(each.place, set()).add(each.digest)
        sizes: dict[str, int] = {}
        for place, digests in places.items():
            sizes |= dict.fromkeys(digests, 0) | keeper.snapshots_of(place).git.sizes(digests)
        return sizes

    return await _reading(read)


async def content_of(keeper: Keeper, found: Found, start: int, stop: int) -> bytes:
    """Returns the bytes from `start` to before `stop`. Raises `Fault`."""
    git = keeper.snapshots_of(found.place).git

    def read() -> bytes:
        with git.reader() as reader:
            return reader.read_range(found.digest, start, stop)

    return await _reading(read)


async def _reading(read: Callable[[], R]) -> R:
    try:
        return await in_thread(read)
    except (GitError, OSError) as error:
        raise Fault.of(FaultKind.INTERNAL, f"The artifacts cannot be read: {error}.") from error
