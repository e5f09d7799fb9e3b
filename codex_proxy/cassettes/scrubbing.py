"""Replaces parts of cassettes before they are written: secrets and names by placeholders, random ids by stable ones,
times by 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from pydantic_core import SchemaValidator, core_schema

from codex_proxy.cassettes.content import KEY
from codex_proxy.cassettes.settings import CassetteError
from codex_proxy.core.safety import MIN_SECRET_CHARS

GENERIC_NAMES: Final = re.compile(
    "root|users?|admin|home|test|guest|debian|ubuntu|runner|vscode|node|codex|docker|agent|model|proxy|localhost|host|client"
    "|server|main|vm|ci|me|dev|app|web|build|text|assistant|system|developer|tool|function|message|name|type|role|content"
    "|data|item|turn|thread|session",
    re.IGNORECASE,
)
"""Names of users and hosts that identify nobody, or are words of agents' protocols."""
MIN_NAME: Final = 3

_FIELD: Final = (
    "(?i:authorization|proxy-authorization|cookie|set-cookie|x-api-key|api[_-]?key|access_token|refresh_token|id_token"
    "|client_secret|password|passwd|secret)"
)
"""Matches the name of a field with a secret."""
_SECRETS: Final = (
    (
        r"\b(?:(?:sk|rk|pk)-[\w-]{8,}"  # OpenAI, Anthropic
        r"|(?:ghp|gho|ghu|ghs|ghr|xox[abeoprs]|hf|gsk|glpat|npm|whsec|sk|pk|rk)[-_][A-Za-z0-9_-]{12,}"
        r"|github_pat_\w{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}\b|AIza[\w-]{30,}"
        r"|(?:dckr_pat_|dckr_oat_|pypi-|lin_api_|shpat_|sq0csp-|dop_v1_|doo_v1_|hvs\.|ya29\.|1//0)[\w-]{16,}"
        r"|SG\.[\w-]{16,}\.[\w-]{16,}"
        r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,})",  # JSON web tokens
        "",
    ),
    (r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----", r"[^-\n]{0,20000}-----END [A-Z ]{0,40}PRIVATE KEY-----"),
    (r"(?i:AccountKey|SharedAccessKey|SharedAccessSignature)=", r"(?P<value>[\w+/%=-]{8,})"),
    (r"\b(?:Bearer|Basic)\s{1,4}", r"(?P<value>[\w.~+/=-]{8,})"),
    (rf'"{_FIELD}"', r'\s{0,4}:\s{0,4}"(?P<value>(?:[^"\\\n]|\\.){1,4000})"'),
    (  # in JSON that is a string of JSON, such as the arguments of a call
        rf'\\"{_FIELD}\\"',
        r'\s{0,4}:\s{0,4}\\"(?P<value>(?:[^"\\\n]|\\\\(?:\\.|[^\\\n])){1,4000})\\"',
    ),
)
"""The beginnings of secrets, and the rest; `value` is the part that is replaced, if it is not the whole."""


def _finder(expression: str) -> Callable[[str], bool]:
    """Returns a function that says whether a text has a match. Pydantic's expressions are 20 times as fast as those of
    `re`.
    """
    return SchemaValidator(core_schema.str_schema(pattern=f"(?-u:{expression})")).isinstance_python


_EXPRESSIONS: Final = [(_finder(begin), re.compile((begin + rest).encode())) for begin, rest in _SECRETS]
"""For each kind of secret, whether a text has its beginning, and its expression."""


class Scrubber:
    def __init__(self, names: Mapping[str, Iterable[str]], patterns: Sequence[str] = ()) -> None:
        """`names` has the texts of each placeholder: secrets (`<key>`) are replaced everywhere, others unless they are
        parts of longer words, empty, short or generic. `patterns` are the operator's. Raises `CassetteError` if one is
        invalid.
        """
        found = [
            (spelling, placeholder.encode())
            for placeholder, texts in names.items()
            for text in {each.rstrip("/") for each in texts}
            if len(text) >= (MIN_SECRET_CHARS if placeholder == KEY else MIN_NAME)
            and not GENERIC_NAMES.fullmatch(text)
            for spelling in _spellings(text)
        ]
        found.sort(key=lambda each: (each[1] == KEY.encode(), len(each[0])), reverse=True)
        self._names = [
            (
                re.compile(re.escape(name) + (b"" if placeholder == KEY.encode() else rb"(?![A-Za-z0-9])")),
                placeholder,
            )
            for name, placeholder in found
        ]
        try:
            self._own = [re.compile(each.encode()) for each in patterns if each]
        except re.error as error:
            raise CassetteError(f"--scrub is not a valid regular expression: {error}.") from error

    def scrub(self, keys: Sequence[bytes], text: bytes) -> bytes:
        """Returns lines of JSON with placeholders. `keys` are the request's secrets."""
        for secret in keys:
            text = text.replace(secret, KEY.encode())
        for pattern, placeholder in self._names:
            text = pattern.sub(partial(_hide, placeholder), text)
        searched = text.decode("latin-1")
        for has_begin, expression in _EXPRESSIONS:
            if has_begin(searched):
                text = expression.sub(_without_value, text)
        if self._own:  # line by line: an expression may match the end of a line
            lines = text.split(b"\n")
            for own in self._own:
                lines = [own.sub(b"<scrubbed>", line) for line in lines]
            text = b"\n".join(lines)
        return text


