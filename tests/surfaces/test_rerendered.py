"""The guard of rendering anew finds a renderer whose stream could not be continued."""

from __future__ import annotations

import itertools

import pytest

from codex_proxy.core.events import Event, ItemStarted, TurnEnded
from codex_proxy.surfaces.answers.renderer import raw_text
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from tests.rerendered import all_rendered_anew
from tests.surfaces.chat.turns import text_item, turn
from tests.surfaces.responses.answering import CREATED, ECHO, ID, CountedIds, Stopped

CHANGING = itertools.count()


class WithRandomIds(ResponsesRenderer):
    def _on_item_started(self, event: ItemStarted) -> None:
        super()._on_item_started(event)
        self._items[event.item.id].id = raw_text(f"msg_{next(CHANGING)}")


class WithAClock(ResponsesRenderer):
    def _begin(self, *, visible: bool = True) -> None:
        self._clock.epoch()
        super()._begin(visible=visible)


class WithBatches(ResponsesRenderer):
    def pieces(self, events: list[Event]) -> list[bytes]:  # type: ignore[override]
        for _ in range(len(events) > 1):
            self._ids.new("")
        return super().pieces(events)


def render(kind: type[ResponsesRenderer]) -> None:
    answer = kind(id=ID, created_at=CREATED, echo=ECHO, ids=CountedIds(), clock=Stopped())
    for event in turn(text_item("x"))[:-1]:
        answer.pieces([event])
    answer.pieces([TurnEnded("stop") if kind is not WithAClock else TurnEnded("interrupted")])


@pytest.mark.parametrize("kind", [WithRandomIds, WithAClock, WithBatches])
def test_a_stream_that_is_another_one_when_it_is_rendered_anew_is_found(
    kind: type[ResponsesRenderer],
) -> None:
    with pytest.raises(AssertionError), all_rendered_anew():
        render(kind)


def test_a_stream_that_is_the_same_is_not() -> None:
    with all_rendered_anew():
        render(ResponsesRenderer)
