"""Writes docs/clients.md from the table of `codex-proxy connect`; a test fails while the two differ.

.venv/bin/python scripts/gen_clients.py
"""

from __future__ import annotations

import json
from pathlib import Path

from codex_proxy.commands.connect.client import ClientSetup
from codex_proxy.commands.connect.command import NO_KEY, ServerAccess, snippet
from codex_proxy.commands.connect.programs import PROGRAMS
from codex_proxy.commands.connect.table import CLIENTS

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "clients.json"
CHECKS = ("text", "tools", "schema", "images", "cancel")
TESTED = """
## What has run

Real clients against the fake agent, by `scripts/clients`, each from its lock in `tests/clients/locks`. Programs that
are agents themselves are asked for a text alone. Empty: not tried, or the client has no such feature.

"""
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

## Run a program once

`codex-proxy run CLIENT [ARGS]` runs a program with this server as its model and changes no file of yours: {names}, or
any program that reads `OPENAI_BASE_URL`, `ANTHROPIC_BASE_URL` or `OLLAMA_HOST`:

```sh
codex-proxy run claude -- -p "What does this folder hold?"   # Claude Code with Codex's model
codex-proxy run --agent claude-code codex                    # Codex with Claude Code's model
codex-proxy run -- python my_script.py
```

It uses the server that runs at the address of your settings. If there is none, or with `--agent`, it starts one on a
free port, with a key of its own, and ends it with the program. The program has the terminal, and its exit status is
that of the command. A program that was never set up keeps its own files in the temporary folder, too.
"""


def document() -> str:
    """The whole file."""
    target = ServerAccess(base_url="http://127.0.0.1:11435/v1", model="codex-5", key=NO_KEY)
    names = ", ".join(f"`{name}`" for name, program in PROGRAMS.items() if not program.unserved)
    return HEAD.replace("{names}", names) + tested() + "".join(section(client, target) for client in CLIENTS)


def tested() -> str:
    """The table of the clients that have run, from docs/clients.json."""
    rows = json.loads(RESULTS.read_text("utf-8"))
    marks = "".join(f" {check} |" for check in CHECKS)
    lines = [f"| client | version | API |{marks}", "| --- | --- | --- |" + " --- |" * len(CHECKS)]
    for row in rows:
        works = "".join(f" {'yes' if check in row['works'] else ''} |" for check in CHECKS)
        lines.append(f"| {row['client']} | {row['version']} | {row['wire']} |{works}")
    return TESTED + "\n".join(lines) + "\n"


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
