"""What every surface needs of JSON: text that always encodes, and the hints that travel beside a body.

An agent's text can hold lone surrogates (half of an escaped pair, cut at a delta's border). UTF-8 has no
bytes for them, so they become U+FFFD here; a pair whose two halves meet in one text becomes its character.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from codex_proxy.core.turn import Origin

_encoder = msgspec.json.Encoder()
_encode: Callable[[object], bytes] = _encoder.encode


def without_surrogates(text: str) -> str:
    """`text`, with every lone surrogate replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_text(text: str) -> bytes:
    """`text` as a JSON string, quotes included. Never raises."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(without_surrogates(text))


def json_lines(texts: Sequence[str]) -> bytes:
    """Each of `texts` as a JSON string, a newline between two; inside of one there is none. Never raises."""
    try:
        return _encoder.encode_lines(texts)[:-1]
    except UnicodeEncodeError:
        return b"\n".join(map(json_text, texts))


def json_bytes(value: Any) -> bytes:
    """`value` as JSON. For bodies of ours: strings that came from elsewhere go through `json_text` first."""
    return _encode(value)


def raw_text(text: str) -> msgspec.Raw:
    """`text` as a piece of JSON to put into a value that `json_bytes` encodes."""
    return msgspec.Raw(json_text(text))


def schema_json(schema: Any) -> msgspec.Raw:
    """A client's own JSON, as JSON. The standard library's encoder, since it may hold integers of any size."""
    return msgspec.Raw(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode())


Logprobs: TypeAlias = Literal["refuse", "ignore"]
"""What becomes of a request for log probabilities, which no agent has."""


class RequestHints(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says in its headers. None where a header is absent."""

    mode: str | None = None
    """`X-Codex-Mode`: `model` or `agent`."""
    workdir: str | None = None
    """`X-Codex-Workdir`: a folder for this request."""
    sandbox: str | None = None
    """`X-Codex-Sandbox`: a narrower sandbox for this request."""
    activity: str | None = None
    """`X-Codex-Activity`: `items` asks for the agent's activity as items of types of our own."""
    origin: Origin = Origin()
    """How the request came here."""


WorkdirParam: TypeAlias = Literal["X-Codex-Workdir", "metadata.workdir"] | None


def workdir_of(
    headers: RequestHints, metadata: Mapping[str, str | None] | None
) -> tuple[str | None, WorkdirParam]:
    """The folder that a request names, and the header or field that named it, for the `param` of an error."""
    if headers.workdir:
        return headers.workdir, "X-Codex-Workdir"
    folder = (metadata or {}).get("workdir")
    return folder, "metadata.workdir" if folder else None
