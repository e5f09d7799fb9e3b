"""The endpoints of files, each in the form of the API whose client asks (`is_anthropic_client`)."""

from __future__ import annotations

from functools import partial
from typing import Final

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.http.body import name_ignored
from codex_proxy.http.endpoint import (
    TEXT_SCHEMA,
    Endpoint,
    Parameter,
    Schema,
    is_anthropic_client,
    json_response,
    one_of,
)
from codex_proxy.http.file_bytes import BYTES, OF_RANGES, RANGE, send_bytes
from codex_proxy.http.middleware.request_context import OWNER
from codex_proxy.parts.files import objects
from codex_proxy.parts.files.objects import StoredFile
from codex_proxy.parts.files.service import Files
from codex_proxy.parts.files.upload import Form, check_form, receive_form
from codex_proxy.surfaces.requests.body import RequestModel, integer_in, missing_parameter, unsupported_value
from codex_proxy.surfaces.requests.fields import FIELD_NAME

FILES: Final = web.AppKey("stored_files", Files)
"""Not set if the server has no store."""

STORE_OFF: Final = Failure(
    FaultKind.INVALID_REQUEST,
    "This server keeps no files (PROXY_STORE=off).",
    code="store_disabled",
)
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
_ANCHOR, _SECONDS, _EXPIRES_IN = "expires_after[anchor]", "expires_after[seconds]", "expires_in_seconds"


class FileUpload(RequestModel):
    """A form, with the bytes of the file in `file`."""

    file: str
    purpose: str | None = None
    expires_in_seconds: int | None = None


def _files(request: web.Request) -> tuple[Files, str]:
    files = request.app.get(FILES)
    if files is None:
        raise Fault(STORE_OFF)
    return files, request[OWNER]


async def create_file(request: web.Request) -> web.Response:
    """Uploads a file: the fields of a form.

    Raises `Fault` for a form that cannot be read or is too large, and above the quota of the key.
    """
    files, owner = _files(request)
    of_anthropic = is_anthropic_client(request)
    check_form(request, files)
    async with files.receive(owner) as receiving:
        form = await receive_form(request, receiving)
        purpose, lifetime = _anthropic_fields(form) if of_anthropic else _openai_fields(form)
        file = await receiving.finish(
            name=form.name, media_type=form.media_type, purpose=purpose, lifetime=lifetime
        )
    paths = (name.replace("[", ".").replace("]", "") for name in form.fields)
    name_ignored(request, filter(FIELD_NAME.fullmatch, paths))
    return _answer(file, of_anthropic=of_anthropic)


def _openai_fields(form: Form) -> tuple[str, int | None]:
    """Takes the fields that OpenAI's API has, and returns purpose and lifetime."""
    purpose, anchor = form.fields.pop("purpose", ""), form.fields.pop(_ANCHOR, None)
    seconds = form.fields.pop(_SECONDS, None)
    if not purpose:
        raise missing_parameter("purpose")
    if purpose not in objects.PURPOSES:
        raise unsupported_value("purpose", purpose, ", ".join(f"'{each}'" for each in objects.PURPOSES))
    if anchor is None and seconds is None:
        return purpose, None
    if anchor != "created_at":
        raise unsupported_value("expires_after.anchor", anchor or "", "'created_at'")
    return purpose, integer_in("expires_after.seconds", seconds or "", _HOUR, 30 * _DAY)


def _anthropic_fields(form: Form) -> tuple[str, int | None]:
    seconds = form.fields.pop(_EXPIRES_IN, None)
    return "user_data", None if seconds is None else integer_in(_EXPIRES_IN, seconds, _HOUR, 90 * _DAY)


def _answer(file: StoredFile, *, of_anthropic: bool) -> web.Response:
    return json_response(objects.anthropic_file(file) if of_anthropic else objects.openai_file(file))


