"""Reads how the agent has ended its turn, from the result of `session/prompt`. Without IO."""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.agents.dialects.failures import BAD_ANSWER, stop_from_text
from codex_proxy.core.events import PERMISSION_DECLINED, Notice, Stop, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.parts.acp.failures import failure_of_session, failure_of_text
from codex_proxy.parts.acp.presets import AcpPreset
from codex_proxy.parts.acp.updates import INFO, UpdateReader, session_failure

STOPS: Final = {
    "end_turn": Stop.STOP,
    "max_tokens": Stop.LENGTH,
    "max_turn_requests": Stop.LENGTH,
    "refusal": Stop.CONTENT_FILTER,
    "cancelled": Stop.INTERRUPTED,
}
ENDED_WITHOUT_ANSWER: Final = Failure(
    FaultKind.UPSTREAM_ERROR, "The agent ended its turn without an answer or a reason. Try again."
)


def turn_end(
    result: dict[str, Any], reader: UpdateReader, preset: AcpPreset, *, rejected: bool
) -> TurnEnded | Failure:
    """Converts the result. `rejected`: a permission was rejected, so the turn has failed if the model has written
    nothing since.
    """
    failure = _failure_in(result, reader, preset, rejected=rejected)
    if failure is not None:
        return failure
    word = result.get("stopReason")
    if not (word and isinstance(word, str)):
        return BAD_ANSWER
    # A word of a later version says at least that the turn did not end as one that is complete.
    return TurnEnded(_cut_in(result) or STOPS.get(word, Stop.INTERRUPTED), "provider")


def _failure_in(
    result: dict[str, Any], reader: UpdateReader, preset: AcpPreset, *, rejected: bool
) -> Failure | None:
    reported = session_failure(result.get("_meta"))
    if reported is not None and reported.get("severity") == "error" and _cut_in(result) is None:
        return failure_of_session(reported, preset)
    held = reader.drop_held()
    # A failed turn ends like a good one: behind any other end such a text is the model's.
    is_told = bool(held) and result.get("usage") is None
    if is_told and not held.startswith(INFO) and result.get("stopReason") == "end_turn":
        return failure_of_text(held, preset)
    if is_told and held.startswith(INFO):
        reader.events.append(Notice("agent_info", held.removeprefix(INFO)[:200]))
    elif held:
        reader.held = held
    if result.get("stopReason") != "end_turn":
        return None
    if rejected and not (reader.spoke or reader.held) and _cut_in(result) is None:
        return PERMISSION_DECLINED  # the text before a request for permission announces something, and answers nothing
    if result.get("usage") is not None or reported is not None:
        return None
    untold = preset.errors_as_text and not rejected
    return ENDED_WITHOUT_ANSWER if untold or (preset.null_usage_fails and "usage" in result) else None


def _cut_in(result: dict[str, Any]) -> str | None:
    reported = session_failure(result.get("_meta"))
    return None if reported is None else stop_from_text(str(reported.get("title")))
