"""Tools' names and arguments for APIs in which names may have any characters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.tool_names import generated_name
from codex_proxy.surfaces.base import json_text

MAX_CHARS: Final = 64
"""Maximum characters that providers accept; Anthropic accepts 128."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST: Final = 8


def model_name(name: str) -> str:
    """Returns the model's name of a client's tool, which depends on `name` alone: if too long or not allowed, cut, with
    a digest.
    """
    if _PLAIN_NAME.fullmatch(name):
        return name
    return generated_name(name, "", kept=MAX_CHARS - _DIGEST - 1, digits=_DIGEST)


def input_of(arguments: str) -> str | None:
    """Returns the arguments if they are a JSON object, else None."""
    text = arguments.strip() or "{}"
    readers: tuple[Callable[[str], Any], ...] = (msgspec.json.decode, _decode_strictly)
    for read in readers:  # the second one reads numbers of any size
        try:
            return text.encode("utf-8").decode() if isinstance(read(text), dict) else None
        except msgspec.ValidationError:
            continue
        except UNREADABLE:
            return None
    return None


def whole_input(arguments: str, *, custom: bool, complete: bool) -> str | None:
    """Returns the arguments as a JSON object; if they are none, or a custom tool's, as a text in `input`. None for a
    call that was cut off.
    """
    found = None if custom else input_of(arguments)
    if not complete and (found is None or not arguments.strip()):
        return None
    return (b'{"input":%b}' % json_text(arguments)).decode() if found is None else found


def _decode_strictly(text: str) -> Any:
    def refuse_constant(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse_constant)
