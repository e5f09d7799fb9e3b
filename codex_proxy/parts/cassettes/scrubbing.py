"""Replaces, before a cassette is written, secrets and names by placeholders, and what differs in each recording of
a turn: random ids by ids that depend on the turn's content alone, times and durations by 0. Arguments of calls
keep their own. Pure.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from unicodedata import normalize
from urllib.parse import quote, quote_plus

from pydantic_core import SchemaValidator, core_schema

from codex_proxy.core.safety import MIN_SECRET_CHARS
from codex_proxy.parts.cassettes.content import KEY
from codex_proxy.parts.cassettes.settings import CassetteError

GENERIC_NAMES: Final = re.compile(
    "root|users?|admin|home|test|guest|debian|ubuntu|runner|vscode|node|codex|docker|agent|model|proxy|localhost|host|client"
    "|server|main|vm|ci|me|dev|app|web|build|text|assistant|system|developer|tool|function|message|name|type|role|content"
    "|data|item|turn|thread|session",
    re.IGNORECASE,
)
"""Names of users and hosts that identify nobody, or are words of agents' protocols."""
MIN_NAME: Final = 3
JSON_DEPTH: Final = 5
"""How often a text may have been written as JSON in a string."""

_FIELD: Final = (
    "(?i:authorization|proxy-authorization|cookie|set-cookie|x-api-key|api[_-]?key"
    "|(?:access|refresh|id|auth|session|api)[_-]?token|client[_-]?secret|secret[_-]?(?:access[_-]?)?key|private[_-]?key"
    "|(?:pg)?password|passwd|passphrase|secret)"
)
"""Matches the end of the name of a field with a secret."""
_PREFIXES: Final = "(?:[A-Za-z0-9]{1,30}[_-]){0,4}"
"""Matches what may be before it, as in `OPENAI_API_KEY`."""
_BEHIND_WORD: Final = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4}))"
"""Matches where a word begins, also behind a character that JSON writes as an escape."""
_WITH_DIGIT: Final = r"(?=[\w.-]{0,100}[0-9])"
"""Names of functions, settings and packages have no digit."""
_TOKENS: Final = (
    ("sk-(?:ant|proj|or|svcacct|admin)-", r"[\w-]{8,}"),
    ("[sprc]s?k-", rf"(?:{_WITH_DIGIT}[\w-]{{8,}}|[A-Za-z]{{16,}})"),  # OpenAI, Anthropic, Langfuse, Cerebras
    ("[spr]k_(?:live|test)_", "[A-Za-z0-9]{8,}"),
    ("(?:[spr]k|gh[pousr]|hf|gsk|npm|r8|fw|ntn|whsec|rnd)_", "[A-Za-z0-9]{12,}"),
    ("github_pat_", r"\w{20,}"),
    ("(?:xox[abeoprs]|xapp)-", rf"{_WITH_DIGIT}[\w-]{{10,}}"),
    ("gl(?:pat|rt|dt|ptt|cbt|soat|oas|agent|imt|ft)-", rf"{_WITH_DIGIT}[\w.-]{{12,}}"),
    ("(?:AKIA|ASIA|ABIA|ACCA)", r"[0-9A-Z]{16}\b"),
    ("AIza", r"[\w-]{30,}"),
    ("(?:dckr_pat_|dckr_oat_|pypi-|lin_api_|shp(?:at|ca|pa|ss)_|sq0[a-z]{3}-|do[opr]_v1_)", r"[\w-]{16,}"),
    (r"(?:hv[sbr]\.|ya29\.|1//0|GOCSPX-|ATATT3|ATCTT3|CFPAT-|PMAK-|AGE-SECRET-KEY-1|EAAAE)", r"[\w-]{16,}"),
    (
        "(?:glsa|glc|sbp|figd|sntry[su]|ph[cx]|rubygems|pscale_(?:pw|tkn)|ops)_",
        rf"{_WITH_DIGIT}[\w.-]{{16,}}",
    ),
    ("(?:pplx|xai|tvly|nvapi|tskey)-", rf"{_WITH_DIGIT}[\w-]{{16,}}"),
    ("(?:key-|dapi|SK)", r"[0-9a-f]{32}(?![0-9A-Za-z])"),
    ("[0-9]{8,10}:AA", r"[\w-]{30,}"),
    (r"SG\.", r"[\w-]{16,}\.[\w-]{16,}"),
    ("eyJ", r"[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}"),  # JSON web tokens
)
"""The beginnings of well-known tokens, and the rest."""
_PRIVATE_KEY: Final = "[A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_SECRETS: Final = (
    *((begin, rest, _BEHIND_WORD) for begin, rest in _TOKENS),
    (
        rf"-----BEGIN {_PRIVATE_KEY}",
        rf'(?:(?:[^-\\"\n]|\\+[nrt/]|-(?!----))*+-----END {_PRIVATE_KEY}'
        r"|(?:\\+[nr])++(?:[A-Z][\w-]{2,20}: (?:[\w:,. ]|-(?!----)){1,200}+(?:\\+[nr])++)*+"  # cut
        r"(?=[A-Za-z0-9+/]{8})(?:[A-Za-z0-9+/=]|\\+[nr/])++)",
        "",
    ),
    ("(?i:AccountKey|SharedAccessKey|SharedAccessSignature)=", r"(?P<value>[\w+/%=-]{8,})", ""),
    ("(?:[?&]sig|X-Amz-Signature|X-Goog-Signature)=", r"(?P<value>[\w+/%=-]{16,})", ""),
    ("://", r'[^\s/:@"\\<>]{0,100}:(?P<value>[^\s/@"\\<>]{3,200})@', ""),
    (
        r"(?:Bearer|Basic)\s{1,4}",
        r"(?P<value>(?:(?=[\w.~+/-]{0,300}(?:[0-9=]|\.\w))[\w.~+/=-]{8,}|[A-Za-z0-9+/_]{24,}))",
        _BEHIND_WORD,
    ),
)
"""The beginnings of secrets, the rest, and what is before them; `value` is the part that is replaced, if it is not the
whole.
"""


