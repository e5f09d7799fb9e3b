"""What all wire formats share: JSON encoding that never fails, and the headers of a request that change its turn.

An agent's text can contain lone surrogates, halves of an escaped pair that were cut apart between two deltas. UTF-8
cannot encode them, so they become U+FFFD. Where both halves are in one text they become their character.
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
    """Returns `text` with each lone surrogate replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_text(text: str) -> bytes:
    """Returns `text` as a JSON string with its quotes. Never raises."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(without_surrogates(text))


def json_lines(texts: Sequence[str]) -> bytes:
    """Returns each text as a JSON string, separated by newlines. An encoded string contains no newline. Never
    raises."""
    try:
        return _encoder.encode_lines(texts)[:-1]
    except UnicodeEncodeError:
        return b"\n".join(map(json_text, texts))


def json_bytes(value: Any) -> bytes:
    """Returns `value` as JSON. Texts from elsewhere must go through `json_text` or `raw_text` first."""
    return _encode(value)


def raw_text(text: str) -> msgspec.Raw:
    """Returns `text` as encoded JSON, to be put into a value for `json_bytes`."""
    return msgspec.Raw(json_text(text))


def schema_json(schema: Any) -> msgspec.Raw:
    """Encodes JSON that a client sent. It uses the standard library, because the value may contain integers of any
    size."""
    return msgspec.Raw(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode())


Logprobs: TypeAlias = Literal["refuse", "ignore"]
"""What happens to a request for log probabilities where the agent has none."""


class RequestHints(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of a request that change its turn. A field is None where its header is absent."""

    mode: str | None = None
    """`X-Codex-Mode`: `model` or `agent`."""
    workdir: str | None = None
    """`X-Codex-Workdir`: a folder for this request."""
    sandbox: str | None = None
    """`X-Codex-Sandbox`: a narrower sandbox for this request."""
    activity: str | None = None
    """`X-Codex-Activity`: `items` asks for the agent's activity as items of types of our own."""
    origin: Origin = Origin()
    """Where the request came from."""


WorkdirParam: TypeAlias = Literal["X-Codex-Workdir", "metadata.workdir"] | None


def workdir_of(
    headers: RequestHints, metadata: Mapping[str, str | None] | None
) -> tuple[str | None, WorkdirParam]:
    """Returns the folder that a request names, and the header or field that named it, for the `param` of an error."""
    if headers.workdir:
        return headers.workdir, "X-Codex-Workdir"
    folder = (metadata or {}).get("workdir")
    return folder, "metadata.workdir" if folder else None
