"""The endpoints of `http/page.py`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from codex_proxy.http.endpoint import TEXT, Endpoint, Handler, Parameter
from codex_proxy.http.page import (
    FILES,
    PAGE,
    ui_cancel,
    ui_cassette,
    ui_connect,
    ui_conversations,
    ui_file,
    ui_live,
    ui_state,
    ui_stored,
    ui_tree,
    ui_turn,
    ui_turns,
)

_TURN: Final = Parameter("id", "path", TEXT, "The number of the turn.")
_RESPONSE: Final = Parameter("id", "path", TEXT, "The id of a stored response.")
_SEARCH: Final = Parameter("search", "query", TEXT, "A text that the id or the response has, in any case.")
_AFTER: Final = Parameter("after", "query", TEXT, "Id of the last item on the previous page.")


_endpoint: Final = partial(Endpoint, chapter="The page", versioned=False, needs=PAGE)


def _file(name: str) -> Endpoint:
    return _endpoint(
        f"GET /ui/{name}",
        ui_file,
        operation_id=f"ui_{name.replace('.', '_')}",
        kind="open",
        summary="Returns a file of the page.",
        answers={"200": FILES[name]},
    )


def _read(path: str, handler: Handler, summary: str, *parameters: Parameter) -> Endpoint:
    return _endpoint(
        f"GET /ui/api/{path}",
        handler,
        kind="read",
        summary=summary,
        parameters=parameters,
        answers={"200": dict[str, Any]},
    )


PAGE_ENDPOINTS: Final = (
    *(_file(name) for name in FILES if name != "index.html"),
    _read("state", ui_state, "Returns the server, its agents, and what `doctor` would complain about."),
    _read("turns", ui_turns, "Returns the turns of the key: those that run, and the last ones."),
    _read(
        "turns/{id}",
        ui_turn,
        "Returns a turn with its events and their times, without their content.",
        _TURN,
    ),
    _endpoint(
        "GET /ui/api/turns/{id}/cassette",
        ui_cassette,
        kind="read",
        summary="Returns the recording of a turn, if the server records.",
        parameters=(_TURN,),
        answers={"200": "application/x-ndjson"},
    ),
    _read("live", ui_live, "Returns a stream of the turns that change."),
    _read("stored", ui_stored, "Returns the key's stored responses, newest first.", _SEARCH, _AFTER),
    _read(
        "stored/{id}/tree",
        ui_tree,
        "Returns the responses that continue each other around this one.",
        _RESPONSE,
    ),
    _read(
        "conversations",
        ui_conversations,
        "Returns the key's conversations, newest first.",
        Parameter("search", "query", TEXT, "A text that the id or the metadata have, in any case."),
        _AFTER,
    ),
    _read("connect", ui_connect, "Returns how each known client is configured for this server."),
    _endpoint(
        "POST /ui/api/turns/{id}/cancel",
        ui_cancel,
        kind="read",
        counted=False,
        summary="Ends a turn of the key with an error, which its client gets.",
        parameters=(_TURN,),
        answers={"200": dict[str, Any]},
    ),
)