def _finder(expression: str) -> Callable[[str], bool]:
    """Returns a function that says whether a text has a match. Pydantic's expressions are 20 times as fast as those of
    `re`.
    """
    return SchemaValidator(core_schema.str_schema(pattern=f"(?-u:{expression})")).isinstance_python


_EXPRESSIONS: Final = [
    (_finder(begin), re.compile((before + begin + rest).encode())) for begin, rest, before in _SECRETS
]
"""For each kind of secret, whether a text has its beginning, and its expression."""
_HAS_SECRET: Final = _finder("|".join(begin for begin, _, _ in _SECRETS))
_HAS_FIELD: Final = _finder(rf'"{_PREFIXES}{_FIELD}\\*"')
_VALUE_OF_FIELD: Final = re.compile(rf'"{_PREFIXES}{_FIELD}(\\*+)"\s{{0,4}}:\s{{0,4}}\1"'.encode())
"""Matches what is before the value of a field; the group has the backslashes of JSON in a string of JSON."""
_QUOTE: Final = re.compile(rb'(?<!\\)(\\*+)"|\n')
_ESCAPE: Final = re.compile(rb"\\(?:[nrtbf]|u[0-9A-Fa-f]{4})\Z")


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
            for spelling in (spellings_of_secret(text) if placeholder == KEY else _spellings(text))
        ]
        found.sort(key=lambda each: (each[1] == KEY.encode(), len(each[0])), reverse=True)
        self._names = [
            (
                name,
                re.compile(re.escape(name) + (b"" if placeholder == KEY.encode() else rb"(?![A-Za-z0-9])")),
                placeholder,
            )
            for name, placeholder in found
        ]
        self._has_name = _finder("|".join(re.escape(name.decode("latin-1")) for name, _ in found))
        try:
            self._own = [re.compile(each.encode()) for each in patterns if each]
        except re.error as error:
            raise CassetteError(f"--scrub is not a valid regular expression: {error}.") from error

    def scrub(self, keys: Sequence[bytes], text: bytes) -> bytes:
        """Returns lines of JSON with placeholders. `keys` are the spellings of the request's secrets."""
        for secret in keys:
            text = text.replace(secret, KEY.encode())
        searched = text.decode("latin-1")
        if self._has_name(searched):
            for name, pattern, placeholder in self._names:
                if name in text:
                    text = pattern.sub(partial(_hide, placeholder), text)
            searched = text.decode("latin-1")
        if _HAS_FIELD(searched):
            text = b"".join(_without_fields(text))
        if _HAS_SECRET(searched):
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


def _without_fields(text: bytes) -> Iterator[bytes]:
    """Yields the pieces of a text without the values of fields with a secret. A value ends with a quote that has as
    many backslashes as its first one, but for those of the value's own; or, if it was cut, with the text around it.
    """
    done = 0
    while (found := _VALUE_OF_FIELD.search(text, done)) is not None:
        slashes = len(found[1])
        end = len(text)
        for mark in _QUOTE.finditer(text, found.end()):
            if mark[1] is None or len(mark[1]) < slashes or len(mark[1]) % (2 * slashes + 2) == slashes:
                end = mark.start() if mark[1] is None else mark.end() - 1 - min(slashes, len(mark[1]))
                break
        yield text[done : found.end()]
        yield KEY.encode() if end > found.end() else b""
        done = end
    yield text[done:]


def _hide(placeholder: bytes, found: re.Match[bytes]) -> bytes:
    """Returns a name's placeholder, unless the name ends a longer word or is that of a tag."""
    start = found.start()
    before = found.string[max(0, start - 6) : start]
    is_part = (before[-1:].isalnum() and _ESCAPE.search(before) is None) or before[-1:] in (b"<", b".", b"~")
    return found[0] if before and is_part and placeholder != KEY.encode() else placeholder


def spellings_of_secret(text: str) -> set[bytes]:
    """Returns a secret as it may be written: also in base64, at each place of its groups of three, and in hex."""
    data = text.encode("utf-8", "replace")
    found = {data.hex().encode(), data.hex().upper().encode()}
    for lead in range(3):
        coded = base64.b64encode(b"\0" * lead + data)
        coded = coded[(lead * 8 + 5) // 6 : (lead + len(data)) * 8 // 6]  # what depends on nothing beside it
        found |= {coded, coded.translate(bytes.maketrans(b"+/", b"-_")), coded.replace(b"/", b"\\/")}
    return _spellings(text) | found


def _spellings(text: str) -> set[bytes]:
    """Returns a text as JSON may have it, also JSON in a string, and addresses."""
    composed = {text, normalize("NFC", text), normalize("NFD", text)}
    data = [each.encode("utf-8", "replace") for each in composed]
    quoted = {found for each in data for found in (quote(each), quote(each, safe=""), quote_plus(each))}
    quoted |= {re.sub("%..", lambda code: code[0].lower(), each) for each in quoted}
    found = set[bytes]()
    for each in composed | quoted:
        for written in (each, each.replace("/", "\\/"), json.dumps(each)[1:-1].replace("/", "\\/")):
            for is_ascii in (True, False):
                nested = written
                for _ in range(JSON_DEPTH):
                    found.add(nested.encode("utf-8", "replace"))
                    nested = json.dumps(nested, ensure_ascii=is_ascii)[1:-1]
    return found


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
