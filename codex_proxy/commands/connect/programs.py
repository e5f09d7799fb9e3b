"""The programs that `codex-proxy run` can start, as data: the environment and the arguments with which each uses this
server. A program that is not here gets the variables that SDKs read.

What a program's settings file would have is in its `ClientSetup`, as for `codex-proxy connect`. Placeholders:
`{{base_url}}`, `{{root_url}}`, `{{model}}` and `{{key}}` as there; `{{folder}}` is the temporary folder, and
`{{file}}` the settings file of the `ClientSetup` in it. Sources: the documentation of each program.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from codex_proxy.commands.connect.table import CLAUDE_ENVIRONMENT

SDK_ENVIRONMENT: Mapping[str, str] = {
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


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program that is a client. `name` is the argument of `codex-proxy run`, and that of its file."""

    name: str
    setup: str = ""
    """The name of its `ClientSetup`; empty if none is used."""
    environment: Mapping[str, str] = {}
    removed: tuple[str, ...] = ()
    """Variables of the user that would lead it to another server."""
    arguments: tuple[str, ...] = ()
    """The arguments before those of the user. `{{entries}}` stands for one `-c NAME=VALUE` for each entry of the
    settings file."""
    home: str = ""
    """Where it keeps its own files, if it was ever used."""
    fresh: Mapping[str, str] = {}
    """The variables that put its own files into the temporary folder. They are set if `home` does not exist: a program
    that was never set up leaves nothing behind."""
    install: str
    """How to get it."""
    unserved: str = ""
    """Why it cannot use this server; empty if it can."""


def _folders(*kinds: str) -> dict[str, str]:
    """Returns the variables of the XDG specification that put these kinds of files into the temporary folder."""
    return {f"XDG_{kind}_HOME": "{{folder}}/" + kind.lower() for kind in kinds}


PROGRAMS: Mapping[str, Program] = {
    program.name: program
    for program in (
        Program(
            name="claude",
            setup="claude-code",
            environment=CLAUDE_ENVIRONMENT,
            removed=("ANTHROPIC_API_KEY",),
            # In a file, too: the variables of the user's settings would come before those of the environment.
            arguments=("--settings", "{{file}}"),
            home="~/.claude",
            fresh={"CLAUDE_CONFIG_DIR": "{{folder}}/home", "TMPDIR": "{{folder}}/tmp"},
            install="npm install -g @anthropic-ai/claude-code",
        ),
        Program(
            name="codex",
            setup="codex",
            environment={"CODEX_PROXY_KEY": "{{key}}"},
            arguments=("{{entries}}",),
            home="~/.codex",
            fresh={"CODEX_HOME": "{{folder}}/home"},
            install="npm install -g @openai/codex",
        ),
        Program(
            name="aider",
            environment={
                "AIDER_OPENAI_API_BASE": "{{base_url}}",
                "AIDER_OPENAI_API_KEY": "{{key}}",
                "AIDER_MODEL": "openai/{{model}}",
                "AIDER_SHOW_MODEL_WARNINGS": "false",
            },
            home="~/.aider",
            fresh={"AIDER_ANALYTICS": "false", "AIDER_CHECK_UPDATE": "false"},
            install="pipx install aider-chat",
        ),
        Program(
            name="opencode",
            setup="opencode",
            environment={
                "OPENCODE_CONFIG": "{{file}}",
                "OPENCODE_CONFIG_CONTENT": '{"model": "codex-proxy/{{model}}:model"}',
            },
            home="~/.local/share/opencode",
            fresh=_folders("DATA", "CONFIG", "STATE", "CACHE"),
            install="npm install -g opencode-ai",
        ),
        Program(
            name="qwen",
            environment={
                "OPENAI_BASE_URL": "{{base_url}}",
                "OPENAI_API_KEY": "{{key}}",
                "OPENAI_MODEL": "{{model}}:model",
            },
            arguments=("--auth-type", "openai"),
            home="~/.qwen",
            fresh={"HOME": "{{folder}}/home"},
            install="npm install -g @qwen-code/qwen-code",
        ),
        Program(
            name="goose",
            environment={
                "GOOSE_PROVIDER": "openai",
                "GOOSE_MODEL": "{{model}}:model",
                "OPENAI_HOST": "{{root_url}}",
                "OPENAI_API_KEY": "{{key}}",
                "GOOSE_DISABLE_KEYRING": "1",
            },
            home="~/.config/goose",
            fresh=_folders("DATA", "CONFIG", "STATE"),
            install="see https://block.github.io/goose",
        ),
        Program(
            name="code",
            environment=SDK_ENVIRONMENT,
            # It would return at once, and the server would end.
            arguments=("--wait",),
            home="~/.vscode",
            install="see https://code.visualstudio.com",
        ),
        Program(
            name="gemini",
            install="npm install -g @google/gemini-cli",
            unserved="Gemini CLI speaks Google's API alone, which this server does not serve. Qwen Code "
            "(`codex-proxy run qwen`) is made of it, and speaks OpenAI's.",
        ),
    )
}
