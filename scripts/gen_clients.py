"""Writes docs/clients.md from the table of `codex-proxy connect`; a test fails while the two differ.

.venv/bin/python scripts/gen_clients.py
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from codex_proxy.parts.clients.clients import CLIENTS, PROGRAMS, ClientSetup
from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess, blocks

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "clients.json"
CHECKS = ("text", "tools", "schema", "images", "cancel")
TESTED = """
## What was tested

`scripts/clients` runs real clients against the fake agent. *All* is text, tools, a schema, images, and an answer that
the client cancels. What is not named was not tried, or the client has no such feature.

"""
BY_HAND = """
Run once by hand, in November 2026: AG2, Agno, ai-sdk-ollama, aicommits, aisuite, Anthropic's SDK for Go, any-llm,
AutoGen, ax (Chat Completions), browser-use (its models), CAMEL, chatlas, Claude Agent SDK, Cline CLI, clnkr, Codex
SDK, Continue CLI, CrewAI, DeepEval, DSPy, Effect AI, ell, fast-agent, Genkit (Chat Completions, Messages), Google ADK
(by LiteLLM), goose-sdk, gptel (Emacs; all four APIs), gptme, Griptape, Grok CLI, Haystack, huggingface/inference,
Inspect, Instructor, Kilo CLI, LangChain (Messages, Ollama), LangGraph, Langroid, LiteLLM's proxy (to all four APIs),
LlamaIndex (npm), llm (also with llm-anthropic, llm-ollama), lm-eval, magentic, Mastra, Mem0, mini-swe-agent,
Mirascope, multi-llm-ts, OpenAI Agents SDK (npm), opencommit, OpenHands SDK, OpenRouter's AI SDK provider, Outlines,
promptfoo, Pydantic AI (Responses, Messages), ruby-openai, RubyLLM, Semantic Kernel, ShellGPT, smolagents, Strands,
TanStack AI, token.js, Vercel AI SDK (Responses, Messages, Ollama); and guidance, which needs `PROXY_LOGPROBS=ignore`.
"""
TARGET = Path(__file__).resolve().parent.parent / "docs" / "clients.md"

HEAD = """# Clients

*Written by `scripts/gen_clients.py` from `codex_proxy/parts/clients/clients.toml`.*

`codex-proxy connect CLIENT` prints what is here, with your own address, model and key (`--base-url`, `--model`,
`--key`). `--write` changes the client's settings file and keeps the old one (`.bak`); JSON with comments is not
changed.

Any other client of the OpenAI API: the base URL is `http://127.0.0.1:11435/v1`, the key is anything (unless the server
requires one), the model `codex-5` or a name of `GET /v1/models`. For clients of Anthropic's API the base URL is
`http://127.0.0.1:11435`, without `/v1`.
{shared}
## Run a program once

`codex-proxy run CLIENT [ARGS]` runs a program with this server as its model and changes no file of yours: {names}, or
any program that reads `OPENAI_BASE_URL`, `ANTHROPIC_BASE_URL` or `OLLAMA_HOST`:

```sh
codex-proxy run claude -- -p "What does this folder hold?"   # Claude Code with Codex's model
codex-proxy run --agent claude-code codex                    # Codex with Claude Code's model
codex-proxy run -- python my_script.py
```

It uses the server that runs at the address of your settings. If there is none, or with `--agent`, it starts one on a
free port, with a key of its own, and ends it with the program. Its exit status is the program's. The clients above have
tools of their own and get the plain model of that server. A program that was never set up keeps its own files in the
temporary folder.
"""


def document() -> str:
    """Returns the whole file."""
    target = ServerAccess(base_url="http://127.0.0.1:11435/v1", model="codex-5", key=NO_KEY)
    names = ", ".join(f"`{name}`" for name, program in PROGRAMS.items() if not program.unserved)
    shared = "".join(f"\n{note}\n" for note in shared_notes())
    head = HEAD.replace("{names}", names).replace("{shared}", shared)
    return head + tested_clients() + "".join(section(client, target) for client in CLIENTS)


def shared_notes() -> list[str]:
    """Returns the notes that several clients have, for the beginning of the page."""
    counts = Counter(note for client in CLIENTS for note in client.notes)
    return [note for note, count in counts.items() if count > 1]


def tested_clients() -> str:
    """Returns lists of the clients in docs/clients.json, by what works with them."""
    found: dict[str, list[str]] = {}
    for row in json.loads(RESULTS.read_text("utf-8")):
        works = [check for check in CHECKS if check in row["works"]]
        words = "all" if len(works) == len(CHECKS) else ", ".join(works)
        found.setdefault(words, []).append(f"{row['client']} {row['version']} ({row['wire']})")
    rows = "".join(f"- {words}: {', '.join(clients)}\n" for words, clients in found.items())
    return TESTED + rows + BY_HAND


def section(client: ClientSetup, target: ServerAccess) -> str:
    """Returns the section about one client."""
    parts = [
        f"\n## {client.title}\n",
        f"{client.about[0].upper()}{client.about[1:]}. `codex-proxy connect {client.name}`\n",
    ]
    for block in blocks(client, target):
        if client.file is not None and block.file:
            parts.append(f"In `{client.file.path}`:\n" if client.file.path else "In its file:\n")
        parts.append(f"```{block.language or 'text'}\n{block.text}```\n")
    parts += [f"{note}\n" for note in client.notes if note not in shared_notes()]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(document(), "utf-8")
