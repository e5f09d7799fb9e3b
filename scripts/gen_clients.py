"""Writes docs/clients.md from the table of `codex-proxy connect`; a test fails while the two differ.

.venv/bin/python scripts/gen_clients.py
"""

from __future__ import annotations

from pathlib import Path

from codex_proxy.commands.connect.client import ClientSetup
from codex_proxy.commands.connect.command import NO_KEY, ServerAccess, snippet
from codex_proxy.commands.connect.table import CLIENTS

TARGET = Path(__file__).resolve().parent.parent / "docs" / "clients.md"

HEAD = """# Clients

*Written by `scripts/gen_clients.py` from the table of `codex-proxy connect`: change
`codex_proxy/commands/connect/table.py`, then run it.*

`codex-proxy connect CLIENT` prints what is here, with your own address, model and key (`--base-url`, `--model`,
`--key`). Where a client keeps its settings in a file, `--write` changes it and keeps the old file (`.bak`). A file that
cannot be changed without a loss (JSON with comments) is left alone.

Any other client of the OpenAI API: the base URL is `http://127.0.0.1:11435/v1`, the key is anything (unless the server
requires one), the model `codex-5` or a name of `GET /v1/models`. For clients of Anthropic's API the base URL is
`http://127.0.0.1:11435`, without `/v1`.
"""


def document() -> str:
    """The whole file."""
    target = ServerAccess(base_url="http://127.0.0.1:11435/v1", model="codex-5", key=NO_KEY)
    return HEAD + "".join(section(client, target) for client in CLIENTS)


def section(client: ClientSetup, target: ServerAccess) -> str:
    """One client."""
    parts = [
        f"\n## {client.title}\n",
        f"{client.about[0].upper()}{client.about[1:]}. `codex-proxy connect {client.name}`\n",
    ]
    if client.file is not None:
        where = f"In `{client.file.path}`:" if client.file.path else "In its file:"
        parts.append(f"{where}\n\n```{client.file.format}\n{snippet(client, target)}```\n")
    if client.text:
        parts.append(f"```{client.language}\n{target.filled(client.text)}```\n")
    parts += [f"{note}\n" for note in client.notes]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(document(), "utf-8")
