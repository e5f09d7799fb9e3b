"""The command line of `codex exec`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from codex_proxy.agents.codex.sandbox_config import toml_string
from codex_proxy.agents.codex.switches import arguments_of
from codex_proxy.core.turn import Turn

NEEDED_OPTIONS: Final = (
    "--json",
    "--ephemeral",  # else every conversation of a client is written to the user's home
    "--skip-git-repo-check",
    "--sandbox",
    "--model",
    "--image",
    "--output-schema",
)
"""Options without which `codex exec` cannot be used: 0.42 has no `--ephemeral` and prints other lines."""

MAX_PROMPT: Final = 1_048_576

_OPTION: Final = re.compile(r"^\s+(?:-\w, )?(--[a-z-]+)", re.MULTILINE)


def missing_options(help_text: str) -> tuple[str, ...]:
    """Returns the `NEEDED_OPTIONS` that a help text does not list."""
    listed = set(_OPTION.findall(help_text))
    return tuple(name for name in NEEDED_OPTIONS if name not in listed)


def exec_argv(
    program: str,
    turn: Turn,
    pairs: Iterable[tuple[str, str]],
    *,
    images: Sequence[str] = (),
    schema: str | None = None,
) -> tuple[str, ...]:
    """Returns the command line. `pairs` are for `-c`; `images` and `schema` are files. A plain-model turn is read-only.
    The turn's `permissions` replace its sandbox.
    """
    argv = [program, "exec"]
    for path in images:
        argv += ["--image", path]
    # An option of several values ends at the next option, so that none of these is taken for an image.
    argv += ["--json", "--ephemeral", "--skip-git-repo-check"]
    if turn.permissions is None:
        argv += ["--sandbox", "read-only" if turn.mode == "model" else turn.sandbox]
    argv += arguments_of([*pairs, *_config_overrides(turn)])
    if turn.model:
        argv += ["--model", turn.model]
    if schema is not None:
        argv += ["--output-schema", schema]
    return (*argv, "-")


def _config_overrides(turn: Turn) -> list[tuple[str, str]]:
    values = {
        "model_reasoning_effort": turn.effort,
        "model_reasoning_summary": turn.summary,
        "model_verbosity": turn.verbosity,
        "service_tier": turn.service_tier,
        "web_search": "live" if turn.web_search else None,
        "default_permissions": turn.permissions,
    }
    return [(key, toml_string(value)) for key, value in values.items() if value is not None]
