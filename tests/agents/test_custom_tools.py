"""The input of a custom tool, read from the arguments of the function that represents it, wherever they are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.shared.conversions import MAX_OPENING, CustomInput, custom_input
from tests.cpu_time import assert_cpu_time_below

CUTS = st.lists(st.integers(0, 80), max_size=8)
SPACES = st.text(" \t\n\r", max_size=2)
TEXTS = st.text(
    st.sampled_from('ab"\\/u\n\t\u2028é😀') | st.characters(exclude_categories=["Cs"]), max_size=30
)
NEARLY = st.lists(
    st.sampled_from(
        ["{", '"input"', ":", '"', " ", "\\", "u", "\\u00e9", "\\ud83d", "\\ude00", "\n", "}", "a", "input"]
    ),
    max_size=20,
).map("".join)
"""Texts that are nearly arguments."""


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def read(pieces: list[str]) -> str:
    reader = CustomInput()
    said = [reader.feed(piece) for piece in pieces]
    return "".join(said) + reader.close()


def every_escape(text: str) -> str:
    """A JSON string of nothing but escapes, in capital letters: pairs of surrogates where there are such characters."""
    units = text.encode("utf-16-be").hex()
    escaped = [f"\\u{units[at : at + 4].upper()}" for at in range(0, len(units), 4)]
    return f'"{"".join(escaped)}"'


@given(
    TEXTS,
    SPACES,
    CUTS,
    st.sampled_from([json.dumps, lambda text: json.dumps(text, ensure_ascii=False), every_escape]),
)
def test_the_input_is_what_json_says_wherever_its_arguments_are_cut(
    text: str, space: str, cuts: list[int], form: Any
) -> None:
    arguments = f'{space}{{{space}"input"{space}:{space}{form(text)}{space}}}{space}'
    assert read(pieces_of(arguments, cuts)) == text
    assert read(list(arguments)) == text


@given(NEARLY | TEXTS, CUTS)
def test_any_text_means_the_same_in_pieces_and_whole(text: str, cuts: list[int]) -> None:
    assert read(pieces_of(text, cuts)) == read(list(text)) == custom_input(text)


def test_every_piece_of_the_input_is_reported_as_soon_as_it_is_known() -> None:
    reader = CustomInput()
    pieces = ['{"in', 'put": "', "+a", "b\\", "n", "\\u00", "e9", "\\ud83d", "\\ude00", "+", '"', "}"]
    said = [reader.feed(piece) for piece in pieces]
    assert said == ["", "", "+a", "b", "\n", "", "é", "", "😀", "+", "", ""]
    assert reader.close() == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"note":1,"input":"x\ny"}', "x\ny"),
        ('{"input":"x","note":"y"}', "x"),
        ("*** Begin Patch\n", "*** Begin Patch\n"),
        ('{"input":5}', '{"input":5}'),
        ('{"patch":"x"}', '{"patch":"x"}'),
        ('["input"]', '["input"]'),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
        ('{"input":"one\ntwo"}', "one\ntwo"),
        ('{"input":"C:\\Program"}', "C:\\Program"),
        ('{"input":"cut o', "cut o"),
        ('{"input":"cut \\u00', "cut "),
        ('{"input":"half \\ud83d!"}', "half \ud83d!"),
        (" " * MAX_OPENING + '{"input":"x"}', "x"),
    ],
)  # fmt: skip
def test_what_is_not_the_usual_form_is_read_as_far_as_it_can_be(arguments: str, said: str) -> None:
    assert read([arguments]) == read(list(arguments)) == said


def test_arguments_that_never_begin_take_no_time() -> None:
    assert_cpu_time_below(1.0, lambda: read([" "] * 200_000))
