"""Replaces secrets and names by placeholders before a cassette is written."""

from __future__ import annotations

import base64
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