async def list_files(request: web.Request) -> web.Response:
    """Lists the files of the key, or those that a session's agent has made."""
    (files, owner), query = _files(request), request.query
    if not is_anthropic_client(request):
        return json_response(objects.openai_list(await files.all_of(owner), query))
    scope = query.get("scope_id")
    found = await (files.of_session(owner, scope) if scope else files.all_of(owner))
    given = {name: query.get(name, "") for name in ("limit", "page", "after_id", "before_id")}
    ids = (*query.getall("ids", []), *query.getall("ids[]", []))
    return json_response(objects.anthropic_list(found, objects.AnthropicQuery(**given, ids=ids)))


async def retrieve_file(request: web.Request) -> web.Response:
    """Returns what is known of a file beside its bytes."""
    files, owner = _files(request)
    file = await files.find(owner, request.match_info["id"])
    return _answer(file, of_anthropic=is_anthropic_client(request))


async def delete_file(request: web.Request) -> web.Response:
    """Deletes a file. Requests that have named it keep its content."""
    files, owner = _files(request)
    file = await files.delete(owner, request.match_info["id"])
    if is_anthropic_client(request):
        gone: objects.AnthropicFileDeleted = {"id": objects.anthropic_id(file.id), "type": "file_deleted"}
        return json_response(gone)
    deleted: objects.FileDeleted = {"id": file.id, "object": "file", "deleted": True}
    return json_response(deleted)


async def retrieve_file_content(request: web.Request) -> web.StreamResponse:
    """Returns the bytes of a file, or a range of them.

    Breaks the connection off if they end too early.
    """
    files, owner = _files(request)
    file = await files.find(owner, request.match_info["id"])
    return await send_bytes(request, file.name, file.size, partial(files.read, owner, file))


# --- the table ------------------------------------------------------------------------------------


def _query(name: str, description: str, schema: Schema = TEXT_SCHEMA) -> Parameter:
    return Parameter(name, "query", schema, description)


_endpoint: Final = partial(
    Endpoint, chapter="Files", kind="stored", also_anthropic=True, ids={"id": "Id of a file, in either form."}
)
_LISTED: Final = (
    _query(
        "limit",
        f"Maximum files on a page: 1 to {objects.MAX_OPENAI_PAGE} (the default); in Anthropic's form 1 to "
        f"{objects.MAX_ANTHROPIC_PAGE}, by default {objects.DEFAULT_ANTHROPIC_PAGE}.",
        {"type": "integer", "minimum": 1, "maximum": objects.MAX_OPENAI_PAGE},
    ),
    _query("order", "`desc` (default): newest first. `asc`: oldest first.", one_of("asc", "desc")),
    _query("after", "Id of the last file on the page before."),
    _query("purpose", "Only files with this purpose."),
    _query("page", "Anthropic's form: `next_page` of the page before."),
    _query("after_id", "Anthropic's form: id of the file before the page."),
    _query("before_id", "Anthropic's form: id of the file after the page."),
    _query("scope_id", "Anthropic's form: only files that the agent of this session has made."),
    _query("ids", "Anthropic's form: only these files, up to 100.", {"type": "array", "items": TEXT_SCHEMA}),
)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    _endpoint(
        "POST /files",
        create_file,
        (objects.FileObject, objects.AnthropicFile),
        takes_form=True,
        body=FileUpload,
        description="Details: docs/files.md.",
    ),
    _endpoint("GET /files", list_files, (objects.FileList, objects.AnthropicFileList), parameters=_LISTED),
    _endpoint("GET /files/{id}", retrieve_file, (objects.FileObject, objects.AnthropicFile)),
    _endpoint("DELETE /files/{id}", delete_file, (objects.FileDeleted, objects.AnthropicFileDeleted)),
    _endpoint(
        "GET /files/{id}/content",
        retrieve_file_content,
        BYTES,
        parameters=(RANGE,),
        more_answers=OF_RANGES,
    ),
)
