"""Replaces secrets and names by placeholders before a cassette is written."""

from __future__ import annotations

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
