"""A `Turn`: what a client asks for, whichever API the request came through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from codex_proxy.core.items import HistoryItem, Tool

Mode = Literal["model", "agent"]
"""`model`: the model without the agent's own prompt and tools (the "plain model"). `agent`: the agent works in its
folder.
"""

Sandbox = Literal["read-only", "workspace-write", "danger-full-access"]

SANDBOXES: Final[tuple[Sandbox, ...]] = get_args(Sandbox)
"""The sandboxes, from the narrowest to the widest."""


MODEL_SEPARATOR: Final = "/"
"""Separates agent and model in `NAME/MODEL`, if the server has several agents."""


class NamedTools(msgspec.Struct, frozen=True):
    """A `tool_choice` of the only tools that the model may call. `required`: it must call one."""

    names: tuple[str, ...]
    required: bool = False


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTools


HOPS_HEADER: Final = "X-Codex-Hops"
"""The request header with the servers like this one that a request has passed through."""


class Origin(msgspec.Struct, frozen=True):
    """Where a request came from, for an agent that sends it on to another server."""

    hops: tuple[str, ...] = ()
    """The codex-proxy servers through which the request has already come, oldest first."""
    key: str = ""
    """The client's own API key; empty unless the settings say that it is passed on."""
    headers: Mapping[str, str] = {}
    """The headers, by lower-case name, that the settings pass on to some upstream."""
    agents: frozenset[str] | None = None
    """The agents that the client may use, also as a fallback; None for all."""

    def __repr__(self) -> str:
        return f"Origin(hops={self.hops!r})"


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A Chat Completions request whose bytes go to the model server, and whose answer to the client, unchanged."""

    fields: Mapping[str, msgspec.Raw]
    """The fields of the request's JSON object, each as the client wrote it."""
    stream: bool
    include_usage: bool
    """Whether the client asked for the usage in its stream."""
    model_asked: str
    """The client's name of the model, which the answer has too."""

    def __repr__(self) -> str:
        return f"ForwardedRequest(stream={self.stream!r})"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client, independent of HTTP. None means the agent's default."""

    owner: str = ""
    """The name of the client's key, set by the scheduler. What an agent keeps of a turn is for this owner only."""
    model: str
    """The agent's name of the model; empty for the agent's default."""
    history: tuple[HistoryItem, ...]
    """All items of the conversation, oldest first, the newest message last."""
    mode: Mode = "agent"
    """See `Mode`."""
    effort: str | None = None
    summary: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    tools: tuple[Tool, ...] = ()
    """The client's tools, and MCP tools that this server runs."""
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    web_search: bool = False
    """Whether the model is offered the agent's own web search, which its provider runs."""
    max_server_steps: int = 25
    """The steps whose MCP calls this server runs. The output of later calls tells the model to answer."""
    max_server_calls: int | None = None
    """The most MCP calls that this server runs in the turn, or None."""
    output_schema: msgspec.Raw | None = None
    """A JSON schema that the answer's text must follow; None if there is none."""
    schema_field: str = ""
    """The request's field with a schema that the model server has to compile, for errors; empty if there is none."""
    workdir: str = ""
    """The folder of the agent's commands. Admission makes it absolute, and sets the default folder if it is empty."""
    sandbox: Sandbox = "read-only"
    """What the agent's commands may do, unless `permissions` says otherwise."""
    confine_reads: bool = False
    """Whether the agent's commands must not read this server's data. Not every agent can enforce that."""
    permissions: str | None = None
    """What the commands may do, by the agent's own name for it, which no request sets; None: as `sandbox` says."""
    choices: int = 1
    """The number of choices of the answer (OpenAI's `n`)."""
    stop: tuple[str, ...] = ()
    """Stop sequences: the answer ends before the first of them."""
    reports_stop: bool = False
    """Whether the client learns which stop sequence has ended the answer, which only this server can tell."""
    max_tokens: int | None = None
    """The maximum number of output tokens; None for no limit."""
    json_object: bool = False
    """Whether the answer must be a JSON object: the model is told, and the answer checked."""
    origin: Origin = Origin()
    """Where the request came from."""
    instructions_in_outputs: bool = False
    """Whether developer messages after tool outputs may be put into the last output, so that a waiting session can
    continue.
    """
    sampling: Mapping[str, Any] = {}
    """The client's sampling parameters (`temperature`, `seed`, ...), for agents that can set them."""
    passed_fields: Mapping[str, msgspec.Raw] = {}
    """Fields of the request that no attribute represents, for agents with the capability `forwarding`."""
    forwarded: ForwardedRequest | None = None
    """The request that goes to the model server unchanged; the turn then has no history, tools or schema."""


def without_content(turn: Turn) -> Turn:
    """Returns the turn without history, tools and schema, small enough to be kept."""
    return msgspec.structs.replace(turn, history=(), tools=(), output_schema=None, forwarded=None)
