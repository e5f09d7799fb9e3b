"""The artifacts of a session: files that its turns have added or changed, and that the settings name by patterns. They
are read from the snapshots, as the turns have left them. Source: docs/snapshots.md#artifacts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict
from urllib.parse import quote

from aiohttp import web

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import escape, excerpt
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.listing import list_object
from codex_proxy.parts.sessions.request_values import id_in, page_in, sessions_at
from codex_proxy.parts.sessions.sessions import Session, SessionTurn, environment_id
from codex_proxy.parts.snapshots.difference import differences
from codex_proxy.parts.snapshots.git import GitError, ObjectReader
from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.ignored import Rules, parse
from codex_proxy.parts.snapshots.keeper import Keeper
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.parts.snapshots.threads import in_thread
from codex_proxy.surfaces.answers.renderer import Count

MAX_ARTIFACTS: Final = 1000
"""Maximum artifacts of a session: the newest ones."""
BYTES: Final = "application/octet-stream"


class SessionArtifact(TypedDict):
    id: str
    object: Literal["agent.session.artifact"]
    session_id: str
    turn_id: str
    environment_id: str
    path: str
    size_bytes: Count
    created_at: Count


class _Found(NamedTuple):
    about: SessionArtifact
    """Without its size."""
    name: bytes
    place: str
    digest: str


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


async def retrieve_artifact_content(request: web.Request) -> web.Response:
    """Returns the bytes of an artifact."""
    found = await _artifact(request)
    git = request.app[KEEPER].snapshots_of(found.place).git

    def read() -> bytes:
        with git.reader() as reader:
            return reader.read(found.digest)

    try:
        content = await in_thread(read)
    except (GitError, OSError) as error:
        raise _unreadable(error) from error
    name = quote(os.path.basename(found.name), safe="")
    headers = {
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
    }
    return web.Response(body=content, content_type=BYTES, headers=headers)


async def _artifact(request: web.Request) -> _Found:
    id = request.match_info["artifact_id"]
    for found in await _found(request):
        if found.about["id"] == id:
            return found
    raise Fault.of(FaultKind.NOT_FOUND, f"Artifact with id '{excerpt(id)}' not found.")


async def _with_sizes(request: web.Request, found: Sequence[_Found]) -> list[SessionArtifact]:
    def read() -> list[SessionArtifact]:
        places: dict[str, set[str]] = {}
        for each in found:
            places.setdefault(each.place, set()).add(each.digest)
        sizes: dict[str, int] = {}
        for place, digests in places.items():
            sizes |= request.app[KEEPER].snapshots_of(place).git.sizes(digests)
        return [{**each.about, "size_bytes": sizes.get(each.digest, 0)} for each in found]

    try:
        return await in_thread(read)
    except (GitError, OSError) as error:
        raise _unreadable(error) from error


async def _found(request: web.Request) -> list[_Found]:
    """Returns the artifacts of the session, the newest first."""
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    keeper, patterns = request.app.get(KEEPER), request.app.get(PATTERNS)
    if keeper is None or patterns is None:
        return []
    kept: list[tuple[SessionTurn, TurnFiles]] = []
    for turn in reversed(await sessions.store.all_turns(owner, session.id)):
        files = await keeper.files(owner, turn.id)
        if files is not None and files.state == "kept" and files.before != files.after:
            kept.append((turn, files))
    try:
        return await in_thread(lambda: _read(keeper, patterns, session, kept))
    except (GitError, OSError) as error:
        raise _unreadable(error) from error


def _read(
    keeper: Keeper, patterns: Patterns, session: Session, turns: Sequence[tuple[SessionTurn, TurnFiles]]
) -> list[_Found]:
    all_found: list[_Found] = []
    for turn, files in turns:
        with keeper.snapshots_of(files.place).git.reader() as reader:
            for found in _of_turn(reader, patterns, session, turn, files):
                all_found.append(found)
                if len(all_found) == MAX_ARTIFACTS:
                    return all_found
    return all_found


def _of_turn(
    reader: ObjectReader, patterns: Patterns, session: Session, turn: SessionTurn, files: TurnFiles
) -> Iterator[_Found]:
    for path, _, after in reversed(differences(reader, files.before, files.after)):
        if after is None or after.is_link or not patterns.match(path):
            continue
        digest = after.digest.hex()
        key = hashlib.sha256(turn.id.encode() + b"\0" + path).hexdigest()[:32]
        about = SessionArtifact(
            id=f"artifact_{key}",
            object="agent.session.artifact",
            session_id=session.id,
            turn_id=turn.id,
            environment_id=environment_id(session.id),
            path=escape(os.path.join(files.folder, os.fsdecode(path))),
            size_bytes=0,
            created_at=turn.completed_at or turn.created_at,
        )
        yield _Found(about, path, files.place, digest)


def _unreadable(error: Exception) -> Fault:
    return Fault.of(FaultKind.INTERNAL, f"The artifacts cannot be read: {error}.")
