"""Files as they are stored, and as OpenAI's and Anthropic's clients see them: objects, ids and pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypedDict

import msgspec

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.interfaces import SessionFile
from codex_proxy.core.shown_text import excerpt
from codex_proxy.store.values import Record, RecordKey
from codex_proxy.surfaces.requests.body import integer_in, invalid_value, order_in

PURPOSES: Final = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""What OpenAI's clients may name as the purpose of a file, which changes nothing here."""
MAX_OPENAI_PAGE: Final = 10_000
MAX_ANTHROPIC_PAGE: Final = 1_000
DEFAULT_ANTHROPIC_PAGE: Final = 20
MAX_IDS: Final = 100

_ID: Final = re.compile(r"file[-_]([0-9a-f]{32}(?:[0-9a-f]{16})?)")
_PAGE: Final = re.compile(r"page_([0-9]{1,12})_(file_[0-9a-f]+)")
"""Matches a cursor: when the last file on the page before was made, and its id."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a file beside its bytes. Times are in seconds since 1970."""

    id: str
    """Its id in OpenAI's form (`file-...`), by which it is stored."""
    name: str
    media_type: str
    size: int
    purpose: str
    created_at: int
    expires_at: int | None = None
    session: str = ""
    """The id of the session whose agent has made it; empty for an upload."""

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


KIND: Final = "file"
"""The kind of the records of files. One that is busy is still being received."""


def key_of(id: str) -> RecordKey:
    return KIND, id


def record_of(file: StoredFile, *, receiving: bool = False) -> Record:
    json = msgspec.json.encode(file)
    return Record(kind=KIND, id=file.id, json=json, created=float(file.created_at), busy=receiving)


def file_of(record: Record) -> StoredFile:
    return msgspec.json.decode(record.json, type=StoredFile)


def stored_id(given: str) -> str:
    """Returns the id under which a file is stored, of an id in either form; empty for what is no such id."""
    found = _ID.fullmatch(given)
    return f"file-{found[1]}" if found else ""


def of_session(file: SessionFile) -> StoredFile:
    """Returns a file that a session's agent has made, as if it had been uploaded."""
    return StoredFile(
        id=file.id,
        name=file.name,
        media_type=file.media_type,
        size=file.size,
        purpose="user_data",
        created_at=file.created_at,
        session=file.session,
    )


def not_found(given: str) -> Fault:
    message = f"No such file: '{excerpt(given)}'. It does not exist, has expired, or is another key's."
    return Fault.of(FaultKind.NOT_FOUND, message, param="id")


# --- OpenAI's form --------------------------------------------------------------------------------


class FileObject(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: str | None


class FileList(TypedDict):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(TypedDict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


def openai_file(file: StoredFile) -> FileObject:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def openai_list(files: Sequence[StoredFile], query: Mapping[str, str]) -> FileList:
    """Returns the page that the query asks for. `files`: all of a key, oldest first. Raises `Fault`."""
    order, purpose, given = order_in(query), query.get("purpose"), query.get("limit")
    limit = integer_in("limit", given, 1, MAX_OPENAI_PAGE) if given else MAX_OPENAI_PAGE
    listed = list(files) if order == "asc" else list(files)[::-1]
    if after := query.get("after"):
        listed = listed[_place_of(after, listed, "after") + 1 :]
    if purpose:
        listed = [file for file in listed if file.purpose == purpose]
    page = listed[:limit]
    return {
        "object": "list",
        "data": [openai_file(file) for file in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": len(listed) > limit,
    }


# --- Anthropic's form -----------------------------------------------------------------------------


class AnthropicScope(TypedDict):
    id: str
    type: Literal["session"]


class AnthropicFile(TypedDict):
    id: str
    type: Literal["file"]
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None
    downloadable: bool
    scope: AnthropicScope | None


class AnthropicFileList(TypedDict):
    """A page. `next_page` is for newer clients, `first_id` and `last_id` for older ones."""

    data: list[AnthropicFile]
    has_more: bool
    first_id: str | None
    last_id: str | None
    next_page: str | None


class AnthropicFileDeleted(TypedDict):
    id: str
    type: Literal["file_deleted"]


def anthropic_id(id: str) -> str:
    return id.replace("-", "_", 1)


def anthropic_file(file: StoredFile) -> AnthropicFile:
    return {
        "id": anthropic_id(file.id),
        "type": "file",
        "filename": file.name,
        "mime_type": file.media_type,
        "size_bytes": file.size,
        "created_at": _time(file.created_at),
        "expires_at": None if file.expires_at is None else _time(file.expires_at),
        "downloadable": True,
        "scope": {"id": file.session, "type": "session"} if file.session else None,
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class AnthropicQuery(NamedTuple):
    """What a list is asked for."""

    limit: str = ""
    page: str = ""
    after_id: str = ""
    before_id: str = ""
    ids: tuple[str, ...] = ()


def anthropic_list(files: Sequence[StoredFile], query: AnthropicQuery) -> AnthropicFileList:
    """Returns the page that the query asks for, newest files first. `files`: all of a key, or of a session,
    oldest first. Raises `Fault`.
    """
    listed: Sequence[StoredFile] = list(files)[::-1]
    if query.ids:
        if query.page or query.limit:
            raise bad_request("'ids' cannot be combined with 'page' or 'limit'.", "ids")
        if len(set(query.ids)) > MAX_IDS:
            raise bad_request(f"'ids' may have at most {MAX_IDS} entries.", "ids")
        wanted = set(map(stored_id, query.ids))
        return _anthropic_page([file for file in listed if file.id in wanted], has_more=False)
    limit = DEFAULT_ANTHROPIC_PAGE
    if query.limit:
        limit = integer_in("limit", query.limit, 1, MAX_ANTHROPIC_PAGE)
    if query.page:
        listed = _behind(query.page, listed)
    if query.before_id:
        end = _place_of(query.before_id, listed, "before_id")
        return _anthropic_page(listed[max(0, end - limit) : end], has_more=end > limit)
    if query.after_id and not query.page:
        listed = listed[_place_of(query.after_id, listed, "after_id") + 1 :]
    return _anthropic_page(listed[:limit], has_more=len(listed) > limit)


def _anthropic_page(page: Sequence[StoredFile], *, has_more: bool) -> AnthropicFileList:
    ids = [anthropic_id(file.id) for file in page]
    return {
        "data": [anthropic_file(file) for file in page],
        "has_more": has_more,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "next_page": f"page_{page[-1].created_at}_{ids[-1]}" if has_more and ids else None,
    }


def _behind(page: str, listed: Sequence[StoredFile]) -> Sequence[StoredFile]:
    """Returns the files behind a cursor, by time where its file is gone: whoever pages may delete what it has seen."""
    cursor = _PAGE.fullmatch(page)
    if cursor is None:
        raise invalid_value("page", "send the 'next_page' of the page before")
    created, id = int(cursor[1]), stored_id(cursor[2])
    for place, file in enumerate(listed):
        if file.id == id:
            return listed[place + 1 :]
    return [file for file in listed if file.created_at <= created]


def _place_of(given: str, listed: Sequence[StoredFile], param: str) -> int:
    id = stored_id(given)
    for place, file in enumerate(listed):
        if file.id == id:
            return place
    raise bad_request(f"No file with id '{excerpt(given)}' in this list.", param, "invalid_value")
