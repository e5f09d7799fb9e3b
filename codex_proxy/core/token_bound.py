"""An upper bound of a text's tokens: the estimate of `core.tokens` plus a margin, with costs of their own for other
languages than English, base64, punctuation and rare scripts. Only words of random letters have more tokens than
that in `o200k_base`. A mebibyte takes half a second.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from typing import Final, NamedTuple

from codex_proxy.core.tokens import DENSE_RUN, SIGNS, SPACE, WORD, piece_cost, pieces

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
    """Returns the bound. `known` caches the costs of pieces between calls."""
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
