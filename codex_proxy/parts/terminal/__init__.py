"""Sessions with the agents of a running server in the terminal: the command `codex-proxy chat`."""

from typing import Final

from codex_proxy.parts import Part

PART: Final = Part(name="terminal", page="chat.md", commands="codex_proxy.parts.terminal.chat:commands")
