"""The agents' own tools: what an agent can keep of a `Toolset`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from codex_proxy.core.items import TOOL_NAMES, ToolName
from codex_proxy.core.turn import SANDBOXES, Sandbox, Toolset


class OwnTools(msgspec.Struct, frozen=True):
    """An agent's own tools among which a toolset may choose. Without any, the agent has no tools of its own."""

    sandboxes: Mapping[ToolName, Sandbox] = {}
    """Its tools, each with the narrowest sandbox in which it runs."""
    asks: frozenset[ToolName] = frozenset()
    """The tools before whose calls it asks."""
    fixed: frozenset[ToolName] = frozenset()
    """The tools that it cannot be without."""
    together: frozenset[ToolName] = frozenset()
    """Tools of which it has all, or none."""


class ToolFault(NamedTuple):
    """Why an agent cannot keep what a toolset says of a tool."""

    name: ToolName
    message: str


def toolset_faults(toolset: Toolset, own: OwnTools, sandbox: Sandbox, agent: str) -> Iterator[ToolFault]:
    """Yields what the agent of this name cannot keep of a toolset in a turn with this sandbox."""
    for name in TOOL_NAMES:
        message = _fault(name, toolset, own, sandbox, agent)
        if message:
            yield ToolFault(name, message)


def _fault(name: ToolName, toolset: Toolset, own: OwnTools, sandbox: Sandbox, agent: str) -> str:
    needed = own.sandboxes.get(name)
    if toolset.permission(name) is None:
        others = own.together.intersection(toolset.enabled)
        if name in own.together and others:
            return f"the agent {agent} cannot be without {name} while it has {_list(others)}. Enable it."
        return f"the agent {agent} cannot be without {name}. Enable it." if name in own.fixed else ""
    if needed is None:
        if not own.sandboxes:
            return f"the agent {agent} has no tools of its own. Leave the toolset out."
        return f"the agent {agent} has no tool {name}. It has: {_list(own.sandboxes)}. Disable {name}."
    if name in toolset.asked and name not in own.asks:
        return f"the agent {agent} cannot ask before {name}. It can for: {_list(own.asks)}. Use always_allow."
    if SANDBOXES.index(sandbox) < SANDBOXES.index(needed):
        return (
            f"{name} of the agent {agent} needs the sandbox {needed}, and this key has {sandbox}. Disable the tool, "
            "or have the operator allow more (--sandbox)."
        )
    return ""


def _list(names: Collection[str]) -> str:
    return ", ".join(name for name in TOOL_NAMES if name in names) or "none"
