"""Tokens: an estimate of a text's, an upper bound of them, and sums of those that turns have used.

The estimate counts the pieces into which OpenAI's tokenizers split a text. It is wrong by at most a tenth for English
prose, Markdown, Python and JSON; unreliable for base64 and punctuation. The bound is the estimate plus a margin, with
costs of its own for other languages than English, base64, punctuation and rare scripts. Only words of random letters
have more tokens than that in `o200k_base`. A mebibyte takes half a second.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import add
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import astuple

_DENSE: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Kana, Chinese and Hangul: mostly one token each."""
_MARKS: Final = "\u0300-\u036f\u064b-\u0655\u0900-\u0e7f"
"""Combining marks, which belong to the letter before, and the scripts of India."""
_SMALL: Final = rf"(?:[a-z]++|[^\W\d_A-Z{_DENSE}]|[{_MARKS}])"
_PIECE: Final = re.compile(
    rf"((?:[^\w\r\n]|_)?(?:[A-Z]*{_SMALL}+|[A-Z]+))"
    rf"|(\d{{1,3}})"
    rf"|([^\w\r\n]?[{_DENSE}]+)"
    rf"|(\s+(?!\S)|\s)"
    rf"|( ?(?:[^\w\s]|_)+[\r\n]*)|(.)",
    re.DOTALL,
)
_ASCII_PIECE: Final = re.compile(
    r"[^a-zA-Z0-9\r\n]?(?:[A-Z]*[a-z]+|[A-Z]+)|[0-9]{1,3}|\s+(?!\S)|\s| ?[^a-zA-Z0-9\s]+[\r\n]*"
)
"""Matches the same pieces of a text of ASCII characters, in a third of the time."""
WORD, DIGITS, DENSE_RUN, SPACE, SIGNS = range(1, 6)
"""The kinds of pieces: letters; up to three digits; Chinese, Japanese, Korean; white space; punctuation."""

_EXACT: Final = 16 * 1024
"""The characters that are all counted; of a longer text only these, and the rest is extrapolated."""
_ENOUGH: Final = 128 * 1024
"""The characters of many texts from which the rest is extrapolated: to count them takes 0.05 s."""
_MAX_PIECE: Final = 256
"""The longest piece that is counted again when it has grown; a longer one is no word."""


def estimate_tokens(text: str) -> int:
    if len(text) <= _EXACT:
        return _count_tokens(text)
    half = _EXACT // 2
    return (_count_tokens(text[:half]) + _count_tokens(text[-half:])) * len(text) // _EXACT


def estimate_all(texts: Iterable[str]) -> int:
    """Estimates the tokens of all texts together. Only the first texts, up to `_ENOUGH` characters, are counted; the
    rest is taken to have as many tokens per character.
    """
    tokens = counted = rest = 0
    for text in texts:
        if counted < _ENOUGH:
            tokens += estimate_tokens(text)
            counted += len(text)
        else:
            rest += len(text)
    return tokens + tokens * rest // max(1, counted)


def pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yields the pieces of a text, each as its kind (the number of a group in `_PIECE`; 0: none of them) and its
    characters.
    """
    if text.isascii():
        return ((_kind_of(piece), piece) for piece in _ASCII_PIECE.findall(text))
    return ((match.lastindex or 0, match[0]) for match in _PIECE.finditer(text))


def _kind_of(piece: str) -> int:
    """Returns the kind of a piece of ASCII characters."""
    if piece[-1].isalnum():
        return WORD if piece[-1].isalpha() else DIGITS
    return SPACE if piece.isspace() else SIGNS


class TokenLimit:
    """How many characters of a text in deltas fit into `tokens`. The first `_EXACT` are counted; behind them the text
    is taken to have as many tokens in a character as they have, so the result hardly depends on how the text is cut.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = self._left = tokens
        """`_left` is in tokens, and in characters once `_EXACT` are counted."""
        self._to_count = _EXACT
        self._tail = ""
        """The end of the text, whose token count may still change."""

    def take_delta(self, text: str) -> int | None:
        """Takes the next delta of the text. Returns None while the whole text fits into the limit; for the first delta
        that does not, the number of its characters that fit.
        """
        before, counted = len(self._tail), 0
        self._tail += text
        if self._to_count:
            part = self._tail[: self._to_count]
            if len(part) <= self._left and len(part) < self._to_count:
                return None
            for match in _PIECE.finditer(part):
                kind, piece = match.lastindex or 0, match[0]
                cost = piece_cost(kind, piece)
                if cost > self._left:
                    return max(0, counted + _fitting_length(kind, piece, self._left) - before)
                if match.end() == len(part) < self._to_count and len(piece) <= _MAX_PIECE:
                    break  # the next delta may continue it
                self._left -= cost
                counted = match.end()
            self._to_count -= counted
            self._tail = self._tail[counted:]
            if self._to_count:
                return None
            self._left = self._left * _EXACT // (self._tokens - self._left)
        room, self._left = self._left, self._left - len(self._tail)
        self._tail = ""
        return None if self._left >= 0 else max(0, counted + room - before)


