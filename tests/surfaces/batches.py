"""Feeds a renderer with events in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from codex_proxy.core.events import Event


def feed_in_batches(feed: Callable[[list[Event]], bytes], events: list[Event], cuts: Sequence[int]) -> bytes:
    """What a renderer's `feed` returns for events that are cut into batches at these indexes."""
    borders = [0, *sorted(cuts), len(events)]
    return b"".join(feed(events[start:end]) for start, end in pairwise(borders))
