"""The resources of sessions of the Managed Agents API: uploaded files that this server puts into a session's folder.
The handlers raise `Fault`: INVALID_REQUEST, NOT_ALLOWED, NOT_FOUND, CONFLICT. Source: docs/managed-agents.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Final, Literal, TypedDict

import structlog
from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import Turn
from codex_proxy.files.foreign import why_protected
from codex_proxy.files.placed import NewFile
from codex_proxy.http.app_keys import FILE_SOURCE
from codex_proxy.http.endpoint import json_response
from codex_proxy.parts.managed_agents import session_wire as wire
from codex_proxy.parts.managed_agents.environments import refused
from codex_proxy.parts.managed_agents.handlers import at, page_response, parse
from codex_proxy.parts.managed_agents.pages import Cursor, page_query
from codex_proxy.parts.managed_agents.sessions import resource_object
from codex_proxy.parts.sessions.placed_files import FileResource, changing_files, remove_files
from codex_proxy.parts.sessions.request_values import id_in
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.surfaces.requests.files import no_file

log = structlog.get_logger(__name__)

MAX_RESOURCES: Final = 100
MAX_BYTES: Final = 1 << 30
"""Maximum bytes of the files of a session."""
MAX_SHOWN: Final = 1000
_MAX_NAMES: Final = 16
_MAX_NAME_BYTES: Final = 255


class ResourceDeleted(TypedDict):
    id: str
    type: Literal["session_resource_deleted"]


# --- putting files into a folder ------------------------------------------------------------------


async def place_files(
    request: web.Request, session: Session, turn: Turn, given: Sequence[wire.Resource], place: str = ""
) -> tuple[FileResource, ...]:
    """Puts files into the folder of a session, all or none. `turn`: an admitted turn of the session, which says what
    its agent may write. `place`: the path of the field with the list, if there is one.
    """
    placed: list[FileResource] = []
    try:
        for index, resource in enumerate(given):
            at_field = f"{place}[{index}]" if place else ""
            there = replace(session, resources=(*session.resources, *placed))
            placed.append(await _place(request, there, turn, resource, at_field))
    except BaseException:
        await remove_files(placed)
        raise
    return tuple(placed)


async def _place(
    request: web.Request, session: Session, turn: Turn, given: wire.Resource, place: str
) -> FileResource:
    sessions, owner = at(request)
    source = request.app.get(FILE_SOURCE)
    if given.type != "file" or source is None:
        raise _unserved(given, place or "type")
    folder = _writable_folder(session, turn, place or "type")
    within = f"{place}." if place else ""
    if given.file_id is None:
        raise bad_request(f"{within}file_id: Field required", f"{within}file_id")
    found = await source.open(owner, given.file_id)
    if found is None:
        message = f"{within}file_id: {no_file(given.file_id)}"
        raise Fault.of(FaultKind.NOT_FOUND, message, param=f"{within}file_id")
    size, pieces = found
    if len(session.resources) >= MAX_RESOURCES:
        raise refused(f"a session has at most {MAX_RESOURCES} files. Delete one.", place or "type")
    if size + sum(each.size for each in session.resources) > MAX_BYTES:
        raise refused(
            f"the files of a session have at most {MAX_BYTES} bytes. Delete some.", f"{within}file_id"
        )
    path = given.mount_path or f"mnt/session/uploads/{session.id}/{given.file_id}"
    names = names_below(folder, path, f"{within}mount_path")
    new: NewFile | None = None
    try:
        new = await beside_the_loop(partial(NewFile, folder, names), long=True)
        async for piece in pieces:
            await beside_the_loop(partial(new.write, piece), long=True)
        mark = await beside_the_loop(new.finish, long=True)
    except BaseException as error:
        if new is not None:
            await beside_the_loop(new.discard, long=True)
        if isinstance(error, OSError):
            raise _not_placed(error, f"{within}mount_path") from None
        raise
    return FileResource(
        id=sessions.new_id("sesrsc_"),
        file_id=given.file_id,
        folder=folder,
        path="/".join(names),
        inode=mark.inode,
        size=mark.size,
        modified=mark.modified,
        created_at=sessions.now(),
    )


def _unserved(given: wire.Resource, place: str) -> Fault:
    ways = {"github_repository": "clone it into the session's folder."}
    way = ways.get(given.type, "put it into the session's folder.")
    return refused(f"{excerpt(given.type)} is not served here; {way}", place)


def _writable_folder(session: Session, turn: Turn, place: str) -> str:
    """Returns the folder of a session, with links resolved. Raises `Fault` without one, and where its agent may not
    write.
    """
    if session.environment["type"] == "none" or turn.mode != "agent":
        message = "this session has no folder, because its agent has no tools of its own. Name one in metadata.workdir."
        raise refused(message, place)
    if turn.sandbox == "read-only":
        message = (
            f"{place}: files are put only into folders in which agents of this key may write, and its sandbox is "
            "read-only. Have the operator allow workspace-write (--sandbox)."
        )
        raise Fault.of(FaultKind.NOT_ALLOWED, message, param=place)
    return turn.workdir


def names_below(folder: str, mount_path: str, param: str) -> tuple[str, ...]:
    """Returns the names of a file, and of the folders before it, below `folder`: of a relative path, and of an absolute
    one, which begins in the folder or means a path below it. Raises `Fault`.
    """
    path = PurePosixPath(mount_path)
    if path.is_relative_to(folder):
        path = path.relative_to(folder)
    names = tuple(part for part in path.parts if not part.startswith("/"))
    if not names or mount_path.endswith("/"):
        raise refused("it has to name a file.", param)
    if any(name.startswith(".") for name in names):
        # Programs that run outside of the sandbox read their settings there: .git, .codex, .claude.
        raise refused("no part of it may begin with a dot. Name another path.", param)
    if why := why_protected("/".join(names)):
        raise refused(f"{why}. Name another path.", param)
    longest = max(len(name.encode(errors="replace")) for name in names)
    if longest > _MAX_NAME_BYTES or len(names) > _MAX_NAMES or not mount_path.isprintable():
        message = f"it has at most {_MAX_NAMES} names of {_MAX_NAME_BYTES} bytes, without control characters."
        raise refused(message, param)
    return names


def _not_placed(error: OSError, param: str) -> Fault:
    if isinstance(error, FileExistsError):
        return refused("there is a file or folder already, which stays as it is. Name another path.", param)
    if isinstance(error, NotADirectoryError):
        return refused("a folder in it is a file or a link. Name another path.", param)
    log.warning("resource_not_placed", reason=str(error.strerror))
    message = f"The file cannot be written into the session's folder: {error.strerror}."
    return Fault.of(FaultKind.UNAVAILABLE, message, param=param)


# --- handlers -------------------------------------------------------------------------------------


async def list_session_resources(request: web.Request) -> web.Response:
    """Lists the files that were put into a session's folder, oldest first."""
    sessions, owner = at(request)
    session = await sessions.session(owner, id_in(request))
    query = page_query(request.query, default=MAX_SHOWN, most=MAX_SHOWN, order="asc")
    found = session.resources
    if (cursor := query.cursor) is not None:
        place = next((index for index, each in enumerate(found) if each.id == cursor.id), None)
        later = tuple(each for each in found if each.created_at >= cursor.created)
        found = later if place is None else found[place + 1 :]
    shown = found[: query.limit]
    last = str(Cursor("asc", shown[-1].id, float(shown[-1].created_at))) if shown else None
    data = [resource_object(each) for each in shown]
    return page_response(data, last if len(found) > len(shown) else None)


