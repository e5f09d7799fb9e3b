"""The environment and the `-c key=value` arguments of the fake agent."""

from __future__ import annotations

import json


class Settings:
    """The environment variables, and the values of `-c` and `--settings`, read once at the start."""

    __slots__ = ("asks", "config", "env")

    def __init__(self, env: dict[str, str], arguments: list[str]) -> None:
        self.env = env
        self.config = read_config(arguments)
        self.asks = read_asks(arguments)
        """The tools before whose calls a Claude Code asks."""

    def text(self, name: str) -> str:
        """Returns the environment variable `FAKE_CODEX_<name>`; empty if it is not set."""
        return self.env.get("FAKE_CODEX_" + name, "")

    def number(self, name: str, default: float = 0) -> float:
        """Returns the environment variable `FAKE_CODEX_<name>` as a number."""
        return float(self.text(name) or default)

    def model(self, default: str) -> str:
        """Returns the model's name in `-c model=...`; `default` if there is none."""
        return str(self.config.get("model", default))


def read_asks(arguments: list[str]) -> list[str]:
    """Returns the tools that the rules in `--settings JSON` ask about."""
    if "--settings" not in arguments:
        return []
    settings = json.loads(arguments[arguments.index("--settings") + 1])
    return list(settings["permissions"]["ask"])


def read_config(arguments: list[str]) -> dict[str, object]:
    """Returns the settings in `-c key=value` and `--config key=value`. A value that is not JSON is a string."""
    config: dict[str, object] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument in ("-c", "--config"):
            pair = next(rest, "")
        elif argument.startswith("--config="):
            pair = argument.removeprefix("--config=")
        else:
            continue
        key, _, value = pair.partition("=")
        try:
            config[key] = json.loads(value)
        except ValueError:
            config[key] = value
    return config
