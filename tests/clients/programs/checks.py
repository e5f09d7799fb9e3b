"""What every client is asked to do. A program gives a function for each thing that its client can; the result is one
line of JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections.abc import Callable
from typing import Any

BASE = os.environ["BASE_URL"]
ROOT = BASE.removesuffix("/v1")
KEY = "none"
ASKED: dict[str, str] = json.loads(os.environ["ASKED"])
"""What is said to another agent than the fake one, by the name of the check."""
MODEL = os.environ["MODEL"]
TEXT = ASKED.get("text", "[[fake:text say='Hello there.']]")
WEATHER = ASKED.get("tools", "What is the weather in Bern? Call get_weather.")
PERSON = ASKED.get("schema", "Who?")
LOOK = ASKED.get("images", "[[fake:echo]]")
LONG = ASKED.get("cancel", "[[fake:text n=20000 delay=5]]")
PIXEL = os.environ["PIXEL"]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
HOLDS: dict[str, Callable[[Any], bool]] = {
    "text": lambda said: said == "Hello there.",
    "tools": lambda said: "sunny" in said,
    "schema": lambda said: set(said) == {"name", "age"},
    "images": lambda said: re.search('"images": ?1', said) is not None,
    "cancel": lambda said: said is True,
}


def run(package: str, checks: dict[str, Callable[[], Any]]) -> None:
    """Runs the checks, and prints the version of the package and what came of each."""
    results = {}
    for name, holds in HOLDS.items():
        if name not in checks:
            continue
        try:
            said = checks[name]()
            results[name] = "yes" if holds(said) else f"answered {said!r}"[:300]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
            results[name] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps({"version": importlib.metadata.version(package), "results": results}))
