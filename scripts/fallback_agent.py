"""Prints the agent that `scripts/start` uses if no Codex is on PATH: `fake`, or nothing.

python -P fallback_agent.py LOCK [flags of `codex-proxy serve`]

Prints nothing if the user has named an agent, by a flag, a variable or the settings file, or if the Codex of the extra
`[codex]` can serve: then the server decides, and reports what is wrong. LOCK is `codex` if the user asked for that
extra. Its binary may be installed for another reason (the tests need it): then it serves only if somebody has signed
in.
"""

from __future__ import annotations

import sys

import click

from codex_proxy.agents.codex.program import bundled_codex
from codex_proxy.cli import serve
from codex_proxy.core.faults import UserError
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load

NOTHING_INSTALLED = (
    "No Codex is on PATH, so the embedded FAKE agent will serve: its answers are made up.\n"
    "For a real one run `scripts/start --with-codex`, or install Codex (npm install -g @openai/codex)."
)
NOBODY_SIGNED_IN = (
    "No Codex is on PATH, and nobody has signed in with the one in .venv ({home} does not exist),\n"
    "so the embedded FAKE agent will serve: its answers are made up. To sign in, run\n"
    "  {program} login"
)


def settings_of(arguments: list[str]) -> Settings | None:
    """Returns the settings that the server will have; None if it will refuse them, or only print its help."""
    try:
        flags = dict(serve.make_context("serve", list(arguments), resilient_parsing=True).params)
        return load(flags, flags.pop("config_file"))
    except (click.ClickException, UserError):
        return None


def warning(settings: Settings, *, asked_for: bool) -> str | None:
    """Returns why the fake agent has to serve; None if it has not."""
    if settings.agent != "auto" or settings.agent_plugin or settings.codex_bin:
        return None
    program = bundled_codex()
    if program is None:
        return NOTHING_INSTALLED
    if not asked_for and not settings.codex_home.is_dir():
        return NOBODY_SIGNED_IN.format(home=settings.codex_home, program=program)
    return None


def main(arguments: list[str]) -> None:
    settings = settings_of(arguments[1:])
    if settings is None:
        return
    why = warning(settings, asked_for=arguments[0] == "codex")
    if why is not None:
        rule = "*" * 78
        print(f"{rule}\n{why}\n{rule}", file=sys.stderr)
        print("fake")


if __name__ == "__main__":
    main(sys.argv[1:])
