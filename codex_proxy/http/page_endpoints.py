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
    id = f"ui_{name.replace('.', '_')}"
    return _endpoint(f"GET /ui/{name}", ui_file, FILES[name], operation_id=id, kind="open")


def _read(path: str, handler: Handler, *parameters: Parameter) -> Endpoint:
    return _endpoint(f"GET /ui/api/{path}", handler, dict[str, Any], kind="read", parameters=parameters)


PAGE_ENDPOINTS: Final = (
    *(_file(name) for name in FILES if name != "index.html"),
    _read("state", ui_state),
    _read("turns", ui_turns),
    _read("turns/{id}", ui_turn, _TURN),
    _endpoint(
        "GET /ui/api/turns/{id}/cassette",
        ui_cassette,
        "application/x-ndjson",
        kind="read",
        parameters=(_TURN,),
    ),
    _read("live", ui_live),
    _read("stored", ui_stored, _SEARCH, _AFTER),
    _read("stored/{id}/tree", ui_tree, _RESPONSE),
    _read(
        "conversations",
        ui_conversations,
        Parameter("search", "query", TEXT, "A text that the id or the metadata have, in any case."),
        _AFTER,
    ),
    _read("connect", ui_connect),
    _endpoint(
        "POST /ui/api/turns/{id}/cancel",
        ui_cancel,
        dict[str, Any],
        kind="read",
        counted=False,
        parameters=(_TURN,),
    ),
)
