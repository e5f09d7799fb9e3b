"""The streamed answer, put together by a client, is the whole answer: for every turn there can be."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ollama import ChatResponse, GenerateResponse

from codex_proxy.core.events import Event
from tests.surfaces.batches import feed_in_batches
from tests.surfaces.chat.strategies import TURNS
from tests.surfaces.ollama.asking import fold, lines, renderer, stream_events, whole

OPTIONS = st.fixed_dictionaries(
    {
        "form": st.sampled_from(["chat", "generate"]),
        "thinking": st.booleans(),
        "show_activity": st.booleans(),
        "client_names": st.sampled_from([{}, {"get_weather": "get.weather"}]),
    }
)


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_a_stream_put_together_by_a_client_is_the_whole_answer(
    events: list[Event], options: dict[str, Any]
) -> None:
    assert fold(stream_events(events, **options)) == whole(events, **options)


@settings(deadline=None)
@given(TURNS, OPTIONS, st.lists(st.integers(0, 30)))
def test_it_does_not_matter_how_the_events_are_cut_into_batches(
    events: list[Event], options: dict[str, Any], cuts: list[int]
) -> None:
    answer = renderer(stream=True, **options)
    cut = fold(lines(feed_in_batches(answer.feed, events, cuts)))
    assert cut == fold(stream_events(events, **options))
    assert json.loads(answer.result()) == cut


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_every_line_is_one_that_the_package_for_python_reads(
    events: list[Event], options: dict[str, Any]
) -> None:
    kind = ChatResponse if options["form"] == "chat" else GenerateResponse
    for line in stream_events(events, **options):
        kind(**line)
    kind(**whole(events, **options))
