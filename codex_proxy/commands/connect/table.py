"""The clients in `clients.toml`, from which all output and documentation about a client is made. Source: each client's
documentation, and its behaviour with this server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from codex_proxy.commands.connect.client import ClientSetup


class _Document(msgspec.Struct, frozen=True):
    """The file `clients.toml`. `texts` replace the placeholders with their names."""

    texts: dict[str, str]
    clients: tuple[ClientSetup, ...]


def _claude_environment(clients: tuple[ClientSetup, ...]) -> Mapping[str, str]:
    file = next(client.file for client in clients if client.name == "claude-code")
    assert file is not None
    environment: Mapping[str, str] = file.values["env"]
    return environment


def _with_texts(client: ClientSetup, texts: Mapping[str, str]) -> ClientSetup:
    def fill(text: str) -> str:
        for name, shared in texts.items():
            text = text.replace("{{" + name + "}}", shared)
        return text

    return msgspec.structs.replace(client, text=fill(client.text), notes=tuple(map(fill, client.notes)))


_document = msgspec.toml.decode(Path(__file__).with_name("clients.toml").read_bytes(), type=_Document)

CLAUDE_ENVIRONMENT = _claude_environment(_document.clients)
"""The variables that Claude Code reads when it starts."""

_lines = "\n".join(f'        "{name}": "{value}",' for name, value in CLAUDE_ENVIRONMENT.items())
_texts = _document.texts | {"claude_environment": _lines}
CLIENTS = tuple(_with_texts(client, _texts) for client in _document.clients)
BY_NAME = {client.name: client for client in CLIENTS}
