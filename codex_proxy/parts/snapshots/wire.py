"""The objects of the endpoints of turns' files. Source: docs/snapshots.md."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from pydantic import Field

from codex_proxy.surfaces.requests.body import RequestModel


class PathChange(TypedDict):
    """What a turn has done to a path."""

    path: str
    kind: Literal["added", "modified", "deleted", "mode", "link"]
    mode_before: str | None
    mode_after: str | None
    size_before: int | None
    size_after: int | None
    binary: bool
    additions: int
    deletions: int
    diff: str | None


class TurnChanges(TypedDict):
    """`session_id` is null for a turn outside of sessions."""

    object: Literal["turn.changes"]
    session_id: str | None
    turn_id: str
    before: str | None
    after: str | None
    state: Literal["kept", "running", "off", "failed"]
    reason: str | None
    others_wrote: bool
    newly_ignored: list[str]
    left_out: list[str]
    truncated: bool
    data: list[PathChange]


class TurnReverted(TypedDict):
    object: Literal["turn.reverted"]
    session_id: str | None
    turn_id: str
    paths: list[str]
    truncated: bool
    kept: str | None


class KeptTurn(TypedDict):
    """A turn outside of sessions whose files were to be kept."""

    id: str
    object: Literal["turn"]
    request_id: str
    folder: str
    created_at: int
    state: Literal["kept", "running", "failed"]
    reason: str | None


class RevertBody(RequestModel, extra="allow"):
    """The body of the endpoints that take a turn back."""

    force: bool = False


class SessionWorktree(TypedDict):
    """The folder of its own in which a session works."""

    object: Literal["session.worktree"]
    session_id: str
    folder: str
    source: str
    repository: bool
    left_out: list[str]
    truncated: bool


class SessionMerged(TypedDict):
    object: Literal["session.merged"]
    session_id: str
    source: str
    paths: list[str]
    branch: str | None
    commit: str | None
    kept: str | None
    left_out: list[str]
    truncated: bool


class MergeBody(RequestModel, extra="allow"):
    """The body of `POST /v1/agents/sessions/{id}/merge`."""

    branch: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    message: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
