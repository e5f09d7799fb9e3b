"""The endpoints of the files of turns, beside those of the Agents API."""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.http.endpoint import TEXT_SCHEMA, AnswerType, Endpoint, Handler, Parameter
from codex_proxy.http.file_bytes import BYTES, OF_RANGES, RANGE
from codex_proxy.parts.sessions.endpoints import BETA, PAGE
from codex_proxy.parts.snapshots import artifacts, handlers, worktree_handlers
from codex_proxy.parts.snapshots.wire import (
    KeptTurn,
    MergeBody,
    RevertBody,
    SessionMerged,
    SessionWorktree,
    TurnChanges,
    TurnReverted,
)
from codex_proxy.surfaces.answers.renderer import ItemList

_TURN: Final = "/agents/sessions/{id}/turns/{turn_id}"
_ARTIFACT: Final = "/agents/sessions/{id}/artifacts/{artifact_id}"
_IDS: Final = {
    "id": "The id of the session.",
    "turn_id": "The id of a turn.",
    "artifact_id": "The id of an artifact.",
}


def _endpoint(route: str, handler: Handler, answer: AnswerType, *, beta: str = BETA, **more: Any) -> Endpoint:
    return Endpoint(
        route,
        handler,
        answer,
        chapter="Agents",
        kind="stored",
        errors="agents",
        beta=beta,
        ids={name: text for name, text in _IDS.items() if f"{{{name}}}" in route},
        description="Details: docs/snapshots.md.",
        **more,
    )


_KEPT: Final = (
    *PAGE,
    Parameter("request_id", "query", TEXT_SCHEMA, "Only turns of this request, all of them at once."),
)

ENDPOINTS: Final = (
    _endpoint(f"GET {_TURN}/changes", handlers.retrieve_turn_changes, TurnChanges),
    _endpoint("GET /agents/sessions/{id}/patch", handlers.retrieve_session_patch, handlers.PATCH_TYPE),
    _endpoint(
        f"POST {_TURN}/revert", handlers.revert_turn, TurnReverted, body=RevertBody, body_required=False
    ),
    _endpoint(
        "GET /agents/sessions/{id}/worktree", worktree_handlers.retrieve_session_worktree, SessionWorktree
    ),
    _endpoint(
        "POST /agents/sessions/{id}/merge",
        worktree_handlers.merge_session,
        SessionMerged,
        body=MergeBody,
        body_required=False,
    ),
    _endpoint("GET /turns", handlers.list_kept_turns, ItemList[KeptTurn], beta="", parameters=_KEPT),
    _endpoint("GET /turns/{turn_id}/changes", handlers.retrieve_kept_turn_changes, TurnChanges, beta=""),
    _endpoint(
        "POST /turns/{turn_id}/revert",
        handlers.revert_kept_turn,
        TurnReverted,
        beta="",
        body=RevertBody,
        body_required=False,
    ),
    _endpoint(f"GET {_ARTIFACT}", artifacts.retrieve_artifact, artifacts.SessionArtifact),
    _endpoint(
        f"GET {_ARTIFACT}/content",
        artifacts.retrieve_artifact_content,
        BYTES,
        parameters=(RANGE,),
        more_answers=OF_RANGES,
    ),
)
