"""Chooses the renderer and the events of the profile that the operator has set (`PROXY_RESPONSES_PROFILE`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from codex_proxy.core.faults import Failure
from codex_proxy.responses.frame_buffer import Frames
from codex_proxy.surfaces.responses.events import ResponseEvents
from codex_proxy.surfaces.responses.objects import failed
from codex_proxy.surfaces.responses.profile import OpenResponsesEvents, OpenResponsesRenderer
from codex_proxy.surfaces.responses.render import ResponsesRenderer

Profile: TypeAlias = Literal["openai", "open-responses-server"]
"""Whose events a stream has."""


def renderer_of_profile(profile: Profile) -> Callable[..., ResponsesRenderer]:
    return OpenResponsesRenderer if profile == "open-responses-server" else ResponsesRenderer


def events_of_profile(profile: Profile, response: dict[str, Any]) -> ResponseEvents | OpenResponsesEvents:
    """Events that are numbered from 0; `response` is the object as it is now."""
    return OpenResponsesEvents(lambda: response) if profile == "open-responses-server" else ResponseEvents()


def end_of_profile(profile: Profile) -> bytes:
    """What closes a stream."""
    return OpenResponsesEvents.end if profile == "open-responses-server" else ResponseEvents.end


def failed_end(
    profile: Profile, final: dict[str, Any], frames: Frames, failure: Failure
) -> tuple[dict[str, Any], Frames]:
    """The response object and the last frames of a response that could not be saved. Made of those that were rendered
    for its end: only the last frame differs."""
    final = failed({**final, "completed_at": None, "incomplete_details": None}, failure)
    if not frames:
        return final, []
    events = events_of_profile(profile, final)
    first = events.number = frames[-1][0]
    events.fail(failure)
    events.finish(final)
    return final, [*frames[:-1], *enumerate(events.take(), first)]