_MAX_SHORT_WORD: Final = 9


def _count_tokens(text: str) -> int:
    if not text.isascii():
        return sum([piece_cost(kind, piece) for kind, piece in pieces(text)])
    found = _ASCII_PIECE.findall(text)
    # Most pieces are one token: digits, a single sign, and short words.
    others = [
        piece
        for piece in found
        if len(piece) > _MAX_SHORT_WORD or (len(piece) > 1 and not piece[-1].isalnum())
    ]
    return len(found) + sum([piece_cost(_kind_of(piece), piece) - 1 for piece in others])


def piece_cost(kind: int, piece: str) -> int:
    """Returns a piece's tokens: at least one, never fewer for a longer piece."""
    length = len(piece)
    if kind == WORD:
        if "\u0590" <= piece[-1] < "\u0e80":  # Hebrew, Arabic, the scripts of India, Thai
            return (length + 2) // 3
        return 1 if length <= _MAX_SHORT_WORD else (length + 3) // 6 if length <= 24 else length * 2 // 5
    if kind == SIGNS:
        return 1 if length <= 3 else 2 + (length - 4) // 8
    if kind == DENSE_RUN:
        return (length + 1) // 2 if piece[-1] >= "\uac00" else (length * 2 + 2) // 3
    if kind == SPACE:
        return (
            1 + (length > 1 and piece[-1] not in "\r\n" and ("\n" in piece or "\r" in piece)) + length // 80
        )
    return 1


def _fitting_length(kind: int, piece: str, tokens: int) -> int:
    lengths = range(1, len(piece) + 1)
    return bisect_right(lengths, tokens, key=lambda length: piece_cost(kind, piece[:length]))


_MARGIN: Final = 1.15
"""The factor for English and code, where the estimate is off by a tenth."""
_OTHER_LANGUAGE: Final = 2.0
"""The factor for other languages, whose words have more tokens."""

_CHUNK: Final = 4096
"""Number of consecutive characters that are assumed to be in one language."""
_ENGLISH: Final = re.compile(
    r"\b(?:the|of|to|and|in|is|a|for|on|with|this|that|be|it|not|if)\b", re.IGNORECASE
)
_MIN_ENGLISH: Final = 0.05
"""The least share of common English words in an English text."""
_MAX_PUNCTUATION: Final = 0.35
"""Maximum runs of punctuation per word in prose; more are code or data."""

_BLOB: Final = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{48,}+")
"""Matches what may be base64 or a key: a long run of letters and digits."""
_BLOB_COST: Final = 0.78
_CAPITAL_COST: Final = 0.35
"""The tokens of a letter in a word of capitals."""
_CONTROL_COST: Final = 1.35
"""The tokens of a control character, as in a terminal's colour codes."""

_COSTS: Final = (
    # up to this character: tokens of each, by the language of these that is cut most
    (0x7F, 0.45),  # ASCII beside others
    (0x24F, 1.25),  # Latin letters with accents
    (0x3FF, 0.65),  # Greek
    (0x52F, 0.75),  # Cyrillic
    (0x58F, 0.5),  # Armenian
    (0x5FF, 0.75),  # Hebrew
    (0x6FF, 0.9),  # Arabic
    (0x8FF, 2.1),  # Syriac, Thaana
    (0xAFF, 0.85),  # Devanagari, Bengali, Gurmukhi, Gujarati
    (0xB7F, 1.3),  # Oriya
    (0xE7F, 0.85),  # Tamil, Telugu, Kannada, Malayalam, Sinhala, Thai
    (0xFFF, 1.75),  # Lao, Tibetan
    (0x10FF, 0.75),  # Burmese, Georgian
    (0x177F, 2.3),  # Ethiopic
    (0x17FF, 0.75),  # Khmer
    (0x1FFF, 2.0),
    (0x2FFF, 2.5),  # signs, arrows, frames of tables, Braille
    (0x30FF, 1.1),  # Kana
    (0x9FFF, 1.2),  # Chinese
    (0xD7FF, 0.9),  # Korean
    (0xFFFF, 2.5),
    (0x10FFFF, 4.2),  # emoji, mathematical letters, rare Chinese characters
)
_LAST_CHARACTERS: Final = tuple(last for last, _ in _COSTS)
_CHARACTER_COSTS: Final = tuple(cost for _, cost in _COSTS)

