"""Tokens are estimated in one way, for a limit and for what is reported of it, and far from a limit at no cost."""

from __future__ import annotations

from itertools import pairwise, starmap

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from codex_proxy.core.events import ItemStarted, TextDelta
from codex_proxy.core.items import Message
from codex_proxy.core.limits import MaxTokens
from codex_proxy.core.tokens import _PIECE as PIECE
from codex_proxy.core.tokens import TokenLimit, estimate_all, estimate_tokens, piece_cost
from codex_proxy.core.tokens import pieces as pieces_of
from tests.cpu_time import cpu_seconds

TEXTS = st.one_of(st.text(max_size=80), st.text("aB1 \n_.-é語한", max_size=80))

MEASURED = {
    "The server takes the request, and looks at first whether the key is right. Then it hands the message on to "
    "the agent, which works on it step by step; sometimes that takes longer, since tools have to be called.": 46,
    "def _counted(text: str) -> int:\n    return sum(_cost(match.lastindex or 0, match[0]) for match in "
    "_PIECE.finditer(text))\n": 37,
    '{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}': 30,
    "Der Server nimmt die Anfrage entgegen und prüft zunächst, ob der Schlüssel gültig ist.": 18,
    "Сервер принимает запрос и сначала проверяет, действителен ли ключ.": 16,
    "服务器接收请求，首先检查密钥是否有效。": 12,
}
"""Texts, and their tokens by o200k_base."""


@pytest.mark.parametrize("text", MEASURED)
def test_an_estimate_is_near_what_the_tokenizer_counts(text: str) -> None:
    assert estimate_tokens(text) == pytest.approx(MEASURED[text], rel=0.2)


def test_no_text_has_no_tokens() -> None:
    assert (estimate_tokens(""), estimate_all([]), estimate_all(["one", "two three"])) == (0, 0, 3)


@given(TEXTS)
def test_a_text_has_no_more_tokens_than_characters(text: str) -> None:
    assert bool(text) <= estimate_tokens(text) <= len(text)


@given(st.one_of(st.text(st.characters(max_codepoint=127), max_size=80), st.text("aB1 \n_.-\t", max_size=80)))
def test_a_text_of_ascii_characters_has_the_pieces_that_it_has_among_others(text: str) -> None:
    assert list(pieces_of(text)) == [(match.lastindex, match[0]) for match in PIECE.finditer(text)]
    assert estimate_tokens(text) == sum(starmap(piece_cost, pieces_of(text)))


def test_a_long_text_is_estimated_by_its_ends() -> None:
    text = "one two three four. " * 50_000
    assert estimate_tokens(text) == pytest.approx(5 * 50_000, rel=0.01)


def test_many_texts_are_estimated_by_the_first_of_them() -> None:
    text = "one two three four. " * 50
    assert estimate_all([text] * 1_000) == pytest.approx(1_000 * estimate_tokens(text), rel=0.01)
    times = []
    for number in (200, 20_000):
        began = cpu_seconds()
        estimate_all([text] * number)
        times.append(cpu_seconds() - began)
    assert times[1] < 10 * times[0]


def pieces(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


def text_within_limit(text: str, tokens: int, cuts: list[int]) -> str:
    """What a limit lets through of a text that comes in pieces."""
    limit = TokenLimit(tokens)
    out = ""
    for piece in pieces(text, cuts):
        room = limit.take_delta(piece)
        if room is not None:
            return out + piece[:room]
        out += piece
    return out


@given(TEXTS, st.integers(1, 40), st.lists(st.integers(0, 80), max_size=8))
def test_text_that_fits_has_no_more_tokens_than_allowed_and_text_that_is_cut_would_have_had(
    text: str, tokens: int, cuts: list[int]
) -> None:
    said = text_within_limit(text, tokens, cuts)
    assert text.startswith(said)
    assert estimate_tokens(said) <= tokens
    assert (said == text) is (estimate_tokens(text) <= tokens)


@given(st.text("ab1. \n", max_size=80), st.integers(1, 40), st.lists(st.integers(0, 80), max_size=8))
def test_it_does_not_matter_how_a_text_is_cut_into_pieces_but_for_its_last_word(
    text: str, tokens: int, cuts: list[int]
) -> None:
    whole, said = text_within_limit(text, tokens, []), text_within_limit(text, tokens, cuts)
    assert abs(len(whole) - len(said)) <= max(map(len, text.replace("\n", " ").split(" ")), default=0) + 8


def test_a_cut_answer_counts_just_what_the_limit_says() -> None:
    text = " ".join(f"word number {n}," for n in range(300))
    for tokens in (1, 7, 100, 500):
        events, hit = MaxTokens(tokens).feed([ItemStarted(Message("m")), TextDelta("m", text)])
        said = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert (hit, estimate_tokens(said)) == ("length", tokens)


def test_a_word_without_end_is_not_read_anew_with_every_piece() -> None:
    limit = TokenLimit(1000)
    given = 0
    while (room := limit.take_delta("a" * 10)) is None:
        given += 10
    assert 0 <= room <= 10
    assert estimate_tokens("a" * given) == pytest.approx(1000, rel=0.02)


LONG = st.builds(
    lambda parts: "".join(text * times for text, times in parts),
    st.lists(
        st.tuples(
            st.sampled_from(["one two, ", '{"a": 12}', "語" * 9, " ", "x1", "\n\n"]), st.integers(1, 9000)
        ),
        min_size=1,
        max_size=4,
    ),
)


@settings(max_examples=40)
@example("one two, " * 154 + '{"a": 12}' * 41 + "\n\n" * 274, 705, [2011])
@example('{"a": 12}' + "\n\n" * 362, 44, [265])
@given(LONG, st.integers(1, 40_000), st.lists(st.integers(0, 200_000), max_size=8))
def test_a_long_text_is_cut_at_the_same_place_however_it_arrives_but_for_a_word(
    text: str, tokens: int, cuts: list[int]
) -> None:
    # Where a run of white space is cut, its halves may cost two tokens more, each of 80 characters, and a pair of line
    # ends may be cut in two.
    assert abs(
        len(text_within_limit(text, tokens, [])) - len(text_within_limit(text, tokens, cuts))
    ) <= 256 + 162 * len(cuts)


@pytest.mark.parametrize("text", ["one two three four. ", '{"name": "value", "number": 12},\n'])
def test_a_limit_of_many_tokens_is_near_the_estimate(text: str) -> None:
    said = text_within_limit(text * 50_000, 100_000, [])
    assert estimate_tokens(said) == pytest.approx(100_000, rel=0.02)


@pytest.mark.parametrize("text", ["a", "a1!", " ", '{"a": 12},'])
def test_a_text_of_a_million_characters_is_counted_by_its_beginning(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    class Counted:
        def finditer(self, text: str) -> object:
            nonlocal read
            read += len(text)
            return PIECE.finditer(text)

    monkeypatch.setattr("codex_proxy.core.tokens._PIECE", Counted())
    limit = TokenLimit(900_000)
    limit.take_delta(text * (1_000_000 // len(text)))
    assert 0 < read < 64 * 1024
