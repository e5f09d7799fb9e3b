"""How a `codex proto` child is started: settings in, argv out. Pure; it starts nothing.

0.42 reads the values of `-c` as JSON. The program is a tuple, because the fake agent's is one:
`(python, "-m", "fake_proto")`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

NO_VIEW_IMAGE: Mapping[str, object] = {"tools.view_image": False}
"""The tool that reads images from the disk: nobody asked for it, and it goes upstream with each call."""

RETRY_COUNTS = ("request_max_retries", "stream_max_retries")


def proto_argv(
    codex: tuple[str, ...],
    *,
    config: Mapping[str, object] | None = None,
    custom_provider: str | None = None,
    parallel_tool_calls: bool = False,
) -> tuple[str, ...]:
    """The argument vector of one child.

    `config` wins over our own switches. `custom_provider` is the key of a provider in config.toml: its
    retries are switched off, since a retry repeats text that the client has already seen (the built-in
    provider's cannot be changed). `parallel_tool_calls` passes Codex's own switch.
    """
    switches = {
        **NO_VIEW_IMAGE,
        **no_retries(custom_provider),
        **(config or {}),
    }
    argv = [*codex, "proto"]
    for key, value in switches.items():
        argv += ("-c", f"{key}={msgspec.json.encode(value).decode()}")
    if parallel_tool_calls:
        argv += ("--config", "parallel_tool_calls=true")
    return tuple(argv)


def no_retries(provider: str | None) -> dict[str, object]:
    """Both retry counts of a custom provider at 0; nothing without one."""
    return {f"model_providers.{provider}.{name}": 0 for name in RETRY_COUNTS} if provider else {}
