"""Schemas of app-servers for tests: those of real releases, cut down to what the dialect needs, and doctored ones.

The files were written by ``scripts/codex-matrix --schemas`` from what each release writes itself.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from codex_proxy.agents.codex_app_server.binary_check import SCHEMA_FILE

FOLDER = Path(__file__).parent / "golden" / "schemas"

NEWEST = "0.169.0"
ONE_CALL_AT_A_TIME = "0.144.4"
"""It lacks what `parallel_calls` needs."""
TOO_OLD = "0.115.0"
"""It lacks what every turn needs."""


def schema_file(release: str = NEWEST) -> Path:
    return FOLDER / f"{release}.json"


def schema(release: str = NEWEST) -> dict[str, Any]:
    """A document of its own, to be doctored."""
    document: dict[str, Any] = json.loads(schema_file(release).read_text())
    return document


def speaks(file: Path | None = None) -> str:
    """Lines of a shell script that stands for Codex: it writes this schema when it is asked for one."""
    source = shlex.quote(str(schema_file() if file is None else file))
    return f"""case "$1 $2" in "app-server generate-json-schema")
  for out; do :; done  # the last argument is the folder
  exec cp {source} "$out/{SCHEMA_FILE}";;
esac
"""