def _without_value(found: re.Match[bytes]) -> bytes:
    value = found.re.groupindex.get("value", 0)
    begin = found.start()
    return found[0][: found.start(value) - begin] + KEY.encode() + found[0][found.end(value) - begin :]


def _hide(placeholder: bytes, found: re.Match[bytes]) -> bytes:
    """Returns a name's placeholder, unless the name ends a longer word."""
    before = found.string[found.start() - 1 : found.start()] if found.start() else b""
    return found[0] if before.isalnum() and placeholder != KEY.encode() else placeholder


def _spellings(text: str) -> set[bytes]:
    """Returns a text as JSON may have it, also JSON in a string."""
    once = json.dumps(text)[1:-1]
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    return {
        each.encode("utf-8", "replace")
        for each in (text, once, plain, once.replace("/", "\\/"), json.dumps(once)[1:-1])
    }


# --- ids ------------------------------------------------------------------------------------------

_WORD: Final = re.compile(rb'"([A-Za-z0-9_-]{20,80})"')
_VALUE: Final = re.compile(rb':"([A-Za-z0-9_-]{20,80})"')
"""Matches a value that may be an id."""
_ID: Final = re.compile(
    rb"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    rb"|\b(?:resp|chatcmpl|msg|rs|fc|fco|ctc|ctco|call|toolu|req|ws|item|mcp|mcpl|mcpr|lsh|ask|srvtoolu|gen|run|exec)[_-]"
    rb"(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{16,64}\b"
    rb"|\b[a-z]{2,8}_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    rb"|\bcodex_proxy_[0-9a-f]{16}\b"
)
_TIME: Final = re.compile(
    rb'":(?:(?<=At":)|(?<=AtMs":)|(?<=created":)|(?<=_at":)|(?<=_time":)|(?<=imestamp":))'
    rb"\s?(?:1[0-9]{9}(?:\.[0-9]{1,9})?|1[0-9]{12})(?=[,}\s])"
)
_DURATION: Final = re.compile(
    rb'":(?:(?<=durationMs":)|(?<=duration_ms":)|(?<=DurationMs":))\s?[0-9]{1,12}(?:\.[0-9]{1,9})?(?=[,}\s])'
)
_CLOCK: Final = re.compile(
    rb'"20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](?:\.[0-9]{1,9})?Z"'
)
_AFTER_REQUEST: Final = re.compile(rb'^\{"(?:session|answer)":', re.MULTILINE)
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
        self._own = frozenset(_WORD.findall(request))
        self._said = False
        self._count = 0

    def replace(self, text: bytes) -> bytes:
        """Returns the next lines of the file with ids and times replaced; the request keeps its own."""
        begin = None if self._said else _AFTER_REQUEST.search(text)
        asked = 0 if self._said else len(text) if begin is None else begin.start()
        self._said = asked < len(text)
        said = zero_times(_VALUE.sub(self._replacement, text[asked:]))
        return _VALUE.sub(self._known_id, text[:asked]) + said

    def _known_id(self, found: re.Match[bytes]) -> bytes:
        known = self._ids.get(found[1])
        return found[0] if known is None else b':"%b"' % known

    def _replacement(self, found: re.Match[bytes]) -> bytes:
        id = found[1]
        if id not in self._ids and id not in self._own and _ID.fullmatch(id) is not None:
            self._count += 1
            self._ids[id] = stable_id(id.decode(), self._key, self._count).encode()
        return self._known_id(found)


_NUMBER: Final = re.compile(rb'"sequence_number":[0-9]+')


def zero_numbers(answer: bytes) -> bytes:
    """Returns a stream's lines with 0 for each sequence number, so that its events differ in their deltas alone."""
    return _NUMBER.sub(b'"sequence_number":0', answer)


def zero_times(text: bytes) -> bytes:
    """Returns JSON with 0, or the first second of 1970, for each time."""
    text = _DURATION.sub(b'":0', _TIME.sub(b'":0', text))
    return _CLOCK.sub(b'"1970-01-01T00:00:00Z"', text) if b'"20' in text else text


def stable_id(like: str, key: bytes, number: int) -> str:
    """Returns an id in the form of `like` that depends on `key` and `number` alone."""
    digest = hashlib.sha256(b"%b %d" % (key, number)).hexdigest()
    if like.count("-") == 4:
        return f"{digest[:8]}-{digest[8:12]}-7{digest[12:15]}-8{digest[15:18]}-{digest[18:30]}"
    prefix = re.match(r".*?[_-](?:proxy_)?", like)
    return f"{prefix[0] if prefix else ''}{digest[:24]}"
