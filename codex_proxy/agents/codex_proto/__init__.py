"""`codex proto`: JSON lines both ways, one process per turn. Codex up to 0.4x, and the fake agent."""

from codex_proxy.agents.codex_proto.dialect import CodexProto
from codex_proxy.agents.codex_proto.launch import proto_argv
from codex_proxy.agents.codex_proto.submissions import is_flattened

__all__ = ["CodexProto", "is_flattened", "proto_argv"]
