"""The programs that `codex-proxy run` can start, from `programs.toml`. Values for a program's settings file are in
its `ClientSetup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

SDK_ENVIRONMENT: Final[Mapping[str, str]] = {
    "OPENAI_BASE_URL": "{{base_url}}",
    "OPENAI_API_BASE": "{{base_url}}",
    "OPENAI_API_KEY": "{{key}}",
    "OPENAI_MODEL": "{{model}}",
    "ANTHROPIC_BASE_URL": "{{root_url}}",
    "ANTHROPIC_API_KEY": "{{key}}",
    "OLLAMA_HOST": "{{root_url}}",
    "OLLAMA_API_KEY": "{{key}}",
}
"""The variables that SDKs and many programs read."""


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    setup: str = ""
    """The name of the program's `ClientSetup`; empty if none is used."""
    environment: Mapping[str, str] = msgspec.field(default_factory=lambda: SDK_ENVIRONMENT)
    removed: tuple[str, ...] = ()
    """Variables of the user that would lead the program to another server."""
    arguments: tuple[str, ...] = ()
    """Arguments that come before the user's."""
    home: str = ""
    """The folder of the program's own files, which exists if it was ever used."""
    fresh: Mapping[str, str] = {}
    """Variables that put the program's own files into the temporary folder, set if `home` does not exist: a program
    that was never set up leaves nothing behind.
    """
    install: str = ""
    unserved: str = ""
    """Why the program cannot use this server; empty if it can."""


PROGRAMS: Final = msgspec.toml.decode(
    Path(__file__).with_name("programs.toml").read_bytes(), type=dict[str, Program]
)
"""Programs by the argument of `codex-proxy run`, which is also the name of their file."""
