"""Arbitrary well-formed turns, with every way to end and with the model's raw items."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from codex_proxy.core.events import Event, RawItem, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.repair import TurnRepair
from tests.surfaces.chat import strategies as chat

RAW = st.builds(
    lambda id, text: RawItem(
        "reasoning", json.dumps({"type": "reasoning", "id": id, "encrypted_content": text}).encode()
    ),
    chat.IDS,
    st.none() | st.just("gAAAA"),
)
FAILURES = st.builds(
    lambda kind, code: Failure(kind=kind, message="It went wrong.", code=code, param="input"),
    st.sampled_from(FaultKind),
    st.sampled_from([None, "invalid_prompt", "a_code_of_tomorrow"]),
)
ENDS = st.builds(
    TurnEnded,
    st.sampled_from(["stop", "length", "tool_calls", "content_filter", "interrupted", "of_tomorrow"]),
) | st.builds(TurnEnded, st.just("failed"), failure=FAILURES)


def _repair(events: list[Event], end: TurnEnded) -> list[Event]:
    return TurnRepair().feed([*events, end])


TURNS = st.builds(_repair, st.lists(chat.EVENTS | RAW, max_size=25), ENDS)
