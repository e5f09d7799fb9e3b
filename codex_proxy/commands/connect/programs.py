"""The programs that `codex-proxy run` knows, from `programs.toml`."""

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
    """Variables that would lead the program to another server."""
    arguments: tuple[str, ...] = ()
    """Arguments that come before the user's."""
    home: str = ""
    """The folder of the program's own files; there is none before the first use."""
    fresh: Mapping[str, str] = {}
    """Variables that put the program's own files into the temporary folder, set if there is no `home`, so that nothing
    is left behind.
    """
    install: str = ""
    unserved: str = ""
    """Why the program cannot use this server, if so."""


PROGRAMS: Final = msgspec.toml.decode(
    Path(__file__).with_name("programs.toml").read_bytes(), type=dict[str, Program]
)
"""Programs by their file's name."""
