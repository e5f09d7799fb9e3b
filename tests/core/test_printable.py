"""Text of others, made safe to show."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.shown_text import escape, escape_json, escape_lines, without_controls

TEXTS = st.text(
    st.characters() | st.sampled_from("\x00\x07\x1b\x7f\x85\x9b\u2028\u2029\u202e\u200f\udcff\n\r\t")
)
"""Any text, half-broken ones too, with much of what does harm."""

HARMFUL = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@given(TEXTS)
def test_one_line_holds_only_what_is_printable(text: str) -> None:
    assert escape(text).isprintable()


@given(TEXTS)
def test_lines_hold_nothing_but_ends_of_lines_tabs_spaces_and_joiners_beside_it(text: str) -> None:
    for shown in (escape_lines(text), without_controls(text)):
        rest = set(shown) - set("\n\t\u200c\u200d")
        assert not [char for char in rest if unicodedata.category(char) in HARMFUL]


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8))
def test_json_means_the_same(value: object) -> None:
    for plain in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2)):
        shown = escape_json(plain)
        assert json.loads(shown) == json.loads(plain)
        assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\u202eb\u2028c\x85", "a\\u202eb\\u2028c\\x85"),
        ("\U000e0001", "\\U000e0001"),
        ("grüße 世界", "grüße 世界"),
    ],
)
def test_escaped_characters_are_visible_and_the_rest_stays(text: str, shown: str) -> None:
    assert escape(text) == escape_lines(text) == shown


def test_a_person_s_text_keeps_its_lines_its_wide_spaces_and_its_joined_emoji() -> None:
    text = "a\u00a0b\u3000c\n\t👩\u200d🔬 می\u200cخواهم"
    assert escape_lines(text) == without_controls(text) == text
