"""What a running program can do, by its preset, its answer to `initialize`, and the operator's settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import object_at, objects_in, text_at, value_at
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import Sandbox
from codex_proxy.parts.acp.failures import CLIENT_META
from codex_proxy.parts.acp.messages import PROTOCOL_VERSION
from codex_proxy.parts.acp.presets import CAPABILITIES, READ_ONLY_MODES, AcpPreset

INITIALIZE: Final[dict[str, Any]] = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        "session": {"notices": {}},  # warnings come as notices, not in the text
        "_meta": CLIENT_META,
    },
}
"""The parameters of `initialize`. They offer no files and terminals: the agent has its own and asks before it uses
them.
"""


class DeclaredFeatures(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    images: bool = False
    http_tools: bool = False
    """Whether it accepts MCP servers over HTTP; every agent accepts stdio."""
    system_prompt: bool = False
    closes: bool = False
    resumes: bool = False
    loads: bool = False
    """Whether it knows `session/load`, which also sends the session's messages again."""
    sign_in: str = ""


def read_declared_features(result: object) -> DeclaredFeatures:
    """Reads the result of `initialize`. Fields of an unexpected type count as missing."""
    able = object_at(result, "agentCapabilities")
    sessions = object_at(able, "sessionCapabilities")
    descriptions = (
        text_at(each, "description") or text_at(each, "name")
        for each in objects_in(value_at(result, "authMethods"))
    )
    return DeclaredFeatures(
        name=text_at(result, "agentInfo", "title") or text_at(result, "agentInfo", "name"),
        version=text_at(result, "agentInfo", "version"),
        images=value_at(able, "promptCapabilities", "image") is True,
        http_tools=value_at(able, "mcpCapabilities", "http") is True,
        system_prompt=isinstance(sessions.get("systemPrompt"), dict),
        closes=isinstance(sessions.get("close"), dict),
        resumes=isinstance(sessions.get("resume"), dict),
        loads=able.get("loadSession") is True,
        sign_in=next(filter(None, descriptions), ""),
    )


class Program(msgspec.Struct, frozen=True):
    preset: AcpPreset
    declared: DeclaredFeatures = DeclaredFeatures()
    unconfined: bool = False
    """The setting `acp.unconfined`: the agent need not ask before it acts."""
    confined: bool = False
    """Whether this server confines it to the turn's sandbox."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        preset, declared = self.preset, self.declared
        has: dict[Capability, bool] = {
            "images": declared.images,
            "system_prompt": declared.system_prompt,
            "sandbox": preset.sandboxed or self.confined,
            "parallel_calls": bool(preset.tested_release) and not preset.one_call_at_a_time,
            "exact_usage": preset.usage == "chunks",  # each request's model calls are told in that request
        }
        lacks = {name for name, there in has.items() if not there}
        return (CAPABILITIES | {name for name, there in has.items() if there}) - lacks

    @property
    def reopen_method(self) -> str:
        """The method that opens a closed session; empty if none works."""
        if not self.preset.reopens:
            return ""
        return "session/resume" if self.declared.resumes else "session/load" if self.declared.loads else ""

    def modes(self, sandbox: Sandbox, *, tools: bool = False) -> Sequence[str]:
        """Returns the modes for a turn, the preferred first; empty if any will do. `tools`: whether the turn has
        client tools.
        """
        writing = self.preset.writing.get(sandbox)
        if writing is not None:
            return (writing,)
        if self.allows_all(sandbox):
            return ()
        if tools and self.preset.tool_modes:
            return self.preset.tool_modes
        return self.preset.read_only or READ_ONLY_MODES

    def allows_all(self, sandbox: Sandbox) -> bool:
        return self.unconfined and sandbox == "danger-full-access"
