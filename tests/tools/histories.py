"""Arbitrary histories with few ids and few words, so that they meet each other often."""

from __future__ import annotations

from hypothesis import strategies as st

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    RawHistoryItem,
    TextPart,
)

WORDS = st.sampled_from(["", "x", "y", "x\n\ny"])
CALL_IDS = st.sampled_from(["a", "b", "c"])
TEXTS = st.builds(TextPart, WORDS)
PARTS = st.lists(TEXTS | st.builds(ImagePart, st.just("data:,"), st.sampled_from([None, "high"])), max_size=2)
RAW = st.sampled_from(
    [RawHistoryItem(b'{"type":"reasoning","id":"r1"}'), RawHistoryItem(b'{"type":"reasoning","id":"r2"}')]
)
ASSISTANT = st.builds(HistoryMessage, st.just("assistant"), st.lists(TEXTS, max_size=2).map(tuple))
USER_MESSAGES = st.builds(HistoryMessage, st.sampled_from(["user", "developer"]), PARTS.map(tuple))
CALLS = st.builds(HistoryCall, CALL_IDS, st.sampled_from(["f", "g"]), st.sampled_from(["{}", '{"a":1}']))
OUTPUTS = st.builds(HistoryOutput, CALL_IDS, PARTS.map(tuple))

ITEMS: st.SearchStrategy[HistoryItem] = USER_MESSAGES | ASSISTANT | CALLS | OUTPUTS | RAW
HISTORIES = st.lists(ITEMS, max_size=12)
