"""What agents keep of toolsets, and what is told of the rest."""

from __future__ import annotations

from typing import Final

import pytest

from codex_proxy.core.items import TOOL_NAMES
from codex_proxy.core.own_tools import OwnTools, toolset_faults
from codex_proxy.core.turn import Sandbox, Toolset

OWN: Final = OwnTools(
    sandboxes={"bash": "read-only", "write": "workspace-write", "edit": "workspace-write"},
    asks=frozenset({"bash", "edit"}),
    fixed=frozenset({"bash"}),
    together=frozenset({"write", "edit"}),
)
NEEDS: Final = "needs the sandbox workspace-write, and this key has read-only."


@pytest.mark.parametrize(
    ("toolset", "sandbox", "said"),
    [
        (Toolset(("write", "edit"), ("bash",)), "workspace-write", {}),
        (Toolset(("bash",)), "read-only", {}),
        (Toolset(), "read-only", {"bash": "the agent a cannot be without bash. Enable it."}),
        (
            *(Toolset(("bash", "write")), "workspace-write"),
            {"edit": "the agent a cannot be without edit while it has write. Enable it."},
        ),
        (
            *(Toolset(("bash", "glob")), "read-only"),
            {"glob": "the agent a has no tool glob. It has: bash, write, edit."},
        ),
        (
            *(Toolset(("bash", "edit"), ("write",)), "workspace-write"),
            {"write": "the agent a cannot ask before write. It can for: bash, edit. Use always_allow."},
        ),
        (
            *(Toolset(("bash", "edit", "write")), "read-only"),
            {"write": f"write of the agent a {NEEDS}", "edit": f"edit of the agent a {NEEDS}"},
        ),
    ],
)
def test_each_tool_that_an_agent_cannot_serve_so_is_named(
    toolset: Toolset, sandbox: Sandbox, said: dict[str, str]
) -> None:
    found = dict(toolset_faults(toolset, OWN, sandbox, "a"))
    assert {name: message.split(" Disable")[0] for name, message in found.items()} == said


def test_an_agent_without_tools_serves_only_an_empty_toolset() -> None:
    assert not list(toolset_faults(Toolset(), OwnTools(), "danger-full-access", "a"))
    (fault,) = toolset_faults(Toolset(("read",)), OwnTools(), "danger-full-access", "a")
    assert fault == ("read", "the agent a has no tools of its own. Leave the toolset out.")


def test_a_toolset_has_its_tools_in_one_order_whatever_the_clients_is() -> None:
    found = Toolset.of({"write": "always_ask", "read": "always_allow", "bash": "always_ask"})
    assert found == Toolset(("read",), ("bash", "write"))
    assert found.enabled == ("bash", "read", "write")
    assert Toolset.of(dict.fromkeys(reversed(TOOL_NAMES), "always_allow")).allowed == TOOL_NAMES