_MAX_SHORT_RUN: Final = 3
"""Maximum punctuation characters in a row that are mostly one token."""


def max_tokens_in(text: str, known: dict[str, Piece] | None = None) -> int:
    """Returns the upper bound of a text's tokens. `known` caches the costs of pieces between calls."""
    known = {} if known is None else known
    return math.ceil(sum(_chunk_tokens(text[at : at + _CHUNK], known) for at in range(0, len(text), _CHUNK)))


class Piece(NamedTuple):
    """What a piece adds to its chunk: counts of words and runs of punctuation, and tokens."""

    words: int = 0
    signs: int = 0
    scaled: float = 0
    """Tokens that are multiplied by the language's factor: words of ASCII letters."""
    fixed: float = 0
    """Tokens to which no factor applies."""


def _chunk_tokens(text: str, known: dict[str, Piece]) -> float:
    words = signs = 0
    scaled = fixed = 0.0
    blobs = [found for found in _BLOB.findall(text) if _is_blob(found)]
    if blobs:
        fixed = sum(map(_blob_tokens, blobs))
        text = _BLOB.sub(lambda found: " " if _is_blob(found[0]) else found[0], text)
    for kind, piece in pieces(text):
        found = known.get(piece)
        if found is None:
            found = known[piece] = _measure(kind, piece)
        words += found[0]
        signs += found[1]
        scaled += found[2]
        fixed += found[3]
    is_english = len(_ENGLISH.findall(text)) >= words * _MIN_ENGLISH
    is_code = signs > words * _MAX_PUNCTUATION
    return scaled * (_MARGIN if is_english or is_code else _OTHER_LANGUAGE) + fixed


def _is_blob(text: str) -> bool:
    return not text.islower() and not text.isupper() and any(map(str.isdigit, text))


def _blob_tokens(text: str) -> float:
    return max(len(text) * _BLOB_COST, sum(piece_cost(kind, piece) for kind, piece in pieces(text)))


def _measure(kind: int, piece: str) -> Piece:
    cost = piece_cost(kind, piece)
    if kind == WORD:
        if piece.isascii():
            return Piece(words=1, scaled=max(cost, len(piece) * _CAPITAL_COST) if piece.isupper() else cost)
        return Piece(words=1, fixed=max(cost, _tokens_by_character(piece)))
    if kind == SIGNS:
        return Piece(signs=1, fixed=max(cost * _MARGIN, _punctuation_tokens(piece)))
    if kind == SPACE:
        return Piece(fixed=max(cost * _MARGIN, len(piece) / (12 if len(set(piece)) == 1 else 2)))
    if kind == DENSE_RUN or not piece.isascii():
        return Piece(fixed=max(cost, _tokens_by_character(piece)))
    return Piece(fixed=cost * (_MARGIN if kind else _CONTROL_COST))


def _punctuation_tokens(piece: str) -> float:
    """Returns the tokens of a run of punctuation: few if short or one repeated character, else about one each."""
    if not piece.isprintable():
        return len(piece) * _CONTROL_COST
    if len(piece) <= _MAX_SHORT_RUN and piece.isascii():
        return 0
    if len(set(piece)) == 1:
        return len(piece) / 6
    return len(piece) * 0.85 if piece.isascii() else _tokens_by_character(piece)


def _tokens_by_character(piece: str) -> float:
    return sum(_CHARACTER_COSTS[bisect_left(_LAST_CHARACTERS, ord(char))] for char in piece)


HOUR: Final = 3600
DAY: Final = 24 * HOUR


class Figures(msgspec.Struct, frozen=True):
    """Sums over turns. `cached` is part of `input`, `reasoning` of `output`."""

    turns: int = 0
    failed: int = 0
    """Number of turns that failed, or found no slot."""
    estimated: int = 0
    """Number of turns whose tokens were not reported."""
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(*map(add, astuple(self), astuple(other)))


FIGURES: Final = Figures.__struct_fields__


class UsageSum(msgspec.Struct, frozen=True):
    """The sums of the bucket that begins at `start`. `model` is empty for all models, `owner` is empty if the query
    names one.
    """

    start: int
    model: str
    figures: Figures
    owner: str = ""
