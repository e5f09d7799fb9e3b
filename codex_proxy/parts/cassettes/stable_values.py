"""Replaces what differs in each recording of a turn before it is written: random ids by ids that depend on the turn's
content alone, times and durations by 0. Arguments of calls keep their own. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Final

_VALUE: Final = re.compile(rb'":\s?"([A-Za-z0-9_-]{20,80})"')
"""Matches a value of any field that may be an id."""
_ID_FIELDS: Final = (b'id":"', b'Id":"', b'ID":"', b'id": "', b'Id": "', b'ID": "')
_ID_FIELD: Final = re.compile(
    rb'":(?=\s?")(?:(?<=[iI][dD]":)|(?<="to":)|(?<="key":)|(?<="reopen":)|(?<="revision":)|(?<="progressToken":))'
    rb'\s?"(?![A-Za-z0-9_-]{20,80}")([^"\\\s]{8,90})"'
)
"""Matches other values of fields that may have an id: their names end with `id` or `uuid`, but for a few."""
_ID_LIST: Final = re.compile(rb'(?<=ds":)\s?\["[^\[\]{}]{8,100000}\]')
"""Matches the values of a field with ids."""
_LISTED: Final = re.compile(rb'"([^"\\\s]{8,90})"')
"""Matches a text that may be an id, in a list or in the request."""
_ID: Final = re.compile(
    rb"(?:[a-z]{2,12}[_-])?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    rb"|(?:resp|chatcmpl|msg|rs|fc|fco|ctc|ctco|call|toolu|req|ws|item|mcp|mcpl|mcpr|lsh|ask|srvtoolu|gen|run|exec)[_-]"
    rb"(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{16,64}"
    rb"|codex_proxy_[0-9a-f]{16}"
)
"""Matches what is an id in any field, unless it is one of a text."""
_NO_IDS: Final = (
    *(
        b"text",
        b"delta",
        b"content",
        b"output",
        b"thinking",
        b"refusal",
        b"summary",
        b"command",
        b"title",
        b"input",
    ),
    *(b"description", b"query", b"prompt", b"partial_json", b"model", b"modelId", b"ModelId", b"model_id"),
)
"""How the names of fields with a text or the name of a model end."""
_AROUND_IDS: Final = re.compile(
    rb'":\s?"(?=[</])[^"\\\s]{8,1000}"'
    rb'|"error":\s?\{(?:"code":\s?-?[0-9]{1,9},\s?)?"message":\s?"(?:[^"\\]|\\.){1,1000}"'
    rb'(?:,\s?"data":\s?\{"details":\s?"(?:[^"\\]|\\.){1,1000}")?'
)
"""Matches a path and the text of an error, which may have a known id within."""
_RANDOM: Final = re.compile(
    rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    rb"|(?<![A-Za-z0-9])(?:(?=[A-Za-z]{0,64}[0-9])(?=[0-9]{0,64}[A-Za-z])[A-Za-z0-9]{8,64}|1[0-9]{9}(?:[0-9]{3})?)"
    rb"(?![A-Za-z0-9])"
)
"""Matches the random parts of an id: UUIDs, words of letters and digits, and times."""
_EPOCH: Final = re.compile(
    rb'":(?=\s?1[0-9]{9})(?:(?<=At":)|(?<=AtMs":)|(?<=_at":)|(?<=created":)|(?<=ime":)|(?<=imestamp":)|(?<=[dD]ate":))'
    rb"\s?1[0-9]{9}(?:[0-9]{3})?(?:\.[0-9]{1,9})?(?=[,}\s])"
)
_DURATION: Final = re.compile(
    rb'":(?=\s?[0-9])(?:(?<=_ms":)|(?<=Ms":)|(?<=uration":)|(?<=econds":)|(?<=_time":)|(?<="secs":)|(?<="nanos":)'
    rb'|(?<=er_second":)|(?<=first_token":)|(?<="pid":))'
    rb"\s?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?(?=[,}\s])"
)
_CLOCK: Final = re.compile(
    rb'":(?=\s?"20)(?:(?<=At":)|(?<=_at":)|(?<=ime":)|(?<=imestamp":)|(?<=[dD]ate":))'
    rb'\s?"20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"'
)
_COMMAND_OUTPUT: Final = re.compile(
    rb'(?<="output":")Chunk ID: [0-9a-f]{4,16}\\nWall time: [0-9]{1,9}\.[0-9]{1,9} seconds(?=\\n)'
)
"""Matches how the output of a command begins that Codex has run."""
_RESET_HEADER: Final = re.compile(rb'("x-ratelimit-reset[a-z-]{0,40}":")[^"\\]{1,60}"')
_ARGUMENTS: Final = re.compile(rb'"(?:arguments|input|rawInput|args)":\s?\{')
"""Matches the beginning of a call's arguments, which are content, whatever they look like."""
_BRACE: Final = re.compile(rb'[{}]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_AFTER_REQUEST: Final = re.compile(rb'^\{"(?:ms|answer)":', re.MULTILINE)
"""Matches the beginning of the first line after the request."""
MAX_IDS: Final = 100_000


class TurnIds:
    """Replaces the random ids of a turn by ids that depend on its content alone, and times by 0."""

    def __init__(self, ids: dict[bytes, bytes], key: bytes, request: bytes) -> None:
        """`ids` has the replaced ids of all turns, and gets those of this one; `key` depends on the turn's content
        alone; new ids in its `request` stay.
        """
        if len(ids) > MAX_IDS:
            ids.clear()
        self._ids = ids
        self._key = key
        self._own = frozenset(_LISTED.findall(request))
        self._said = False
        self._count = 0

    def replace(self, text: bytes) -> bytes:
        """Returns the next lines of the file with ids and times replaced; the request keeps its own."""
        begin = None if self._said else _AFTER_REQUEST.search(text)
        asked = 0 if self._said else len(text) if begin is None else begin.start()
        self._said = asked < len(text)
        before, said = (
            _outside_arguments(part, change)
            for part, change in ((text[:asked], self._replace_known), (text[asked:], self._replace_all))
        )
        return before + said

    def _replace_known(self, text: bytes) -> bytes:
        return _ID_FIELD.sub(self._known_id, _VALUE.sub(self._known_id, text))

    def _replace_all(self, text: bytes) -> bytes:
        text = _ID_FIELD.sub(self._new_id, _VALUE.sub(self._value, text))
        if b'ds":' in text:
            text = _ID_LIST.sub(self._new_ids, text)
        return _zero_times(_AROUND_IDS.sub(self._replace_within, text))

    def _value(self, found: re.Match[bytes]) -> bytes:
        if found[1] in self._ids or found[1] in self._own:
            return self._known_id(found)
        is_id = found.string.endswith(_ID_FIELDS, 0, found.start(1)) or _ID.fullmatch(found[1]) is not None
        return self._new_id(found) if is_id else found[0]

    def _new_id(self, found: re.Match[bytes]) -> bytes:
        if not _is_no_id(found):
            self._add(found[1])
        return self._known_id(found)

    def _new_ids(self, found: re.Match[bytes]) -> bytes:
        for id in _LISTED.findall(found[0]):
            self._add(id)
        return _LISTED.sub(lambda each: b'"%b"' % self._ids.get(each[1], each[1]), found[0])

    def _add(self, id: bytes) -> None:
        if id not in self._ids and id not in self._own:
            stable = _RANDOM.sub(self._part, id)
            if stable != id:
                self._ids[id] = self._ids[stable] = stable

    def _known_id(self, found: re.Match[bytes]) -> bytes:
        known = self._ids.get(found[1])
        return found[0] if known is None or _is_no_id(found) else b'":"%b"' % known

    def _part(self, found: re.Match[bytes]) -> bytes:
        """Returns a stable word for a random part of an id, the same in each id that has it."""
        part = found[0]
        if part not in self._ids:
            self._count += 1
            like = part.decode() if b"-" in part else ""
            self._ids[part] = stable_id(like, self._key, self._count)[: max(len(part), 8)].encode()
        return self._ids[part]

    def _replace_within(self, found: re.Match[bytes]) -> bytes:
        if _is_no_id(found):
            return found[0]
        return _RANDOM.sub(lambda part: self._ids.get(part[0], part[0]), found[0])


def _is_no_id(found: re.Match[bytes]) -> bool:
    """Whether a field has a text or the name of a model."""
    return found.string.endswith(_NO_IDS, 0, found.start())


def _outside_arguments(text: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Returns the text with a change everywhere but in the arguments of calls."""
    changed, at = list[bytes](), 0
    for start, end in _arguments_in(text):
        changed += (change(text[at:start]), text[start:end])
        at = end
    return b"".join((*changed, change(text[at:]))) if changed else change(text)


def _arguments_in(text: bytes) -> Iterator[tuple[int, int]]:
    """Yields where the arguments of calls begin and end, if they are objects. In strings no name is matched."""
    at = 0
    while (found := _ARGUMENTS.search(text, at)) is not None:
        depth, at = 1, found.end()
        for token in _BRACE.finditer(text, at):
            depth += {b"{": 1, b"}": -1}.get(token[0], 0)
            if not depth:
                at = token.end()
                break
        yield found.start(), at


_NUMBER: Final = re.compile(rb'"sequence_number":[0-9]+')


def zero_numbers(answer: bytes) -> bytes:
    """Returns a stream's lines with 0 for each sequence number, so that its events differ in their deltas alone."""
    return _NUMBER.sub(b'"sequence_number":0', answer)


def zero_times(text: bytes) -> bytes:
    """Returns JSON with 0, or the first second of 1970, for each time outside of a call's arguments."""
    return _outside_arguments(text, _zero_times)


def _zero_times(text: bytes) -> bytes:
    text = _DURATION.sub(b'":0', _EPOCH.sub(b'":0', text))
    if b'"x-ratelimit-reset' in text:
        text = _RESET_HEADER.sub(rb'\g<1>0s"', text)
    if b"Chunk ID: " in text:
        text = _COMMAND_OUTPUT.sub(rb"Chunk ID: 0\\nWall time: 0.0 seconds", text)
    return _CLOCK.sub(b'":"1970-01-01T00:00:00Z"', text) if b'"20' in text else text


def stable_id(like: str, key: bytes, number: int) -> str:
    """Returns an id in the form of `like` that depends on `key` and `number` alone."""
    digest = hashlib.sha256(b"%b %d" % (key, number)).hexdigest()
    if like.count("-") == 4:
        return f"{digest[:8]}-{digest[8:12]}-7{digest[12:15]}-8{digest[15:18]}-{digest[18:30]}"
    prefix = re.match(r".*?[_-](?:proxy_)?", like)
    return f"{prefix[0] if prefix else ''}{digest[:24]}"
