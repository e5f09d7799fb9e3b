"""The endpoints of the files of turns, beside those of the Agents API."""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.http.endpoint import AnswerType, Endpoint, Handler
from codex_proxy.parts.sessions.endpoints import BETA
from codex_proxy.parts.snapshots import artifacts, handlers, worktree_handlers
from codex_proxy.parts.snapshots.wire import (
    MergeBody,
    RevertBody,
    SessionMerged,
    SessionWorktree,
    TurnChanges,
    TurnReverted,
)

_TURN: Final = "/agents/sessions/{id}/turns/{turn_id}"
_ARTIFACT: Final = "/agents/sessions/{id}/artifacts/{artifact_id}"
_IDS: Final = {
    "id": "The id of the session.",
    "turn_id": "The id of a turn.",
    "artifact_id": "The id of an artifact.",
}


def _endpoint(route: str, handler: Handler, answer: AnswerType, **more: Any) -> Endpoint:
    return Endpoint(
        route,
        handler,
        answer,
        chapter="Agents",
        kind="stored",
        errors="agents",
        beta=BETA,
        ids={name: text for name, text in _IDS.items() if f"{{{name}}}" in route},
        description="Details: docs/snapshots.md.",
        **more,
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
    _endpoint(f"GET {_ARTIFACT}", artifacts.retrieve_artifact, artifacts.SessionArtifact),
    _endpoint(
        f"GET {_ARTIFACT}/content",
        artifacts.retrieve_artifact_content,
        artifacts.BYTES,
    ),
)
