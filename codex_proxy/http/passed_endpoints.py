"""The endpoints that are sent on, for `http/endpoints.py`."""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.core.passing import PASSED_PATHS
from codex_proxy.http.completions import completions
from codex_proxy.http.endpoint import Endpoint
from codex_proxy.http.pass_through import pass_through

_WITH_FILES: Final = ("/audio/transcriptions", "/audio/translations", "/images/edits", "/images/variations")

PASSED_ENDPOINTS: Final = tuple(
    Endpoint(
        f"POST {path}",
        completions if path == "/completions" else pass_through,
        Any,
        operation_id="pass_" + path[1:].replace("/", "_"),
        chapter="Model servers",
        kind="turn",
        takes_form=path in _WITH_FILES,
        description="" if path == "/completions" else "Only `model` is changed. Details: docs/upstreams.md.",
        body="PassedBody",
    )
    for path in PASSED_PATHS
)
