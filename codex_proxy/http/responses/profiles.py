"""The two sets of events that a stream of responses can have, where frames are made outside of a renderer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codex_proxy.http.responses.service import Profile
from codex_proxy.surfaces.responses.events import ResponseEvents
from codex_proxy.surfaces.responses.profile import OpenResponsesEvents, OpenResponsesRenderer
from codex_proxy.surfaces.responses.render import ResponsesRenderer


def renderer_of_profile(profile: Profile) -> Callable[..., ResponsesRenderer]:
    return OpenResponsesRenderer if profile == "open-responses-server" else ResponsesRenderer


def events_of_profile(profile: Profile, response: dict[str, Any]) -> ResponseEvents | OpenResponsesEvents:
    """Events that are numbered from 0; `response` is the object as it is now."""
    return OpenResponsesEvents(lambda: response) if profile == "open-responses-server" else ResponseEvents()


def end_of_profile(profile: Profile) -> bytes:
    """What closes a stream."""
    return OpenResponsesEvents.end if profile == "open-responses-server" else ResponseEvents.end