async def add_session_resource(request: web.Request) -> web.Response:
    """Puts an uploaded file into the session's folder."""
    sessions, owner = at(request)
    given = await parse(request, wire.Resource)
    id = id_in(request)
    placed: list[FileResource] = []

    async def add() -> None:
        async with sessions.changing(owner, changing_files(id)):
            session = await sessions.session(owner, id)
            prepared = await sessions.turn_requests.check_settings(owner, session)
            placed.extend(await place_files(request, session, prepared.turn, [given]))
            with_it = tuple(placed)
            try:
                await sessions.change(
                    owner, id, lambda each: replace(each, resources=each.resources + with_it)
                )
            except BaseException:
                await remove_files(placed)
                raise

    await sessions.session(owner, id)
    await sessions.run(add())
    return json_response(resource_object(placed[0]))


async def retrieve_session_resource(request: web.Request) -> web.Response:
    """Returns a file that was put into a session's folder."""
    sessions, owner = at(request)
    return json_response(resource_object(await _find(request, sessions, owner)))


async def delete_session_resource(request: web.Request) -> web.Response:
    """Removes a file from the session's folder, unless it was changed there. The uploaded file stays."""
    sessions, owner = at(request)
    found = await _find(request, sessions, owner)

    async def delete() -> None:
        def without(session: Session) -> Session:
            kept = tuple(each for each in session.resources if each.id != found.id)
            return replace(session, resources=kept)

        async with sessions.changing(owner, changing_files(id_in(request))):
            await sessions.change(owner, id_in(request), without)
            await remove_files([found])

    await sessions.run(delete())
    deleted: ResourceDeleted = {"id": found.id, "type": "session_resource_deleted"}
    return json_response(deleted)


async def _find(request: web.Request, sessions: Sessions, owner: str) -> FileResource:
    session = await sessions.session(owner, id_in(request))
    id: str = request.match_info["resource_id"]
    for each in session.resources:
        if each.id == id:
            return each
    raise Fault.of(FaultKind.NOT_FOUND, f"Resource with id '{excerpt(id)}' not found.")
