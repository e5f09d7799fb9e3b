"""What the scripted model is to put out, response by response: the prompt for the scenario ``plan``."""

from __future__ import annotations

import json
from typing import Any

PutOut = dict[str, str]


def say(text: str) -> PutOut:
    return {"say": text}


def think(text: str = "Hm.") -> PutOut:
    """A reasoning item, with its encrypted content."""
    return {"think": text}


def wait(gate: str = "") -> PutOut:
    """IdleTimer until the test opens this gate; without a name, until the client hangs up."""
    return {"wait": gate}


def call(name: str = "get_weather", **arguments: Any) -> PutOut:
    """A call of a function with these arguments."""
    return {"call": name, "text": json.dumps(arguments)}


def call_with(name: str, text: str) -> PutOut:
    """A call with this argument text, JSON or not."""
    return {"call": name, "text": text}


def plan(*responses: list[PutOut], again: list[PutOut] | None = None, **options: int) -> str:
    """The prompt. A response comes when every call of the ones before it has its output; ``again`` instead of
    any, when the model is told that its answer was thrown away. ``options``: of usage."""
    marker = f"[[model:plan plan={_quoted(responses)}"
    if again is not None:
        marker += f" again={_quoted(again)}"
    return marker + "".join(f" {name}={value}" for name, value in options.items()) + "]]"


def _quoted(value: Any) -> str:
    text = json.dumps(value)
    assert "'" not in text, "the marker quotes with it"
    return f"'{text}'"
