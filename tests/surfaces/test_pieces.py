"""Runs of a message's pieces: nothing is lost, changed or moved by taking them together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.events import Event, TextDelta
from codex_proxy.surfaces.answers.renderer import TextRun, json_lines, json_text, merge_text_deltas
from tests.core.strategies import EVENT_LISTS

ANY_TEXT = st.text(st.characters(codec=None) | st.sampled_from('\n\r\u2028"\\\ud83d\ude00'))


def apart(events: list[Event | TextRun]) -> list[Event]:
    """The deltas that runs of text were made of."""
    out: list[Event] = []
    for event in events:
        out += [TextDelta(event.id, t) for t in event.texts] if isinstance(event, TextRun) else [event]
    return out


@given(EVENT_LISTS)
def test_pieces_are_the_deltas_that_they_were_in_their_places(events: list[Event]) -> None:
    assert apart(merge_text_deltas(events)) == events


@given(EVENT_LISTS)
def test_no_run_is_cut_in_two(events: list[Event]) -> None:
    together = merge_text_deltas(events)
    assert not any(isinstance(event, TextDelta) for event in together)
    ids = [event.id if isinstance(event, TextRun) else None for event in together]
    assert all(a is None or a != b for a, b in pairwise(ids))


@given(st.lists(ANY_TEXT, min_size=1))
def test_texts_encoded_together_are_those_encoded_one_by_one(texts: list[str]) -> None:
    assert json_lines(texts).split(b"\n") == [json_text(text) for text in texts]
