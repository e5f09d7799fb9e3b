"""What the fake agent was started with: its environment and its `-c key=value` arguments."""

from __future__ import annotations

import json


class Settings:
    """Environment and arguments, read once at start."""

    __slots__ = ("config", "env")

    def __init__(self, env: dict[str, str], arguments: list[str]) -> None:
        self.env = env
        self.config = read_config(arguments)

    def text(self, name: str) -> str:
        """Returns `FAKE_CODEX_<name>`, or an empty string."""
        return self.env.get("FAKE_CODEX_" + name, "")

    def number(self, name: str, default: float = 0) -> float:
        """Returns `FAKE_CODEX_<name>` as a number."""
        return float(self.text(name) or default)

    def model(self, default: str) -> str:
        """The model of `-c model=...`."""
        return str(self.config.get("model", default))


def read_config(arguments: list[str]) -> dict[str, object]:
    """Returns the settings of `-c key=value` and `--config key=value`. A value that is not JSON is a text."""
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
